"""Serving many at once, beside `llama-server`: tokens per second and time to the first token over
the number of clients, memory of the cache, prefix hits, and decodes beside a long prompt.

Both servers are processes, loaded side by side, and asked in turn. Prompts are token numbers that
no other request shares, answers have their whole length whatever is sampled. `python -m
benchmarks.serving PART... [--quick]` runs parts of it alone and keeps no row.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import files, rival_server, servers, serving_engine, start
from benchmarks.load_client import Sent
from benchmarks.report import Key, Row
from benchmarks.servers import Load, Server

#: The model that everything runs on, and the one that is only compared at `LARGE_CLIENTS`.
SMALL, LARGE = files.REAL[0], "1b, 152k tokens"
LARGE_CLIENTS = 8
#: Clients: requests of a run, and pairs of runs.
CLIENTS = {1: (8, 3), 8: (40, 3), 32: (96, 2), 64: (128, 2)}
LARGE_RUN = (24, 2)
PROMPT_TOKENS, ANSWER_TOKENS = (16, 512), (16, 64)
N_CTX = 2048  # tokens of a sequence of ours, and of each of 16 in the rival's cache
RIVAL_CACHE = 16 * N_CTX
OUR_PARALLEL = 64  # more than any row has clients: the rival too has its best
LONG_PROMPT, LONG_CTX, LONG_PARALLEL = 1900, 2048, 16
HIT_PROMPT, HIT_PAIRS = 2048, 5
BESIDE_PROMPT, BESIDE_DECODES = 4096, 8
_HIT_TEST = f"prefix hit of {HIT_PROMPT} tokens, first token"
GOALS = {
    "rate": "goal 2.5x, floor 1.7x at 8 clients",
    "first": "goal 0.25x",
    "cliff": "goal 0.95x, floor 0.85x",
    "hit": "goal 3 %, floor 10 %",
    "beside": "goal 1.5x, floor 2x",
}


@dataclass
class Setup:
    """n_threads 0: the default. wanted: whether there is to be a rival."""

    n_threads: int
    n_cpus: int
    quick: bool
    wanted: bool
    parts: Sequence[str] = ()
    clients: Sequence[int] = ()
    home: Path = field(default_factory=Path)
    tried: dict[tuple[str, int], tuple[int, bool]] = field(default_factory=dict)

    @property
    def has_rival(self) -> bool:
        return self.wanted and rival_server.binary().exists()


def mixed(
    n: int,
    seed: str,
    prompt_tokens: tuple[int, int] = PROMPT_TOKENS,
    answer_tokens: tuple[int, int] = ANSWER_TOKENS,
) -> list[Sent]:
    """Requests with prompts and answers of lengths between two bounds: those of prompts evenly by
    their logarithm. The same lengths for every seed, other tokens."""
    lengths, tokens = random.Random(n), random.Random(seed)
    low, high = prompt_tokens
    made = []
    for _ in range(n):
        n_prompt = round(low * (high / low) ** lengths.random())
        made.append(sent([tokens.randrange(1000, 40000) for _ in range(n_prompt)],
                         lengths.randint(*answer_tokens)))  # fmt: skip
    return made


def sent(prompt: list[int], n_tokens: int, delay_s: float = 0.0, **more: object) -> Sent:
    """A greedy answer of exactly n_tokens."""
    body = {
        "prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True}, **more,
    }  # fmt: skip
    return Sent(body, delay_s)


def p99(values: Sequence[float]) -> float:
    return sorted(values)[max(0, -(-99 * len(values) // 100) - 1)]


def p95(values: Sequence[float]) -> float:
    return sorted(values)[max(0, -(-95 * len(values) // 100) - 1)]


def _clients(setup: Setup) -> Iterator[Row]:
    """G7: tokens per second and the first token, over the number of clients."""
    small = files.path_of(SMALL)
    for n_clients in _counts(setup):
        n_requests, n_pairs = CLIENTS[n_clients]
        yield from _beside_rival(setup, SMALL, small, n_clients, n_requests, n_pairs)


def _counts(setup: Setup) -> Sequence[int]:
    return setup.clients or ([8, 32] if setup.quick else [*CLIENTS])


def _large(setup: Setup) -> Iterator[Row]:
    yield from _beside_rival(setup, LARGE, start.large_model(LARGE), LARGE_CLIENTS, *LARGE_RUN)


def _beside_rival(
    setup: Setup, name: str, path: Path, n_clients: int, n_requests: int, n_pairs: int
) -> Iterator[Row]:
    if setup.quick:
        n_requests, n_pairs = max(n_clients, n_requests // 2), 1
    with ExitStack() as stack:
        n_threads = setup.n_threads
        ours = stack.enter_context(
            servers.ours(path, setup.home, n_threads=n_threads, n_parallel=OUR_PARALLEL,
                         n_ctx=N_CTX)
        )  # fmt: skip
        theirs, ran_as = None, ""
        if setup.has_rival:
            n_parallel, flash = _best_of_rival(setup, name, path, n_clients)
            ran_as = f"-np {n_parallel}, flash {'on' if flash else 'off'}"
            theirs = stack.enter_context(_rival(setup, path, n_parallel, flash))
        loads: dict[str, list[Load]] = {"ours": [], "theirs": []}
        both = [("ours", ours), ("theirs", theirs)]
        for _, server in both:
            if server:  # pages are touched, step costs known
                server.load(mixed(min(n_clients, 8), f"warm {name}"), min(n_clients, 8))
        for i in range(n_pairs):
            for who, server in both:
                if server:
                    requests = mixed(n_requests, f"{name} {n_clients} {i}")
                    loads[who].append(server.load(requests, n_clients))
    yield from _rows(name, n_clients, loads["ours"], loads["theirs"], ran_as)


def _rows(
    name: str, n_clients: int, ours: list[Load], theirs: list[Load], ran_as: str
) -> Iterator[Row]:
    """Of the runs with n_clients: tokens per second, and the first token."""
    share = max(load.client_share for load in ours)
    note = f"{GOALS['rate']}; our clients took {share:.0%} of a CPU"
    if not theirs:
        note += "; no llama-server: python -m benchmarks.rival_server builds it"
    first = n_clients if len(ours[0].got) > n_clients else 0
    settled = GOALS["first"] + (", without each client's first request" if first else "")
    rate_test, first_test = _client_tests(n_clients)
    for test, unit, figure, goal in (
        (rate_test, "tok/s", lambda load: load.tokens_per_s, note),
        (first_test, "s", lambda load: p95(load.first_token_s[first:]), settled),
    ):
        mine, other = [figure(load) for load in ours], [figure(load) for load in theirs]
        ratios = [a / b for a, b in zip(mine, other, strict=False)]
        yield Row(
            test, name, unit, statistics.median(mine),
            statistics.median(other) if other else None,
            statistics.median(ratios) if ratios else None,
            min(ratios, default=None), max(ratios, default=None),
            n_pairs=len(ratios), rival_variant=ran_as, note=goal,
        )  # fmt: skip


def _client_tests(n_clients: int) -> tuple[str, str]:
    test = f"serve, {n_clients} client{'s' * (n_clients > 1)}"
    return test, f"{test}, p95 to first token"


def _rival(setup: Setup, path: Path, n_parallel: int, flash: bool) -> Server:
    n_threads = setup.n_threads or setup.n_cpus
    return servers.rival(
        path, n_threads=n_threads, n_parallel=n_parallel, n_tokens=RIVAL_CACHE, flash=flash
    )


def _best_of_rival(setup: Setup, name: str, path: Path, n_clients: int) -> tuple[int, bool]:
    """(-np, flash attention) that give the most tokens per second in a short run: the two kinds of
    attention at 8 slots, and then other numbers of slots."""
    most = min(n_clients, LARGE_CLIENTS) if setup.quick or name == LARGE else n_clients

    def rate(n_parallel: int, flash: bool) -> float:
        key = (name, n_clients)
        requests = mixed(max(4, n_clients // 2), f"try {key} {n_parallel} {flash}")
        with _rival(setup, path, n_parallel, flash) as server:
            return server.load(requests, n_clients).tokens_per_s

    first = min(8, n_clients)
    if (name, 0) not in setup.tried:
        flash = max((True, False), key=lambda each: rate(first, each))
        setup.tried[name, 0] = first, flash
    flash = setup.tried[name, 0][1]
    numbers = sorted({first, *(n for n in (16, 32, 64) if n <= most)})
    best = max(numbers, key=lambda n: rate(n, flash)) if len(numbers) > 1 else first
    return best, flash


def _cliff(setup: Setup) -> Iterator[Row]:
    """G7: twice the clients, half of them with long prompts, in a cache that holds a part."""
    rates: dict[int, list[float]] = {32: [], 64: []}
    long_prompt = _long_prompt(setup)
    with servers.ours(
        files.path_of(SMALL), setup.home, n_threads=setup.n_threads, n_parallel=LONG_PARALLEL,
        n_ctx=LONG_CTX,
    ) as server:  # fmt: skip
        for i in range(1 if setup.quick else 2):
            for n_clients, got in rates.items():
                short = mixed(n_clients // 2, f"cliff {i} {n_clients}")
                long = mixed(n_clients // 2, f"long {i} {n_clients}", (long_prompt, long_prompt))
                requests = [each for pair in zip(short, long, strict=True) for each in pair]
                load = server.load(requests, n_clients)
                n_tokens = sum(len(each.body["prompt"]) for each in requests)
                n_tokens += sum(each.n_tokens for each in load.got)
                got.append(n_tokens / load.last_s)
    ratios = [many / few for few, many in zip(*rates.values(), strict=True)]
    yield Row(
        _cliff_test(setup), SMALL, "tok/s, prompts too",
        statistics.median(rates[64]), ratio=statistics.median(ratios), ratio_low=min(ratios),
        ratio_high=max(ratios), n_pairs=len(ratios), roof="tok/s at 32",
        roof_value=statistics.median(rates[32]), share=statistics.median(ratios),
        note=GOALS["cliff"],
    )  # fmt: skip


def _long_prompt(setup: Setup) -> int:
    return LONG_PROMPT // 4 if setup.quick else LONG_PROMPT


def _cliff_test(setup: Setup) -> str:
    return f"serve, 64 clients over 32, half with {_long_prompt(setup)} tokens"


def _hit(setup: Setup) -> Iterator[Row]:
    """G9: the first token of a prompt that is known, over that of one that is not."""
    cold, hit = [], []
    n_pairs = 2 if setup.quick else HIT_PAIRS
    with servers.ours(
        files.path_of(SMALL), setup.home, n_threads=setup.n_threads, n_parallel=8, n_ctx=4096
    ) as server:
        for i in range(n_pairs + 1):
            (request,) = mixed(1, f"hit {i}", (HIT_PROMPT, HIT_PROMPT), (1, 1))
            loads = [server.load([request], 1) for _ in range(2)]
            cached = [load.got[0].cached_tokens for load in loads]
            if cached != [0, HIT_PROMPT - 1]:
                raise RuntimeError(f"{cached} tokens were cached, not [0, {HIT_PROMPT - 1}]")
            if i:  # the first one touches the memory
                cold += loads[0].first_token_s
                hit += loads[1].first_token_s
    shares = [a / b for a, b in zip(hit, cold, strict=True)]
    yield Row(
        _HIT_TEST, SMALL, "s", statistics.median(hit),
        roof="s cold", roof_value=statistics.median(cold), share=statistics.median(shares),
        note=GOALS["hit"],
    )  # fmt: skip


def _beside(setup: Setup) -> Iterator[Row]:
    """G10: time per output token of decodes while a long prompt is computed, over that without."""
    n_prompt = _beside_prompt(setup)
    idle, busy = _Pace(), _Pace()
    prompt_s = []
    with servers.ours(
        files.path_of(SMALL), setup.home, n_threads=setup.n_threads,
        n_parallel=BESIDE_DECODES + 1, n_ctx=N_CTX + BESIDE_PROMPT,
    ) as server:  # fmt: skip
        for i in range(1 if setup.quick else 2):
            decodes = [
                sent(each.body["prompt"], 480, return_token_ids=True)
                for each in mixed(BESIDE_DECODES, f"beside {i}", (64, 64))
            ]
            load = server.load(decodes, BESIDE_DECODES)
            all_run = max(load.first_token_s)
            for each in load.got:
                idle.add(each.events, all_run, min(e.end_s for e in load.got))
            late = mixed(1, f"late {i}", (n_prompt, n_prompt), (1, 1))
            late[0].delay_s = all_run + 0.5
            load = server.load([*decodes, *late], BESIDE_DECODES + 1)
            prompt = load.got[-1]
            prompt_s.append(prompt.first_s - prompt.begin_s)
            for each in load.got[:-1]:
                busy.add(each.events, prompt.begin_s, min(prompt.first_s, each.end_s))
    answers, waits = _beside_tests(setup)
    for test, mine, alone, note in (
        (answers, busy.answers_s, idle.answers_s, GOALS["beside"]),
        (waits, busy.waits_s, idle.waits_s, "no goal"),
    ):
        with_it, without = p99(mine), p99(alone)
        yield Row(
            test, SMALL, "ms", 1e3 * with_it, roof="ms without", roof_value=1e3 * without,
            share=with_it / without,
            note=f"{note}; first token of the prompt after {statistics.median(prompt_s):.2f} s",
        )  # fmt: skip


def _beside_prompt(setup: Setup) -> int:
    return BESIDE_PROMPT // 2 if setup.quick else BESIDE_PROMPT


def _beside_tests(setup: Setup) -> tuple[str, str]:
    test = f"{BESIDE_DECODES} decodes beside a prompt of {_beside_prompt(setup)}, per token, p99 of"
    return f"{test} answers", f"{test} waits between pieces"


class _Pace:
    """Seconds per token: of each answer's whole time, and of each token's own wait, in which the
    tokens of a piece share."""

    def __init__(self) -> None:
        self.answers_s: list[float] = []
        self.waits_s: list[float] = []

    def add(self, events: Sequence[tuple[float, int]], begin_s: float, end_s: float) -> None:
        """The pieces of an answer that came within a time."""
        seen = [event for event in events if begin_s <= event[0] <= end_s]
        for (before, _), (now, n) in itertools.pairwise(seen):
            self.waits_s += [(now - before) / n] * n
        if len(seen) > 1:
            self.answers_s.append((seen[-1][0] - seen[0][0]) / sum(n for _, n in seen[1:]))


def _engine(setup: Setup) -> Iterator[Row]:
    yield from serving_engine.measure(SMALL, files.path_of(SMALL), setup.n_threads, setup.quick)


PARTS: dict[str, Callable[[Setup], Iterator[Row]]] = {
    "clients": _clients,
    "large": _large,
    "cliff": _cliff,
    "hit": _hit,
    "beside": _beside,
    "engine": _engine,
}


def keys(setup: Setup) -> dict[str, list[Key]]:
    """The rows of each part."""
    counts = [test for n in _counts(setup) for test in _client_tests(n)]
    return {
        "clients": [(test, SMALL) for test in counts],
        "large": [(test, LARGE) for test in _client_tests(LARGE_CLIENTS)],
        "cliff": [(_cliff_test(setup), SMALL)],
        "hit": [(_HIT_TEST, SMALL)],
        "beside": [(test, SMALL) for test in _beside_tests(setup)],
        "engine": serving_engine.keys(SMALL, setup.quick),
    }


def measure(setup: Setup, missing: Collection[Key] | None = None) -> Iterator[Row]:
    """The rows of the parts that are asked for, all when none is; of those with rows that are
    missing if these are given."""
    planned = keys(setup)
    if missing is not None:
        setup.clients = [n for n in _counts(setup) if (_client_tests(n)[1], SMALL) in missing]
    with tempfile.TemporaryDirectory() as home:  # step costs are measured now, not read
        setup.home = Path(home)
        for name in setup.parts or PARTS:
            if missing is None or any(key in missing for key in planned[name]):
                yield from PARTS[name](setup)


def main() -> None:
    from benchmarks.report import table
    from localllm.engine import machine

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--clients", nargs="+", type=int, default=(), choices=CLIENTS)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-rival", action="store_true")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    n_cpus = machine.facts().n_cpus
    setup = Setup(args.threads, n_cpus, args.quick, not args.no_rival, args.parts, args.clients)
    rows = []
    for row in measure(setup):
        rows.append(row)
        print(row.test, row.ours, row.rival, row.ratio, row.note, file=sys.stderr, flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
