"""From nothing to a first token: whole processes, the making of panels, and the memory it takes.

`python -m benchmarks.start` prints all rows.
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import gguf
import numpy as np

from benchmarks import files, ops, synthetic, vocabulary
from benchmarks.report import Key, Row
from localllm import native
from localllm.engine.runner import Model
from localllm.native import ffi, lib

GIB_SHAPE = synthetic.SHAPES["1b"]
#: Models of about 1 GB by the size of their vocabulary.
LARGE: dict[str, tuple[int, Callable[[gguf.GGUFWriter, int], None]]] = {
    "1b, 152k tokens": (151936, vocabulary.byte_level),
    "1b, 262k tokens": (262144, vocabulary.sentencepiece),
}
PACK_BYTES = 64 << 20
PACK_COLUMNS = 2048
READ_BYTES = 1 << 20

# The rival at its quickest: its default context of 512 tokens, the file mapped, one chat turn.
_RIVAL = """
import sys, llama_cpp
model = llama_cpp.Llama(sys.argv[1], verbose=False)
for chunk in model.create_chat_completion(
    [{"role": "user", "content": "Hi"}], max_tokens=1, stream=True
):
    if "role" not in chunk["choices"][0]["delta"]:  # the first chunk comes before any computing
        print(".", flush=True)
        break
"""


def large_model(name: str) -> Path:
    """The file of a model in `LARGE`, written now if it is not in the cache."""
    n_vocab, write_vocabulary = LARGE[name]
    path = files.CACHE / f"start-{n_vocab}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        shape = dataclasses.replace(GIB_SHAPE, n_vocab=n_vocab)
        synthetic.write(partial, shape, "Q4_K_M", vocabulary=write_vocabulary)
        partial.rename(path)
    return path


def seconds_to_first_byte(command: Sequence[str]) -> float:
    """From the start of a process to the first byte that it writes. Raises RuntimeError with its
    stderr if it fails or writes nothing."""
    # An installed package has its modules compiled; a checkout gets them by the first start.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    first = process.stdout.read(1)
    seconds = time.perf_counter() - begin
    _, errors = process.communicate()
    if process.returncode or not first:
        raise RuntimeError(f"{command[0]}: {errors.decode(errors='replace')[-400:]}")
    return seconds


def first_token(name: str, path: Path, n_pairs: int, *, rival: bool = True) -> Row:
    """`localllm run` to the first byte of its answer, in turns with the rival. The first start of
    either is not counted: it fills the file cache, and ours writes its cache of merges."""
    mine = [sys.executable, "-m", "localllm", "run", str(path), "Hi"]
    mine += ["--max-tokens", "1", "--no-record", "--engine", "native"]
    commands = [mine, [sys.executable, "-c", _RIVAL, str(path)]][: 2 if rival else 1]
    for command in commands:
        seconds_to_first_byte(command)
    times = [[seconds_to_first_byte(command) for command in commands] for _ in range(n_pairs)]
    ours = statistics.median(each[0] for each in times)
    if not rival:
        return Row("start to first token", name, "s", ours)
    ratios = [each[1] / each[0] for each in times]
    return Row(
        "start to first token",
        name,
        "s",
        ours,
        rival=statistics.median(each[1] for each in times),
        ratio=statistics.median(ratios),
        ratio_low=min(ratios),
        ratio_high=max(ratios),
        n_pairs=n_pairs,
    )


def pack_rates(types: Sequence[str], n_rounds: int = 5) -> Iterator[Row]:
    """GB/s of raw weights into panels in fresh memory, on one thread; the roof is a plain copy
    into fresh memory in the same rounds."""
    for type_name in types:
        quant = gguf.GGMLQuantizationType[type_name]
        elements, block_bytes = gguf.GGML_QUANT_SIZES[quant]
        n_rows = PACK_BYTES // (PACK_COLUMNS // elements * block_bytes)
        n_bytes = n_rows * (PACK_COLUMNS // elements) * block_bytes
        raw = np.random.default_rng(0).integers(0, 256, n_bytes, np.uint8)
        source = native.array_in(raw, np.uint8, name="src")
        packs, copies = [], []
        for _ in range(n_rounds):
            begin = time.perf_counter()
            weight = native.create(
                "llm_op_weight *", lib.llm_op_weight_create, lib.llm_op_weight_free, quant.value,
                source, n_bytes, n_rows, PACK_COLUMNS, 0,
            )  # fmt: skip
            packs.append(time.perf_counter() - begin)
            ffi.release(weight)
            begin = time.perf_counter()
            copy = raw.copy()
            copies.append(time.perf_counter() - begin)
            del copy
        ours, roof = n_bytes / min(packs) / 1e9, n_bytes / min(copies) / 1e9
        yield Row(
            "load, one thread", type_name, "GB/s", ours,
            roof="copy GB/s", roof_value=roof, share=ours / roof,
        )  # fmt: skip


def load_rate(name: str, path: Path, n_rounds: int = 5) -> Row:
    """GB/s of a file in the page cache, all threads; the roof is a plain read of the file into
    fresh memory on as many threads in the same rounds."""
    loads, reads = [], []
    for _ in range(n_rounds):
        begin = time.perf_counter()
        model = Model.load(path)
        loads.append(time.perf_counter() - begin)
        n_threads = model.info.n_threads
        model.close()
        reads.append(read_seconds(path, n_threads))
    size = path.stat().st_size / 1e9
    ours, roof = size / min(loads), size / min(reads)
    return Row(
        "load, all threads", name, "GB/s", ours,
        roof="read GB/s", roof_value=roof, share=ours / roof,
    )  # fmt: skip


def read_seconds(path: Path, n_threads: int) -> float:
    """Of a read of a whole file into memory that no process has touched before, in turns of 1 MiB
    on all threads."""
    size = path.stat().st_size
    offsets = iter(range(0, size, READ_BYTES))
    with mmap.mmap(-1, size) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        view = memoryview(memory)

        def read() -> None:
            with path.open("rb", buffering=0) as file:
                for at in offsets:
                    file.seek(at)
                    file.readinto(view[at : at + READ_BYTES])

        threads = [threading.Thread(target=read) for _ in range(n_threads)]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - begin
        view.release()
    return seconds


def peak_memory(name: str, path: Path) -> Row:
    """The peak of the resident set over a load, as a share of the file; Linux only."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load_once", str(path)],
        capture_output=True, text=True, check=True, cwd=Path(__file__).resolve().parents[1],
    )  # fmt: skip
    growth = json.loads(done.stdout)["growth_mib"]
    file_mib = path.stat().st_size / 2**20
    return Row(
        "peak RSS of a load", name, "MiB", growth,
        roof="file MiB", roof_value=file_mib, share=growth / file_mib,
    )  # fmt: skip


def _model_tests() -> tuple[str, ...]:
    peak = ("peak RSS of a load",) if Path("/proc/self/clear_refs").exists() else ()
    return ("load, all threads", *peak, "start to first token")


def keys() -> list[Key]:
    """All rows, for the real models and those of `LARGE`."""
    packs = [("load, one thread", type_name) for type_name in ops.TYPES]
    return packs + [(test, name) for name in (*files.REAL, *LARGE) for test in _model_tests()]


def measure(
    n_pairs: int = 5, *, rival: bool = True, missing: Collection[Key] | None = None
) -> Iterator[Row]:
    """Yields the rows of `keys`, of those that are missing if these are given."""
    wanted = keys() if missing is None else missing
    yield from pack_rates([t for t in ops.TYPES if ("load, one thread", t) in wanted])
    for name in (*files.REAL, *LARGE):
        path: Path | None = None
        for test in _model_tests():
            if (test, name) not in wanted:
                continue
            path = path or (large_model(name) if name in LARGE else files.path_of(name))
            if test == "load, all threads":
                yield load_rate(name, path)
            elif test == "start to first token":
                yield first_token(name, path, n_pairs, rival=rival)
            else:
                yield peak_memory(name, path)


def main() -> int:
    for row in measure(rival="--no-rival" not in sys.argv):
        print(dataclasses.asdict(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
