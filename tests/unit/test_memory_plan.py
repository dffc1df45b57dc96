"""The plan against what is then allocated, and against files that are not there yet."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from stand_ins import headers

from localllm.engine import machine
from localllm.engine.kv_tier import TierOptions
from localllm.engine.memory_plan import (
    MAX_BATCH_TOKENS,
    MIN_CONTEXT,
    N_SEQUENCES,
    Blueprint,
    Room,
    fitting,
    shared_pool,
    survey,
)
from localllm.engine.open import OpenOptions, plan_load
from localllm.engine.runner import Model, Runner
from localllm.errors import ArgumentError, FormatError, OutOfMemoryError
from localllm.server.opening import ModelFile, memory_need
from localllm.store.inspect import GgufFile

GB = 10**9


@pytest.mark.parametrize("arch", ["llama", "llama-tied", "llama-odd", "qwen3", "gemma3"])
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_what_is_planned_is_allocated(
    tiny: Callable[[str, str], Path], arch: str, raw: bool, kv_type: str
) -> None:
    path = tiny(arch, "Q4_0")
    with Blueprint(path, n_threads=3) as blueprint:
        plan = blueprint.plan(700, kv_type, raw=raw)
    with Model.load(path, n_threads=3, raw_weights=raw) as model:
        runner = Runner(
            model,
            kv_type=kv_type,
            n_ctx_tokens=700,
            max_batch_tokens=MAX_BATCH_TOKENS,
            max_sequences=1,
            n_forks=N_SEQUENCES - 1,
        )
        assert (plan.weight_bytes, plan.mapped_bytes) == (
            model.info.weight_bytes,
            model.info.mapped_bytes,
        )
        assert (plan.kv_bytes, plan.scratch_bytes) == (runner.kv_bytes, runner.scratch_bytes)
        runner.close()
    assert plan.total_bytes == plan.weight_bytes + plan.kv_bytes + plan.scratch_bytes
    assert plan.peak_bytes >= plan.total_bytes


@pytest.fixture(scope="module")
def seventy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    path = tmp_path_factory.mktemp("h") / "llama3-70b.gguf"
    return path, headers.write(path, headers.LLAMA3_70B, headers.q4_k_m)


def test_llama3_70b_without_its_data(seventy: tuple[Path, int]) -> None:
    path, data_bytes = seventy
    assert path.stat().st_size < 200_000
    with pytest.raises(FormatError, match="was the download cut short"):
        GgufFile(path)
    with Blueprint(path) as blueprint:
        plan = blueprint.plan(8192)
        assert blueprint.info.n_params == 70_553_706_496
    assert plan.weight_bytes == pytest.approx(data_bytes, rel=1e-3)
    assert 42.0 * GB < plan.weight_bytes < 43.5 * GB  # the file that people pull has 42.5 GB
    tokens = 8192 + N_SEQUENCES * 32  # a partly filled block for each sequence
    assert plan.kv_bytes == 80 * 8 * 128 * 2 * 2 * tokens


def test_the_sum_of_the_article(tmp_path: Path) -> None:
    headers.write(tmp_path / "a.gguf", headers.ARTICLE_7B, headers.f16)
    with Blueprint(tmp_path / "a.gguf") as blueprint:
        plan = blueprint.plan(32768)
    assert round(plan.weight_bytes / GB) == 14
    assert round(plan.kv_bytes / GB) == 17


def test_a_header_is_no_model(seventy: tuple[Path, int]) -> None:
    with pytest.raises(FormatError):
        Model.load(seventy[0])
    file = GgufFile(seventy[0], header_only=True)
    assert len(file.tensors()) == 80 * 9 + 3
    with pytest.raises(ArgumentError, match="only its header"):
        file.tensor_bytes("output.weight")


def test_a_cut_header_is_refused(seventy: tuple[Path, int], tmp_path: Path) -> None:
    data = seventy[0].read_bytes()
    for n in (0, 3, 100, len(data) // 2, len(data) - 1):
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(data[:n])
        with pytest.raises((FormatError, Exception)) as e:
            Blueprint(cut)
        assert "cut.gguf" in str(e.value)


def test_the_largest_context_that_fits(seventy: tuple[Path, int]) -> None:
    with Blueprint(seventy[0], n_threads=2) as blueprint:
        everything = fitting(blueprint, Room(192 * GB, 180 * GB))
        assert (everything.n_ctx, everything.mapped_bytes) == (8192, 0)
        some = fitting(blueprint, Room(64 * GB, 47 * GB))
        assert MIN_CONTEXT < some.n_ctx < 8192 and some.mapped_bytes == 0
        free = 47 * GB - some.weight_bytes - some.scratch_bytes - some.text_bytes
        assert some.kv_bytes <= free / 2
        assert blueprint.kv_bytes("f16", some.n_ctx + 64) > free / 2
        halved = fitting(blueprint, Room(64 * GB, 47 * GB), kv_type="q8_0")
        assert halved.n_ctx > 1.25 * some.n_ctx


def test_weights_that_do_not_fit_are_read_from_the_file(seventy: tuple[Path, int]) -> None:
    with Blueprint(seventy[0], n_threads=2) as blueprint:
        plan = fitting(blueprint, Room(64 * GB, 30 * GB))
        assert plan.mapped_bytes > 42 * GB and plan.weight_bytes < GB
        asked = fitting(blueprint, Room(192 * GB, 180 * GB), raw=True)
        assert asked.mapped_bytes > 42 * GB


def test_what_cannot_run_is_refused_with_what_could(seventy: tuple[Path, int]) -> None:
    with Blueprint(seventy[0], n_threads=2) as blueprint:
        with pytest.raises(OutOfMemoryError) as e:
            fitting(blueprint, Room(24 * GB, 20 * GB))
        assert "the model needs 4" in e.value.message and "20.0 GB of 24.0 GB" in e.value.message
        assert "TQ2_0 or less would fit" in (e.value.hint or "")  # 2.06 bits a weight
        assert "--mmap" in (e.value.hint or "")
        with pytest.raises(OutOfMemoryError) as e:
            fitting(blueprint, Room(4 * GB, 3 * GB))
        assert "localllm recommend" in (e.value.hint or "")
        with pytest.raises(ArgumentError, match="trained on 8192"):
            fitting(blueprint, Room(192 * GB, 180 * GB), n_ctx=8193)


def test_unknown_memory_means_no_limit(tiny: Callable[[str, str], Path]) -> None:
    with Blueprint(tiny("llama", "Q4_0")) as blueprint:
        assert fitting(blueprint, Room(0, 0)).n_ctx == blueprint.info.n_ctx_train


def test_a_pool_that_sequences_share(tiny: Callable[[str, str], Path]) -> None:
    path = tiny("gemma3", "Q4_0")
    with Blueprint(path, n_threads=1) as blueprint:
        plan = blueprint.plan(600)
        held = plan.weight_bytes + plan.scratch_bytes + plan.text_bytes

        def room_for(n_tokens: int, n_sequences: int) -> Room:
            n_bytes = blueprint.kv_bytes("f16", n_tokens, n_sequences)
            return Room(192 * GB, held + 2 * n_bytes)

        assert shared_pool(blueprint, plan, Room(192 * GB, 180 * GB), 8) == (8, 8 * 600)
        n_sequences, n_tokens = shared_pool(blueprint, plan, room_for(1600, 8), 8)
        assert n_sequences == 8 and 1600 <= n_tokens < 1600 + 32
        assert shared_pool(blueprint, plan, room_for(600, 2), 8)[0] == 2
        assert shared_pool(blueprint, plan, Room(0, 0), 8) == (8, 600)
        planned = blueprint.kv_bytes("f16", 1600, 8)
        load = plan_load(blueprint, OpenOptions(n_ctx=600), 8, room_for(1600, 8))
    with Model.load(path, n_threads=1) as model:
        runner = Runner(
            model, n_ctx_tokens=1600, max_batch_tokens=MAX_BATCH_TOKENS, max_sequences=8
        )
        assert runner.kv_bytes == planned
        assert runner.scratch_bytes == load.memory.scratch_bytes > plan.scratch_bytes
        runner.close()


def test_swap_space_is_part_of_the_plan(tiny: Callable[[str, str], Path]) -> None:
    options = OpenOptions(n_ctx=600, tiers=TierOptions(ram_bytes=10**8))
    room = Room(192 * GB, 10**8 + 25 * 10**6)
    with Blueprint(tiny("gemma3", "Q4_0"), n_threads=1) as blueprint:
        plain = plan_load(blueprint, OpenOptions(n_ctx=600), 8, room)
        plan = plan_load(blueprint, options, 8, room)
        assert plan.swap_bytes == 10**8 and plan.held_bytes <= room.free_bytes
        assert plan.n_pool < plain.n_pool  # the pool gets half of what is left beside it
        assert f" for a pool of {plan.n_pool} tokens, 100 MB for swap space, " in str(plan)
        unlimited = plan_load(blueprint, options, 8, Room(0, 0))
        assert unlimited.n_pool == 600
        with pytest.raises(OutOfMemoryError, match="beside 100 MB of swap space") as e:
            plan_load(blueprint, options, 8, Room(192 * GB, 10**8))
        assert e.value.hint == "Use a smaller --swap-space."
        with pytest.raises(OutOfMemoryError, match=r"are free$"):
            plan_load(blueprint, OpenOptions(n_ctx=600), 8, Room(192 * GB, 10**6))


def test_a_server_counts_swap_space(tiny: Callable[[str, str], Path]) -> None:
    file = ModelFile(tiny("llama", "Q4_0"), "tiny")
    plain, room = OpenOptions(n_ctx=600), Room(192 * GB, 300 * 10**6)
    swap = OpenOptions(n_ctx=600, tiers=TierOptions(ram_bytes=10**8))
    one, other = (memory_need(file, each, room, 8) for each in (plain, swap))
    assert one.fits and other.fits
    assert other.held_bytes == one.held_bytes + 10**8  # the room is for all of the pool
    assert other.needed_bytes == one.needed_bytes + 10**8
    none = memory_need(file, swap, Room(192 * GB, 10**8), 8)
    assert not none.fits and none.held_bytes == 0


def test_a_smaller_context_is_charged_with_what_it_takes(
    tiny: Callable[[str, str], Path],
) -> None:
    file, large = ModelFile(tiny("llama", "Q4_0"), "tiny"), Room(192 * GB, 300 * 10**6)
    needed = memory_need(file, OpenOptions(), large, 1).needed_bytes
    need = memory_need(file, OpenOptions(), Room(192 * GB, needed - 1), 1)
    assert not need.fits and 0 < need.held_bytes < needed


def test_the_survey_is_plain_data(tiny: Callable[[str, str], Path]) -> None:
    import json

    facts = survey(tiny("llama", "Q4_0"))
    assert json.loads(json.dumps(facts)) == facts
    assert [plan["n_ctx"] for plan in facts["plans"]] == [2048, 2048]
    assert facts["chosen"]["n_ctx"] == 2048 and facts["refused"] == ""
    facts = survey(tiny("llama", "Q4_0"), n_ctx=9999)
    assert facts["chosen"] is None and "trained on 2048" in facts["refused"]


@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
def test_the_plan_of_a_real_model_is_what_it_takes(real_model: Callable[[str], Path]) -> None:
    """G21: within 2 % or 16 MiB of the growth of VmHWM, with every page touched."""
    import os
    import subprocess

    n_ctx = 8192 if os.environ.get("FULL") else 1024
    code = f"""
import sys
from localllm.engine.memory_plan import Blueprint, N_SEQUENCES
from localllm.engine.open import OpenOptions, plan_load
from localllm.engine.runner import Feed, Model, Runner
def peak():
    with open("/proc/self/status") as file:
        return next(int(l.split()[1]) * 1024 for l in file if l.startswith("VmHWM"))
with Blueprint(sys.argv[1], n_threads=2) as blueprint:
    plan = blueprint.plan({n_ctx})
before = peak()
model = Model.load(sys.argv[1], n_threads=2)
runner = Runner(model, n_ctx_tokens={n_ctx}, max_batch_tokens=512, max_sequences=1,
                n_forks=N_SEQUENCES - 1)
sequence = runner.new_sequence()
runner.prefill(Feed(sequence, [1 + i % 1000 for i in range({n_ctx})]))
print(peak() - before, plan.total_bytes)
"""
    path = real_model("smollm2:135m")
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    grown, planned = map(int, done.stdout.split())
    assert abs(grown - planned) <= max(0.02 * planned, 16 << 20), (grown, planned)


@pytest.mark.parametrize(
    ("free", "freed", "counted"), [(30, 0, 30), (30, 20, 50), (30, 90, 100), (0, 90, 0)]
)
def test_what_will_be_given_back_counts_as_free(
    monkeypatch: pytest.MonkeyPatch, free: int, freed: int, counted: int
) -> None:
    facts = types.SimpleNamespace(memory_bytes=100, free_bytes=free)
    monkeypatch.setattr(machine, "facts", lambda: facts)
    assert Room.here(freed) == Room(100, counted)
