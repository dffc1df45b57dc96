"""Typed reads from GGUF metadata, which is hostile input: every value is checked for its type and
range, and an error names the key, the value and the limit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from localllm.errors import FormatError

Metadata = Mapping[str, object]

NO_TOKEN = (-1, 0xFFFFFFFF)
"""What some converters write for "this model has no such token"."""


def shown(value: object, limit: int = 60) -> str:
    """A value from a file as it may stand in an error message: short, on one line, no control
    characters."""
    text = ascii(value[: 4 * limit] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= limit else text[:limit] + "..."


def kind_of(value: object) -> str:
    """How an error names the type of a metadata value."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    if isinstance(value, (list, tuple)):
        return "an array of strings"
    return f"a {type(value).__name__}"


def read_text(metadata: Metadata, key: str, default: str | None = None) -> str | None:
    """A string, or `default` if the key is absent."""
    value = metadata.get(key)
    if value is None:
        return default
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as e:
            raise FormatError(
                f"{key} is not UTF-8 (byte {e.start} is {value[e.start]:#04x})"
            ) from e
    if not isinstance(value, str):
        raise FormatError(f"{key} is {kind_of(value)}, expected a string")
    return value


def read_flag(metadata: Metadata, key: str, default: bool) -> bool:
    """A boolean; the integers 0 and 1 pass."""
    value = metadata.get(key)
    if value is None:
        return default
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise FormatError(f"{key} is {shown(value)} ({kind_of(value)}), expected true or false")


def read_token_id(metadata: Metadata, key: str, n_vocab: int, default: int | None) -> int | None:
    """A token id, None for the values of `NO_TOKEN`. A default outside the vocabulary is None."""
    value = metadata.get(key)
    if value is None:
        return default if default is not None and default < n_vocab else None
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise FormatError(f"{key} is {shown(value)} ({kind_of(value)}), expected a token id")
    if value in NO_TOKEN:
        return None
    if not 0 <= value < n_vocab:
        raise FormatError(f"{key} is {value}, the vocabulary has {n_vocab} tokens")
    return int(value)


def read_strings(metadata: Metadata, key: str) -> list[bytes] | None:
    """An array of strings as bytes, None if the key is absent."""
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        raise FormatError(f"{key} is {kind_of(value)}, expected an array of strings")
    if set(map(type, value)) <= {bytes}:
        return list(value)
    out = []
    for i, item in enumerate(value):
        if isinstance(item, str):
            out.append(item.encode("utf-8", "surrogatepass"))
        elif isinstance(item, bytes):
            out.append(item)
        else:
            raise FormatError(f"{key}[{i}] is {kind_of(item)}, expected a string")
    return out


def read_array(
    metadata: Metadata, key: str, dtypes: tuple[str, ...], length: int | None = None
) -> npt.NDArray[np.generic] | None:
    """A one-dimensional numeric array of one of `dtypes`, None if the key is absent."""
    value = metadata.get(key)
    if value is None:
        return None
    wanted = " or ".join(dtypes)
    if not isinstance(value, np.ndarray):
        if isinstance(value, (list, tuple)) and not value and length in (None, 0):
            return np.zeros(0, dtypes[0])
        raise FormatError(f"{key} is {kind_of(value)}, expected an array of {wanted}")
    if value.ndim != 1 or value.dtype.name not in dtypes:
        raise FormatError(f"{key} is {kind_of(value)}, expected an array of {wanted}")
    if length is not None and len(value) != length:
        raise FormatError(f"{key} has {len(value)} elements, the vocabulary has {length} tokens")
    return value
