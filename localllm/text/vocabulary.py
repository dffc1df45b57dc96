"""The vocabulary of a GGUF file: token texts, types, scores, special ids and flags, checked.

Keys and defaults follow the GGUF specification and llama.cpp's src/llama-vocab.cpp.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from localllm.errors import FormatError, UnsupportedError
from localllm.text import special_tokens
from localllm.text.metadata import (
    Metadata,
    read_array,
    read_flag,
    read_strings,
    read_text,
    read_token_id,
    shown,
)
from localllm.text.pre_tokenizers import PRE_NAMES, PreName

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

MAX_TOKEN_BYTES = 65536
"""The longest token text that is taken. Real ones stay under a few hundred bytes."""

PREFIX = "tokenizer.ggml."

#: Per `tokenizer.ggml.model`: ids that hold when the file names none.
_DEFAULT_IDS: dict[str, dict[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "bert": {"bos": 101, "unknown": 100, "seperator": 102, "padding": 0, "mask": 103},
    "gpt2": {"bos": 11, "eos": 11},
    "whitespace": {"bos": 11, "eos": 11},
    "t5": {"eos": 1, "unknown": 2, "padding": 0},
    "gemma4": {},
}
MODELS = tuple(_DEFAULT_IDS)

_ID_KEYS = (
    *("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask"),
    *("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"),
)
_OLD_ID_KEYS = {"prefix": "fim_pre", "suffix": "fim_suf", "middle": "fim_mid"}

_BYTE_TOKEN = re.compile(rb"<0x([0-9A-F]{2})>")


@dataclass
class Vocabulary:
    """A checked vocabulary. Token ids are positions in `tokens`."""

    model: str
    """`tokenizer.ggml.model`: llama, gpt2, gemma4, bert or t5."""
    pre: PreName
    tokens: list[bytes]
    """[n_vocab] as stored; an empty text is replaced by `[EMPTY_<id>]`."""
    texts: list[str]
    """[n_vocab] the same as str; a text that is not UTF-8 has a name that no input can match."""
    types: npt.NDArray[np.int32]
    """[n_vocab] GGUF token types after known control tokens were promoted."""
    scores: npt.NDArray[np.float32] | None
    ids: dict[str, int | None]
    """Special ids by the name in their key, such as "bos", "eot" or "fim_pre"."""
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    stop_ids: frozenset[int]
    byte_values: dict[int, int] = field(default_factory=dict)
    """Token id of each `<0xXX>` byte token, to its value."""
    strips_left: frozenset[int] = frozenset()
    """Special tokens that swallow the spaces before them."""
    strips_right: frozenset[int] = frozenset()
    """Special tokens that swallow the spaces after them."""

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    def ids_of_type(self, *types: int) -> list[int]:
        """The ids whose type is one of `types`, ascending."""
        return [int(i) for i in np.flatnonzero(np.isin(self.types, types))]


def read_vocabulary(metadata: Metadata) -> Vocabulary:
    """The vocabulary in GGUF metadata.

    Raises `FormatError` for arrays and ids that break the format, `UnsupportedError` for a kind of
    vocabulary that this program cannot run.
    """
    model = _read_model(metadata)
    pre = _read_pre(metadata, model)
    tokens = _read_tokens(metadata)
    n_vocab = len(tokens)
    texts = _texts(tokens)
    types = _read_types(metadata, n_vocab)
    scores = _read_scores(metadata, n_vocab)

    defaults: dict[str, int | None] = dict(_DEFAULT_IDS[model])
    if read_text(metadata, PREFIX + "pre") in ("chatglm-bpe", "glm4", "glm5"):
        defaults["bos"] = None
    ids = {
        name: read_token_id(metadata, f"{PREFIX}{name}_token_id", n_vocab, defaults.get(name))
        for name in _ID_KEYS
    }
    for old, name in _OLD_ID_KEYS.items():
        ids[name] = read_token_id(metadata, f"{PREFIX}{old}_token_id", n_vocab, ids[name])

    byte_values = _byte_values(tokens, types)
    stop_ids = _promote(texts, types, ids)
    spm = model == "llama"
    add_bos = read_flag(metadata, PREFIX + "add_bos_token", spm or model == "bert" or pre.add_bos)
    if pre.type.name == "gemma4":
        add_bos = True
    strips_left, strips_right = _strips(metadata, texts, types)
    return Vocabulary(
        model=model,
        pre=pre,
        tokens=tokens,
        texts=texts,
        types=types,
        scores=scores,
        ids=ids,
        add_bos=add_bos,
        add_eos=read_flag(metadata, PREFIX + "add_eos_token", model == "t5"),
        add_space_prefix=read_flag(metadata, PREFIX + "add_space_prefix", spm),
        stop_ids=stop_ids,
        byte_values=byte_values,
        strips_left=strips_left,
        strips_right=strips_right,
    )


def _read_model(metadata: Metadata) -> str:
    model = read_text(metadata, PREFIX + "model")
    if model is None:
        raise FormatError(
            f"the file has no {PREFIX}model", "It holds no tokenizer: is it a complete model?"
        )
    if model not in _DEFAULT_IDS:
        raise UnsupportedError(
            f"{PREFIX}model is {shown(model)}; supported are {', '.join(MODELS)}"
        )
    return model


def _read_pre(metadata: Metadata, model: str) -> PreName:
    pre = read_text(metadata, PREFIX + "pre", "") or ""
    if model not in ("gpt2", "gemma4", "whitespace"):
        return PRE_NAMES["default"]
    if model == "gemma4":
        pre = "gemma4"
    if pre not in PRE_NAMES:
        raise UnsupportedError(
            f"{PREFIX}pre is {shown(pre)}, a pre-tokenizer that this version does not know",
            "Newer models need a newer version of this program.",
        )
    return PRE_NAMES[pre]


def _read_tokens(metadata: Metadata) -> list[bytes]:
    key = PREFIX + "tokens"
    tokens = read_strings(metadata, key)
    if tokens is None:
        raise FormatError(f"the file has no {key}")
    if not tokens:
        raise FormatError(f"{key} is empty, expected at least one token")
    longest = max(map(len, tokens))
    if longest > MAX_TOKEN_BYTES:
        at = next(i for i, token in enumerate(tokens) if len(token) == longest)
        raise FormatError(f"{key}[{at}] has {longest} bytes, at most {MAX_TOKEN_BYTES} are allowed")
    if b"" in tokens:
        tokens = [token or b"[EMPTY_%d]" % i for i, token in enumerate(tokens)]
    if len(set(tokens)) != len(tokens):
        first: dict[bytes, int] = {}
        for i, token in enumerate(tokens):
            if token in first:
                raise FormatError(
                    f"{key}[{i}] is {shown(token)}, the same text as {key}[{first[token]}]"
                )
            first[token] = i
    return tokens


def _texts(tokens: list[bytes]) -> list[str]:
    try:
        # A NUL is no part of another character: the parts are UTF-8 if and only if the whole is.
        texts = b"\0".join(tokens).decode().split("\0")
        return texts if len(texts) == len(tokens) else [token.decode() for token in tokens]
    except UnicodeDecodeError:
        # U+FFFF is not a character: input that holds it still cannot hold the whole name.
        return [
            token.decode("utf-8", "replace") if _is_utf8(token) else f"\uffff[INVALID_{i}]\uffff"
            for i, token in enumerate(tokens)
        ]


def _is_utf8(token: bytes) -> bool:
    try:
        token.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read_types(metadata: Metadata, n_vocab: int) -> npt.NDArray[np.int32]:
    key = PREFIX + "token_type"
    types = read_array(metadata, key, ("int32", "uint32"), n_vocab)
    if types is None:
        return np.full(n_vocab, NORMAL, np.int32)
    bad = np.flatnonzero((types < 0) | (types > BYTE))  # type: ignore[operator]
    if len(bad):
        raise FormatError(f"{key}[{bad[0]}] is {types[bad[0]]}, token types go from 0 to {BYTE}")
    return types.astype(np.int32)


def _read_scores(metadata: Metadata, n_vocab: int) -> npt.NDArray[np.float32] | None:
    key = PREFIX + "scores"
    scores = read_array(metadata, key, ("float32", "int32"), n_vocab)
    if scores is None:
        return None
    out = scores.astype(np.float32)
    bad = np.flatnonzero(np.isnan(out))
    if len(bad):
        raise FormatError(f"{key}[{bad[0]}] is not a number")
    return out


def _byte_values(tokens: list[bytes], types: npt.NDArray[np.int32]) -> dict[int, int]:
    values = {}
    for i in map(int, np.flatnonzero(types == BYTE)):
        match = _BYTE_TOKEN.fullmatch(tokens[i].upper().replace(b"<0X", b"<0x"))
        if match is None:
            raise FormatError(
                f"{PREFIX}tokens[{i}] is {shown(tokens[i])} and its type is byte, "
                "expected <0x00> to <0xFF>"
            )
        values[i] = int(match.group(1), 16)
    return values


def _promote(
    texts: list[str], types: npt.NDArray[np.int32], ids: dict[str, int | None]
) -> frozenset[int]:
    """Makes tokens with known texts control tokens, fills in missing special ids, and returns the
    ids that end a generation. `types` and `ids` are changed."""
    present = special_tokens.KNOWN.intersection(texts)
    known = {text: i for i, text in enumerate(texts) if text in present} if present else {}

    def find(name: str, candidates: tuple[str, ...]) -> None:
        if ids[name] is None:
            found = next((known[text] for text in candidates if text in known), None)
            if found is not None:
                ids[name] = found
                types[found] = CONTROL

    find("eot", special_tokens.END_OF_TURN)
    find("eom", special_tokens.END_OF_MESSAGE)
    for name, candidates in special_tokens.FILL_IN_THE_MIDDLE.items():
        find(name, candidates)

    stop = {ids[name] for name in special_tokens.STOPPING_FILL_IN}
    # Gemma 4 has an ordinary </s>; other models that lack "eos" in their metadata end with it.
    ordinary = {"</s>"} if "<|tool_response>" in known else set()
    for text in special_tokens.END_OF_GENERATION:
        if text in known and text not in ordinary:
            stop.add(known[text])
            types[known[text]] = CONTROL
    stop.update(ids[name] for name in ("eos", "eot", "eom"))
    # In the harmony format and its kin <|end|> ends a message, not the answer.
    if known.keys() >= {"<|return|>", "<|call|>", "<|end|>"} or (
        known.keys() >= {"<|flush|>", "<|end|>"} and known.keys() & {"<|call|>", "<|calls|>"}
    ):
        stop.discard(known["<|end|>"])
    return frozenset(i for i in stop if i is not None)


def _strips(
    metadata: Metadata, texts: list[str], types: npt.NDArray[np.int32]
) -> tuple[frozenset[int], frozenset[int]]:
    """Tokens that swallow spaces. GGUF has no key for it; model names decide, as in llama.cpp."""
    pre = read_text(metadata, PREFIX + "pre", "") or ""
    architecture = read_text(metadata, "general.architecture", "") or ""
    name = (read_text(metadata, "general.name", "") or "").lower()
    if any(s in pre for s in ("jina-v2-de", "jina-v2-es", "jina-v2-code")) or any(
        s in architecture for s in ("nomic-bert-moe", "jina-bert-v3")
    ):
        return frozenset(i for i, text in enumerate(texts) if text == "<mask>"), frozenset()
    if "phi-3" in name or "phi3" in name:
        special = map(int, np.flatnonzero(np.isin(types, (UNKNOWN, CONTROL, USER_DEFINED))))
        keep = ("<unk>", "<s>", "<|endoftext|>")
        return frozenset(), frozenset(i for i in special if texts[i] not in keep)
    if "modern-bert" in name:
        return frozenset(i for i, text in enumerate(texts) if text == "[MASK]"), frozenset()
    return frozenset(), frozenset()
