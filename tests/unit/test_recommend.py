"""Which models are recommended, by sums that can be done by hand; and the remembered roofs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from localllm.engine import roofs
from localllm.engine.machine import Roofs
from localllm.store.catalog import Catalog, Size, load
from localllm.store.quantization import BITS, parse
from localllm.store.recommend import EFFICIENCY, Roof, Suggestion, recommend, suggest
from localllm.store.ref import parse as ref
from localllm.store.speeds import Measured

GB = 10**9


def size(name: str) -> Size:
    request = load().request(ref(name))
    assert request is not None
    return request.size


def test_the_sum_of_a_suggestion() -> None:
    found = suggest(size("llama3:8b"), parse("Q4_K_M"), Roof(20.0), n_ctx=8192)
    weights = 8.03e9 * BITS["Q4_K_M"] / 8
    kv = 2 * 32 * 8 * 128 * 2 * 8192
    assert found.weight_bytes == int(weights) and found.kv_bytes == kv
    assert found.memory_bytes == int((int(weights) + kv) * 1.05)
    expected = 20e9 * EFFICIENCY["native"] / (weights + kv / 2)
    assert found.tokens_per_s == pytest.approx(expected)
    assert (str(found.ref), found.engine, found.kv_known) == ("llama3:8b-q4_k_m", "native", True)


def test_what_was_measured_here_comes_first() -> None:
    measured = Measured(
        "llama3:8b-q4_k_m", "", "native", "avx2", 2, 4.9e9, 131072.0, 0.0, 3.0, "bench"
    )
    known = Roof(20.0, (measured,))
    own = suggest(size("llama3:8b"), parse("Q4_K_M"), known)
    assert own.basis == "measured" and own.tokens_per_s == pytest.approx(measured.at(4096))
    assert own.tokens_per_s < 3.0
    # A model of like size reaches the same share of the roof, another engine or size does not.
    like = suggest(size("mistral:7b"), parse("Q4_K_M"), known)
    share = measured.bytes_per_s / 20e9
    assert like.basis == "llama3:8b-q4_k_m"
    plain = suggest(size("mistral:7b"), parse("Q4_K_M"), Roof(20.0))
    assert like.tokens_per_s == pytest.approx(plain.tokens_per_s * share / EFFICIENCY["native"])
    for name in ("llama3:70b", "gemma2:9b", "llama3.2:1b"):
        assert suggest(size(name), parse("Q4_K_M"), known).basis == "assumed"
    cached = Roof(20.0, (dataclasses.replace(measured, tokens_per_s=100.0),))
    top = suggest(size("mistral:7b"), parse("Q4_K_M"), cached)
    assert top.tokens_per_s == pytest.approx(plain.tokens_per_s / EFFICIENCY["native"])


def test_experts_read_less_than_they_weigh() -> None:
    found = suggest(size("gpt-oss:20b"), parse("MXFP4"), Roof(20.0))
    assert found.engine == "llama.cpp" and found.weight_bytes > 11 * GB
    assert found.tokens_per_s == pytest.approx(20 * 0.32 / (3.6 * 4.25 / 8 + 0.1), rel=0.1)


def test_context_is_that_of_the_model() -> None:
    assert suggest(size("phi3:14b"), parse("Q4_K_M"), Roof(20.0), 8192).n_ctx == 4096
    unknown = suggest(size("qwen3.5:4b"), parse("Q4_K_M"), Roof(20.0))
    assert not unknown.kv_known and unknown.kv_bytes == int(4e9 / 65536 * 8192)


def names(found: list[Suggestion]) -> list[str]:
    return [str(each.ref) for each in found]


def test_recommend_for_machines() -> None:
    known = load()
    small = recommend(known, 10.0, lambda s: s.memory_bytes <= 2 * GB)
    large = recommend(known, 400.0, lambda s: s.memory_bytes <= 100 * GB)
    assert small and large and max(each.memory_bytes for each in small) <= 2 * GB
    for found in (small, large):
        assert len({each.ref.name for each in found}) == len(found)
        assert all(each.tokens_per_s >= 5 for each in found)
        assert [each.quality for each in found] == sorted((e.quality for e in found), reverse=True)
    assert "llama3.3:70b-q4_k_m" in names(large)
    assert not any("70b" in name for name in names(small))
    # No embedding model, no base model; gpt-oss only as its makers published it.
    assert not {"bge-m3", "gemma3:270m"} & {each.ref.name for each in large}
    assert "gpt-oss:120b-mxfp4" in names(large)
    assert recommend(known, 10.0, lambda s: False) == []
    assert recommend(known, 0.001, lambda s: True) == []


def test_bits_while_speed_is_ample_and_memory_is_there() -> None:
    only = Catalog([], [size("llama3.2:1b")])

    def one(speed: float, room: int = 100 * GB) -> str:
        return names(recommend(only, speed, lambda s: s.memory_bytes <= room))[0]

    assert one(100.0) == "llama3.2:1b-q8_0"
    assert one(16.0) == "llama3.2:1b-q5_k_m"
    assert one(10.0) == "llama3.2:1b-q4_k_m"
    assert one(100.0, room=1_200_000_000) == "llama3.2:1b-q4_k_m"


def test_the_packaged_file_stands_for_its_size() -> None:
    found = [each for each in recommend(load(), 2.0, lambda s: True) if each.ref.name == "smollm2"]
    assert names(found) == ["smollm2:135m"] and found[0].weight_bytes == 98362432
    assert found[0].kv_known and found[0].kv_bytes == 2 * 30 * 3 * 64 * 2 * 8192


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Bandwidths that the next measurements find."""
    speeds = [10.0, 12.0, 30.0, 31.0]
    monkeypatch.setattr(roofs, "measure_roofs", lambda: Roofs(2, 1, speeds.pop(0), 1.0))
    return speeds


def test_the_best_of_several_looks_is_kept(tmp_path: Path, measured: list[float]) -> None:
    folder = tmp_path / "cache"
    assert roofs.remembered(folder).read_gb_per_s == 12.0  # the better of two
    assert roofs.remembered(folder).read_gb_per_s == 30.0  # what held the first ones up is gone
    measured[:] = [9.0, 8.0, 50.0, 7.0, 6.0]
    assert roofs.remembered(folder).read_gb_per_s == 30.0  # something else runs
    assert roofs.remembered(folder).read_gb_per_s == 30.0
    assert roofs.remembered(folder).read_gb_per_s == 30.0  # enough looks were taken
    assert measured == [50.0, 7.0, 6.0]
    assert roofs.remembered(folder, anew=True).read_gb_per_s == 50.0  # asked for: all begins again


def test_a_new_measurement_replaces_a_higher_one(tmp_path: Path, measured: list[float]) -> None:
    measured[:] = [40.0, 41.0, 10.0, 12.0]
    assert roofs.remembered(tmp_path).read_gb_per_s == 41.0
    assert roofs.remembered(tmp_path, anew=True).read_gb_per_s == 12.0


@pytest.mark.parametrize(
    "content", ["", "{}", "[", '{"version": 1, "machine": 5}', "OTHER", "ZERO"]
)
def test_roofs_of_another_machine_do_not_count(
    tmp_path: Path, measured: list[float], content: str
) -> None:
    roofs.remembered(tmp_path)
    path = tmp_path / roofs.NAME
    document = json.loads(path.read_text())
    if content == "OTHER":
        document["machine"][0] = "z80"
        content = json.dumps(document)
    elif content == "ZERO":
        document["roofs"]["read_gb_per_s"] = 0
        content = json.dumps(document)
    path.write_text(content)
    assert roofs.remembered(tmp_path).read_gb_per_s == 31.0


def test_roofs_without_a_folder(tmp_path: Path, measured: list[float]) -> None:
    (tmp_path / "file").write_text("")
    assert roofs.remembered(tmp_path / "file").read_gb_per_s == 12.0


def test_suggestions_are_plain_data() -> None:
    found = recommend(load(), 100.0, lambda s: s.memory_bytes < 10 * GB)
    assert all(dataclasses.asdict(each)["tokens_per_s"] > 0 for each in found)
