"""The service over an engine of one conversation: order, cancelling, what stays, what does not."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localllm.engine.open import OpenOptions, open_parts
from localllm.engine.request import RATE_SECONDS, Event, Failed, Finished, Piece, Request
from localllm.engine.serial import SerialService
from localllm.errors import CancelledError, ContextFullError, QueueFullError
from localllm.params import GenerateParams

PROMPT = tuple(range(20, 60))
LONG = GenerateParams(temperature=1.0, seed=3, max_tokens=400, ignore_eos=True)
SHORT = GenerateParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True)


@pytest.fixture
def service(tiny: Callable[[str, str], Path]) -> Iterator[SerialService]:
    parts = open_parts(tiny("llama", "F32"), OpenOptions(engine="native", n_ctx=512))
    service = SerialService(parts, "tiny", "sha256:0", max_queue=3)
    yield service
    service.close()


class Events(queue.SimpleQueue[Event]):
    def until_end(self) -> list[Event]:
        found = [self.get(timeout=20)]
        while isinstance(found[-1], Piece):
            found.append(self.get(timeout=20))
        return found


def answer(service: SerialService, **more: Any) -> tuple[list[tuple[int, ...]], Finished]:
    """The tokens of each choice, and the end."""
    request = Request(**{"prompt": PROMPT, "params": SHORT, **more})
    events = Events()
    service.submit(request, events.put)
    *pieces, last = events.until_end()
    assert isinstance(last, Finished)
    tokens: list[tuple[int, ...]] = [() for _ in range(request.n)]
    for each in pieces:
        assert isinstance(each, Piece)
        tokens[each.index] += each.chunk.token_ids
    return tokens, last


def test_choices_have_seeds_of_their_own(service: SerialService) -> None:
    several, last = answer(service, n=3)
    assert last.usage.generated_tokens == 36 and last.usage.prompt_tokens == 40
    for i, tokens in enumerate(several):
        seeded = GenerateParams(temperature=1.0, seed=3 + i, max_tokens=12, ignore_eos=True)
        assert answer(service, params=seeded)[0] == [tokens]
    assert len(set(several)) == 3


def test_what_is_kept(service: SerialService) -> None:
    first, cold = answer(service)
    second, warm = answer(service)
    assert first == second
    assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, 39)
    assert answer(service, salt=b"other")[1].usage.cached_tokens == 0
    assert answer(service, salt=b"other", may_store=False)[1].usage.cached_tokens == 39
    assert answer(service, salt=b"other")[1].usage.cached_tokens == 0
    assert service.state().hit_tokens == 78


def test_low_priority_waits_but_not_forever(service: SerialService) -> None:
    """It is served as if it had come later, not after all others."""
    order: list[str] = []
    service._max_queue = 200
    running = Events()
    holder = service.submit(Request(PROMPT, LONG), running.put)
    assert isinstance(running.get(timeout=20), Piece)
    waiting = []
    for name, priority in [("low", -1), *((f"plain {i}", 0) for i in range(70))]:
        events = Events()

        def emit(event: Event, name: str = name, events: Events = events) -> None:
            order.append(name)
            events.put(event)

        params = GenerateParams(temperature=0.0, max_tokens=1)
        service.submit(Request(PROMPT, params, priority=priority), emit)
        waiting.append(events)
    holder.cancel()
    assert all(isinstance(events.until_end()[-1], Finished) for events in waiting)
    assert 50 < list(dict.fromkeys(order)).index("low") < 70


def test_the_queue_is_served_by_priority_and_has_an_end(service: SerialService) -> None:
    order: list[str] = []
    running = Events()
    holder = service.submit(Request(PROMPT, LONG), running.put)
    assert isinstance(running.get(timeout=20), Piece)
    waiting = {}
    for name, priority in (("low", -1), ("first", 0), ("high", 5)):
        events = waiting[name] = Events()

        def emit(event: Event, name: str = name, events: Events = events) -> None:
            order.append(name)
            events.put(event)

        service.submit(Request(PROMPT, SHORT, priority=priority), emit)
    assert (service.state().running, service.state().waiting) == (1, 3)
    with pytest.raises(QueueFullError):
        service.submit(Request(PROMPT, SHORT), running.put)
    holder.cancel()
    assert all(isinstance(events.until_end()[-1], Finished) for events in waiting.values())
    assert list(dict.fromkeys(order)) == ["high", "first", "low"]


def test_cancelling_ends_only_that_request(service: SerialService) -> None:
    running, queued, last = Events(), Events(), Events()
    first = service.submit(Request(PROMPT, LONG), running.put)
    second = service.submit(Request(PROMPT, LONG), queued.put)
    service.submit(Request(PROMPT, SHORT), last.put)
    for ticket, events in ((second, queued), (first, running)):
        ticket.cancel()
        ticket.cancel()
        end = events.until_end()[-1]
        assert isinstance(end, Failed) and isinstance(end.error, CancelledError)
    assert isinstance(last.until_end()[-1], Finished)
    first.cancel()  # long over
    assert answer(service)[1].usage.generated_tokens == 12


def test_a_long_step_moves(service: SerialService, monkeypatch: pytest.MonkeyPatch) -> None:
    """No piece comes meanwhile, and the watchdog must not take it for stuck."""
    engine = service._parts.engine
    began, ends, n_nodes = threading.Event(), threading.Event(), [0]

    def prefill(*arguments: Any) -> None:
        began.set()
        assert ends.wait(20)
        raise CancelledError("enough")

    monkeypatch.setattr(engine, "prefill", prefill)
    monkeypatch.setattr(type(engine), "progress", property(lambda self: n_nodes[0]))
    events = Events()
    service.submit(Request(PROMPT, SHORT), events.put)
    assert began.wait(20)
    before = service.state()
    assert service.state().last_progress_s == before.last_progress_s
    n_nodes[0] += 1
    after = service.state()
    assert after.last_progress_s > before.last_progress_s
    assert service.state().last_progress_s == after.last_progress_s
    ends.set()
    assert isinstance(events.until_end()[-1], Failed)


def test_what_can_never_be_served(service: SerialService) -> None:
    with pytest.raises(ContextFullError, match="512"):
        service.submit(Request(PROMPT * 20, SHORT), Events().put)


def test_a_fault_is_logged_and_tells_nobody_anything(
    service: SerialService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*arguments: Any) -> None:
        raise ValueError("words of a prompt")

    monkeypatch.setattr(service, "_serve", breaks)
    events = Events()
    service.submit(Request(prompt=(1, 2), params=GenerateParams()), events.put)
    failed = events.until_end()[-1]
    assert isinstance(failed, Failed) and "fault of the engine" in failed.error.message
    assert "words" not in failed.error.message and "ValueError" not in failed.error.message
    (record,) = caplog.records
    assert record.exc_info and record.exc_info[0] is ValueError and "words" not in record.message


def test_closing_ends_everything(tiny: Callable[[str, str], Path]) -> None:
    parts = open_parts(tiny("llama", "F32"), OpenOptions(engine="native", n_ctx=512))
    service = SerialService(parts, "tiny", "")
    running, queued = Events(), Events()
    for events in (running, queued):
        service.submit(Request(PROMPT, LONG), events.put)
    assert isinstance(running.get(timeout=20), Piece)
    service.close()
    assert isinstance(running.until_end()[-1], Failed)
    assert isinstance(queued.until_end()[-1], Failed)
    with pytest.raises(CancelledError):
        service.submit(Request(PROMPT, SHORT), queued.put)


def test_the_speed_is_of_the_last_seconds(service: SerialService) -> None:
    answer(service)
    state = service.state()
    assert state.tokens_per_s > 0
    later = state.last_progress_s + RATE_SECONDS
    assert state.seen_at(later, running=0, waiting=0) == state
    assert state.seen_at(later + 1, running=1, waiting=0).tokens_per_s == state.tokens_per_s
    assert state.seen_at(later + 1, running=0, waiting=0).tokens_per_s == 0
