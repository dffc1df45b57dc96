"""What a process of each engine holds at its peak (VmHWM) after a load, with a context of 4,096
tokens of which 512 are computed; and what a token of context takes. Linux only."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.pairs import RivalChoice
from benchmarks.report import Key, Row
from benchmarks.roofs import Threads

STATUS = Path("/proc/self/status")
N_CTX, N_PROMPT = 4096, 512


def peak_bytes() -> int:
    """VmHWM of this process."""
    for line in STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no VmHWM in {STATUS}")


def _child(engine: str, path: Path, kv_type: str, n_threads: int) -> int:
    """Prints the growth of the peak from the imports on."""
    if engine == "ours":
        from benchmarks.ours import Ours as Engine
    else:
        from benchmarks.rival import Rival as Engine  # type: ignore[assignment]
    before = peak_bytes()
    loaded = Engine(path, n_threads=n_threads, n_ctx_tokens=N_CTX, kv_type=kv_type)
    loaded.time_prefill(N_PROMPT)
    print(peak_bytes() - before)
    loaded.close()
    return 0


def _peak(engine: str, path: Path, kv_type: str, n_threads: int) -> tuple[float | None, str]:
    """Bytes, or None and the reason."""
    command = [sys.executable, "-m", "benchmarks.memory", engine, str(path), kv_type]
    done = subprocess.run(
        [*command, str(n_threads)],
        cwd=Path(__file__).resolve().parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return None, f"{engine} ended with {done.returncode}: {last}"
    return float(done.stdout.split()[-1]), ""


def keys(name: str, kv_type: str) -> list[Key]:
    tests = ("peak memory", "context token") if STATUS.exists() else ()
    return [(f"{test}, {kv_type} KV", name) for test in tests]


def measure(
    name: str, path: Path, threads: Threads, choice: RivalChoice, kv_types: tuple[str, ...]
) -> Iterator[Row]:
    """Yields per KV type the peak in MB beside the file's size, and the bytes of a context token.
    Raises RuntimeError where our own process fails."""
    if not STATUS.exists():
        return
    file_mb = path.stat().st_size / 1e6
    for kv_type in kv_types:
        mine, why = _peak("ours", path, kv_type, threads.count)
        if mine is None:
            raise RuntimeError(why)
        theirs, note = (
            _peak("rival", path, kv_type, threads.count)
            if choice.wanted
            else (None, "no rival asked for")
        )
        yield Row(
            f"peak memory, {kv_type} KV",
            name,
            "MB",
            mine / 1e6,
            rival=None if theirs is None else theirs / 1e6,
            ratio=None if theirs is None else theirs / mine,
            roof="MB file",
            roof_value=file_mb,
            share=file_mb / (mine / 1e6),
            note=note,
        )
        yield Row(f"context token, {kv_type} KV", name, "bytes", _token_bytes(path, kv_type))


def _token_bytes(path: Path, kv_type: str) -> float:
    """Bytes of keys and values of one token in all layers."""
    from localllm.engine.runner import Model

    with Model.load(path, n_threads=1) as model:
        n_groups = model.info.n_groups
        return sum(model.kv_block_bytes(kv_type, group) for group in range(n_groups)) / 32


def main() -> int:
    parser = argparse.ArgumentParser(description="The peak of one engine, for `measure`.")
    parser.add_argument("engine", choices=("ours", "rival"))
    parser.add_argument("path", type=Path)
    parser.add_argument("kv_type")
    parser.add_argument("n_threads", type=int)
    args = parser.parse_args()
    return _child(args.engine, args.path, args.kv_type, args.n_threads)


if __name__ == "__main__":
    sys.exit(main())
