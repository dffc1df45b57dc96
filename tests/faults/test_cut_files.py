"""Another program cuts a model's file short, or writes over it, while the file is looked up in: an
error that says so, and nothing of what the zeros gave."""

from __future__ import annotations

import os
import queue
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from stand_ins.api_server import serving

from localllm.engine.cost_curve import CostCurve
from localllm.engine.open import OpenOptions, open_parts
from localllm.engine.paged import PagedEngine
from localllm.engine.request import Event, Failed, Finished, Piece, Request
from localllm.engine.runner import MAX_TOUCHES, Feed, Model, Runner
from localllm.engine.sampling import Sampler
from localllm.engine.service import NativeService
from localllm.errors import CancelledError, FileError
from localllm.params import GenerateParams
from localllm.server.file_loader import FileLoader
from localllm.server.manager import Manager
from localllm.server.opening import ModelFile
from localllm.server.shelf import Item, Shelf
from localllm.store.digest import full_digest
from localllm.store.inspect import GgufFile

pytestmark = pytest.mark.skipif(os.name == "nt", reason="nobody can cut a file that is mapped")
Tiny = Callable[[str, str], Path]
PROMPT = tuple(range(5, 90))
PARAMS = GenerateParams(temperature=0.0, max_tokens=40, ignore_eos=True)
OPTIONS = OpenOptions(engine="native", n_ctx=512, n_threads=2, mmap=True)
COSTS = CostCurve((1, 64), (0.001, 0.002))


def cut(path: Path) -> None:
    os.truncate(path, 4096)


def written_over(path: Path) -> None:
    """As `cp` does it: the same size in the end, another content."""
    data = bytearray(path.read_bytes())
    half = len(data) // 2
    data[half:] = bytes(reversed(data[half:]))
    path.write_bytes(data)


CHANGES = pytest.mark.parametrize("change", [cut, written_over])


@pytest.fixture
def copy(tiny: Tiny, tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    shutil.copyfile(tiny("llama", "Q4_0"), path)
    os.utime(path, (1, 1))  # a write shows, however slowly the file system's clock ticks
    return path


def test_metadata_that_is_gone_is_an_error(copy: Path) -> None:
    with GgufFile(copy) as file:
        key = next(k for k in file.metadata if file.metadata.type_of(k) == "string[]")
        assert file.metadata[key]
        name = file.tensors()[-1].name
        os.truncate(copy, 0)
        with pytest.raises(FileError, match=r"model\.gguf: the file was cut short"):
            file.tensor_bytes(name)
        with pytest.raises(FileError, match="cut short"):
            _ = file.metadata["general.architecture"]
    os.truncate(copy, 0)
    with pytest.raises(FileError, match="empty"):
        GgufFile(copy)


@CHANGES
def test_a_step_fails_and_the_sequence_stays(copy: Path, change: Callable[[Path], None]) -> None:
    with Model.load(copy, n_threads=2, raw_weights=True) as model:
        runner = Runner(model, n_ctx_tokens=256)
        sequence = runner.new_sequence()
        runner.step([Feed(sequence, PROMPT)])
        change(copy)
        for _ in range(2):
            with pytest.raises(FileError, match=r"model\.gguf: .*(cut .*short|wrote to the file)"):
                runner.step([Feed(sequence, PROMPT[:3])])
            with pytest.raises(FileError):
                runner.decode([Feed(sequence, [7])], 4)
        assert sequence.n_computed == len(PROMPT)
        runner.free(sequence)
        runner.close()


def test_packed_weights_need_no_file(copy: Path) -> None:
    with Model.load(copy, n_threads=1) as model:
        runner = Runner(model, n_ctx_tokens=256)
        before = runner.step([Feed(runner.new_sequence(), PROMPT)]).tokens
        cut(copy)
        assert runner.step([Feed(runner.new_sequence(), PROMPT)]).tokens == before
        runner.close()


def served(path: Path) -> NativeService:
    parts = open_parts(path, OPTIONS)
    assert isinstance(parts.engine, PagedEngine) and parts.engine.model.info.mapped_bytes
    return NativeService(parts, "tiny", path.name, costs=COSTS)


def until_end(events: queue.SimpleQueue[Event]) -> list[Event]:
    found = [events.get(timeout=60)]
    while isinstance(found[-1], Piece):
        found.append(events.get(timeout=60))
    return found


@CHANGES
def test_all_answers_of_a_service_fail(copy: Path, change: Callable[[Path], None]) -> None:
    service = served(copy)
    try:
        told: list[queue.SimpleQueue[Event]] = [queue.SimpleQueue() for _ in range(3)]
        service.submit(Request(PROMPT, PARAMS), told[0].put)
        whole = until_end(told[0])
        assert isinstance(whole[-1], Finished) and service.lost is None
        n_steps = 0

        def changed(event: Event) -> None:  # on the engine's thread, between two steps
            nonlocal n_steps
            if not n_steps:
                n_steps = service._loop.counts.steps
                change(copy)
            told[1].put(event)

        service.submit(Request(PROMPT, PARAMS), changed)
        service.submit(Request(PROMPT[::-1], PARAMS), told[2].put)
        for each in told[1:]:
            last = until_end(each)[-1]
            assert isinstance(last, Failed) and isinstance(last.error, FileError)
        assert isinstance(service.lost, FileError) and "model.gguf" in service.lost.message
        with pytest.raises(FileError):
            service.submit(Request(PROMPT, PARAMS), told[0].put)
        assert service.state().steps == n_steps  # no step counts that came after the change
    finally:
        service.close()


def asked(http: httpx2.Client) -> tuple[int, Any]:
    body = {"prompt": "once upon a time", "max_tokens": 8, "temperature": 0, "seed": 1}
    answer = http.post("/v1/completions", json=body)
    return answer.status_code, answer.json()


@CHANGES
def test_a_server_unloads_it_and_loads_it_again(copy: Path, change: Callable[[Path], None]) -> None:
    data = copy.read_bytes()
    items = [Item(ModelFile(copy, "tiny"), OPTIONS, ("tiny",), 1)]
    manager = Manager(Shelf(items), FileLoader(64, 4), 4 << 30)
    with (
        serving(manager) as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as http,
    ):
        status, first = asked(http)
        assert status == 200
        change(copy)
        status, refused = asked(http)
        assert (status, refused["error"]["code"]) == (503, "model_unavailable")
        assert "model.gguf" in refused["error"]["message"]
        assert http.get("/health").status_code == 200
        if change is cut:
            status, refused = asked(http)  # it is loaded again, and refused for what it is now
            assert status == 503 and "model.gguf" in refused["error"]["message"]
        copy.write_bytes(data)
        status, again = asked(http)
        assert status == 200
        assert again["choices"][0]["text"] == first["choices"][0]["text"]


def test_a_touch_is_told_from_a_write(copy: Path) -> None:
    digest = full_digest(copy)
    with Model.load(copy, n_threads=2, raw_weights=True, digest=digest) as model:
        runner = Runner(model, n_ctx_tokens=512)
        untouched = runner.new_sequence()
        runner.step([Feed(untouched, PROMPT)])
        expected = runner.decode([Feed(untouched, [7])], 8)
        sequence = runner.new_sequence()
        os.utime(copy)
        before = runner.progress
        runner.step([Feed(sequence, PROMPT)])
        assert runner.progress != before
        os.utime(copy, (2, 2))
        assert runner.decode([Feed(sequence, [7])], 8) == expected
        with copy.open("r+b") as file:  # one bit, where no sample looks
            file.seek(-(1 << 20) // 64, os.SEEK_END)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
        for _ in range(2):
            with pytest.raises(FileError, match="wrote to the file"):
                runner.step([Feed(sequence, PROMPT[:3])])
        runner.free(sequence)
        runner.close()


def test_a_step_that_is_run_again_samples_once(copy: Path) -> None:
    """Log probabilities of a prompt come in parts, and the sample beside them with the first."""
    params = GenerateParams(temperature=0.0, repeat_penalty=2.0, repeat_last_n=3)
    answers = []
    with Model.load(copy, n_threads=2, raw_weights=True, digest=full_digest(copy)) as model:
        runner = Runner(model, n_ctx_tokens=512)
        for touch in (False, True):
            sampler = Sampler(params, model.info.n_vocab)
            sequence, other = runner.new_sequence(), runner.new_sequence()
            answer = [runner.step([Feed(sequence, PROMPT, True, sampler)]).sampled(0).token]
            asking = Feed(other, PROMPT, False, next_tokens=[*PROMPT[1:], -1])
            if touch:
                os.utime(copy, (2, 2))
            result = runner.step(
                [Feed(sequence, answer[-1:], True, sampler), asking], n_next_logprobs=1
            )
            answer.append(result.sampled(0).token)
            for _ in range(12):
                step = runner.step([Feed(sequence, answer[-1:], True, sampler)])
                answer.append(step.sampled(0).token)
            answers.append(answer)
            runner.free(sequence)
            runner.free(other)
        runner.close()
    assert answers[0] == answers[1]


def test_a_cancelled_look_at_a_touched_file_accepts_nothing(copy: Path) -> None:
    digest = full_digest(copy)
    with Model.load(copy, n_threads=1, raw_weights=True, digest=digest) as model:
        os.utime(copy)

        def stop() -> None:
            raise CancelledError("enough")

        with pytest.raises(CancelledError):
            model.accepts_touch(stop)
        runner = Runner(model, n_ctx_tokens=256)
        sequence = runner.new_sequence()
        runner.step([Feed(sequence, PROMPT)])  # looked at again, and right
        runner.close()


@pytest.mark.parametrize("n_touches", [MAX_TOUCHES, MAX_TOUCHES + 1])
def test_a_file_that_is_touched_while_it_is_looked_at(
    copy: Path, n_touches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Model.load(copy, n_threads=1, raw_weights=True, digest=full_digest(copy)) as model:
        runner = Runner(model, n_ctx_tokens=256)
        times = iter(range(3, n_touches + 2))
        accepts = model.accepts_touch

        def touched_again(at_work: Callable[[], None]) -> bool:
            found = accepts(at_work)
            if (at := next(times, None)) is not None:
                os.utime(copy, (at, at))
            return found

        os.utime(copy, (2, 2))
        monkeypatch.setattr(model, "accepts_touch", touched_again)
        feed = Feed(runner.new_sequence(), PROMPT)
        if n_touches > MAX_TOUCHES:
            with pytest.raises(FileError, match="wrote to the file"):
                runner.step([feed])
        runner.step([feed])
        runner.close()


@pytest.mark.parametrize("digest", ["", "sample:" + "0" * 64, "sha256:" + "0" * 64])
def test_a_touch_counts_where_nothing_tells_it_from_a_write(copy: Path, digest: str) -> None:
    with Model.load(copy, n_threads=1, raw_weights=True, digest=digest) as model:
        runner = Runner(model, n_ctx_tokens=256)
        os.utime(copy)
        with pytest.raises(FileError, match="wrote to the file"):
            runner.step([Feed(runner.new_sequence(), PROMPT)])
        runner.close()


def test_answers_go_on_over_a_touch(copy: Path) -> None:
    digest = full_digest(copy)
    parts = open_parts(copy, OPTIONS, digest=digest)
    service = NativeService(parts, "tiny", digest, costs=COSTS)
    try:
        whole: queue.SimpleQueue[Event] = queue.SimpleQueue()
        service.submit(Request(PROMPT, PARAMS), whole.put)
        touched: queue.SimpleQueue[Event] = queue.SimpleQueue()
        expected = until_end(whole)

        def touch(event: Event) -> None:  # on the engine's thread, between two steps
            os.utime(copy)
            touched.put(event)

        service.submit(Request(PROMPT, PARAMS), touch)
        found = until_end(touched)
        assert isinstance(found[-1], Finished) and service.lost is None
        texts = [
            "".join(event.chunk.text for event in events if isinstance(event, Piece))
            for events in (expected, found)
        ]
        assert texts[0] == texts[1]
    finally:
        service.close()
