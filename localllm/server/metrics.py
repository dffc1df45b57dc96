"""What /metrics shows, in the text format of Prometheus.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

from localllm.engine.request import ServiceState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_PER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)

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


class Histogram:
    """Counts of seconds by upper bounds."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds_s, seconds)] += 1
        self._sum_s += seconds

    def lines(self, name: str, text: str) -> Iterable[str]:
        yield from _head(name, "histogram", text)
        total = 0
        for bound, count in zip([*self._bounds_s, "+Inf"], self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum_s}"
        yield f"{name}_count {total}"


class Metrics:
    """What the server itself counts. All of it on the server's loop."""

    def __init__(self) -> None:
        self.first_token_s = Histogram(_FIRST_TOKEN_S)
        self.per_token_s = Histogram(_PER_TOKEN_S)
        self.queued_s = Histogram(_FIRST_TOKEN_S)
        self.responses: Counter[tuple[str, int]] = Counter()  # by route and status
        self.key_tokens: Counter[tuple[str, str]] = Counter()  # by name of the key and kind
        self.disconnects = 0
        self._past: dict[str, Counter[str]] = {}  # counts by model: of services that are no more

    def unloaded(self, model: str, state: ServiceState) -> None:
        """Keeps the counts of a model, which go on from there when it is loaded again."""
        past = self._past.setdefault(model, Counter())
        for field, (_, kind, _) in _OF_SERVICE.items():
            if kind == "counter":
                past[field] += getattr(state, field)

    def page(self, states: Mapping[str, ServiceState]) -> str:
        """The page, with the figures of models by their names: gauges of the loaded ones."""
        lines: list[str] = []
        name = "localllm_http_responses_total"
        lines += _head(name, "counter", "Answers by route and status.")
        for (route, status), count in sorted(self.responses.items()):
            lines.append(f'{name}{{route="{_escaped(route)}",status="{status}"}} {count}')
        if self.key_tokens:
            name = "localllm_key_tokens_total"
            lines += _head(name, "counter", "Tokens by the name of the key that asked.")
        for (key, token_kind), count in sorted(self.key_tokens.items()):
            lines.append(f'{name}{{key="{_escaped(key)}",kind="{token_kind}"}} {count}')
        name = "localllm_http_disconnects_total"
        lines += _head(name, "counter", "Clients that left before their answer was complete.")
        lines.append(f"{name} {self.disconnects}")
        lines += self.first_token_s.lines(
            "localllm_time_to_first_token_seconds", "From the request to its first token."
        )
        lines += self.queued_s.lines("localllm_queue_seconds", "In the queue of the engine.")
        lines += self.per_token_s.lines(
            "localllm_time_per_output_token_seconds", "Between tokens of an answer, on average."
        )
        for field, (suffix, kind, text) in _OF_SERVICE.items():
            name = f"localllm_{suffix}"
            lines += _head(name, kind, text)
            past = {model: counts[field] for model, counts in self._past.items()}
            now = {model: getattr(state, field) for model, state in states.items()}
            for model in {**past, **now} if kind == "counter" else now:
                value = past.get(model, 0) + now.get(model, 0)
                lines.append(f'{name}{{model="{_escaped(model)}"}} {value}')
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
