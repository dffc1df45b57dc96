"""Well-formed GGUF files whose contents cannot be a model: wrong vocabularies and hyperparameters.

Each is refused by the tokenizer or by the loader with an error that names the key.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    I32,
    SCALARS,
    STRING,
    U32,
    Gguf,
    array,
    kv,
    string,
    u32,
    u64,
)

from localllm.engine.runner import Model
from localllm.errors import FormatError, LocalLLMError
from localllm.store.inspect import GgufFile
from localllm.text.tokenizer import Tokenizer

TOKENS = [
    b"<unk>",
    b"<s>",
    b"</s>",
    *(b"<0x%02X>" % i for i in range(256)),
    *map(bytes, zip(b"abcd")),
]
TYPES = [2, 3, 3, *[6] * 256, *[1] * 4]
N = len(TOKENS)
WORDS = [b"<|end|>", *map(bytes, zip(range(33, 127))), b"ab", b"abc"]
ARRAYS = ("tokens", "scores", "token_type", "merges")


def spm(**replaced: bytes) -> dict[str, bytes]:
    """The values of a SentencePiece vocabulary with byte tokens."""
    values = {
        "model": _text("model", b"llama"),
        "tokens": _array("tokens", STRING, TOKENS),
        "scores": _array("scores", F32, [0.0] * N),
        "token_type": _array("token_type", I32, TYPES),
    }
    return {**values, **replaced}


def bpe(**replaced: bytes) -> dict[str, bytes]:
    """The values of a byte-level BPE vocabulary."""
    values = {
        "model": _text("model", b"gpt2"),
        "pre": _text("pre", b"gpt-2"),
        "tokens": _array("tokens", STRING, WORDS),
        "token_type": _array("token_type", I32, [3] + [1] * (len(WORDS) - 1)),
        "merges": _array("merges", STRING, [b"a b", b"ab c"]),
    }
    return {**values, **replaced}


def _key(name: str) -> bytes:
    return b"tokenizer.ggml." + name.encode()


def _text(name: str, value: bytes) -> bytes:
    return kv(_key(name), STRING, value)


def _array(name: str, kind: int, items: list[float] | list[bytes]) -> bytes:
    return array(_key(name), kind, items)


def load(tmp_path: Path, values: dict[str, bytes]) -> Tokenizer:
    path = tmp_path / "vocabulary.gguf"
    path.write_bytes(Gguf(list(values.values())).build())
    with GgufFile(path) as file:
        return Tokenizer.from_metadata(file.metadata)


def test_the_vocabularies_are_good(tmp_path: Path) -> None:
    assert load(tmp_path, spm()).n_vocab == N
    assert load(tmp_path, bpe()).decode(load(tmp_path, bpe()).encode("abc")) == "abc"


_FITTING = {
    "tokens": {STRING},
    "merges": {STRING},
    "scores": {F32, I32},
    "token_type": {I32, U32},
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [(n, k) for n in ARRAYS for k in (*SCALARS, STRING) if k not in _FITTING[n]],
)
def test_array_of_the_right_count_and_wrong_type(name: str, kind: int, tmp_path: Path) -> None:
    """llama.cpp #26690: it read 8 bytes per element whatever the type was."""
    make = bpe if name == "merges" else spm
    n = {"merges": 2}.get(name, N)
    items: list[float] | list[bytes] = (
        [b"1"] * n if kind == STRING else [1.0 if kind in (6, 12) else 1] * n
    )
    with pytest.raises(FormatError, match=f"tokenizer.ggml.{name}"):
        load(tmp_path, make(**{name: _array(name, kind, items)}))


@pytest.mark.parametrize("name", ARRAYS)
def test_scalar_for_an_array(name: str, tmp_path: Path) -> None:
    make = bpe if name == "merges" else spm
    for value in (_text(name, b"abc"), kv(_key(name), U32, 7)):
        with pytest.raises(FormatError, match=f"tokenizer.ggml.{name}"):
            load(tmp_path, make(**{name: value}))


@pytest.mark.parametrize("n", [0, 1, N - 1, N + 1])
@pytest.mark.parametrize(("name", "kind"), [("scores", F32), ("token_type", I32)])
def test_arrays_of_another_length(name: str, kind: int, n: int, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=f"tokenizer.ggml.{name}"):
        load(tmp_path, spm(**{name: _array(name, kind, [1] * n)}))


@pytest.mark.parametrize(
    "text", [b"<0x-1>", b"<0x100>", b"<0xZZ>", b"<0x", b"<0x>", b"<0x+A>", b"<0x 1>", b"\xff", b"x"]
)
def test_byte_tokens_out_of_range(text: bytes, tmp_path: Path) -> None:
    tokens = [*TOKENS]
    tokens[70] = text
    with pytest.raises(FormatError, match=r"tokenizer\.ggml\.tokens\[70\]"):
        load(tmp_path, spm(tokens=_array("tokens", STRING, tokens)))


def test_very_long_token_text(tmp_path: Path) -> None:
    tokens = [*TOKENS]
    tokens[-1] = b"x" * 65537
    with pytest.raises(FormatError, match="65537 bytes"):
        load(tmp_path, spm(tokens=_array("tokens", STRING, tokens)))


@pytest.mark.parametrize("value", [N, 2**31, 2**32 - 2])
@pytest.mark.parametrize("name", ["bos", "eos", "eot", "unknown", "padding"])
def test_token_ids_out_of_range(name: str, value: int, tmp_path: Path) -> None:
    key = f"{name}_token_id"
    with pytest.raises(FormatError, match=key):
        load(tmp_path, spm(**{key: kv(_key(key), U32, value)}))


@pytest.mark.parametrize(
    "values",
    [
        spm(model=_text("model", b"\x1b[2Jnone")),
        spm(model=kv(_key("model"), U32, 1)),
        bpe(pre=_text("pre", b"no-such-pre-tokenizer")),
        spm(tokens=_array("tokens", STRING, [])),
        spm(tokens=_array("tokens", STRING, [b"same"] * N)),
        spm(token_type=_array("token_type", I32, [7] * N)),
        spm(token_type=_array("token_type", I32, [-1] * N)),
        spm(scores=_array("scores", F32, [float("nan")] * N)),
        spm(add_bos=kv(_key("add_bos_token"), U32, 2)),
        {"nothing": kv(b"general.name", STRING, b"x")},
    ],
    ids=str,
)
def test_other_broken_vocabularies(values: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(LocalLLMError, match=r"tokenizer\.ggml|token") as error:
        load(tmp_path, values)
    assert error.value.message.isprintable()


@pytest.mark.parametrize(
    "merge", [b"", b" ", b"a", b"a ", b" b", b"a b c", b"\xff \xfe", b"nope nope"]
)
def test_odd_merges_do_no_harm(merge: bytes, tmp_path: Path) -> None:
    """A merge that cannot apply is dropped or refused; it never reaches the encoder."""
    try:
        tokenizer = load(tmp_path, bpe(merges=_array("merges", STRING, [merge, b"a b", b"ab c"])))
    except FormatError as e:
        assert "merges" in e.message
    else:
        assert tokenizer.decode(tokenizer.encode("abc")) == "abc"


# ---- Hyperparameters --------------------------------------------------------------------------


def patched(content: bytes, key: str, kind: int, value: float) -> bytes:
    """The file with another value of a u32 or f32 key; `kind` is of four bytes too."""
    at = content.index(string(key.encode())) + 8 + len(key)
    assert content[at : at + 4] in (u32(U32), u32(F32)), key
    return content[:at] + u32(kind) + struct.pack(SCALARS[kind], value) + content[at + 8 :]


_LIMITS = (0, 2**31 - 1, 2**31, 2**32 - 1)
HYPERPARAMETERS: list[tuple[str, int, float]] = [
    *(("llama.block_count", U32, n) for n in (*_LIMITS, 3, 1025)),
    *(("llama.embedding_length", U32, n) for n in (*_LIMITS, 1, 255, 512)),
    *(("llama.feed_forward_length", U32, n) for n in (*_LIMITS, 1, 511, 1024)),
    *(("llama.context_length", U32, n) for n in (0, 2**31, 2**32 - 1)),
    *(("llama.attention.head_count", U32, n) for n in (*_LIMITS, 1, 3, 5)),
    *(("llama.attention.head_count_kv", U32, n) for n in (*_LIMITS, 3, 5, 8)),
    *(("llama.rope.dimension_count", U32, n) for n in (*_LIMITS, 1, 63, 65, 66)),
    *(("llama.rope.freq_base", F32, x) for x in (0.0, -1.0, float("nan"), float("inf"), 1e30)),
    *(
        ("llama.attention.layer_norm_rms_epsilon", F32, x)
        for x in (0.0, -1e-5, float("nan"), float("inf"), 1e30)
    ),
    ("llama.block_count", F32, 2.0),
    ("llama.attention.head_count", F32, 4.0),
    ("llama.attention.head_count", I32, -4),
    ("llama.block_count", I32, -(2**31)),
    ("llama.rope.freq_base", U32, 10000),
    ("llama.attention.layer_norm_rms_epsilon", U32, 1),
]


@pytest.fixture(scope="module")
def tiny_llama(tiny: Callable[[str, str], Path]) -> bytes:
    return tiny("llama", "F32").read_bytes()


def test_the_tiny_model_loads(tiny_llama: bytes, tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(patched(tiny_llama, "llama.block_count", I32, 2))
    Model.load(path, n_threads=1).close()


@pytest.mark.parametrize(("key", "kind", "value"), HYPERPARAMETERS)
def test_hyperparameters_at_the_limits(
    key: str, kind: int, value: float, tiny_llama: bytes, tmp_path: Path
) -> None:
    """Refused by the key's own check, or because the tensors have another shape."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(patched(tiny_llama, key, kind, value))
    with pytest.raises(LocalLLMError) as error:
        Model.load(path, n_threads=1).close()
    message = error.value.message
    assert any(part in message for part in ("llama.", "tensor", "blk.", "head size")), message
    assert len(message) < 2048


def test_an_array_for_every_layer_is_bounded(tiny_llama: bytes, tmp_path: Path) -> None:
    """A key that may be an array (one value a layer) with far too many, and with strings."""
    key = b"llama.attention.head_count_kv"
    at = tiny_llama.index(string(key))
    old = string(key) + u32(U32) + tiny_llama[at + 12 + len(key) : at + 16 + len(key)]
    assert tiny_llama[at : at + len(old)] == old
    for kind, items in ((BOOL, [1, 1]), (F32, [2.0, 2.0]), (STRING, [b"2", b"2"]), (U32, [])):
        new = string(key) + u32(ARRAY) + u32(kind) + u64(len(items))
        path = tmp_path / "array.gguf"
        body = array(key, kind, items)
        assert body.startswith(new)
        content = tiny_llama[:at] + body + tiny_llama[at + len(old) :]
        # The data section moves with the metadata's length, and so do its bytes.
        grown = len(body) - len(old)
        path.write_bytes(_realigned(content, grown))
        with pytest.raises(LocalLLMError, match="head_count_kv"):
            Model.load(path, n_threads=1).close()


def _realigned(content: bytes, grown: int) -> bytes:
    """Keeps the data section aligned after the head has grown by some bytes: a filler value."""
    filler = (-grown) % 32
    name = b"f" * ((filler - 13) % 32 or 32)
    extra = kv(name, 0, 0)
    n_values = struct.unpack_from("<Q", content, 16)[0]
    return content[:16] + u64(n_values + 1) + extra + content[24:]
