"""The serving benchmark: clients see what the server sent, and figures are what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import plots, servers, serving, serving_engine
from benchmarks.load_client import Got
from benchmarks.report import Row
from benchmarks.servers import Load


def test_clients_count_what_a_server_answers(
    tiny: Callable[[str, str], Path], tmp_path: Path
) -> None:
    with servers.ours(
        tiny("llama", "F32"), tmp_path, n_threads=1, n_parallel=2, n_ctx=256
    ) as server:
        requests = [serving.sent([5, 6, 7 + i], 10 + i, return_token_ids=True) for i in range(5)]
        requests[4].delay_s = 0.2
        load = server.load([*requests, requests[0]], 2)
        assert [each.n_tokens for each in load.got] == [10, 11, 12, 13, 14, 10]
        assert [sum(n for _, n in each.events) for each in load.got[:5]] == [10, 11, 12, 13, 14]
        assert load.got[4].begin_s >= 0.2
        # The first two may come in one step, where neither finds what the other computes.
        assert [each.cached_tokens for each in load.got[2:]] == [2, 2, 2, 2]
        for each in load.got:
            assert 0 < each.begin_s < each.first_s <= each.end_s <= load.wall_s
        assert load.tokens_per_s > 0 and 0 < load.client_share < 2
        assert server.metrics()["generated_tokens_total"] == 70
        with pytest.raises(RuntimeError, match=r"not answered: .*400"):
            server.load([serving.sent([10**6], 1)], 1)
    with pytest.raises(RuntimeError, match=r"did not start: .*nowhere"):
        servers.ours(tmp_path / "nowhere", tmp_path, n_threads=1, n_parallel=2, n_ctx=256)


def test_mixed_requests_have_the_same_lengths_and_other_tokens() -> None:
    one, other = serving.mixed(50, "a"), serving.mixed(50, "b")
    lengths = [len(each.body["prompt"]) for each in one]
    assert lengths == [len(each.body["prompt"]) for each in other]
    assert [each.body["prompt"] for each in one] != [each.body["prompt"] for each in other]
    assert 16 <= min(lengths) < 40 and 300 < max(lengths) <= 512
    assert {16 <= each.body["max_tokens"] <= 64 for each in one} == {True}


def test_percentiles_and_pace() -> None:
    assert serving.p95(range(1, 101)) == 95 and serving.p99(range(1, 101)) == 99
    assert serving.p95([3.0]) == 3.0
    pace = serving._Pace()
    pace.add([(0.5, 9), (1.0, 1), (1.3, 3), (1.5, 1), (9.0, 1)], 1.0, 2.0)
    assert pace.answers_s == [pytest.approx(0.5 / 4)]
    assert pace.waits_s == [pytest.approx(value) for value in (0.1, 0.1, 0.1, 0.2)]


def _load(n: int, seconds: float) -> Load:
    return Load([Got(0.0, seconds / (n - i), seconds, 10) for i in range(n)], seconds, 0.01)


def test_rows_compare_the_pairs() -> None:
    rows = list(
        serving._rows("m", 2, [_load(4, 1), _load(4, 2)], [_load(4, 3), _load(4, 4)], "-np")
    )
    assert (
        [row.test for row in rows]
        == [*serving._client_tests(2)]
        == [
            "serve, 2 clients",
            "serve, 2 clients, p95 to first token",
        ]
    )
    rate, first = rows
    assert (rate.ours, rate.ratio, rate.n_pairs) == (30, 2.5, 2)
    assert (rate.ratio_low, rate.ratio_high) == (2.0, 3.0)
    assert first.ours == 1.5 and first.ratio == pytest.approx((1 / 3 + 1 / 2) / 2)
    alone = next(serving._rows("m", 1, [_load(4, 1)], [], ""))
    assert alone.ratio is None and "rival_server builds it" in alone.note


def test_memory_of_the_cache() -> None:
    rows = list(serving_engine._memory("m"))
    planned = serving_engine.keys("m", True)
    assert [(r.test, r.subject) for r in rows] == planned[:4] and len(planned) == 10
    assert rows[0].share is not None and 0.97 < rows[0].share < 1
    assert rows[1].share == pytest.approx(200 / 224)
    assert rows[2].ratio is not None and rows[2].ratio > 3
    assert serving_engine._fill([33, 64, 65], 5) == (2, 4)


def test_a_picture_over_clients(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [Row(f"serve, {n} clients", "m", "tok/s", 10.0 * n, 5.0 * n) for n in (8, 32)]
    assert [path.name for path in plots.draw(rows, tmp_path)] == ["speed-over-clients.png"]
