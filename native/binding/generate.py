"""Writes the C source of the module `localllm._native` from the public headers.

The headers are the cffi cdef: what remains after the preprocessor lines are taken out is plain C
declarations. Integer `#define LLM_X <integer>` lines stay, so they arrive as `lib.LLM_X`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cffi

_DEFINE = re.compile(r"#define (LLM_\w+) +(-?\d+)\b")
_CPLUSPLUS = re.compile(r"#ifdef __cplusplus\n.*?#endif\n", re.DOTALL)


def cdef_of(header: str) -> str:
    """The declarations of a header, in the form that `FFI.cdef` accepts."""
    lines = []
    for line in _CPLUSPLUS.sub("", header).splitlines():
        if line.startswith("#"):
            define = _DEFINE.match(line)
            line = f"#define {define[1]} {define[2]}" if define else ""
        lines.append(line)
    return "\n".join(lines)


def main(output: str, headers: list[str]) -> None:
    """Reads the headers in their order, writes the module's C source to `output`."""
    ffi = cffi.FFI()
    for header in headers:
        ffi.cdef(cdef_of(Path(header).read_text(encoding="utf-8")))
    includes = "\n".join(f'#include "{Path(header).name}"' for header in headers)
    ffi.set_source("localllm._native", includes)
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
