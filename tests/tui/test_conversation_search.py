"""Full-text search: any text is a query, and what is found is marked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.tui.conversations import looking
from localllm.tui.conversations.store import Conversations

FULL = os.environ.get("FULL") == "1"
TEXTS = {
    "plain": "The quick brown fox jumps over the lazy dog.",
    "accents": "Ein Café in Zürich, où ÉLÈVE rêve",
    "code": "std::vector<int> v; // C++20, not C",
    "cjk": "これは日本語の文です",
    "emoji": "well done 👍🏽 indeed",
    "nul": "before\0after",
    "percent": "100% of a_b and c\\d",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversations]:
    made = Conversations(tmp_path_factory.mktemp("search") / "c.sqlite")
    for name, text in TEXTS.items():
        conversation = made.create(title=f"about {name}")
        made.add(conversation.id, None, "user", text)
    assert made.flush()
    yield made
    made.close()


CASES = [
    ("fox", "plain"), ("FOX qui", "plain"), ("lazy dog", "plain"), ("dog.", "plain"),
    ("cafe", "accents"), ("CAFÉ", "accents"), ("zurich eleve", "accents"),
    ("cafe\u0301", "accents"),
    ("C++", "code"), ("vector<int>", "code"), ("c++20", "code"), ("//", None),
    ("日本", "cjk"), ("本語", "cjk"), ("👍", "emoji"), ("before", "nul"), ("after", "nul"),
    ("100%", "percent"), ("a_b", "percent"), ("c\\d", "percent"),
    ("ox", None), ("umps", None), ("fox AND cat", None), ("fox OR cat", None), ("%", "percent"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "name"), CASES)
def test_words_are_found_by_their_beginnings(
    store: Conversations, text: str, name: str | None
) -> None:
    hits = [hit for hit in store.search(text) if hit.message is not None]
    assert [hit.title for hit in hits] == ([f"about {name}"] if name else [])
    assert store.trouble is None
    if name:
        assert any(marked for _, marked in hits[0].pieces), hits[0].pieces
        assert store.open_at(hits[0].message or 0).messages[0].content == TEXTS[name]


@pytest.mark.parametrize(("text", "name"), CASES)
def test_what_is_not_written_is_found_alike(text: str, name: str | None, tmp_path: Path) -> None:
    store = Conversations(tmp_path / "c.sqlite")
    assert store.flush()
    with store._writer.lock:  # the writer waits
        for each, content in TEXTS.items():
            made = store.create(title=f"about {each}")
            store.add(made.id, None, "user", content)
        hits = [hit.title for hit in store.search(text) if hit.message is not None]
    assert hits == ([f"about {name}"] if name else [])
    store.close()


def test_titles_come_first_then_the_newest(store: Conversations) -> None:
    made = store.create(title="Foxes")
    for n in range(3):
        store.add(made.id, None, "assistant", f"fox {n}", finish_reason="stop")
    hits = store.search("fox")
    assert hits[0].message is None
    assert hits[0].pieces == (("Fox", True), ("es", False))
    texts = ["".join(piece for piece, _ in hit.pieces) for hit in hits[1:]]
    assert texts == ["fox 2", "fox 1", "fox 0", TEXTS["plain"]]
    assert len(store.search("fox", 2)) == 2
    assert store.search("fox", 0) == []
    store.delete(made.id)
    assert len(store.search("fox")) == 1


def test_a_growing_answer_is_found_by_what_it_has_now(store: Conversations) -> None:
    made = store.create(title="g")
    answer = store.add(made.id, None, "assistant", "zebra", finish_reason=None)
    assert store.flush()
    store.grow(answer.id, "giraffe")
    for wait in (False, True):
        if wait:
            assert store.flush()
        assert len(store.search("giraffe")) == 1
        assert store.search("zebra") == []
    store.finish(answer.id, "giraffe", finish_reason="length")
    assert store.flush()
    store.grow(answer.id, "giraffe elephant")  # it is gone on with
    assert store.flush()
    assert len(store.search("elephant")) == 1
    store.delete(made.id)


@given(st.text(max_size=40) | st.lists(st.sampled_from(['"', "'", "*", "(", ")", "NEAR", "OR",
    "AND", "NOT", ":", "^", "-", "+", "{", "}", "a", "\0", "\ud800", "%", "\\", " "]),
    max_size=12).map("".join))  # fmt: skip
@settings(max_examples=1000 if FULL else 80, deadline=None)
def test_no_text_is_an_error(text: str) -> None:
    query = looking.wanted(text)
    store = _STORES[0]
    store.search(text)
    assert store.trouble is None, store.trouble
    looking.around(text, query)


_STORES: list[Conversations] = []


@pytest.fixture(autouse=True, scope="module")
def _one_store(store: Conversations) -> None:
    _STORES.append(store)


@given(st.text(max_size=300), st.text(max_size=12))
@settings(max_examples=1000 if FULL else 60, deadline=None)
def test_pieces_are_a_part_of_the_text(text: str, wish: str) -> None:
    pieces = looking.around(text, looking.wanted(wish))
    whole = "".join(piece for piece, _ in pieces)
    squeezed = looking._SPACE.sub(" ", text)
    assert whole.strip("…").strip() in squeezed or "…" in text
    assert len(whole) <= 3 * looking._CONTEXT + 2


def test_a_long_text_gives_a_short_part() -> None:
    text = "word " * 100_000 + "needle\n\nin " + "hay " * 100_000
    pieces = looking.around(text, looking.wanted("needle"))
    assert ("needle", True) in pieces
    assert pieces[0][0] == "…" == pieces[-1][0]
    assert all("\n" not in piece for piece, _ in pieces)
