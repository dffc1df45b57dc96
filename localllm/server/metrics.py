"""What /metrics shows, in the text format of Prometheus: our names, and those of vLLM and
llama-server for the same figures, which dashboards read (docs/METRICS.md).

Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from localllm.engine.request import ServiceState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_LONG_S = (*_SECONDS, 300, 600, 1800, 3600)
_PER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_TOKENS = (*(n * 10**power for power in range(5) for n in (1, 2, 5)), 100_000)

#: Fields of `ServiceState`: how they are called, their kind and what they are.
_OF_SERVICE = {
    "running": ("requests_running", "gauge", "Requests that are computed."),
    "waiting": ("requests_waiting", "gauge", "Requests in the queue."),
    "blocks_free": ("kv_blocks_free", "gauge", "Blocks of the KV pool that hold nothing."),
    "blocks_used": ("kv_blocks_used", "gauge", "Blocks of the KV pool that requests hold."),
    "blocks_cached": ("kv_blocks_cached", "gauge", "Blocks that only the prefix cache holds."),
    "tokens_per_s": ("tokens_per_second", "gauge", "Tokens generated per second, of late."),
    "steps": ("steps_total", "counter", "Steps of the engine."),
    "preemptions": ("preemptions_total", "counter", "Requests that gave their blocks up."),
    "prompt_tokens": ("prompt_tokens_total", "counter", "Tokens of prompts."),
    "hit_tokens": ("prefix_hit_tokens_total", "counter", "Tokens of prompts that were cached."),
    "restored_tokens": ("restored_tokens_total", "counter", "Tokens back from memory or disk."),
    "kv_ram_bytes": ("kv_ram_bytes", "gauge", "What the KV pool gave up, in memory."),
    "kv_disk_bytes": ("kv_disk_bytes", "gauge", "Computed conversations on the disk."),
    "kv_disk_pages": ("kv_disk_pages", "gauge", "Blocks of this model on the disk."),
    "kv_disk_written": ("kv_disk_written_pages_total", "counter", "Blocks written to the disk."),
    "kv_disk_damaged": ("kv_disk_damaged_pages_total", "counter", "Damaged ones, removed."),
    "kv_disk_evicted": ("kv_disk_evicted_pages_total", "counter", "Removed to make room."),
    "kv_disk_skipped": ("kv_disk_skipped_pages_total", "counter", "Blocks that were not written."),
    "kv_disk_stopped": ("kv_disk_stopped", "gauge", "1: the disk failed, nothing is written."),
    "generated_tokens": ("generated_tokens_total", "counter", "Tokens of answers."),
}


@dataclass(frozen=True)
class _Measure:
    """Of answers, as a histogram. vllm: names by model; ours: the name of the sum, if there is
    one."""

    vllm: tuple[str, ...]
    bounds: tuple[float, ...]
    text: str
    ours: str = ""


_OF_ANSWERS = {
    "first_token_s": _Measure(
        ("time_to_first_token_seconds",),
        _SECONDS,
        "From the request to its first token.",
        "time_to_first_token_seconds",
    ),
    "queued_s": _Measure(
        ("request_queue_time_seconds",), _SECONDS, "In the queue of the engine.", "queue_seconds"
    ),
    "per_token_s": _Measure(
        ("inter_token_latency_seconds", "request_time_per_output_token_seconds"),
        _PER_TOKEN_S,
        "Between tokens of an answer, on average.",
        "time_per_output_token_seconds",
    ),
    "whole_s": _Measure(
        ("e2e_request_latency_seconds",), _LONG_S, "From the request to the end of its answer."
    ),
    "prompt_s": _Measure(
        ("request_prefill_time_seconds",), _SECONDS, "From the queue to the first token."
    ),
    "decode_s": _Measure(
        ("request_decode_time_seconds",), _LONG_S, "From the first token to the last."
    ),
    "prompt_tokens": _Measure(("request_prompt_tokens",), _TOKENS, "Tokens of a prompt."),
    "answer_tokens": _Measure(("request_generation_tokens",), _TOKENS, "Tokens of an answer."),
}

Figures = Mapping[str, float]  # of a model, by fields of `ServiceState`


def _pool_used(figures: Figures) -> float:
    used = figures["blocks_used"]
    return used / max(1, used + figures["blocks_free"] + figures["blocks_cached"])


#: vLLM's names of what `_OF_SERVICE` has: their kind, and what they are made of.
_VLLM: dict[str, tuple[str, Callable[[Figures], float]]] = {
    "num_requests_running": ("gauge", lambda it: it["running"]),
    "num_requests_waiting": ("gauge", lambda it: it["waiting"]),
    "kv_cache_usage_perc": ("gauge", _pool_used),
    "prompt_tokens_total": ("counter", lambda it: it["prompt_tokens"]),
    "generation_tokens_total": ("counter", lambda it: it["generated_tokens"]),
    "prefix_cache_queries_total": ("counter", lambda it: it["prompt_tokens"]),
    "prefix_cache_hits_total": ("counter", lambda it: it["hit_tokens"]),
    "num_preemptions_total": ("counter", lambda it: it["preemptions"]),
}
#: llama-server's, which are of all models together.
_LLAMA_SERVER: dict[str, tuple[str, Callable[[Figures], float]]] = {
    "requests_processing": ("gauge", lambda it: it["running"]),
    "requests_deferred": ("gauge", lambda it: it["waiting"]),
    "prompt_tokens_total": ("counter", lambda it: it["prompt_tokens"] - it["hit_tokens"]),
    "tokens_predicted_total": ("counter", lambda it: it["generated_tokens"]),
    "predicted_tokens_seconds": ("gauge", lambda it: it["tokens_per_s"]),
    "n_decode_total": ("counter", lambda it: it["steps"]),
}


class Histogram:
    """Counts of values by upper bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_all(self, other: Histogram) -> None:
        """Of the same bounds."""
        self._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
        self._sum += other._sum

    def lines(self, name: str, label: str = "") -> Iterable[str]:
        total, beside = 0, f"{label}," if label else ""
        for bound, count in zip([*self._bounds, "+Inf"], self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{beside}le="{bound}"}} {total}'
        alone = f"{{{label}}}" if label else ""
        yield f"{name}_sum{alone} {self._sum}"
        yield f"{name}_count{alone} {total}"


class Metrics:
    """What the server itself counts. All of it on the server's loop."""

    def __init__(self) -> None:
        self.responses: Counter[tuple[str, int]] = Counter()  # by route and status
        self.key_tokens: Counter[tuple[str, str]] = Counter()  # by name of the key and kind
        self.ends: Counter[tuple[str, str]] = Counter()  # answers by model and finish reason
        self.disconnects = 0
        self._measured: dict[str, dict[str, Histogram]] = {name: {} for name in _OF_ANSWERS}
        self._past: dict[str, Counter[str]] = {}  # counts by model: of services that are no more

    def add(self, model: str, measure: str, value: float) -> None:
        """measure: a name of `_OF_ANSWERS`."""
        of_models = self._measured[measure]
        if model not in of_models:
            of_models[model] = Histogram(_OF_ANSWERS[measure].bounds)
        of_models[model].add(value)

    def unloaded(self, model: str, state: ServiceState) -> None:
        """Keeps the counts of a model, which go on from there when it is loaded again."""
        past = self._past.setdefault(model, Counter())
        for field, (_, kind, _) in _OF_SERVICE.items():
            if kind == "counter":
                past[field] += getattr(state, field)

    def page(self, states: Mapping[str, ServiceState]) -> str:
        """The page, with the figures of models by their names: gauges of the loaded ones."""
        counts = {model: self._figures(model, states) for model in {**self._past, **states}}
        loaded = {model: counts[model] for model in states}
        lines = list(self._of_server())
        for field, (suffix, kind, text) in _OF_SERVICE.items():
            name = f"localllm_{suffix}"
            lines += _head(name, kind, text)
            for model, figures in (counts if kind == "counter" else loaded).items():
                lines.append(f"{name}{{{_label('model', model)}}} {figures[field]}")
        lines += self._as_vllm(counts, loaded)
        for name, (kind, value) in _LLAMA_SERVER.items():
            total = sum(map(value, (counts if kind == "counter" else loaded).values()))
            lines += [f"# TYPE llamacpp:{name} {kind}", f"llamacpp:{name} {total}"]
        return "\n".join(lines) + "\n"

    def _figures(self, model: str, states: Mapping[str, ServiceState]) -> Figures:
        past, state = self._past.get(model, Counter()), states.get(model, ServiceState())
        return {field: past[field] + getattr(state, field) for field in _OF_SERVICE}

    def _of_server(self) -> Iterable[str]:
        name = "localllm_http_responses_total"
        yield from _head(name, "counter", "Answers by route and status.")
        for (route, status), count in sorted(self.responses.items()):
            yield f'{name}{{{_label("route", route)},status="{status}"}} {count}'
        if self.key_tokens:
            name = "localllm_key_tokens_total"
            yield from _head(name, "counter", "Tokens by the name of the key that asked.")
        for (key, token_kind), count in sorted(self.key_tokens.items()):
            yield f'{name}{{{_label("key", key)},kind="{token_kind}"}} {count}'
        name = "localllm_http_disconnects_total"
        yield from _head(name, "counter", "Clients that left before their answer was complete.")
        yield f"{name} {self.disconnects}"
        for measure, about in _OF_ANSWERS.items():
            if not about.ours:
                continue
            name, total = f"localllm_{about.ours}", Histogram(about.bounds)
            for each in self._measured[measure].values():
                total.add_all(each)
            yield from _head(name, "histogram", about.text)
            yield from total.lines(name)

    def _as_vllm(
        self, counts: Mapping[str, Figures], loaded: Mapping[str, Figures]
    ) -> Iterable[str]:
        for suffix, (kind, value) in _VLLM.items():
            yield f"# TYPE vllm:{suffix} {kind}"
            for model, figures in (counts if kind == "counter" else loaded).items():
                yield f"vllm:{suffix}{{{_label('model_name', model)}}} {value(figures)}"
        name = "vllm:request_success_total"
        yield from _head(name, "counter", "Answers that came to their end.")
        for (model, reason), count in sorted(self.ends.items()):
            label = _label("model_name", model)
            yield f'{name}{{{label},finished_reason="{reason}"}} {count}'
        for measure, about in _OF_ANSWERS.items():
            for suffix in about.vllm:
                yield from _head(f"vllm:{suffix}", "histogram", about.text)
                for model, each in self._measured[measure].items():
                    yield from each.lines(f"vllm:{suffix}", _label("model_name", model))


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _label(name: str, value: str) -> str:
    value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name}="{value}"'
