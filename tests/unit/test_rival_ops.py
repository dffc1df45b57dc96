"""The rival's products beside the op table: the same matrix and result, or a note and no ratio."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
from reference.tolerances import ENGINE_AND_LLAMA, LLAMA_QUANTIZED

from benchmarks import ops, rival_ggml, rival_ops, synthetic
from benchmarks.pairs import RivalChoice
from benchmarks.report import Row
from benchmarks.roofs import Threads

SHAPE = (64, 256)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "SMALL", SHAPE)
    monkeypatch.setattr(ops, "LARGE", SHAPE)
    monkeypatch.setattr(ops, "SETTLE_SECONDS", 0.0)


def fake_backend(n_bytes: int, is_supported: bool, type_name: bytes | None) -> Any:
    """One buffer type, and a ggml that only knows how large tensors are."""
    nothing = dict.fromkeys(rival_ggml._FUNCTIONS, lambda *args: 1)
    ggml = SimpleNamespace(**nothing)
    ggml.ggml_type_name = lambda quant: type_name
    ggml.ggml_nbytes = lambda tensor: n_bytes
    ggml.ggml_backend_dev_supports_op = lambda device, op: is_supported
    ggml.ggml_backend_buft_name = lambda buffer_type: b"CPU"
    return SimpleNamespace(ggml=ggml, device=1, handle=1, buffer_types=[1])


def test_a_library_without_a_function_is_refused() -> None:
    functions = {name: SimpleNamespace() for name in rival_ggml._FUNCTIONS}
    first = SimpleNamespace(ggml_init=functions.pop("ggml_init"))
    ggml = rival_ggml.bind([first, SimpleNamespace(**functions)])
    assert ggml.ggml_init is first.ggml_init and ggml.ggml_free.restype is None
    del functions["ggml_mul_mat"]
    with pytest.raises(RuntimeError, match="has no ggml_mul_mat"):
        rival_ggml.bind([first, SimpleNamespace(**functions)])


def test_a_library_without_a_backend_or_what_it_is_asked_for_is_refused() -> None:
    ggml = fake_backend(0, True, None).ggml
    ggml.ggml_backend_reg_get_proc_address = lambda registry, name: None
    with pytest.raises(RuntimeError, match="backend has no ggml_backend_set_n_threads"):
        rival_ggml.Backend(ggml, 1)
    ggml.ggml_backend_dev_by_type = lambda kind: None
    with pytest.raises(RuntimeError, match="has no CPU backend"):
        rival_ggml.Backend(ggml, 1)


@pytest.mark.parametrize(
    ("n_bytes", "is_supported", "type_name", "reason"),
    [
        (64 * 144, True, None, "ggml has no type Q4_K"),
        (64 * 144, True, b"q4_0", "ggml has no type Q4_K"),
        (64 * 140, True, b"q4_K", "lays Q4_K out in 8960 bytes"),
        (64 * 144, False, b"q4_K", "multiplies no Q4_K"),
    ],
)
def test_a_type_that_ggml_lacks_is_refused(
    n_bytes: int, is_supported: bool, type_name: bytes | None, reason: str
) -> None:
    with pytest.raises(RuntimeError, match=reason):
        rival_ops.Matrix(fake_backend(n_bytes, is_supported, type_name), "Q4_K", *SHAPE)


def test_the_fastest_buffer_type_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = fake_backend(64 * 144, True, b"q4_K")
    backend.buffer_types = [7, 8, 9]
    backend.ggml.ggml_new_tensor_2d = lambda context, *args: context
    contexts = iter(range(100))
    backend.ggml.ggml_init = lambda params: next(contexts)
    backend.ggml.ggml_backend_buft_name = lambda buffer_type: b"type %d" % buffer_type
    matrix = rival_ops.Matrix(backend, "Q4_K", *SHAPE)
    weights = [weight for _, weight in matrix._weights]
    closed: list[int] = []

    class Product:
        def __init__(self, backend: Any, weight: int, n_rows: int, x: rival_ops.Floats) -> None:
            self.weight, self.close = weight, lambda: closed.append(weight)

        def seconds(self, n_reps: int) -> float:
            return 1.0 + (self.weight != weights[1])

    monkeypatch.setattr(rival_ops, "Product", Product)
    assert matrix.seconds(4, 2) == matrix.seconds(4, 1) == (1.0, "type 8")
    assert closed == [weights[0], weights[2]]


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_K", "F16"])
def test_it_multiplies_the_matrix_of_the_op_table(type_name: str) -> None:
    pytest.importorskip("llama_cpp")
    backend = rival_ggml.Backend(rival_ggml.load(), 2)
    backend.buffer_types = backend.buffer_types[-1:]  # others may crash: docs/decisions/0002
    matrix = rival_ops.Matrix(backend, type_name, *SHAPE)
    quant = gguf.GGMLQuantizationType[type_name]
    weights = gguf.dequantize(synthetic.matrix(type_name, *SHAPE).reshape(64, -1), quant)
    for n in (1, 5):
        y = synthetic.activations(n, 256) @ weights.T
        seconds, variant = matrix.seconds(n, 2)
        assert seconds > 0 and variant == "CPU"
        error = np.linalg.norm(matrix.result(n) - y) / np.linalg.norm(y)
        assert error <= (ops.FLOAT_ERROR if type_name == "F16" else ops.QUANTIZED_ERROR)


def test_rows_have_the_ratio_of_a_process() -> None:
    pytest.importorskip("llama_cpp")
    features: list[str] = []
    one, many = ops.measure(Threads(1), ["Q4_0"], [1, 16], None, 2, RivalChoice(), features.append)
    if "AMX_INT8" in features[0] and "died" in one.note:
        pytest.skip("a build that crashes: docs/decisions/0002")
    for row in (one, many):
        assert row.rival is not None and row.rival > 0 and row.n_pairs == 2, row.note
        assert row.ratio_low is not None and row.ratio is not None and row.ratio >= row.ratio_low
        assert row.rival_variant


def test_a_process_that_dies_is_not_asked_again() -> None:
    pytest.importorskip("llama_cpp")
    rival = rival_ops.RivalOps(RivalChoice(), 1, lambda text: None)
    assert rival._child is not None and rival.note == ""
    rival._child._process.kill()
    rival._child._process.join(30)
    assert rival.ask("seconds", ("Q4_0", *SHAPE), 1, 1) is None
    assert rival._child is None and "llama.cpp died" in rival.note


def test_a_library_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path / "nothing"))
    (row,) = ops.measure(Threads(1), ["Q4_0"], [1], None, 1, RivalChoice())
    assert row.ratio is None and row.ours is not None and "does not load" in row.note


class FakeRival:
    """Its products come out of `result`; `seconds` fails once `n_left` have been timed."""

    def __init__(self, factor: float, n_left: int) -> None:
        self._factor, self._n_left, self.note, self.n_asked = factor, n_left, "", 0

    def ask(self, method: str, made_of: rival_ops.MadeOf, *args: int) -> Any:
        self.n_asked += 1
        if method == "result":
            type_name, n_rows, n_cols = made_of
            weight = gguf.dequantize(
                synthetic.matrix(*made_of).reshape(n_rows, -1),
                gguf.GGMLQuantizationType[type_name],
            )
            return self._factor * (synthetic.activations(args[0], n_cols) @ weight.T)
        self._n_left -= 1
        if self._n_left < 0:
            self.note = "llama.cpp died"
            return None
        return 0.5, "CPU"

    def close(self) -> None:
        self.note = "closed"


@pytest.fixture
def row_beside(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeRival], Row]:
    def measured(rival: FakeRival) -> Row:
        monkeypatch.setattr(ops, "RivalOps", lambda *args: rival)
        (row,) = ops.measure(Threads(1), ["Q8_0"], [2], None, 3)
        return row

    return measured


def test_what_is_compared_is_the_same_product(row_beside: Callable[[FakeRival], Row]) -> None:
    good = row_beside(FakeRival(1.0, 3))
    assert (good.n_pairs, good.rival_variant) == (3, "CPU") and good.ratio is not None
    wrong = FakeRival(1.1, 3)
    row = row_beside(wrong)
    assert (row.ratio, row.rival, row.rival_variant, wrong.n_asked) == (None, None, "", 1)
    assert "the rival's product is off by 0.1" in row.note and row.ours is not None
    assert LLAMA_QUANTIZED.median == ops.QUANTIZED_ERROR
    assert ENGINE_AND_LLAMA.median == ops.FLOAT_ERROR


def test_a_rival_that_dies_between_pairs_has_no_ratio(
    row_beside: Callable[[FakeRival], Row],
) -> None:
    row = row_beside(FakeRival(1.0, 1))
    assert (row.ratio, row.rival, row.rival_variant) == (None, None, "")
    assert "llama.cpp died" in row.note and row.ours is not None


def test_a_rival_that_is_off_leaves_a_note() -> None:
    rival = rival_ops.RivalOps(RivalChoice(wanted=False), 1, lambda text: None)
    assert rival.ask("seconds", ("Q4_0", *SHAPE), 1, 1) is None
    assert rival.note == "no rival asked for"
