"""The journal of a download, and the state of its chunks: torn lines, lost data, full disks."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from localllm.store.transfer import journal
from localllm.store.transfer.journal import Division, Journal
from localllm.store.transfer.partial import LeaseLost, Partial, Recalled, Sweep

KEY = "ab" * 32
DIVISION = Division(KEY, 1000, 300)  # chunks of 300, 300, 300, 100
HASH = "cd" * 32


def written(path: Path, *indices: int) -> bytes:
    entry = Journal(path, DIVISION)
    for index in indices:
        entry.add(index, HASH)
    entry.close()
    return path.read_bytes()


def test_a_journal_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    written(path, 2, 0)
    again = Journal(path, DIVISION)
    again.add_etag('"x y\n%"')
    assert again.resumed and again.hashes == {2: HASH, 0: HASH}
    again.close()
    found = journal.load(path)
    assert found is not None and found.etags == {'"x y\n%"'}
    assert found.n_bytes == 600
    assert Division(KEY, 1000, 300).length(3) == 100


def test_every_torn_end_is_survived(tmp_path: Path) -> None:
    """Cut anywhere: whole lines count, what follows is written on a line of its own."""
    path = tmp_path / "a.journal"
    text = written(path, 0, 1)
    head = text.index(b"\n") + 1
    for cut in {
        *range(0, len(text), 7),
        *range(head - 1, head + 3),
        *range(len(text) - 3, len(text) + 1),
    }:
        path.write_bytes(text[:cut])
        again = Journal(path, DIVISION)
        n_whole = text[:cut].count(b"\n") - 1
        assert len(again.hashes) == max(0, n_whole), cut
        assert again.resumed == (cut >= head)
        again.add(3, HASH)
        again.close()
        found = journal.load(path)
        assert found is not None
        # A hash that was torn off just before its line end is whole.
        assert set(found.hashes) - {n_whole} == {*range(max(0, n_whole)), 3}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"\0" * 500,
        b"localllm-journal 2 " + KEY.encode() + b" 1000 300\n",
        b"localllm-journal 1 " + KEY.encode() + b" 0 300\n",
        b"localllm-journal 1 " + KEY.encode() + b" 1000 0\n",
        b"localllm-journal 1 " + KEY.encode() + b" 999999999999999999 1\n",
        b"localllm-journal 1 " + KEY.encode() + b" 1000 300",
    ],
)
def test_a_journal_that_is_none(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(text)
    assert journal.load(path) is None
    entry = Journal(path, DIVISION)
    assert not entry.resumed and entry.hashes == {}
    entry.close()


def test_lines_of_no_use_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    text = written(path, 1)
    path.write_bytes(
        text + b"\xff\xfe\n4 " + HASH.encode() + b"\n-1 x\n1 " + b"ef" * 32 + b"\netag \n2 cd\n"
    )
    found = journal.load(path)
    assert found is not None and found.hashes == {1: "ef" * 32}


def test_another_file_begins_a_new_journal(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    written(path, 1)
    entry = Journal(path, Division(KEY, 1001, 300))
    assert not entry.resumed
    entry.close()
    assert path.read_bytes().count(b"\n") == 1


class State:
    """A file of 1000 random bytes that is fetched into a folder."""

    def __init__(self, folder: Path) -> None:
        self.content = random.Random(3).randbytes(1000)
        self.folder = folder
        self.may_write = True

    def open(self) -> Partial:
        data, log = self.folder / "a.partial", self.folder / "a.journal"
        return Partial(data, log, DIVISION, lambda: self.may_write)

    def feed(self, partial: Partial, n_bytes: int | None = None) -> None:
        while span := partial.take(600, 1):
            stop = span.end if n_bytes is None else span.offset + n_bytes
            span.feed(self.content[span.offset : stop])
            partial.give_back(span)
            if n_bytes is not None:
                return


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path)


def test_spans_come_in_order_and_go_on_where_they_broke_off(state: State) -> None:
    partial = state.open()
    span = partial.take(600, 1)
    assert span is not None and (span.offset, span.end) == (0, 600)
    other = partial.take(600, 1)
    assert other is not None and (other.offset, other.end) == (600, 900)  # half of what is left
    span.feed(state.content[:450])
    partial.give_back(span)
    assert partial.n_here == 300 and partial.n_come == 450
    span = partial.take(600, 1)
    assert span is not None and (span.offset, span.end) == (450, 600)
    partial.give_back(span)
    partial.give_back(span)  # the second time there is nothing to give
    again = partial.take(600, 1)
    assert again is not None and again.offset == 450
    partial.close()


def test_the_whole_is_hashed_and_kept(state: State) -> None:
    partial = state.open()
    state.feed(partial)
    digest = hashlib.sha256(state.content).hexdigest()
    assert partial.whole_sha256(lambda: False, check_all=False) == digest
    partial.close()
    again = state.open()
    assert not again.missing() and again.n_here == 1000
    assert again.whole_sha256(lambda: False, check_all=False) == digest
    again.close()
    assert (state.folder / "a.partial").read_bytes() == state.content


@pytest.mark.parametrize("harm", ["flip", "truncate", "delete", "zero"])
def test_what_the_disk_lost_is_missing_again(state: State, harm: str) -> None:
    partial = state.open()
    state.feed(partial)
    partial.close()
    data = state.folder / "a.partial"
    bad = bytearray(state.content)
    bad[400] ^= 1
    if harm == "flip":
        data.write_bytes(bad)
    elif harm == "truncate":
        data.write_bytes(state.content[:950])
    elif harm == "delete":
        data.unlink()
    else:
        data.write_bytes(state.content[:300] + bytes(300) + state.content[600:])
    again = state.open()
    spans = []
    stopped = iter([False] * 4 + [True] * 9)
    again.whole_sha256(lambda: next(stopped), check_all=False)
    while span := again.take(300, 1):
        spans.append(span.offset)
    expected = {"flip": [300], "truncate": [900], "delete": [0, 300, 600, 900], "zero": [300]}
    assert spans == expected[harm]
    again.close()


def test_nobody_writes_without_the_lease(state: State) -> None:
    partial = state.open()
    state.may_write = False
    with pytest.raises(LeaseLost):
        state.feed(partial)
    partial.close()
    assert (state.folder / "a.partial").read_bytes() == b""


def test_late_threads_are_refused(state: State) -> None:
    partial = state.open()
    late, later, sweep = partial.take(300, 1), partial.take(300, 1), Sweep(partial)
    assert late is not None and later is not None
    partial.recall()
    with pytest.raises(Recalled):
        late.feed(state.content[:300])
    partial.give_back(late)
    with pytest.raises(Recalled):
        sweep.feed(state.content)
    partial.close()
    with pytest.raises(Recalled):  # its descriptor may be another file's by now
        later.feed(state.content[300:600])
    assert (state.folder / "a.partial").read_bytes() == b""


def test_a_sweep_takes_only_what_is_missing(state: State) -> None:
    partial = state.open()
    state.feed(partial, 300)
    sweep = Sweep(partial)
    for start in range(0, 1000, 7):
        sweep.feed(state.content[start : start + 7])
    assert sweep.offset == 1000 and partial.received == 1000 and not partial.missing()
    partial.close()
    assert (state.folder / "a.partial").read_bytes() == state.content


def test_a_second_download_rewrites_only_what_differs(state: State) -> None:
    partial = state.open()
    right, state.content = state.content, bytes(1000)
    state.feed(partial, 300)  # chunk 0 came damaged
    state.content = right
    state.feed(partial)
    before = (state.folder / "a.journal").read_bytes()
    partial.compare_again(range(4))
    assert partial.n_here == 0
    state.feed(partial)
    assert partial.differing == {0}
    added = (state.folder / "a.journal").read_bytes()[len(before) :]
    assert added == f"0 {hashlib.sha256(right[:300]).hexdigest()}\n".encode()
    digest = hashlib.sha256(right).hexdigest()
    assert partial.whole_sha256(lambda: False, check_all=True) == digest
    partial.close()


def test_what_has_come_of_a_chunk_outlives_the_process(state: State) -> None:
    """Written in pieces, taken up by the next process, superseded by the whole chunk."""
    partial = state.open()
    span = partial.take(300, 1)
    assert span is not None
    for stop, noted in ((100, 100), (150, 100), (210, 210)):  # 50 bytes are too few to note
        span.feed(state.content[span.offset : stop])
        partial.keep_begun(60)
        assert partial.n_come == stop and partial.n_here == 0
        found = journal.load(state.folder / "a.journal")
        assert found is not None and found.begun[0][0] == found.n_bytes == noted
    assert not partial.empty
    partial.close()  # as after kill -9: the span was never given back
    again = state.open()
    assert again.n_come == 210
    other, span = again.take(1, 1), None
    assert other is not None and (other.offset, other.end) == (210, 300)
    other.feed(state.content[210:300])
    again.give_back(other)
    found = journal.load(state.folder / "a.journal")
    assert found is not None and found.begun == {} and set(found.hashes) == {0}
    state.feed(again)
    digest = hashlib.sha256(state.content).hexdigest()
    assert again.whole_sha256(lambda: False, check_all=True) == digest
    again.close()


@pytest.mark.parametrize("harm", ["flip", "truncate", "delete", "drop"])
def test_begun_bytes_that_the_disk_lost_cost_only_themselves(state: State, harm: str) -> None:
    partial = state.open()
    span = partial.take(300, 1)
    assert span is not None
    span.feed(state.content[:200])
    partial.recall()  # its thread hangs
    partial.keep_begun()
    assert partial.n_come == 200
    if harm == "drop":
        partial.drop_begun()
        assert partial.n_come == 0 and partial.empty
    partial.close()
    data = state.folder / "a.partial"
    if harm == "flip":
        data.write_bytes(bytes([state.content[0] ^ 1]) + state.content[1:200])
    elif harm == "truncate":
        data.write_bytes(state.content[:150])
    elif harm == "delete":
        data.unlink()
    again = state.open()
    span = again.take(300, 1)
    assert span is not None and span.offset == 0 and again.n_come == 0
    state.feed(again)
    again.give_back(span)
    state.feed(again)
    digest = hashlib.sha256(state.content).hexdigest()
    assert again.whole_sha256(lambda: False, check_all=True) == digest
    again.close()


def test_begun_bytes_are_not_written_over_what_may_be_right(state: State) -> None:
    partial = state.open()
    state.feed(partial)
    partial.compare_again(range(4))
    span = partial.take(300, 1)
    assert span is not None
    span.feed(bytes(200))
    partial.recall()
    partial.keep_begun()
    partial.close()
    assert (state.folder / "a.partial").read_bytes() == state.content
    found = journal.load(state.folder / "a.journal")
    assert found is not None and found.n_bytes == 1000


def test_begun_bytes_need_the_lease(state: State) -> None:
    partial = state.open()
    span = partial.take(300, 1)
    assert span is not None
    span.feed(state.content[:200])
    state.may_write = False
    with pytest.raises(LeaseLost):
        partial.keep_begun()
    partial.close()
    assert (state.folder / "a.partial").read_bytes() == b""


@pytest.mark.parametrize(
    "line", ["begun 4 10 H", "begun 0 301 H", "begun 0 10 ab", "begun -1 1 H", "begun 0 x H"]
)
def test_begun_lines_of_no_use(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.journal"
    text = written(path, 0)
    path.write_bytes(text + line.replace("H", HASH).encode() + b"\n")
    found = journal.load(path)
    assert found is not None and found.begun == {} and found.hashes == {0: HASH}


def test_a_journal_that_grows_large_takes_only_whole_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_MAX_BEGUN", 300)
    entry = Journal(tmp_path / "a.journal", DIVISION)
    for n in range(1, 100):
        entry.add_begun(0, n, HASH)
    entry.add(1, HASH)
    entry.close()
    found = journal.load(tmp_path / "a.journal")
    assert found is not None and found.hashes == {1: HASH} and 0 < found.begun[0][0] < 10
