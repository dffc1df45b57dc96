"""Fetching files from a server that does wrong once, always, or only what servers may do."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from stand_ins.fault_server import KINDS, Fault, FaultServer, gguf_noise
from stand_ins.transferring import FAST, Place, faster, remote

from localllm.errors import DownloadError, FileError, FormatError
from localllm.store.offer import Location, RemoteFile
from localllm.store.transfer import partials
from localllm.store.transfer.fetch import Wanted, fetch_all
from localllm.store.transfer.lease import Lease

BODY = gguf_noise(600_000)
VALUES = {
    "cut": 0.5, "stall": 9.0, "drip": 20, "corrupt": 0.5, "status": 503, "long": 10,
    "wrong_range": 100, "gzip": 8, "headers": 200_000, "capped": 1000,
}  # fmt: skip


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        running.add("/a.gguf", BODY)
        yield running


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_file_comes_in_ranges(server: FaultServer, place: Place) -> None:
    got = place.fetch(remote(server.url("/a.gguf"), BODY))
    assert got.path.read_bytes() == BODY and (got.size, got.sha256) == (600_000, sha256(BODY))
    assert got.etag == server.files["/a.gguf"].etag
    assert place.left() == set()
    assert server.total_sent <= 1.05 * len(BODY)
    last = place.reported[-1]
    assert (last.name, last.index, last.n_files, last.size) == ("a.gguf", 1, 1, 600_000)
    assert all(p.n_bytes <= 600_000 for p in place.reported)


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_once(server: FaultServer, place: Place, kind: str, hashed: bool) -> None:
    """At the first look, at the first range, in the middle."""
    text = server.url("/a.gguf") if kind == "redirect" else ""
    if kind in ("stall", "drip"):
        place.settings = faster(stall_s=0.3)
    places = (0, 5) if hashed else (3,)
    if kind == "corrupt" and not hashed:
        places = (0,)  # later, nothing says that it is another byte
    for before in places:
        server.play([*[Fault("none")] * before, Fault(kind, VALUES.get(kind, 0), text)])
        got = place.fetch(
            remote(server.url("/a.gguf"), BODY, hashed=hashed), f"{kind}{before}.gguf"
        )
        assert got.path.read_bytes() == BODY and got.sha256 == sha256(BODY)
        assert server.n_left == 0


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize(
    "form",
    [
        {"ranges": False},
        {"length": False},
        {"length": False, "chunked": False},
        {"etag": ""},
        {"etag": 'W/"weak"'},
        {"etag": "", "modified": "Mon, 06 Jul 2020 10:00:00 GMT"},
        {"etag": "", "ranges": False},
    ],
    ids=str,
)
def test_servers_that_tell_less(
    server: FaultServer, place: Place, form: dict[str, object], sized: bool
) -> None:
    for hashed in (True, False):
        url = server.add(f"/{hashed}.gguf", BODY, **form)
        server.play([Fault("none"), Fault("cut", 0.7)])
        file = remote(url, BODY, hashed=hashed, sized=sized)
        if form.get("chunked") is False and not hashed and not sized:
            with pytest.raises(DownloadError, match="tells neither size nor hash"):
                place.fetch(file)
            continue
        got = place.fetch(file, f"{hashed}.gguf")
        assert got.path.read_bytes() == BODY and got.sha256 == sha256(BODY)
        assert place.left() == set()


def test_a_fault_that_stays_is_told(server: FaultServer, place: Place) -> None:
    for kind, said in [
        ("gzip", "compressed answer"),
        ("html", "an HTML page"),
        ("wrong_range", "another range"),
        ("empty", "an empty file"),
        ("short", "contradicts itself"),
        ("refuse", "broke"),
        ("status", "answered 503"),
        ("capped", "sent 1000 of "),
    ]:
        server.play([Fault(kind, VALUES.get(kind, 0))] * 60)
        with pytest.raises(DownloadError, match=said) as caught:
            place.fetch(remote(server.url("/a.gguf"), BODY))
        assert "tried" in caught.value.message
        assert caught.value.hint is not None and "goes on from there" in caught.value.hint
        assert not (place.models / "model.gguf").exists()
    server.play([])
    assert place.fetch(remote(server.url("/a.gguf"), BODY)).path.read_bytes() == BODY


def test_what_has_come_is_kept(server: FaultServer, place: Place) -> None:
    """The server dies in the middle; the next call fetches the rest only."""
    server.play([*[Fault("none")] * 6, *[Fault("refuse")] * 100])
    with pytest.raises(DownloadError):
        place.fetch(remote(server.url("/a.gguf"), BODY))
    assert place.left() == {".partial", ".journal", ".json"}
    (waiting,) = partials.listing(place.downloads)
    assert waiting.n_bytes > 100_000 and not waiting.held
    server.play([])
    server.sent.clear()
    got = place.fetch(remote(server.url("/a.gguf"), BODY))
    assert got.path.read_bytes() == BODY
    assert server.total_sent <= len(BODY) - waiting.n_bytes + 4096


def test_a_complete_file_needs_no_server(server: FaultServer, place: Place) -> None:
    class Stop(Exception):
        pass

    def report(progress: object) -> None:
        place.reported.append(progress)  # type: ignore[arg-type]
        if place.reported[-1].n_bytes == len(BODY):
            raise Stop

    with pytest.raises(Stop):
        place.fetch(remote(server.url("/a.gguf"), BODY), report=report)
    n = len(server.seen)
    assert place.fetch(remote(server.url("/a.gguf"), BODY)).path.read_bytes() == BODY
    assert len(server.seen) == n


def test_damage_on_the_disk_costs_its_chunks(server: FaultServer, place: Place) -> None:
    server.play([*[Fault("none")] * 6, *[Fault("refuse")] * 100])
    with pytest.raises(DownloadError):
        place.fetch(remote(server.url("/a.gguf"), BODY))
    (waiting,) = partials.listing(place.downloads)
    data = place.only(".partial")
    content = bytearray(data.read_bytes())
    content[20_000] ^= 1
    data.write_bytes(content)
    server.play([])
    server.sent.clear()
    assert place.fetch(remote(server.url("/a.gguf"), BODY)).path.read_bytes() == BODY
    rest = len(BODY) - waiting.n_bytes
    assert rest + 16_384 <= server.total_sent <= rest + 16_384 + 3 * 4096


@pytest.mark.parametrize("before", [1, 4])
def test_a_corrupted_range_is_found_by_a_second_download(
    server: FaultServer, place: Place, before: int
) -> None:
    server.play([*[Fault("none")] * before, Fault("corrupt", 0.3)])
    got = place.fetch(remote(server.url("/a.gguf"), BODY))
    assert got.path.read_bytes() == BODY
    assert "comparing with a second download" in place.states()
    assert server.total_sent <= 2.05 * len(BODY)


def test_damage_in_both_downloads_is_found_by_a_third(server: FaultServer, place: Place) -> None:
    n = 40
    script = [Fault("none")] * n
    script[2], script[n - 8] = Fault("corrupt", 0.3), Fault("corrupt", 0.6)
    server.play(script)
    got = place.fetch(remote(server.url("/a.gguf"), BODY))
    assert got.path.read_bytes() == BODY and server.n_left == 0
    assert server.total_sent <= 2.3 * len(BODY)


def test_another_file_than_the_source_says(server: FaultServer, place: Place) -> None:
    file = replace(remote(server.url("/a.gguf"), BODY), sha256="12" * 32)
    with pytest.raises(DownloadError, match=r"another a\.gguf than its source says") as caught:
        place.fetch(file)
    assert sha256(BODY) in caught.value.message and "12" * 32 in caught.value.message
    assert not (place.models / "model.gguf").exists()
    assert server.total_sent <= 2.1 * len(BODY)


def test_another_size_than_the_source_says(server: FaultServer, place: Place) -> None:
    file = replace(remote(server.url("/a.gguf"), BODY), size=600_001)
    with pytest.raises(DownloadError, match="600000 bytes, the source says 600001"):
        place.fetch(file)


def test_a_file_that_changes_with_a_known_hash_is_told_early(
    server: FaultServer, place: Place
) -> None:
    file = remote(server.url("/a.gguf"), BODY)

    def change(n: int) -> None:
        if n == 7:
            server.add("/a.gguf", gguf_noise(600_000, seed=2))

    server.on_request = change
    with pytest.raises(DownloadError, match="another content than before"):
        place.fetch(file)
    assert server.total_sent < len(BODY)
    server.add("/a.gguf", BODY)
    assert place.fetch(file).path.read_bytes() == BODY


def test_an_etag_that_changes_alone_does_no_harm(server: FaultServer, place: Place) -> None:
    """Mirrors behind one name count their own ETags."""
    server.on_request = lambda n: setattr(server.files["/a.gguf"], "etag", f'"{n % 3}"')
    assert place.fetch(remote(server.url("/a.gguf"), BODY)).path.read_bytes() == BODY


def test_a_file_that_changes_without_a_hash_is_begun_anew(
    server: FaultServer, place: Place
) -> None:
    newer = gguf_noise(500_000, seed=2)
    server.on_request = lambda n: server.add("/a.gguf", newer) if n == 7 else None  # type: ignore
    got = place.fetch(remote(server.url("/a.gguf"), BODY, hashed=False, sized=False))
    assert got.path.read_bytes() == newer and got.sha256 == sha256(newer)
    (waiting,) = partials.listing(place.downloads)  # of the older one: nothing is pruned unasked
    assert waiting.size == 600_000
    partials.remove(waiting)
    assert place.left() == set()


def test_a_file_that_keeps_changing(server: FaultServer, place: Place) -> None:
    server.on_request = lambda n: server.add("/a.gguf", gguf_noise(600_000, seed=n // 5)) and None
    with pytest.raises(DownloadError, match=r"keeps changing|has changed"):
        place.fetch(remote(server.url("/a.gguf"), BODY, hashed=False))


def test_addresses_that_expire_are_asked_for_anew(server: FaultServer, place: Place) -> None:
    n_asked = 0

    def locate() -> Location:
        nonlocal n_asked
        n_asked += 1
        return Location(server.url(f"/a.gguf?signature={n_asked}"))

    file = replace(remote(server.url("/a.gguf"), BODY), locate=locate)
    server.play([*[Fault("none")] * 5, Fault("status", 403)])
    assert place.fetch(file).path.read_bytes() == BODY
    assert n_asked == 2 and server.seen[-1].path.endswith("signature=2")


def test_busy_servers_get_rest(server: FaultServer, place: Place) -> None:
    server.play([Fault("none"), *[Fault("status", 429, "1")] * 3])
    place.settings = faster(chunk_bytes=4096, span_bytes=4096)
    assert place.fetch(remote(server.url("/a.gguf"), BODY)).path.read_bytes() == BODY
    assert "retrying in 1 s: " in place.states() and "answered 429" in place.states()
    server.play([Fault("status", 503, "9000")])
    with pytest.raises(DownloadError, match="asks to wait for 9000 s") as caught:
        place.fetch(remote(server.url("/a.gguf"), BODY), "other.gguf")
    assert caught.value.hint is not None and caught.value.hint.startswith("Try again at ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 9\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html></html>", "an HTML page"),
        (b"\n  <HTML><body>", "an HTML page"),
        (b'{"error": "no such model"}', "a JSON answer"),
        (b"PK\x03\x04" + bytes(60), "a zip archive"),
        (b"\x10\0\0\0\0\0\0\0{}", "a safetensors file"),
        (b"FUGG" + bytes(60), "big-endian"),
        (b"\x1b]0;x\x07", r"begins with '\\x1b\]0;x\\x07'"),
    ],
)
def test_what_is_no_gguf_is_refused_at_once(
    server: FaultServer, place: Place, content: bytes, said: str
) -> None:
    url = server.add("/b.gguf", content)
    with pytest.raises(FormatError, match=said):
        place.fetch(remote(url, content))
    assert place.left() <= {".json"} and not (place.models / "model.gguf").exists()
    assert len(server.seen) == 1


def test_a_file_that_is_here_is_left_there(server: FaultServer, place: Place) -> None:
    file = remote(server.url("/a.gguf"), BODY)
    first = place.fetch(file)
    stamp = first.path.stat().st_mtime_ns
    n = len(server.seen)
    assert place.fetch(file) == replace(first, etag="")
    assert first.path.stat().st_mtime_ns == stamp and len(server.seen) == n
    assert "checking" in place.states()
    first.path.write_bytes(bytes(len(BODY)))  # damaged: another one takes its place
    assert place.fetch(file).path.read_bytes() == BODY


def test_a_set_with_one_file_twice_is_refused(server: FaultServer, place: Place) -> None:
    file = remote(server.url("/a.gguf"), BODY)
    wanted = [Wanted(file, place.models / name) for name in ("1.gguf", "2.gguf")]
    with pytest.raises(DownloadError, match="two files of one model are the same"):
        fetch_all(wanted, place.downloads, place.reported.append, settings=FAST)
    assert_nothing_there(place)


def test_sets_that_share_files_in_another_order_both_come(
    server: FaultServer, place: Place
) -> None:
    parts = [gguf_noise(200_000, seed=i) for i in (1, 2)]
    files = [remote(server.add(f"/{i}.gguf", part), part) for i, part in enumerate(parts)]
    server.bytes_per_s = 400_000
    results: dict[str, list[bytes]] = {}

    def pull(name: str, chosen: list[RemoteFile]) -> None:
        wanted = [Wanted(file, place.models / name / file.name) for file in chosen]
        done = fetch_all(wanted, place.downloads, lambda progress: None, settings=FAST)
        results[name] = [each.path.read_bytes() for each in done]

    threads = [
        threading.Thread(target=pull, args=each, daemon=True)
        for each in (("ab", files), ("ba", files[::-1]))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
    assert results == {"ab": parts, "ba": parts[::-1]}


def test_a_set_appears_together(server: FaultServer, place: Place) -> None:
    parts = {f"/m-0000{i}-of-00003.gguf": gguf_noise(200_000, seed=i) for i in (1, 2, 3)}
    wanted = [
        Wanted(remote(server.add(path, content), content), place.models / path[1:])
        for path, content in parts.items()
    ]
    server.on_request = lambda n: assert_nothing_there(place)
    server.files["/m-00003-of-00003.gguf"].content = gguf_noise(200_000, seed=9)
    with pytest.raises(DownloadError, match="another m-00003"):
        fetch_all(wanted, place.downloads, place.reported.append, settings=FAST)
    assert_nothing_there(place)
    server.files["/m-00003-of-00003.gguf"].content = parts["/m-00003-of-00003.gguf"]
    server.sent.clear()
    place.reported.clear()
    done = fetch_all(wanted, place.downloads, place.reported.append, settings=FAST, label="m:1b")
    assert [each.path.read_bytes() for each in done] == list(parts.values())
    assert set(server.sent) == {"/m-00003-of-00003.gguf"}  # the others were whole
    last = place.reported[-1]
    assert (last.index, last.n_files, last.all_size, last.all_bytes) == (3, 3, 600_000, 600_000)
    assert place.left() == set()


def assert_nothing_there(place: Place) -> None:
    assert not place.models.exists() or list(place.models.iterdir()) == []


def test_a_disk_with_too_little_room(server: FaultServer, place: Place) -> None:
    server.files["/a.gguf"].content = BODY
    huge = RemoteFile("a.gguf", 1 << 43, "12" * 32, lambda: Location(server.url("/a.gguf")))
    with pytest.raises(FileError, match="not enough space") as caught:
        place.fetch(huge)
    assert f"{1 << 43:,}" in caught.value.message
    assert server.seen == []


def test_secrets_are_not_written_down(server: FaultServer, place: Place) -> None:
    headers = {"Authorization": "Bearer secret"}
    url = server.url("/a.gguf?token=secret").replace("://", "://me:secret@")
    file = RemoteFile("a.gguf", None, sha256(BODY), lambda: Location(url, headers))
    server.play([*[Fault("none")] * 6, *[Fault("refuse")] * 100])
    with pytest.raises(DownloadError) as caught:
        place.fetch(file)
    assert "secret" not in f"{caught.value} {caught.value.hint} {place.states()}"
    for path in place.downloads.iterdir():
        assert b"secret" not in path.read_bytes()
    note = json.loads(place.only(".json").read_bytes())
    assert note["source"] == server.url("/a.gguf") and note["name"] == "a.gguf"


def test_notes_of_downloads_may_hold_anything(place: Place) -> None:
    place.downloads.mkdir(parents=True)
    key = "ab" * 32
    for text in (b"", b"[1]", b"\xff", b'{"name": 5, "size": "x"}', b"[" * 9000):
        (place.downloads / f"{key}.json").write_bytes(text)
        (waiting,) = partials.listing(place.downloads)
        assert waiting.size is None and waiting.n_bytes == 0
    (place.downloads / "other.json").touch()
    (place.downloads / f"{key}.partial").mkdir()
    (waiting,) = partials.listing(place.downloads)
    with pytest.raises(FileError, match="cannot delete"):
        partials.remove(waiting)


def test_temporary_files_of_the_dead_are_swept(server: FaultServer, place: Place) -> None:
    place.downloads.mkdir(parents=True)
    key = "ab" * 32
    names = [f".{key}.json.1.999999999.tmp", f".{key}.json.1.{os.getpid()}.tmp", ".x.9.tmp"]
    for name in [*names, f".{key}.json.2.999999999.tmp"]:
        (place.downloads / name).touch()
    for name in names:
        os.utime(place.downloads / name, (1e9, 1e9))
    place.fetch(remote(server.url("/a.gguf"), BODY))
    left = {path.name for path in place.downloads.iterdir()}
    assert left == {*names[1:], f".{key}.json.2.999999999.tmp"}


def test_wrong_names_of_content(server: FaultServer, place: Place) -> None:
    for wrong in ("../../etc", "AB" * 32, "", "sha256:" + "ab" * 32):
        file = replace(remote(server.url("/a.gguf"), BODY), sha256=wrong)
        with pytest.raises(DownloadError, match="no sha256"):
            place.fetch(file)
    assert server.seen == []


def test_a_lease_lost_at_the_last_moment_gives_no_name(
    server: FaultServer, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever took over may still be writing: wait for them, then look at what there is."""
    answers = [False, True, True]
    visible: list[bool] = []

    def confirm(lease: Lease) -> bool:
        visible.append((place.models / "model.gguf").exists())
        return answers.pop(0)

    monkeypatch.setattr(Lease, "confirm", confirm)
    got = place.fetch(remote(server.url("/a.gguf"), BODY))
    assert got.path.read_bytes() == BODY and visible == [False, False]


def test_a_note_with_a_size_that_no_file_has(tmp_path: Path) -> None:
    partials.Files(tmp_path, "a" * 64).write_note("x.gguf", "x", "url", 10**400)
    (waiting,) = partials.listing(tmp_path)
    assert waiting.size is None and waiting.name == "x.gguf"
