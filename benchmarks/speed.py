"""Prefill and decode of whole models: at depth 0 and far into a context, with f16 and q8_0 keys and
values, alone and many sequences side by side; both engines in turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import pairs
from benchmarks.ours import Ours
from benchmarks.pairs import Engines, RivalChoice, Test
from benchmarks.report import Key, Row
from benchmarks.roofs import INT8, READ, Threads
from localllm.store.work import Work, work_of

SHALLOW = 32  # tokens before a decode at "depth 0"
FEWEST_STEPS = 8  # of a decode, however many sequences or tokens before it
MOST_DEEP_PAIRS = 3  # a prefill behind thousands of tokens takes the rival many seconds


@dataclass(frozen=True)
class Plan:
    """What to run for a model. depths: tokens before the test, of `n_prefill` more tokens and of
    n_decode steps; batches: sequences that decode side by side, at depth 0 with f16 only."""

    n_prefill: int = 512
    n_decode: int = 32
    depths: tuple[int, ...] = (0,)
    kv_types: tuple[str, ...] = ("f16", "q8_0")
    batches: tuple[int, ...] = (1,)


def test_name(what: str, depth: int, kv_type: str) -> str:
    """`prefill 512 at 4096, q8_0 KV`; f16 and depth 0 go without saying."""
    return what + (f" at {depth}" if depth else "") + (f", {kv_type} KV" * (kv_type != "f16"))


def _class_of(depth: int) -> str:
    """The rival's variant is chosen once for all depths but 0, at the first of them."""
    return "deep" if depth else "at 0"


def tests(plan: Plan, kv_type: str, work: Work, kv_bytes: Callable[[int], float]) -> list[Test]:
    """The tests of a plan with one KV type, the deepest last. kv_bytes: of `Ours`."""
    found = []
    for depth in sorted(plan.depths):
        ops = plan.n_prefill * work.layer_ops + work.head_ops
        name = test_name(f"prefill {plan.n_prefill}", depth, kv_type)
        args: tuple[int, ...] = (plan.n_prefill, depth)
        kind = f"prefill, {_class_of(depth)}"
        found.append(Test(name, "time_prefill", args, plan.n_prefill, INT8, ops / 1e9, kind))
        for n in plan.batches if not depth and kv_type == "f16" else (1,):
            steps = max(FEWEST_STEPS, plan.n_decode // (2 if depth else n))
            before = depth or SHALLOW
            name = test_name("decode" if n == 1 else f"decode, batch of {n}", depth, kv_type)
            need = steps * (work.step_bytes + n * kv_bytes(before)) / 1e9
            args = (steps, before, n)
            kind = f"decode, {n} sequences, {_class_of(depth)}"
            found.append(Test(name, "time_decode", args, steps * n, READ, need, kind))
    return found


def keys(name: str, plan: Plan) -> list[Key]:
    return [
        (test.name, name)
        for kv_type in plan.kv_types
        for test in tests(plan, kv_type, Work(0, 0, 0), lambda depth: 0.0)
    ]


def n_ctx_tokens(wanted: Sequence[Test]) -> int:
    """Tokens of context that the largest of the tests takes, with room for blocks in part."""
    most = 0
    for test in wanted:
        n_sequences = test.args[2] if len(test.args) > 2 else 1
        most = max(most, n_sequences * (test.args[0] + test.args[1] + 96))
    return most


def measure(
    name: str,
    path: Path,
    threads: Threads,
    plan: Plan,
    n_pairs: int,
    choice: RivalChoice,
    on_features: Callable[[str], None] = lambda text: None,
    missing: Collection[Key] | None = None,
) -> Iterator[Row]:
    """Yields a row per test, of those that are missing if these are given."""
    work = work_of(path)

    def chosen(kv_type: str, kv_bytes: Callable[[int], float]) -> list[Test]:
        planned = tests(plan, kv_type, work, kv_bytes)
        return [t for t in planned if missing is None or (t.name, name) in missing]

    for kv_type in plan.kv_types:
        wanted = chosen(kv_type, lambda depth: 0.0)
        if not wanted:
            continue
        with Engines(
            path,
            threads,
            choice,
            n_ctx_tokens=n_ctx_tokens(wanted),
            max_sequences=max(plan.batches),
            kv_type=kv_type,
            on_features=on_features,
        ) as engines:
            ours: Ours = engines.ours
            for test in chosen(kv_type, ours.kv_bytes):
                most = MOST_DEEP_PAIRS if test.args[1] > SHALLOW else n_pairs
                yield pairs.run(engines, name, test, min(n_pairs, most))
