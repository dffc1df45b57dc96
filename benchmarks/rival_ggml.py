"""ggml in the library of llama-cpp-python: the functions that a product takes, and its CPU backend.

Only what every build exports is called by its name; the rest of the backend is asked for, as
llama.cpp does, so builds whose backends are libraries of their own work, too.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CPU_DEVICE = 0  # GGML_BACKEND_DEVICE_TYPE_CPU
MAX_THREADS = 512  # GGML_MAX_N_THREADS


class InitParams(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool),
    )  # fmt: skip


class _PoolParams(ctypes.Structure):
    _fields_ = (
        ("cpumask", ctypes.c_bool * MAX_THREADS), ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int), ("poll", ctypes.c_uint32), ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    )  # fmt: skip


_P, _SIZE, _INT, _I64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64
_TEXT, _BOOL = ctypes.c_char_p, ctypes.c_bool
_quiet = ctypes.CFUNCTYPE(None, _INT, _TEXT, _P)(lambda level, text, data: None)
#: What a function returns, then its arguments.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "ggml_log_set": (None, _P, _P),
    "ggml_type_name": (_TEXT, _INT),
    "ggml_nbytes": (_SIZE, _P),
    "ggml_init": (_P, InitParams),
    "ggml_free": (None, _P),
    "ggml_tensor_overhead": (_SIZE,),
    "ggml_graph_overhead": (_SIZE,),
    "ggml_new_tensor_2d": (_P, _P, _INT, _I64, _I64),
    "ggml_mul_mat": (_P, _P, _P, _P),
    "ggml_new_graph": (_P, _P),
    "ggml_build_forward_expand": (None, _P, _P),
    "ggml_threadpool_params_init": (None, ctypes.POINTER(_PoolParams), _INT),
    "ggml_backend_alloc_ctx_tensors_from_buft": (_P, _P, _P),
    "ggml_backend_buffer_free": (None, _P),
    "ggml_backend_buft_name": (_TEXT, _P),
    "ggml_backend_tensor_set": (None, _P, _P, _SIZE, _SIZE),
    "ggml_backend_tensor_get": (None, _P, _P, _SIZE, _SIZE),
    "ggml_backend_graph_compute": (_INT, _P, _P),
    "ggml_backend_load_all_from_path": (None, _TEXT),
    "ggml_backend_dev_by_type": (_P, _INT),
    "ggml_backend_dev_init": (_P, _P, _TEXT),
    "ggml_backend_dev_buffer_type": (_P, _P),
    "ggml_backend_dev_supports_op": (_BOOL, _P, _P),
    "ggml_backend_dev_backend_reg": (_P, _P),
    "ggml_backend_reg_get_proc_address": (_P, _P, _TEXT),
}


def bind(libraries: Sequence[Any]) -> Any:
    """ggml's functions, each from the first library that has it. RuntimeError: none has one."""
    found = SimpleNamespace()
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = next((getattr(each, name) for each in libraries if hasattr(each, name)), None)
        if function is None:
            raise RuntimeError(f"the rival's library has no {name}")
        function.restype, function.argtypes = result, arguments
        setattr(found, name, function)
    return found


def load() -> Any:
    """ggml of the llama-cpp-python that `features` names."""
    import llama_cpp
    from llama_cpp._ctypes_extensions import load_shared_library

    folder = Path(llama_cpp.__file__).parent / "lib"
    folder = Path(os.environ.get("LLAMA_CPP_LIB_PATH") or folder)
    ggml = bind([load_shared_library(name, folder) for name in ("ggml", "ggml-base")])
    ggml.ggml_log_set(_quiet, None)
    if not ggml.ggml_backend_dev_by_type(CPU_DEVICE):  # backends are libraries of their own
        ggml.ggml_backend_load_all_from_path(os.fsencode(folder))
    return ggml


class Backend:
    """ggml's CPU backend with its own threads. buffer_types: the plain one last."""

    def __init__(self, ggml: Any, n_threads: int) -> None:
        self.ggml = ggml
        self.device = ggml.ggml_backend_dev_by_type(CPU_DEVICE)
        if not self.device:
            raise RuntimeError("the rival's library has no CPU backend")
        self.handle = ggml.ggml_backend_dev_init(self.device, None)
        self._function("ggml_backend_set_n_threads", None, _P, _INT)(self.handle, n_threads)
        pool = _PoolParams()
        ggml.ggml_threadpool_params_init(ctypes.byref(pool), n_threads)
        threads = self._function("ggml_threadpool_new", _P, _P)(ctypes.addressof(pool))
        self._function("ggml_backend_cpu_set_threadpool", None, _P, _P)(self.handle, threads)
        name, listed = "ggml_backend_dev_get_extra_bufts", ctypes.POINTER(_P)
        extra = self._function(name, listed, _P)(self.device)
        self.buffer_types = [
            *takewhile(bool, extra),
            ggml.ggml_backend_dev_buffer_type(self.device),
        ]

    def _function(self, name: str, *types: Any) -> Any:
        registry = self.ggml.ggml_backend_dev_backend_reg(self.device)
        address = self.ggml.ggml_backend_reg_get_proc_address(registry, name.encode())
        if not address:
            raise RuntimeError(f"the rival's CPU backend has no {name}")
        return ctypes.CFUNCTYPE(*types)(address)
