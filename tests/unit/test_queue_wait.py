"""When a request that was refused is worth sending again."""

from __future__ import annotations

from localllm.engine.queue_wait import LEAST_S, MOST_S, QueueWait


def test_grows_with_the_queue_and_with_what_answers_take() -> None:
    wait = QueueWait()
    assert wait.refusal(100, 1).retry_after_s == LEAST_S  # nothing is known yet
    for _ in range(3):
        wait.add(4.0)
    assert wait.refusal(6, 2).retry_after_s == 12.0
    assert wait.refusal(6, 8).retry_after_s == 3.0
    for _ in range(50):
        wait.add(0.5)
    assert 1.5 < wait.refusal(6, 2).retry_after_s < 1.6
    assert wait.refusal(1000, 1).retry_after_s == MOST_S
    assert wait.refusal(6, 2).message == "6 requests wait already"
