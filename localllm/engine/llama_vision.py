"""Pictures in a prompt: a projector turns one into vectors that take the place of tokens.

A picture stands in a prompt as token ids below 0, one for each position that it takes, all alike
and made from its content: the same picture has the same ids everywhere, so a kept prompt is known
again. Projectors are files of their own (`mmproj-*.gguf`), published with the model's.
"""

from __future__ import annotations

import ctypes
import hashlib
import warnings
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from localllm.engine.llama_model import MAX_BATCH_TOKENS, LlamaModel
from localllm.errors import ArgumentError, FileError, LocalLLMError, UnsupportedError
from localllm.native import path_bytes
from localllm.store.inspect import GgufFile

MAX_PIXELS = 50_000_000
MAX_ASPECT = 100
_IMAGE = 1  # enum mtmd_input_chunk_type
_TEXT = 0


@dataclass(frozen=True)
class _Piece:
    """A part of a picture as llama.cpp cut it: `chunk` is a `mtmd_input_chunk`."""

    chunk: int
    n_positions: int


class Projector:
    """A projector over a model. Raises `UnsupportedError` if they do not belong together."""

    def __init__(self, model: LlamaModel, path: Path, n_threads: int) -> None:
        from llama_cpp import mtmd_cpp as api

        self._api, self._model = api, model
        library = model.library
        api.mtmd_log_set(library.log, None)
        api.mtmd_helper_log_set(library.log, None)
        params = api.mtmd_context_params_default()
        params.print_timings, params.n_threads, params.warmup = False, n_threads, False
        library.forget_notes()
        self._handle = api.mtmd_init_from_file(path_bytes(path), model.handle, params)
        if not self._handle:
            raise UnsupportedError(
                f"llama.cpp cannot look at pictures with {path}: {library.last_error('no reason')}",
                "The projector must be the one that was made with the model.",
            )
        if not api.mtmd_support_vision(self._handle):
            self.close()
            raise UnsupportedError(f"{path} is no projector for pictures")
        self._pieces: dict[int, _Piece] = {}
        self._known: dict[tuple[str, int, int], list[int]] = {}

    def ids_of(self, path: Path) -> list[int]:
        """The ids of a picture file with those of the tokens that the model wants around it.
        Raises `FileError`, `ArgumentError` for what is no picture or too large."""
        try:
            facts = path.stat()
        except OSError as e:
            raise FileError(f"cannot read the picture {path}: {e.strerror or e}") from e
        key = (str(path.absolute()), facts.st_size, facts.st_mtime_ns)
        if key not in self._known:
            self._known[key] = self.ids_of_pixels(*read_pixels(path))
        return list(self._known[key])

    def ids_of_pixels(self, pixels: bytes, width: int, height: int) -> list[int]:
        """As `ids_of`, for RGB bytes, row after row."""
        api = self._api
        data = (ctypes.c_uint8 * len(pixels)).from_buffer_copy(pixels)
        bitmap = api.mtmd_bitmap_init(width, height, data)
        chunks = api.mtmd_input_chunks_init()
        try:
            marker = api.mtmd_default_marker()
            text = api.mtmd_input_text(marker, len(marker), False, True)
            bitmaps = (ctypes.c_void_p * 1)(bitmap)
            status = api.mtmd_tokenize(self._handle, chunks, ctypes.byref(text), bitmaps, 1)
            if status != 0:
                raise LocalLLMError(f"llama.cpp could not prepare a picture (status {status})")
            digest = hashlib.sha256(pixels + f"{width}x{height}".encode()).digest()
            return [
                token
                for i in range(api.mtmd_input_chunks_size(chunks))
                for token in self._ids_of_chunk(api.mtmd_input_chunks_get(chunks, i), digest, i)
            ]
        finally:
            api.mtmd_input_chunks_free(chunks)
            api.mtmd_bitmap_free(bitmap)

    def _ids_of_chunk(self, chunk: Any, digest: bytes, number: int) -> list[int]:
        api, kind = self._api, self._api.mtmd_input_chunk_get_type(chunk)
        if kind == _TEXT:
            n = ctypes.c_size_t()
            tokens = api.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
            return [int(tokens[i]) for i in range(n.value)]
        n_tokens = int(api.mtmd_input_chunk_get_n_tokens(chunk))
        if kind != _IMAGE:
            raise UnsupportedError("the projector makes something else than pictures of a picture")
        if api.mtmd_decode_use_non_causal(self._handle, chunk) and n_tokens > MAX_BATCH_TOKENS:
            raise UnsupportedError(
                f"the model sees a picture as {n_tokens} tokens at once, the limit is "
                f"{MAX_BATCH_TOKENS}"
            )
        key = hashlib.sha256(digest + number.to_bytes(4, "little")).digest()
        token = -1 - (int.from_bytes(key[:4], "little") >> 1)
        n_positions = int(api.mtmd_input_chunk_get_n_pos(chunk))
        if token not in self._pieces:
            self._pieces[token] = _Piece(api.mtmd_input_chunk_copy(chunk), n_positions)
        return [token] * n_positions

    def n_positions(self, token: int) -> int:
        """Positions that the piece of a picture with this id takes. Raises `ArgumentError`."""
        if token not in self._pieces:
            raise ArgumentError("the prompt holds a picture that this session has not seen")
        return self._pieces[token].n_positions

    def compute(self, context: Any, token: int, position: int) -> None:
        """Computes the piece of a picture with this id at a position of sequence 0 of a
        `llama_context`."""
        self.n_positions(token)
        after = ctypes.c_int32()
        status = self._api.mtmd_helper_eval_chunk_single(
            self._handle, context, self._pieces[token].chunk, position, 0, MAX_BATCH_TOKENS, False,
            ctypes.byref(after),
        )  # fmt: skip
        if status != 0:
            raise LocalLLMError(f"llama.cpp could not look at a picture (status {status})")

    def close(self) -> None:
        if self._handle is not None:
            for piece in getattr(self, "_pieces", {}).values():
                self._api.mtmd_input_chunk_free(piece.chunk)
            self._api.mtmd_free(self._handle)
            self._handle = None


def read_pixels(path: Path) -> tuple[bytes, int, int]:
    """(RGB bytes row after row, width, height), turned as the camera was held."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise UnsupportedError(
            "reading pictures needs the package pillow, which is not installed",
            "Install it with: pip install 'localllm[compat]'",
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            picture = Image.open(path)
        with picture:
            width, height = picture.size
            if width * height > MAX_PIXELS:
                raise ArgumentError(
                    f"the picture {path} has {width} x {height} pixels, "
                    f"the limit is {MAX_PIXELS:,} in all"
                )
            if max(width, height) > MAX_ASPECT * min(width, height):
                raise ArgumentError(
                    f"the picture {path} has {width} x {height} pixels, and one side may be "
                    f"{MAX_ASPECT} times the other at most"
                )
            turned = ImageOps.exif_transpose(picture).convert("RGB")
            return turned.tobytes(), *turned.size
    except UnidentifiedImageError:
        raise ArgumentError(f"{path} is no picture that can be read") from None
    except Image.DecompressionBombError as e:
        raise ArgumentError(f"the picture {path} is too large: {str(e)[:200]}") from None
    except (OSError, ValueError, SyntaxError) as e:
        raise ArgumentError(f"the picture {path} is damaged: {str(e)[:200]}") from e


def find_projector(model: Path) -> Path:
    """The projector file that lies beside a model: of several the one whose name is most like the
    model's. Raises `UnsupportedError` if there is none."""
    found = [path for path in model.parent.glob("*mmproj*.gguf") if path != model]
    sound = [path for path in sorted(found) if _is_projector(path)]
    if not sound:
        raise UnsupportedError(
            f"{model.name} can look at no picture: there is no projector (mmproj-*.gguf) beside it",
            "Publishers of vision models have it beside the model's file: put it into that folder.",
        )
    return max(sound, key=lambda path: _likeness(path.name, model.name))


def _is_projector(path: Path) -> bool:
    try:
        with GgufFile(path) as file:
            return file.architecture == "clip"
    except LocalLLMError:
        return False


def _likeness(projector: str, model: str) -> int:
    name = projector.lower().replace("mmproj", "").strip("-_.")
    pairs = zip(name, model.lower(), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
