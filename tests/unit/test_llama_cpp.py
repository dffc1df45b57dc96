"""What the second engine refuses, what it chooses, and that it leaves nothing behind."""

from __future__ import annotations

import dataclasses
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from stand_ins.foreign_models import make_foreign

from localllm.engine import llama_library, llama_open, llama_trial, machine
from localllm.engine.llama_context import CacheCost
from localllm.errors import (
    ArgumentError,
    FileError,
    FormatError,
    LocalLLMError,
    OutOfMemoryError,
    UnsupportedError,
)
from localllm.params import GenerateParams
from localllm.session import Session
from localllm.store.inspect import GgufFile

ROOT = Path(__file__).resolve().parents[2]
FEW = GenerateParams(temperature=0, max_tokens=4, ignore_eos=True)

Tiny = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Verdicts of trials are kept here."""
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def second(path: Path, **options: Any) -> Session:
    return Session.open(path, engine="llama.cpp", n_threads=1, **options)


def text(session: Session, prompt: str = "the thing") -> str:
    return "".join(c.text for c in session.complete(prompt, FEW))


def patched(path: Path, key: str, value: bytes, out: Path) -> Path:
    """A copy of a GGUF file whose 4-byte value of a key is another."""
    data = path.read_bytes()
    name = struct.pack("<Q", len(key)) + key.encode()
    at = data.index(name) + len(name) + 4
    out.write_bytes(data[:at] + value + data[at + 4 :])
    return out


# ---- Choice ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, why",
    [
        ("gpt2", "gpt2 is not an architecture of the native engine"),
        ("mamba", "mamba is not an architecture of the native engine"),
        ("llama-tq2", "the native engine computes with no TQ2_0 weights"),
        ("llama-rwkv", "tokenizer.ggml.model is 'rwkv'"),
    ],
)
def test_auto_takes_llama_cpp_where_it_must(name: str, why: str, tmp_path: Path) -> None:
    path, said = make_foreign(tmp_path, name), []
    with Session.open(path, n_threads=1, notice=said.append) as session:
        assert session.info.engine == "llama.cpp"
        assert session.info.n_ctx == 512
        assert len(list(session.complete("the thing", FEW))) > 0
    assert len(said) == 1
    assert said[0].startswith(why) and said[0].endswith(": running it with llama.cpp")
    with pytest.raises(UnsupportedError):
        Session.open(path, engine="native")


def test_auto_takes_the_native_engine_where_it_can(tiny: Tiny) -> None:
    said: list[str] = []
    with Session.open(tiny("llama", "Q8_0"), notice=said.append) as session:
        assert session.info.engine == "native"
    assert said == []


# ---- Refusals -------------------------------------------------------------------------------


def test_without_the_package(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise llama_library.metadata.PackageNotFoundError(name)

    llama_library._load.cache_clear()
    monkeypatch.setattr(llama_library.metadata, "version", missing)
    try:
        with pytest.raises(UnsupportedError, match="not installed") as e:
            second(tiny("llama", "Q8_0"))
        assert e.value.hint is not None and "pip install 'localllm[compat]'" in e.value.hint
        with pytest.raises(UnsupportedError, match=r"gpt2 is not .*; .*not installed") as e:
            Session.open(make_foreign(tmp_path, "gpt2"))
        assert e.value.hint is not None and "localllm[compat]" in e.value.hint
        monkeypatch.setattr(llama_library.metadata, "version", lambda name: "0.3.9")
        with pytest.raises(UnsupportedError, match=r"version 0\.3\.9, 0\.3\.36 or newer"):
            second(tiny("llama", "Q8_0"))
    finally:
        llama_library._load.cache_clear()


@pytest.mark.parametrize("name, kind", [("bert", "for embeddings"), ("t5", "encoder-decoder")])
def test_models_that_write_no_text(name: str, kind: str, tmp_path: Path) -> None:
    path = make_foreign(tmp_path, name)
    for engine in ("auto", "llama.cpp"):
        with pytest.raises(UnsupportedError, match=kind):
            Session.open(path, engine=engine)


def test_an_architecture_that_nobody_knows(tmp_path: Path) -> None:
    data = make_foreign(tmp_path, "gpt2").read_bytes().replace(b"gpt2", b"gptx")
    path = tmp_path / "unknown.gguf"
    path.write_bytes(data)
    with pytest.raises(UnsupportedError, match=r"gptx is not .* unknown model architecture"):
        Session.open(path)


def test_files_that_are_broken_never_reach_llama_cpp(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_open, "tried", lambda *a, **b: pytest.fail("it was tried"))
    data = tiny("llama", "Q8_0").read_bytes()
    broken = tmp_path / "broken.gguf"
    for content, error in (
        (data[: len(data) // 2], FormatError),
        (b"GGUF" + b"\xff" * 200, LocalLLMError),
        (b"<!DOCTYPE html>", FormatError),
        (b"", FileError),
    ):
        broken.write_bytes(content)
        with pytest.raises(error):
            second(broken)
    with pytest.raises(FileError):
        second(tmp_path / "nowhere.gguf")


@pytest.mark.parametrize(
    "key, value",
    [
        ("llama.block_count", struct.pack("<I", 0)),
        ("llama.block_count", struct.pack("<I", 2**31)),
        ("llama.attention.layer_norm_rms_epsilon", struct.pack("<f", -1.0)),
        ("llama.attention.layer_norm_rms_epsilon", struct.pack("<f", float("nan"))),
        ("llama.attention.head_count", struct.pack("<I", 0)),
        ("llama.context_length", struct.pack("<I", 0)),
        ("llama.context_length", struct.pack("<I", 2**31)),
        ("llama.context_length", struct.pack("<I", 2**32 - 1)),
    ],
)
def test_what_ends_llama_cpp_ends_not_us(
    key: str, value: bytes, tiny: Tiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = patched(tiny("llama", "Q8_0"), key, value, tmp_path / "odd.gguf")
    try:
        with second(path) as session:  # of the context: none is a trained length
            assert session.info.n_ctx == llama_open.MIN_CONTEXT
            text(session)
    except LocalLLMError as e:
        assert str(e).isprintable() and len(str(e)) < 600
    else:
        assert key == "llama.context_length"
    assert capfd.readouterr() == ("", "")


def test_a_crash_is_told(tiny: Tiny, tmp_path: Path) -> None:
    eps = "llama.attention.layer_norm_rms_epsilon"
    path = patched(tiny("llama", "Q8_0"), eps, struct.pack("<f", -1.0), tmp_path / "odd.gguf")
    with pytest.raises(UnsupportedError, match=r"breaks down on .*odd\.gguf: signal 6 .*eps >= 0"):
        second(path)


def test_contexts(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny("llama", "Q8_0")
    with pytest.raises(ArgumentError, match="9999 tokens, the model was trained on 2048"):
        second(path, n_ctx=9999)
    with pytest.raises(ArgumentError, match="'q5_0' is not known"):
        second(path, kv_type="q5_0")
    with second(path, n_ctx=256) as session, pytest.raises(ArgumentError, match="holds 256"):
        text(session, "abc " * 300)
    # 2 layers x 2 heads x 64 x (keys and values) x 2 bytes
    sizes = {}
    for kv_type in ("f16", "q8_0"):
        with second(path, kv_type=kv_type) as session:
            sizes[kv_type] = session.info.kv_bytes / session.info.n_ctx
    assert 1024 <= sizes["f16"] <= 1060 and 544 <= sizes["q8_0"] <= 580
    said: list[str] = []
    monkeypatch.setattr(llama_open, "MAX_DEFAULT_KV_BYTES", 1 << 20)
    with second(path, notice=said.append) as session:
        assert 960 < session.info.n_ctx <= 1024
    assert len(said) == 1 and "of 2048 tokens" in said[0]


def test_a_context_that_memory_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = CacheCost(fixed=1000, per_token=100, per_window_token=50, window=0)
    facts = machine.facts()
    free = type("Facts", (), {**vars(facts), "free_bytes": 50_000})()
    monkeypatch.setattr(llama_open.machine, "facts", lambda: free)
    with pytest.raises(OutOfMemoryError, match="a context of 1000 tokens"):
        llama_open.context_that_fits(cost, 2000, 1000, print)
    assert llama_open.context_that_fits(cost, 2000, 300, print) == 300


# ---- Trials ---------------------------------------------------------------------------------


def test_a_trial_runs_once_per_file(
    tiny: Tiny, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Path] = []
    run = llama_trial._run

    def counted(path: Path, *rest: Any) -> Any:
        runs.append(path)
        return run(path, *rest)

    monkeypatch.setattr(llama_trial, "_run", counted)
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny("llama", "Q8_0").read_bytes())
    for _ in range(2):
        second(path).close()
    assert len(runs) == 1
    verdicts = list((home / "cache" / "llama.cpp").glob("*.json"))
    assert len(verdicts) == 1
    os.utime(path, (1, 1))  # another file, as far as one can tell
    second(path).close()
    assert len(runs) == 2
    for verdict in (home / "cache" / "llama.cpp").glob("*.json"):
        verdict.write_bytes(b'{"extra_buffers": 1')  # a full disk
    second(path).close()
    assert len(runs) == 3


def test_weights_stay_as_they_are_where_the_faster_layout_kills(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a build of gcc 12 does on a CPU with AMX tiles: docs/decisions/0002."""
    run = llama_trial._run

    def dies_of_extra_buffers(path: Path, kv: str, n: int, extra: bool, progress: Any) -> Any:
        return ("signal 11", None) if extra else run(path, kv, n, extra, progress)

    monkeypatch.setattr(llama_trial, "_run", dies_of_extra_buffers)
    loaded: list[bool] = []
    load = llama_open.LlamaModel.load.__func__  # type: ignore[attr-defined]

    def watched(cls: type, *args: Any, extra_buffers: bool, **rest: Any) -> Any:
        loaded.append(extra_buffers)
        return load(cls, *args, extra_buffers=extra_buffers, **rest)

    monkeypatch.setattr(llama_open.LlamaModel, "load", classmethod(watched))
    with second(tiny("llama", "Q4_0")) as session:
        assert len(text(session)) > 0
    assert loaded == [False]


@pytest.mark.skipif(sys.platform != "linux", reason="where a process shows what it has mapped")
def test_weights_are_in_memory_unless_asked_or_too_large(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny("llama", "F32").read_bytes())

    def is_mapped() -> bool:
        return str(path) in Path("/proc/self/maps").read_text("utf-8")

    with second(path) as session:
        wanted = text(session)
        assert not is_mapped()
        os.truncate(path, 0)  # a page of a map that is gone would end this process
        assert text(session, "the thin") and text(session) == wanted
    path.write_bytes(tiny("llama", "F32").read_bytes())
    with second(path, mmap=True) as session:
        assert is_mapped() and text(session) == wanted
    facts = dataclasses.replace(machine.facts(), free_bytes=path.stat().st_size)
    monkeypatch.setattr(llama_open.machine, "facts", lambda: facts)
    with second(path, n_ctx=64) as session:
        assert is_mapped()


# ---- Vocabulary -----------------------------------------------------------------------------


def test_a_vocabulary_of_llama_cpp(tmp_path: Path) -> None:
    with second(make_foreign(tmp_path, "llama-rwkv")) as session:
        tokenizer = session._tokenizer
        assert tokenizer.n_vocab == 261
        for given in ("the thing", "Überall 日本 \n\n", "<s> stays <<s>s><s text<s>", ""):
            ids = tokenizer.encode(given, add_special=False)
            assert tokenizer.decode(ids) == given
            assert not any(tokenizer.is_control(i) for i in ids)
        assert tokenizer.encode("the the", add_special=False) == [257, 258]
        assert tokenizer.encode("a<s>", add_special=False, parse_special=True)[-1] == 0
        assert tokenizer.is_structural(0) and not tokenizer.is_structural(257)
        assert tokenizer.special_texts() == {"<s>": 0}
        assert tokenizer.stop_ids == {0} and tokenizer.special_id("eos") == 0
        with pytest.raises(ArgumentError):
            tokenizer.token_bytes(261)
    with pytest.raises(ArgumentError, match="closed"):
        tokenizer.encode("the")


# ---- What is left behind --------------------------------------------------------------------


def test_nothing_is_printed(tiny: Tiny, capfd: pytest.CaptureFixture[str]) -> None:
    with second(tiny("gemma3", "Q4_K")) as session:
        text(session)
        list(session.chat([{"role": "user", "content": "the"}], FEW))
    assert capfd.readouterr() == ("", "")


def test_closing_gives_the_memory_back(real_model: Callable[[str], Path]) -> None:
    """In a process of its own: other tests leave holes in the heap that fill in their own time."""
    code = """
import gc, sys
import psutil
from localllm.params import GenerateParams
from localllm.session import Session

few = GenerateParams(temperature=0, max_tokens=4, ignore_eos=True)
for _ in range(6):
    with Session.open(sys.argv[1], engine="llama.cpp", n_threads=1, n_ctx=2048) as session:
        list(session.complete("the thing", few))
    gc.collect()
    print(psutil.Process().memory_info().rss)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(real_model("smollm2:135m"))],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    sizes = [int(line) for line in done.stdout.split()]
    assert len(sizes) == 6 and sizes[-1] - sizes[1] < 32 << 20, sizes


@pytest.mark.parametrize("begins_at", [0.0, 0.5])
def test_ctrl_c_ends_an_opening(tiny: Tiny, begins_at: float) -> None:
    """In the trial, which is the first half, and in the load."""
    shares: list[float] = []

    def progress(share: float) -> None:
        shares.append(share)
        if share >= begins_at:
            raise KeyboardInterrupt

    others = psutil.Process().children()
    with pytest.raises(KeyboardInterrupt):
        second(tiny("llama", "Q8_0"), progress=progress)
    assert set(psutil.Process().children()) <= set(others)
    assert all(0 <= share <= 1 for share in shares) and shares == sorted(shares)
    with second(tiny("llama", "Q8_0")) as session:
        assert len(text(session)) > 0


def test_forgetting_gives_the_cache_back(tiny: Tiny) -> None:
    with second(tiny("llama", "F32")) as session:
        before = text(session)
        assert session.context_used > 0
        session.forget()
        assert session.context_used == 0 and session._engine._context is None  # type: ignore[attr-defined]
        assert text(session) == before


def test_the_package_is_not_loaded_for_the_native_engine(tiny: Tiny) -> None:
    code = (
        "import sys; from pathlib import Path; from localllm.session import Session\n"
        f"Session.open(Path({str(tiny('llama', 'Q8_0'))!r})).close()\n"
        "assert not [m for m in sys.modules if m.startswith('llama_cpp')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_parts_of_a_split_set(tiny: Tiny, tmp_path: Path) -> None:
    from localllm.engine.llama_model import first_part

    for i in (1, 2):
        (tmp_path / f"m-0000{i}-of-00002.gguf").write_bytes(b"")
    second_part = tmp_path / "m-00002-of-00002.gguf"
    assert first_part(second_part, 2).name == "m-00001-of-00002.gguf"
    assert first_part(second_part, 1) == second_part
    with pytest.raises(FileError, match="beside it"):
        first_part(tmp_path / "m-00002-of-00003.gguf", 3)


def test_the_cost_of_a_cache_is_what_it_holds(tiny: Tiny) -> None:
    """gemma3: 6 layers of 7 see 40 tokens only, so a long context costs little more."""
    with GgufFile(tiny("gemma3", "F32")) as file:
        assert file.metadata["gemma3.attention.sliding_window"] == 40
    with second(tiny("gemma3", "F32")) as session:
        per_token = 2 * 2 * 64  # bytes of one layer: keys and values, f16, one head of 64
        cost = llama_trial.tried(
            llama_library.load(), tiny("gemma3", "F32"), kv_type="f16", n_threads=1,
            may_copy=True, cache_folder=llama_trial.verdicts(), progress=lambda share: None,
        ).cost  # fmt: skip
        assert session.info.kv_bytes == cost.of(2048)
    assert abs(cost.per_token - per_token) <= 16
    assert abs(cost.per_window_token - 6 * per_token) <= 16
    assert cost.window == 40
    assert cost.of(2048) < 2048 * 3 * per_token
