"""The rival in a process of its own, in whichever variant is fastest for a test.

Its waiting threads spin, and some builds crash: gcc 12 on a CPU with AMX (docs/decisions/0002).
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localllm.engine import machine

if TYPE_CHECKING:  # only the child loads llama.cpp
    from benchmarks.rival import Rival

Variant = tuple[bool, bool]  # flash attention, repacked weights (AMX tiles among them)
_VARIANTS: list[Variant] = [(True, True), (False, True), (True, False), (False, False)]
_DEEP = 1024  # tokens of depth that take long to fill: tests behind more are tried behind so many
_PROBE = ("time_prefill", (128, 0))
_WARM_UP = (32, 0)  # reads all weights once


class Variants:
    """The variants of a rival. Those that win no kind of test are closed, unless the file is small
    beside the machine's memory; those that hold a long context stay. thorough: weights that are not
    repacked are tried, too."""

    def __init__(
        self, path: Path, options: dict[str, Any], *, keep_all: bool = False, thorough: bool = True
    ) -> None:
        self._path, self._options, self._keep_all = path, options, keep_all
        self._variants = [v for v in _VARIANTS if v[1] or thorough]
        self._loaded: dict[Variant, Rival] = {}
        self._best: dict[str, Variant] = {}

    def time(self, kind: str, method: str, args: tuple[int, ...]) -> tuple[float, str]:
        """Seconds of a `Rival` method and the name of the variant; the first call of each kind
        tries them all once. Raises RuntimeError when none of them runs."""
        variant = self._best_for(kind, method, args)
        seconds: float = getattr(self._rival(variant), method)(*args)
        flash, repack = variant
        return seconds, f"flash {'on' if flash else 'off'}, repack {'on' if repack else 'off'}"

    def _best_for(self, kind: str, method: str, args: tuple[int, ...]) -> Variant:
        if kind in self._best:
            return self._best[kind]
        tried = self._variants
        if self._options.get("kv_type", "f16") != "f16":
            tried = [v for v in tried if v[0]]  # quantized values need flash attention
        if len(args) > 1 and args[1] >= _DEEP:
            if len({repack for _, repack in tried}) > 1:
                _, repack = self._best_for("probe", *_PROBE)
                tried = [v for v in tried if v[1] == repack]
            args = (args[0], _DEEP, *args[2:])
        best = self._best[kind] = (
            tried[0] if len(tried) == 1 else self._fastest(tried, method, args)
        )
        for variant in [] if self._keep_all else [*self._loaded]:
            if variant not in self._best.values() and not self._loaded[variant].holds_much:
                self._loaded.pop(variant).close()
        return best

    def _fastest(self, tried: Sequence[Variant], method: str, args: tuple[int, ...]) -> Variant:
        best, best_seconds, reason = None, float("inf"), ""
        for variant in tried:
            try:
                seconds = getattr(self._rival(variant), method)(*args)
            except RuntimeError as e:
                reason = str(e)
                continue
            if seconds < best_seconds:
                best, best_seconds = variant, seconds
        if best is None:
            raise RuntimeError(reason)
        return best

    def _rival(self, variant: Variant) -> Rival:
        from benchmarks.rival import Rival

        if variant not in self._loaded:
            flash, repack = variant
            rival = Rival(self._path, flash_attention=flash, repack=repack, **self._options)
            rival.time_prefill(*_WARM_UP)
            self._loaded[variant] = rival
        return self._loaded[variant]


def _is_small(path: Path) -> bool:
    """Whether all variants of a file fit into a half of the memory that this process may have."""
    copies = 2 * len(_VARIANTS)  # repacked weights are one more
    return 2 * copies * path.stat().st_size < machine.facts().memory_bytes


def _serve(pipe: Connection, path: Path, thorough: bool, options: dict[str, Any]) -> None:
    """The child: times what the parent asks for."""
    try:
        from benchmarks.rival import features

        pipe.send(features())
    except Exception as e:  # the package is missing, or its library does not load
        pipe.send(RuntimeError(f"llama-cpp-python does not load: {e}"))
        return
    variants = Variants(path, options, keep_all=_is_small(path), thorough=thorough)
    answer_requests(pipe, variants.time)


def answer_requests(pipe: Connection, answer: Callable[..., Any]) -> None:
    """The child's loop: each request is the arguments of `answer`; None ends it."""
    while (request := pipe.recv()) is not None:
        try:
            pipe.send(answer(*request))
        except RuntimeError as e:
            pipe.send(e)


class RivalChild:
    """A process in which `serve(pipe, *args)` sends the features of the rival's build, then answers
    requests; either may be a RuntimeError instead, which is raised here.

    LLAMA_CPP_LIB_PATH in the environment, the `lib` folder of another build of llama-cpp-python, is
    taken over. Raises RuntimeError if it does not start.
    """

    def __init__(self, serve: Callable[..., None], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, child = context.Pipe()
        self._process = context.Process(target=serve, args=(child, *args), daemon=True)
        self._process.start()
        child.close()
        self.features: str = self._receive()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def _receive(self, limit_s: float | None = None) -> Any:
        """What the child sends. One that sends nothing for `limit_s` seconds is ended."""
        try:
            if not self._pipe.poll(limit_s):
                self._process.kill()
                self._process.join(10)
                raise RuntimeError(
                    f"cut: the rival took more than {limit_s:g} s, it has no figure from here on"
                )
            answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join(10)
            raise RuntimeError(
                f"llama.cpp died (exit code {self._process.exitcode}); see docs/decisions/0002"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self, *request: Any, limit_s: float | None = None) -> Any:
        """The child's answer. Raises RuntimeError if the rival refuses or crashes, or is ended
        after `limit_s` seconds."""
        try:
            self._pipe.send(request)
        except OSError:
            raise RuntimeError("llama.cpp died before this test") from None
        return self._receive(limit_s)

    def close(self) -> None:
        if self._process.is_alive():
            with contextlib.suppress(OSError):
                self._pipe.send(None)
            self._process.join(10)
        if self._process.is_alive():
            self._process.terminate()
        self._pipe.close()


class RivalProcess(RivalChild):
    """A rival in a child process. options: those of `Rival`, but the variant. thorough: of
    `Variants`."""

    def __init__(self, path: Path, *, thorough: bool = True, **options: Any) -> None:
        super().__init__(_serve, path, thorough, options)

    def time(
        self, kind: str, method: str, args: tuple[int, ...], limit_s: float | None = None
    ) -> tuple[float, str]:
        """Seconds of a `Rival` method and the variant it ran in, chosen once for each kind of test.
        Raises RuntimeError as `ask` does."""
        seconds, variant = self.ask(kind, method, args, limit_s=limit_s)
        return float(seconds), str(variant)
