"""Questions that wait, as their conversations' drafts hold them."""

from __future__ import annotations

from localllm.tui.conversations.kinds import Attachment
from localllm.tui.queued import Question, Queue


def test_a_draft_holds_what_waits_and_what_is_typed() -> None:
    queue = Queue([Question(1, "one"), Question(2, "other"), Question(1, "two")])
    for typed in ("", "more", "\n\nmore"):
        draft = queue.draft(1, typed)
        assert draft.startswith("one\n\ntwo") and draft.endswith(typed)
        assert queue.typed(1, draft) == typed
    assert queue.draft(3, "alone") == "alone" == queue.typed(3, "alone")
    assert [each.text for each in queue.of(1)] == ["one", "two"]


def test_attachments_are_written_out() -> None:
    attached = (
        Attachment("notes.txt", "text", "some notes"),
        Attachment("c", "image", path="c.png"),
    )
    written = Question(1, "sum up", attached).written
    assert "sum up" in written and "some notes" in written and "@c.png" in written
