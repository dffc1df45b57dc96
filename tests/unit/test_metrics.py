"""What /metrics shows: one line a figure, under our names and under those that dashboards know."""

from __future__ import annotations

import re
from pathlib import Path

from localllm.engine.request import ServiceState
from localllm.server.metrics import Metrics

DOCS = Path(__file__).resolve().parents[2] / "docs" / "METRICS.md"
STATE = ServiceState(
    running=2, waiting=1, blocks_used=3, blocks_cached=4, blocks_free=5, prompt_tokens=100,
    hit_tokens=40, generated_tokens=70, preemptions=6, steps=9, tokens_per_s=11.5,
)  # fmt: skip


def figures(page: str) -> dict[str, float]:
    pairs = [line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#")]
    found = {name: float(value) for name, value in pairs}
    assert len(found) == len(pairs)  # Prometheus takes each series once
    return found


def full() -> Metrics:
    metrics = Metrics()
    for model, seconds in (("a", 0.2), ("a", 3.0), ('b"', 0.2)):
        for measure in ("first_token_s", "queued_s", "per_token_s", "whole_s"):
            metrics.add(model, measure, seconds)
    metrics.add("a", "prompt_tokens", 100)
    metrics.ends["a", "stop"] += 2
    metrics.key_tokens["me", "prompt"] += 1
    metrics.responses["/v1/models", 200] += 1
    return metrics


def test_ours_are_of_all_models_and_vllms_by_model() -> None:
    found = figures(full().page({"a": STATE}))
    assert found["localllm_time_to_first_token_seconds_count"] == 3
    assert found['localllm_time_to_first_token_seconds_bucket{le="0.25"}'] == 2
    name = "vllm:time_to_first_token_seconds"
    assert found[f'{name}_count{{model_name="a"}}'] == 2
    assert found[f'{name}_bucket{{model_name="a",le="0.25"}}'] == 1
    assert found[f'{name}_bucket{{model_name="a",le="+Inf"}}'] == 2
    assert found[f'{name}_sum{{model_name="a"}}'] == 3.2
    assert found[f'{name}_count{{model_name="b\\""}}'] == 1
    assert found['vllm:request_prompt_tokens_bucket{model_name="a",le="50"}'] == 0
    assert found['vllm:request_prompt_tokens_bucket{model_name="a",le="100"}'] == 1
    assert found['vllm:request_success_total{model_name="a",finished_reason="stop"}'] == 2


def test_names_of_others_say_the_same() -> None:
    found = figures(full().page({"a": STATE, "b": STATE}))
    assert found['localllm_requests_running{model="a"}'] == 2
    assert found['vllm:num_requests_running{model_name="a"}'] == 2
    assert found['vllm:num_requests_waiting{model_name="b"}'] == 1
    assert found['vllm:kv_cache_usage_perc{model_name="a"}'] == 0.25
    assert found['vllm:prefix_cache_hits_total{model_name="a"}'] == 40
    assert found["llamacpp:requests_processing"] == 4
    assert found["llamacpp:prompt_tokens_total"] == 120
    assert found["llamacpp:predicted_tokens_seconds"] == 23


def test_counts_outlive_a_model_and_gauges_do_not() -> None:
    metrics = full()
    metrics.unloaded("a", STATE)
    found = figures(metrics.page({}))
    assert found['vllm:generation_tokens_total{model_name="a"}'] == 70
    assert found["llamacpp:tokens_predicted_total"] == 70
    assert found["llamacpp:requests_processing"] == 0
    assert 'vllm:num_requests_running{model_name="a"}' not in found
    found = figures(metrics.page({"a": STATE}))
    assert found['vllm:generation_tokens_total{model_name="a"}'] == 140
    assert found['localllm_requests_running{model="a"}'] == 2


def test_each_name_is_described() -> None:
    page = full().page({"a": STATE})
    shown = re.findall(r"^# TYPE (\S+) ", page, re.M)
    assert len(set(shown)) == len(shown)
    described = re.findall(r"`((?:localllm_|vllm:|llamacpp:)\w+)`", DOCS.read_text("utf-8"))
    assert sorted(described) == sorted(shown)
