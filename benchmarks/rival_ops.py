"""The rival's product of one weight matrix: ggml's `mul_mat`, in a process of its own.

Each buffer type of its CPU backend that multiplies the matrix (plain, repacked, AMX tiles) is
tried, and the fastest is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from benchmarks import synthetic
from benchmarks.pairs import RivalChoice
from benchmarks.rival_ggml import Backend, InitParams, load
from benchmarks.rival_process import RivalChild, answer_requests

Floats = npt.NDArray[np.float32]
MadeOf = tuple[str, int, int]  # type, rows, columns: what `synthetic.matrix` takes
TRIES = 5  # products of each buffer type before one is chosen


class Product:
    """y [n, n_rows] of a weight tensor [n_rows, n_cols] and activations x [n, n_cols]."""

    def __init__(self, backend: Backend, weight: int, n_rows: int, x: Floats) -> None:
        ggml, self._backend = backend.ggml, backend
        size = 8 * ggml.ggml_tensor_overhead() + ggml.ggml_graph_overhead()
        self._context = ggml.ggml_init(InitParams(size, None, True))
        inputs = ggml.ggml_new_tensor_2d(self._context, 0, x.shape[1], len(x))
        self._y, self._shape = ggml.ggml_mul_mat(self._context, weight, inputs), (len(x), n_rows)
        self._graph = ggml.ggml_new_graph(self._context)
        ggml.ggml_build_forward_expand(self._graph, self._y)
        self._buffer = ggml.ggml_backend_alloc_ctx_tensors_from_buft(
            self._context, backend.buffer_types[-1]
        )
        if not self._buffer:
            raise RuntimeError("ggml has no memory for activations")
        ggml.ggml_backend_tensor_set(inputs, x.ctypes.data, 0, x.nbytes)
        self.is_supported: bool = ggml.ggml_backend_dev_supports_op(backend.device, self._y)

    def seconds(self, n_reps: int) -> float:
        """The shortest of n_reps products."""
        return min(self._time() for _ in range(n_reps))

    def _time(self) -> float:
        compute, handle = self._backend.ggml.ggml_backend_graph_compute, self._backend.handle
        begin = time.perf_counter()
        status = compute(handle, self._graph)
        seconds = time.perf_counter() - begin
        if status:
            raise RuntimeError(f"ggml_backend_graph_compute returned {status}")
        return seconds

    def result(self) -> Floats:
        y = np.empty(self._shape, np.float32)
        self._backend.ggml.ggml_backend_tensor_get(self._y, y.ctypes.data, 0, y.nbytes)
        return y

    def close(self) -> None:
        self._backend.ggml.ggml_backend_buffer_free(self._buffer)
        self._backend.ggml.ggml_free(self._context)


class Matrix:
    """The matrix of `synthetic.matrix`, held in every buffer type that multiplies it until the
    process ends. Raises RuntimeError where ggml lacks the type."""

    def __init__(self, backend: Backend, type_name: str, n_rows: int, n_cols: int) -> None:
        ggml, quant = backend.ggml, GGMLQuantizationType[type_name]
        if (ggml.ggml_type_name(quant) or b"").upper() != type_name.encode().upper():
            raise RuntimeError(f"ggml has no type {type_name}")
        self._backend, self._n_rows, self._n_cols = backend, n_rows, n_cols
        raw = synthetic.matrix(type_name, n_rows, n_cols)
        self._weights: list[tuple[str, int]] = []
        for buffer_type in backend.buffer_types:
            context = ggml.ggml_init(InitParams(2 * ggml.ggml_tensor_overhead(), None, True))
            weight = ggml.ggml_new_tensor_2d(context, quant, n_cols, n_rows)
            if ggml.ggml_nbytes(weight) != raw.size:
                raise RuntimeError(f"ggml lays {type_name} out in {ggml.ggml_nbytes(weight)} bytes")
            buffer = ggml.ggml_backend_alloc_ctx_tensors_from_buft(context, buffer_type)
            if buffer and self._multiplies(weight):
                ggml.ggml_backend_tensor_set(weight, raw.ctypes.data, 0, raw.size)
                name = ggml.ggml_backend_buft_name(buffer_type).decode()
                self._weights.append((name, weight))
            elif buffer:
                ggml.ggml_backend_buffer_free(buffer)
        if not self._weights:
            raise RuntimeError(f"ggml multiplies no {type_name} on a CPU")
        self._chosen: dict[int, tuple[str, Product]] = {}

    def _product(self, weight: int, n: int) -> Product:
        return Product(self._backend, weight, self._n_rows, synthetic.activations(n, self._n_cols))

    def _multiplies(self, weight: int) -> bool:
        product = self._product(weight, 1)
        product.close()
        return product.is_supported

    def _fastest(self, n: int) -> tuple[str, Product]:
        if n not in self._chosen:
            made = [(name, self._product(weight, n)) for name, weight in self._weights]
            tried = [[each.seconds(1) for _, each in made] for _ in range(TRIES)]  # in turn
            best = [min(seconds) for seconds in zip(*tried, strict=True)]
            self._chosen[n] = made.pop(best.index(min(best)))
            for _, slower in made:
                slower.close()
        return self._chosen[n]

    def seconds(self, n: int, n_reps: int) -> tuple[float, str]:
        """Of the shortest of n_reps products with n columns, and the buffer type's name."""
        name, product = self._fastest(n)
        return product.seconds(n_reps), name

    def result(self, n: int) -> Floats:
        """[n, n_rows], as the timed products leave it."""
        _, product = self._fastest(n)
        return product.result()


def _serve(pipe: Connection, n_threads: int) -> None:
    """The child: answers (method of `Matrix`, what `Matrix` is made of, arguments)."""
    try:
        from benchmarks.rival import features

        text = features()
        backend = Backend(load(), n_threads)
    except Exception as e:  # the package is missing, or its library is another one
        pipe.send(RuntimeError(f"llama-cpp-python does not load: {e}"))
        return
    pipe.send(text)
    matrices: dict[MadeOf, Matrix] = {}

    def answer(method: str, made_of: MadeOf, *args: int) -> object:
        if made_of not in matrices:
            matrices[made_of] = Matrix(backend, *made_of)
        return getattr(matrices[made_of], method)(*args)

    answer_requests(pipe, answer)


class RivalOps:
    """The rival's products in a child process. A rival that is off, refuses, takes too long or dies
    leaves `note`, and gives None; once it died it is not asked again."""

    def __init__(
        self, choice: RivalChoice, n_threads: int, on_features: Callable[[str], None]
    ) -> None:
        self._limit_s, self.note = choice.row_seconds, "" if choice.wanted else "no rival asked for"
        self._child: RivalChild | None = None
        if choice.wanted:
            try:
                self._child = RivalChild(_serve, n_threads)
                on_features(self._child.features)
            except RuntimeError as e:
                self.note = str(e)

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def ask(self, method: str, made_of: MadeOf, *args: int) -> Any:
        """What a method of the `Matrix` returns."""
        if self._child is None:
            return None
        try:
            return self._child.ask(method, made_of, *args, limit_s=self._limit_s)
        except RuntimeError as e:
            self.note = str(e)
            if not self._child.is_alive:
                self.close()
            return None
