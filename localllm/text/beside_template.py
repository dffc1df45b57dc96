"""The template that lies beside a model's file: of a Modelfile, or of a registry.

One in Jinja holds. One in Go, as Ollama's registry has them, cannot be run: where the file has a
template of its own that one is used, else the Jinja template of the family that the Go text is of.
"""

from __future__ import annotations

from dataclasses import dataclass

from localllm.errors import UnsupportedError
from localllm.text.chat_template import KEY
from localllm.text.go_templates import family_of, is_go
from localllm.text.metadata import Metadata, read_text


@dataclass(frozen=True)
class Choice:
    """template: what `ChatTemplate.from_metadata` is given, None for the file's own; note: a line
    for the user on what was chosen, "" if there is nothing to say."""

    template: str | None
    note: str = ""


def choose(metadata: Metadata, beside: str) -> Choice:
    """What a text beside the file comes to. Raises `UnsupportedError` for Go of no known family
    where the file has no template."""
    if not beside:
        return Choice(None)
    if not is_go(beside):
        return Choice(beside)
    if read_text(metadata, KEY):
        return Choice(None)
    family = family_of(beside)
    if family is None:
        raise UnsupportedError(
            "the model's template is in Go, of no family that is known here, and its file has none",
            "Name one: localllm run --template FAMILY|FILE, or continue texts with --raw. "
            "The Go text: localllm show --template",
        )
    return Choice(
        family, f"the model's template is in Go: that of the {family} family takes its place"
    )
