"""A model's first steps in llama.cpp, in a process of their own.

llama.cpp ends its process where a file's numbers make no sense, and some builds of it die on some
CPUs (docs/decisions/0002). So a file is loaded and computes a few tokens in a child first, once:
the verdict is kept, as long as neither the file nor the library changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from localllm import errors, paths
from localllm.engine import llama_library, machine
from localllm.engine.llama_context import CacheCost, CancelFlag, LlamaContext, measure_cost
from localllm.engine.llama_library import Library
from localllm.engine.llama_model import LlamaModel
from localllm.engine.llama_vision import Projector
from localllm.errors import LocalLLMError, UnsupportedError
from localllm.store.durable import replacing

# The child imports what this process would, wherever it runs.
_CHILD = (
    "import sys; sys.path[:] = sys.argv[1].split({separator!r}); "
    "from localllm.engine.llama_trial import run_trial; run_trial(*sys.argv[2:])"
)


def verdicts() -> Path:
    """The folder of verdicts."""
    return paths.current().cache / "llama.cpp"


@dataclass(frozen=True)
class Verdict:
    """How a model runs: whether its weights may be copied into faster layouts, and what a context
    costs."""

    extra_buffers: bool
    cost: CacheCost


def tried(
    library: Library,
    path: Path,
    *,
    kv_type: str,
    n_threads: int,
    may_copy: bool,
    cache_folder: Path,
    progress: Callable[[float], None],
    projector: Path | None = None,
) -> Verdict:
    """The verdict on a file, and a projector for it, from `cache_folder` or from a trial. may_copy:
    there is memory for a copy of the weights in faster layouts. Raises what the trial raised, and
    UnsupportedError if llama.cpp died of the file."""
    files = [path] if projector is None else [path, projector]
    kept = cache_folder / f"{_key(library, files, kv_type, may_copy)}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        value = json.loads(kept.read_text("utf-8"))
        return Verdict(bool(value["extra_buffers"]), CacheCost(**value["cost"]))
    for extra_buffers in (True, False) if may_copy else (False,):
        died, cost = _run(files, kv_type, n_threads, extra_buffers, progress)
        if cost is not None:
            verdict = Verdict(extra_buffers, cost)
            with contextlib.suppress(OSError):
                cache_folder.mkdir(parents=True, exist_ok=True)
                with replacing(kept) as file:
                    file.write(json.dumps(asdict(verdict)).encode())
            return verdict
    raise UnsupportedError(f"llama.cpp {library.version} breaks down on {files[-1]}: {died}")


def _run(
    files: list[Path],
    kv_type: str,
    n_threads: int,
    extra_buffers: bool,
    progress: Callable[[float], None],
) -> tuple[str, CacheCost | None]:
    """(how the child died, None), or ("", the cost)."""
    arguments = [os.pathsep.join(sys.path), kv_type, str(n_threads), str(int(extra_buffers))]
    code = _CHILD.format(separator=os.pathsep)
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, "-c", code, *arguments, *map(str, files)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        )
        last = b""
        with child:
            try:
                assert child.stdout is not None
                for last in child.stdout:
                    if last.startswith(b"{"):
                        break
                    with contextlib.suppress(ValueError):
                        progress(float(last))
            except BaseException:
                child.kill()
                raise
        answer = json.loads(last) if last.startswith(b"{") else None
        if answer is None:
            return _last_words(said, child.returncode), None
    if "error" in answer:
        kind, message, hint = answer["error"]
        raise getattr(errors, kind)(message, hint)
    return "", CacheCost(**answer["cost"])


def _last_words(said: IO[bytes], status: int) -> str:
    said.seek(0)
    lines = said.read(1 << 16).decode("utf-8", "replace").splitlines()
    reason = next((line for line in lines if "GGML_ASSERT" in line), lines[0] if lines else "")
    reason = ascii(reason.rpartition("/")[2][:200])[1:-1]
    return f"signal {-status} {reason}".strip() if status < 0 else f"status {status} {reason}"


def run_trial(
    kv_type: str, n_threads: str, extra_buffers: str, path: str, projector: str = ""
) -> None:
    """What the child does: writes shares of the load, then one line of JSON."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        library = llama_library.load()
        model = LlamaModel.load(
            library,
            Path(path),
            extra_buffers=extra_buffers == "1",
            mapped=True,  # quicker, and a cut file ends only this process
            progress=lambda share: print(f"{share:.3f}", flush=True),
        )
        answer: dict[str, object] = {"cost": asdict(measure_cost(model, kv_type, int(n_threads)))}
        if projector:
            _look_at_something(model, Path(projector), kv_type, int(n_threads))
    except LocalLLMError as e:
        answer = {"error": [type(e).__name__, e.message, e.hint]}
    print(json.dumps(answer), flush=True)
    # Without the clean-up of a library that may be in any state.
    os._exit(0)


def _look_at_something(model: LlamaModel, path: Path, kv_type: str, n_threads: int) -> None:
    """A grey picture, wider than high."""
    projector = Projector(model, path, n_threads)
    ids = projector.ids_of_pixels(bytes([128]) * (3 * 640 * 480), 640, 480)
    context = LlamaContext(model, len(ids) + 1, kv_type, n_threads, CancelFlag())
    position = 0
    while position < len(ids):
        if ids[position] < 0:
            position = context.look(projector, ids[position], position)
        else:
            context.step(ids[position : position + 1], position, want_logits=False)
            position += 1


def _key(library: Library, files: list[Path], kv_type: str, may_copy: bool) -> str:
    """Everything that the verdict hangs on."""
    marks: list[object] = [library.version, kv_type, may_copy, machine.facts().features]
    for file in (*files, Path(library.api._lib._name)):
        facts = file.stat()
        marks += [str(file.absolute()), facts.st_size, facts.st_mtime_ns]
    return hashlib.sha256(json.dumps(marks).encode()).hexdigest()[:16]
