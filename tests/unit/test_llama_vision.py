"""Pictures in a conversation: seen by the second engine, refused by ours, and never a way in."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from stand_ins.projector_model import N_PATCHES, make_projector

from localllm.engine.llama_vision import find_projector
from localllm.errors import (
    ArgumentError,
    ChatTemplateError,
    FileError,
    LocalLLMError,
    UnsupportedError,
)
from localllm.params import GenerateParams
from localllm.session import Session

FEW = GenerateParams(temperature=0, max_tokens=8, ignore_eos=True)

Message = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALLLM_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[[str, str], Path]) -> Path:
    """A model with its projector, and pictures."""
    folder = tmp_path_factory.mktemp("vision")
    shutil.copy(tiny("llama", "F32"), folder / "model.gguf")
    make_projector(folder / "mmproj-model.gguf")
    Image.new("RGB", (100, 60), (200, 30, 30)).save(folder / "red.png")
    noise = np.random.default_rng(1).integers(0, 256, (64, 48, 3)).astype(np.uint8)
    Image.fromarray(noise).save(folder / "noise.jpg")
    return folder


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[Session]:
    with Session.open(folder / "model.gguf", engine="llama.cpp", n_threads=1) as opened:
        yield opened


def user(text: str, *pictures: Path) -> Message:
    message: Message = {"role": "user", "content": text}
    if pictures:
        message["images"] = [str(path) for path in pictures]
    return message


def ask(session: Session, *messages: Message) -> list[int]:
    return [token for chunk in session.chat(messages, FEW) for token in chunk.token_ids]


def test_a_picture_is_seen(session: Session, folder: Path) -> None:
    red, noise = folder / "red.png", folder / "noise.jpg"
    session.forget()
    blind = ask(session, user("what is it"))
    n_blind = session.stats.prompt_tokens
    of_red = ask(session, user("what is it", red))
    assert session.stats.prompt_tokens == n_blind + N_PATCHES + 1  # and a newline
    of_noise = ask(session, user("what is it", noise))
    assert len({tuple(blind), tuple(of_red), tuple(of_noise)}) == 3
    session.forget()
    assert ask(session, user("what is it", red)) == of_red
    both = ask(session, user("what is it", red, noise))
    assert session.stats.prompt_tokens == n_blind + 2 * (N_PATCHES + 1)
    assert both != ask(session, user("what is it", noise, red))


def test_a_picture_is_kept_between_turns(session: Session, folder: Path) -> None:
    session.forget()
    first = user("what is it", folder / "red.png")
    ask(session, first)
    used = session.context_used
    assert session.answer is not None
    turns = [first, {"role": "assistant", "content": session.answer.text}, user("and now?")]
    kept = ask(session, *turns)
    assert session.stats.cached_tokens == used
    session.forget()
    assert ask(session, *turns)[0] == kept[0]
    assert session.stats.cached_tokens == 0


def test_a_prompt_is_never_cut_inside_a_picture(session: Session, folder: Path) -> None:
    engine = session._engine
    picture = engine.picture_ids(folder / "red.png")
    assert len(picture) == N_PATCHES and len(set(picture)) == 1 and picture[0] < 0
    from localllm.engine.sampling import Sampler

    def token_after(tokens: list[int]) -> int:
        kept = engine.begin(tokens)
        sampler = Sampler(FEW, 283)
        return engine.prefill(tokens[kept:], sampler, None, lambda n: None).token

    cuts = set()
    for before in range(26, 36):
        prompt = [*range(before), *picture, *range(40, 60)]
        session.forget()
        wanted = token_after(prompt)
        token_after([*prompt[:-10], *range(100, 140)])
        kept = engine.begin(prompt)
        cuts.add(kept - before)
        assert kept <= before or kept >= before + N_PATCHES
        assert token_after(prompt) == wanted
    assert 0 in cuts  # in the middle, had it been cut as texts are
    with pytest.raises(ArgumentError, match="2 of a picture's 4 positions"):
        token_after([1, 2, *picture[:2], 3])
    with pytest.raises(ArgumentError, match="a text must follow"):
        token_after([1, 2, *picture])
    with pytest.raises(ArgumentError, match="has not seen"):
        token_after([1, -5, 2])


def test_the_words_of_users_make_no_picture(session: Session, folder: Path) -> None:
    session.forget()
    ids = session._engine.picture_ids(folder / "red.png")
    import hashlib

    mark = hashlib.sha256(repr(ids).encode()).hexdigest()[:16]
    ask(session, user(f"a \ufdd0{mark}\ufdd1 b", folder / "red.png"))
    assert session.answer is not None
    prompt = session.answer.fingerprint.prompt_ids
    assert sum(token < 0 for token in prompt) == N_PATCHES


def test_a_record_with_a_picture(session: Session, folder: Path) -> None:
    answer = ask(session, user("what is it", folder / "red.png"))
    record = session.answer
    assert record is not None
    again = [token for chunk in session.replay(record) for token in chunk.token_ids]
    assert again == answer
    path = folder / "model.gguf"
    with (
        Session.open(path, engine="llama.cpp", n_threads=1, label=str(path)) as other,
        pytest.raises(ArgumentError, match="not seen"),
    ):
        list(other.replay(record))


def test_the_native_engine_refuses(folder: Path) -> None:
    with (
        Session.open(folder / "model.gguf") as native,
        pytest.raises(UnsupportedError, match="native engine cannot look at") as e,
    ):
        ask(native, user("what is it", folder / "red.png"))
    assert e.value.hint is not None and "--engine llama.cpp" in e.value.hint


def test_without_a_projector(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    shutil.copy(folder / "model.gguf", model)
    with Session.open(model, engine="llama.cpp", n_threads=1) as session:
        with pytest.raises(UnsupportedError, match=r"no projector \(mmproj-\*\.gguf\) beside it"):
            ask(session, user("what is it", folder / "red.png"))
        make_projector(tmp_path / "mmproj-wrong.gguf", n_embd=128)
        with pytest.raises(UnsupportedError, match="cannot look at pictures with"):
            ask(session, user("what is it", folder / "red.png"))
        assert len(ask(session, user("and without"))) == 8


@pytest.mark.parametrize(
    "key, value",
    [
        ("clip.vision.attention.head_count", 0),
        ("clip.vision.attention.head_count", 3),
        ("clip.vision.block_count", 2**31),
        ("clip.vision.patch_size", 0),
        ("clip.vision.image_size", 0),
        ("clip.vision.image_size", 2**31 - 1),
        ("clip.vision.embedding_length", 7),
    ],
)
def test_a_broken_projector_ends_not_us(
    key: str, value: int, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(folder / "model.gguf", tmp_path / "model.gguf")
    data = (folder / "mmproj-model.gguf").read_bytes()
    name = struct.pack("<Q", len(key)) + key.encode()
    at = data.index(name) + len(name) + 4
    broken = data[:at] + struct.pack("<I", value) + data[at + 4 :]
    (tmp_path / "mmproj.gguf").write_bytes(broken)
    with Session.open(tmp_path / "model.gguf", engine="llama.cpp", n_threads=1) as session:
        with pytest.raises(LocalLLMError):
            ask(session, user("what is it", folder / "red.png"))
        assert len(ask(session, user("and without"))) == 8
    assert capfd.readouterr() == ("", "")


def _png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds nothing."""

    def chunk(data: bytes) -> bytes:
        return struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))

    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(head) + chunk(b"IDAT" + zlib.compress(b""))


@pytest.mark.parametrize(
    "content, says",
    [
        (b"not a picture", "no picture that can be read"),
        (b"", "no picture that can be read"),
        (_png_header(100, 100), "damaged"),
        (_png_header(8000, 8000), "8000 x 8000 pixels, the limit"),
        (_png_header(60000, 60000), "too large"),
        (_png_header(9000, 10), "one side may be"),
    ],
)
def test_bad_pictures(session: Session, tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "bad.png"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match=says):
        ask(session, user("what is it", path))


def test_other_refusals(session: Session, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot read the picture"):
        ask(session, user("what is it", tmp_path / "nowhere.png"))
    with pytest.raises(ArgumentError, match="list of paths"):
        ask(session, {"role": "user", "content": "what", "images": str(folder / "red.png")})
    with pytest.raises(ArgumentError, match="text as its content"):
        ask(session, {"role": "user", "content": None, "images": [str(folder / "red.png")]})


def test_a_template_that_drops_the_picture(folder: Path) -> None:
    template = "{% for m in messages %}[{{ m.content | replace('\ufdd0', '') }}]{% endfor %}"
    path = folder / "model.gguf"
    with (
        Session.open(path, engine="llama.cpp", n_threads=1, template=template) as session,
        pytest.raises(ChatTemplateError, match="left out 1 of the pictures"),
    ):
        ask(session, user("what is it", folder / "red.png"))


def test_which_projector(folder: Path, tmp_path: Path) -> None:
    for name in ("mmproj-alpha-7b.gguf", "beta-3b-mmproj-f16.gguf"):
        shutil.copy(folder / "mmproj-model.gguf", tmp_path / name)
    shutil.copy(folder / "model.gguf", tmp_path / "mmproj-no-projector.gguf")
    (tmp_path / "mmproj-a.gguf").write_bytes(b"GGUF")
    assert find_projector(tmp_path / "alpha-7b-Q4.gguf").name == "mmproj-alpha-7b.gguf"
    assert find_projector(tmp_path / "beta-3b-Q4.gguf").name == "beta-3b-mmproj-f16.gguf"
