"""`localllm run`: one prompt, one answer."""

from __future__ import annotations

import contextlib
import json
import secrets
import select
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import click

from localllm.cli import output
from localllm.cli.interrupt import EXIT_CODE, Interrupts, exit_at_once
from localllm.cli.options import Found, ModelName, Number, find_model, hints
from localllm.errors import ArgumentError, UnsupportedError
from localllm.store import catalog

if TYPE_CHECKING:
    from localllm.params import GenerateParams
    from localllm.session import Chunk, Session

MAX_STDIN_BYTES = 16 << 20  # beyond the context of any model here, and still quick to read
ISAS = ("scalar", "avx2", "avx512", "neon")
_STDIN_PATIENCE_S = 1.0


@click.command("run")
@click.argument("model", metavar="NAME|PATH", type=ModelName())
@click.argument("prompt", nargs=-1)
@click.option(
    "--temperature",
    type=Number(float, 0, 2),
    default=0.8,
    show_default=True,
    help="0 always takes the likeliest token.",
)
@click.option(
    "--seed",
    type=Number(int, 0, 2**64 - 1),
    help="Repeats an answer. [default: a new one each time]",
)
@click.option(
    "--max-tokens",
    type=Number(int, 0, 2**31 - 1),
    help="Longest answer. [default: until the model ends it]",
)
@click.option("--system", metavar="TEXT", help="Instructions that come before the prompt.")
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without a template.")
@click.option(
    "--ctx",
    type=Number(int, 0, 2**24),
    default=0,
    help="Tokens of context. [default: the model's, or what fits]",
)
@click.option(
    "--kv-type",
    type=click.Choice(["f16", "q8_0"]),
    default="f16",
    show_default=True,
    help="How the context is kept in memory.",
)
@click.option(
    "--threads",
    type=Number(int, 0, 1024),
    default=0,
    help="[default: the CPUs this process may use]",
)
@click.option(
    "--isa",
    type=click.Choice(ISAS),
    envvar="LOCALLLM_ISA",
    show_envvar=True,
    help="Force an instruction set. [default: the best one]",
)
@click.option("--verbose", "-v", is_flag=True, help="Counts and timings on stderr at the end.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object with the exact text at the end, nothing before.",
)
def command(
    model: str,
    prompt: tuple[str, ...],
    temperature: float,
    seed: int | None,
    max_tokens: int | None,
    system: str | None,
    raw: bool,
    ctx: int,
    kv_type: str,
    threads: int,
    isa: str | None,
    verbose: bool,
    as_json: bool,
) -> int:
    """Answer PROMPT with a model, which is pulled first if it is not here.

    The prompt is the arguments, or stdin, or both: first the arguments, then an empty line and the
    text from stdin. On the screen control characters in the answer are shown escaped, as \\x1b;
    --json has the exact text. Ctrl-C ends the answer, a second one ends the program.
    """
    if raw and system is not None:
        raise ArgumentError(
            "--system needs the model's template, which --raw leaves out",
            "Write the instructions into the prompt, or leave out --raw.",
        )
    text = _prompt(prompt)
    if system is not None:
        _require_text("--system", system)
    found = find_model(model, may_pull=True)
    if found.to_pull is not None:
        found = _pulled(found)
    elif found.model is not None and found.model.problem is not None:
        problem = output.escape_line(found.model.problem)
        output.say(f"note: {problem}. To check the file: localllm pull {found.label}")

    from localllm.params import GenerateParams
    from localllm.session import Session  # numpy and the engine: 100 ms

    seed = secrets.randbits(32) if seed is None else seed
    params = GenerateParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
    line = output.ProgressLine()

    def show_load(share: float) -> None:
        line.draw(f"loading {found.label} {share:4.0%}")

    with Interrupts(exit_at_once) as interrupts, hints(found):
        session = Session.open(
            found.path, n_threads=threads, n_ctx=ctx, kv_type=kv_type, isa=isa, progress=show_load
        )
        with session:
            interrupts.first = session.cancel
            line.clear()
            chunks = _start(session, found, text, system, params, raw=raw)
            answer, finish_reason = _shown(chunks, quiet=as_json)
            report = _report(found, session, params.temperature, seed, kv_type, finish_reason)
    if as_json:
        output.emit(json.dumps({"model": report.pop("model"), "text": answer, **report}) + "\n")
    if verbose:
        output.say(_verbose_text(report))
    if finish_reason == "length" and max_tokens is None:
        output.say(
            f"note: the answer ends here because the context of {report['n_ctx']} tokens is full"
        )
    return EXIT_CODE if finish_reason == "cancelled" else 0


def _start(
    session: Session,
    found: Found,
    text: str,
    system: str | None,
    params: GenerateParams,
    *,
    raw: bool,
) -> Iterator[Chunk]:
    """Begins the answer: through the model's template, or plainly where it has none."""
    if not raw and not _is_base(found):
        messages = [{"role": "system", "content": system}] if system is not None else []
        try:
            return session.chat([*messages, {"role": "user", "content": text}], params)
        except UnsupportedError as e:  # no template, and none that would fit
            if system is not None:
                raise
            output.say(f"note: {output.escape_line(e.message)}")
            raw = True
    if not raw:
        if system is not None:
            raise ArgumentError(
                f"--system needs a chat template, and {found.label} is a base model without one",
                "Write the instructions into the prompt.",
            )
        output.say(f"note: {found.label} is a base model: it continues the prompt (as with --raw)")
    return session.complete(text, params)


def _is_base(found: Found) -> bool:
    """Whether the catalogue says that this very file was never taught to chat."""
    if found.model is None or found.model.record is None:
        return False
    entry = catalog.load().find(found.model.ref)
    return entry is not None and entry.sha256 == found.model.record.sha256 and not entry.chat


def _shown(chunks: Iterator[Chunk], *, quiet: bool) -> tuple[str, str]:
    """Prints the chunks as they come; returns the whole text and the finish reason.

    Whatever ends it, the generator is closed: only then does no step run any more.
    """
    assert isinstance(chunks, Generator)
    pieces: list[str] = []
    finish_reason = ""
    with contextlib.closing(chunks):
        for chunk in chunks:
            pieces.append(chunk.text)
            finish_reason = chunk.finish_reason or finish_reason
            if chunk.text and not quiet:
                output.emit(output.escape(chunk.text))
    text = "".join(pieces)
    if not quiet and not text.endswith("\n"):
        output.emit("\n")
    return text, finish_reason


def _pulled(found: Found) -> Found:
    from localllm.cli.pull import pull_model

    assert found.to_pull is not None  # the caller looked
    output.say(f"{found.label} is not on this machine yet: pulling it.")
    model = pull_model(found.to_pull)
    return Found(found.label, model.path, model)


def _prompt(words: tuple[str, ...]) -> str:
    pieces = [" ".join(words)] if words else []
    for piece in pieces:
        _require_text("the prompt", piece)
    if sys.stdin is not None and not sys.stdin.isatty():
        pieces.append(_from_stdin(optional=bool(words)))
    text = "\n\n".join(piece for piece in pieces if piece)
    if text.strip():
        return text
    raise ArgumentError(
        "there is no prompt" if not pieces else "the prompt is empty",
        "localllm run smollm2:135m 'Why is the sky blue?'   (or send the prompt to stdin)",
    )


def _from_stdin(*, optional: bool) -> str:
    if optional and sys.platform != "win32":
        # A pipe that nobody writes to or closes would look like a hang.
        ready, _, _ = select.select([sys.stdin], [], [], _STDIN_PATIENCE_S)
        if not ready:
            output.say("note: waiting for the rest of the prompt on stdin (none: < /dev/null)")
    data = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
    if len(data) > MAX_STDIN_BYTES:
        raise ArgumentError(
            f"the prompt on stdin is longer than {MAX_STDIN_BYTES:,} bytes",
            "No model here reads that much at once: send a part of it.",
        )
    try:
        return data.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as e:
        raise ArgumentError(
            f"the prompt on stdin is not UTF-8: byte 0x{data[e.start]:02x} at position {e.start}",
            "Convert it first, as with: iconv -f latin1 -t utf-8",
        ) from e


def _require_text(name: str, text: str) -> None:
    """Python keeps argument bytes that are no UTF-8 as lone surrogates: refuse them."""
    for position, character in enumerate(text):
        if "\ud800" <= character <= "\udfff":
            raise ArgumentError(f"{name} is not valid text: a stray byte at character {position}")


def _report(
    found: Found,
    session: Session,
    temperature: float,
    seed: int,
    kv_type: str,
    finish_reason: str,
) -> dict[str, Any]:
    """What `--json` prints beside the text, and `--verbose` shows. Speeds are None where nothing
    was timed. The first token comes out of the prompt's last step: decoding made the others."""
    stats, info = session.stats, session.info
    return {
        "model": found.label,
        "digest": found.digest,
        "finish_reason": finish_reason,
        "prompt_tokens": stats.prompt_tokens,
        "generated_tokens": stats.generated_tokens,
        "seed": seed,
        "temperature": temperature,
        "load_s": round(stats.load_s, 6),
        "prompt_s": round(stats.prompt_s, 6),
        "first_token_s": round(stats.first_token_s, 6),
        "decode_s": round(stats.decode_s, 6),
        "prompt_tokens_per_s": _speed(stats.prompt_tokens, stats.prompt_s),
        "decode_tokens_per_s": _speed(stats.generated_tokens - 1, stats.decode_s),
        "isa": info.isa,
        "n_threads": info.n_threads,
        "n_ctx": info.n_ctx,
        "kv_type": kv_type,
        "kv_bytes": info.kv_bytes,
        "weight_bytes": info.weight_bytes,
        "architecture": info.architecture,
        "description": info.description,
    }


def _speed(n_tokens: int, seconds: float) -> float | None:
    return round(n_tokens / seconds, 2) if n_tokens > 0 and seconds > 0 else None


def _verbose_text(report: dict[str, Any]) -> str:
    prompt_speed, decode_speed = report["prompt_tokens_per_s"], report["decode_tokens_per_s"]
    rows = {
        "model": f"{report['description']} ({report['architecture']})",
        "load": f"{report['load_s']:.3f} s",
        "prompt": f"{report['prompt_tokens']} tokens in {report['prompt_s']:.3f} s"
        + (f", {prompt_speed:.1f} tokens/s" if prompt_speed else ""),
        "first token": f"after {report['first_token_s']:.3f} s",
        "answer": f"{report['generated_tokens']} tokens"
        + (f", {decode_speed:.1f} tokens/s" if decode_speed else "")
        + f", ended by {report['finish_reason']}",
        "seed": f"{report['seed']}, temperature {report['temperature']:g}",
        "threads": f"{report['n_threads']}, {report['isa']}",
        "weights": output.size_text(report["weight_bytes"]),
        "context": f"{report['n_ctx']} tokens, {report['kv_type']}, "
        f"{output.size_text(report['kv_bytes'])} reserved",
    }
    lines = [f"{name:12} {output.escape_line(text)}" for name, text in rows.items()]
    return "\n" + "\n".join(lines)
