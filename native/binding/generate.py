"""Writes the C source of the module `localllm._native` from the public header.

The header is the cffi cdef: what remains after the preprocessor lines are taken out is plain C
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


def main(header: str, output: str) -> None:
    """Reads `header`, writes the module's C source to `output`."""
    ffi = cffi.FFI()
    ffi.cdef(cdef_of(Path(header).read_text(encoding="utf-8")))
    ffi.set_source("localllm._native", '#include "localllm.h"')
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
