"""A program of its own over a file of conversations: `conversation_child.py PATH WHAT`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from localllm.tui.conversations.store import Conversations


def main(path: Path, what: str) -> None:
    """Says on stdout what it has handed to the store, and when (seconds of the clock)."""
    store = Conversations(path)
    made = store.create(title=what)
    if what == "growing":
        question = store.add(made.id, None, "user", "a question")
        answer = store.add(made.id, question.id, "assistant", finish_reason=None)
        text = ""
        for n in range(1_000_000):
            text += f"w{n} "
            store.grow(answer.id, text)
            print(n, time.time(), flush=True)
            time.sleep(0.01)
    elif what == "once":  # reads nothing, ends without close
        store.add(made.id, None, "user", "a question")
        print(store.flush(), flush=True)
        time.sleep(600)
    else:
        parent = None
        for n in range(int(what)):
            parent = store.add(made.id, parent, "user", f"{made.id} {n}").id
        print(store.close(), flush=True)


main(Path(sys.argv[1]), sys.argv[2])
