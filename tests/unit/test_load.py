"""From a file to a model in memory: what it costs, what fits, and a file that changes meanwhile."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from benchmarks import synthetic
from localllm.engine import open as opening
from localllm.engine.runner import Feed, Model, Runner
from localllm.errors import OutOfMemoryError
from localllm.store.inspect import GgufFile

#: After the imports of a start: 308 on Linux when this was written, most of them not ours.
MAX_MODULES = 340

Tiny = Callable[[str, str], Path]
ROOT = Path(__file__).resolve().parents[2]
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PAGE_BYTES = 4096

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc/self"
)


def load_once(path: Path, n_cut: int = 0) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load_once", str(path), str(n_cut)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def logits_of(model: Model) -> Any:
    runner = Runner(model, n_ctx_tokens=64, max_batch_tokens=64, max_sequences=1)
    return runner.step([Feed(runner.new_sequence(), list(range(5, 30)))], all_logits=True).logits


@needs_proc
def test_memory_of_a_load(tmp_path: Path) -> None:
    """The peak is the panels and 5 %; where the system has huge pages they hold nearly all."""
    shape = synthetic.Shape(10, 1024, 4096, 16, 4, 64, 32000, True)
    path = tmp_path / "model.gguf"
    synthetic.write(path, shape, "Q8_0")
    try:
        file_mib = path.stat().st_size / 2**20
        assert file_mib > 150
        found = load_once(path)
    finally:
        path.unlink()
    assert not found["error"]
    assert 0.95 * file_mib < found["growth_mib"] < 1.05 * file_mib
    if not THP.exists() or "[never]" in THP.read_text():
        pytest.skip("transparent huge pages are off")
    assert found["huge_mib"] > 0.9 * file_mib
    # The source is read, not mapped: a tenth of the faults that either side would take by pages.
    assert found["n_faults"] < 0.1 * file_mib * 2**20 / PAGE_BYTES


@needs_proc
def test_a_file_cut_short_between_open_and_load(tiny: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shutil.copyfile(tiny("llama", "Q4_0"), path)
    with GgufFile(path) as file:
        data_bytes = sum(tensor.n_bytes for tensor in file.tensors())
    found = load_once(path, n_cut=data_bytes * 9 // 10)
    assert found["error"] == "FileError"
    assert "cut it short" in found["message"] and str(path) in found["message"]


@pytest.mark.parametrize("weight_type", ["Q4_K", "F16"])
def test_panels_that_do_not_fit_stay_in_the_file(tiny: Tiny, weight_type: str) -> None:
    """The same bits either way, one byte decides, and the session says it in one line."""
    path = tiny("llama", weight_type)
    with Model.load(path, n_threads=2) as model:
        want, panels = logits_of(model), model.info.weight_bytes
        assert model.info.mapped_bytes == 0
    with Model.load(path, n_threads=2, panel_limit=panels) as model:
        assert model.info.mapped_bytes == 0
    with Model.load(path, n_threads=2, panel_limit=1) as model:
        assert model.info.mapped_bytes > 0
        assert model.info.weight_bytes < panels
        assert np.array_equal(logits_of(model).view(np.uint32), want.view(np.uint32))


def test_a_session_says_that_the_weights_stay_in_the_file(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny("llama", "Q4_0")
    options = opening.OpenOptions(engine="native")
    said: list[str] = []
    opening.open_parts(path, options, notice=said.append).engine.close()
    assert said == []
    monkeypatch.setattr(Model, "load", functools.partial(Model.load, panel_limit=1))
    opening.open_parts(path, options, notice=said.append).engine.close()
    assert len(said) == 1
    assert "do not fit into the free memory" in said[0]

    def refused(*args: Any, **kwargs: Any) -> Model:
        model = load(*args, **kwargs)
        model.info = dataclasses.replace(model.info, was_refused=True)
        return model

    load = Model.load
    monkeypatch.setattr(Model, "load", refused)
    opening.open_parts(path, options, notice=said.append).engine.close()
    assert len(said) == 2
    assert "could not be given memory, though it is free" in said[1]


@needs_proc
def test_memory_that_the_system_refuses(tiny: Tiny, tmp_path: Path) -> None:
    """As under `ulimit -v`, with room for the file's map and half of the panels: the model runs
    from the file and knows why."""
    path = tmp_path / "model.gguf"
    synthetic.write(path, synthetic.Shape(2, 2048, 8192, 8, 8, 256, 512, True), "Q8_0")
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from localllm.engine.runner import Model\n"
        "path = Path(sys.argv[1])\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "limit = used + path.stat().st_size * 3 // 2\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "info = Model.load(path, n_threads=1).info\n"
        "print(info.mapped_bytes > 0, info.was_refused)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    path.unlink()
    assert done.stdout == "True True\n"
    with Model.load(tiny("llama", "Q4_0"), panel_limit=1) as model:
        assert model.info.mapped_bytes > 0 and not model.info.was_refused


def test_parts_of_a_set_load_like_one_file(tiny: Tiny, tmp_path: Path) -> None:
    whole = tiny("llama", "Q6_K")
    reader = gguf.GGUFReader(whole)
    writer = gguf.GGUFWriter(tmp_path / "set.gguf", "llama", split_max_tensors=7)
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            kind = field.types[0]
            sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=sub)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(tmp_path.glob("set-*.gguf"))
    assert len(parts) > 2
    with Model.load(whole) as one, Model.load(parts[1]) as several:
        assert np.array_equal(logits_of(one), logits_of(several))


def test_what_a_start_imports() -> None:
    """`localllm run` is half imports on a small model: a count, which no neighbour can change."""
    code = (
        "import sys, localllm.cli.run, localllm.session, localllm.engine.open\n"
        "print(len(sys.modules), *sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    count, *names = done.stdout.split()
    unwanted = {"click.testing", "numpy.random", "numpy.ma", "numpy.testing", "gguf", "psutil",
                "llama_cpp", "asyncio", "unittest", "http.client", "ssl"}  # fmt: skip
    assert not unwanted & set(names)
    assert int(count) < MAX_MODULES


def test_a_cache_that_cannot_be_had_has_a_hint(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under `ulimit -v`, where memory is free that this process may not take."""

    def refuse(*_: Any, **__: Any) -> Runner:
        raise OutOfMemoryError("kv pool group 0: cannot reserve 258 blocks of 737280 bytes")

    monkeypatch.setattr(opening, "Runner", refuse)
    with pytest.raises(OutOfMemoryError, match="258 blocks") as refused:
        opening.open_parts(tiny("llama", "Q4_0"), opening.OpenOptions(engine="native"))
    assert "--ctx" in (refused.value.hint or "")
