"""The benchmarks' parts: synthetic files load and stay sane, rows are reported as measured."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from benchmarks import __main__ as command_line
from benchmarks import ops, report, roofs, sampling, speed, start, synthetic, vocabulary
from benchmarks.ours import Ours, prompt
from benchmarks.report import Row
from localllm.engine import machine
from localllm.engine.runner import Feed
from localllm.store.inspect import GgufFile
from localllm.text.tokenizer import Tokenizer

SMALL = synthetic.Shape(9, 256, 512, 4, 2, 64, 1024, True)


@pytest.mark.parametrize("type_name", synthetic.mix_names()[len(synthetic.MIXES) :])
def test_random_weights_have_mean_zero_and_the_asked_deviation(type_name: str) -> None:
    quant = gguf.GGMLQuantizationType[type_name]
    raw = synthetic.random_rows(quant, 64, 2048, 0.05, np.random.default_rng(3))
    values = gguf.dequantize(raw, quant)
    assert abs(values.mean()) < 0.01
    assert values.std() == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize(("mix", "tied"), [("Q4_K_M", True), ("Q4_K_M", False), ("Q8_0", True)])
def test_synthetic_files_run_and_give_finite_logits(tmp_path: Path, mix: str, tied: bool) -> None:
    shape = synthetic.Shape(**{**SMALL.__dict__, "tied": tied})
    synthetic.write(tmp_path / "a.gguf", shape, mix, n_identity=2)
    work = speed.work_of(tmp_path / "a.gguf")
    per_layer = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512
    assert work.layer_ops == 2 * 9 * per_layer
    assert work.head_ops == 2 * 1024 * 256
    assert work.step_bytes < (tmp_path / "a.gguf").stat().st_size
    ours = Ours(tmp_path / "a.gguf", n_threads=1, n_ctx_tokens=256, max_batch_tokens=64)
    try:
        assert ours.time_prefill(40) > 0
        assert ours.time_decode(3, 32) > 0
    finally:
        ours.close()


def test_identity_layers_add_nothing(tmp_path: Path) -> None:
    synthetic.write(tmp_path / "a.gguf", SMALL, "Q4_K_M", n_identity=3)
    zero = set()
    for tensor in gguf.GGUFReader(tmp_path / "a.gguf").tensors:
        if "attn_output" in tensor.name or "ffn_down" in tensor.name:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            assert np.isfinite(values).all()
            if not values.any():
                zero.add(int(tensor.name.split(".")[1]))
    assert zero == {6, 7, 8}


@pytest.mark.parametrize("mix", ["Q4_K_M", "Q4_0+Q8_0", "F16"])
def test_logits_are_those_of_a_file_without_the_identity_layers(tmp_path: Path, mix: str) -> None:
    logits = []
    for n_layers, n_identity in ((9, 3), (6, 0)):
        shape = replace(SMALL, n_layers=n_layers)
        synthetic.write(tmp_path / f"{n_layers}.gguf", shape, mix, n_identity)
        ours = Ours(tmp_path / f"{n_layers}.gguf", n_threads=1, n_ctx_tokens=256)
        try:
            feed = Feed(ours.runner.new_sequence(), prompt(50))
            logits.append(ours.runner.step([feed], all_logits=True).logits)
        finally:
            ours.close()
    assert logits[0] is not None and np.ptp(logits[0]) > 1
    np.testing.assert_array_equal(logits[0], logits[1])


def test_unknown_mixes_and_too_many_identity_layers_are_refused(tmp_path: Path) -> None:
    for mix, n_identity in (("Q9_K", 0), ("Q4_0", 10), ("Q4_0+Q9", 0)):
        with pytest.raises(ValueError, match=r"Q9|identity"):
            synthetic.write(tmp_path / "a.gguf", SMALL, mix, n_identity)
    with pytest.raises(ValueError, match="256"):
        synthetic.random_rows(gguf.GGMLQuantizationType.Q4_K, 2, 128, 1.0, np.random.default_rng(0))


def test_large_tensors_repeat_a_chunk_but_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "CHUNK_BLOCKS", 31)
    for quant in (gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.F16):
        raw = synthetic.random_rows(quant, 30, 2048, 0.05, np.random.default_rng(3))
        assert len({row.tobytes() for row in raw}) == 30
        assert gguf.dequantize(raw, quant).shape == (30, 2048)


def test_op_rows_hold_shares_of_the_binding_roof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "SMALL", (64, 256))
    monkeypatch.setattr(ops, "LARGE", (64, 256))
    rows = list(ops.measure(roofs.Threads(1), ["Q4_K", "F32"], [1, 16]))
    assert [(r.test, r.subject) for r in rows] == [
        ("matmul 1 column", "Q4_K"),
        ("matmul 16 columns", "Q4_K"),
        ("matmul 1 column", "F32"),
        ("matmul 16 columns", "F32"),
    ]
    assert [(r.test, r.subject) for r in rows[:2]] == ops.keys("Q4_K", [1, 16])
    assert all(r.ours > 0 for r in rows)
    assert all(r.share is not None and r.share > 0 for r in rows)
    for read, bound in ((1e9, [roofs.INT8, roofs.F32]), (1e-9, [roofs.READ, roofs.READ])):
        rates = {roofs.READ: read, roofs.INT8: 9.0, roofs.F32: 7.0}
        monkeypatch.setattr(roofs.Threads, "read_gb_per_s", lambda *_, read=read: read)
        monkeypatch.setattr(roofs.Threads, "int8_gop_per_s", lambda *_: 9.0)
        monkeypatch.setattr(roofs.Threads, "f32_gop_per_s", lambda *_: 7.0)
        rows = list(ops.measure(roofs.Threads(1), ["Q4_K", "BF16"], [16]))
        assert [(r.roof, r.roof_value) for r in rows] == [(of, rates[of]) for of in bound]
        assert {r.unit for r in rows} == {"GB/s" if read < 1 else "Gop/s"}


def test_rows_reach_table_csv_and_json(tmp_path: Path) -> None:
    run = report.Run("2026-01-01T00:00:00+00:00", "abc1234", "some-cpu", "avx2", 2, "AVX2")
    rows = [
        Row("decode", "m", "tok/s", 123.456, 60.0, 2.05, 1.9, 2.25, 5, "read GB/s", 31.0, 0.654),
        Row("roof", "read of 1 GiB", "GB/s", 31.0),
    ]
    text = report.table(rows)
    assert "123.5 tok/s" in text and "2.05x" in text and "1.90..2.25" in text and "65%" in text
    for _ in range(2):
        path = report.append_csv(run, rows, tmp_path)
    with path.open(newline="") as f:
        read = list(csv.DictReader(f))
    assert len(read) == 4
    assert (read[0]["commit"], read[0]["ratio"], read[1]["ratio"]) == ("abc1234", "2.05", "")
    assert (read[0]["rival"], read[1]["rival"], read[1]["rival_build"]) == ("60", "", "AVX2")
    assert json.loads(report.as_json(run, rows))["rows"][0]["share"] == 0.654


def test_a_run_names_machine_and_commit() -> None:
    run = report.describe_run("avx2", 2, "AVX2 FMA")
    assert (run.isa, run.n_threads, run.rival_build) == ("avx2", 2, "AVX2 FMA")
    assert report.machine_name().replace("-", "").isalnum()
    assert run.commit.split("; Python ")[0] == machine.facts().source


@pytest.mark.parametrize(
    ("git", "named"),
    [
        ({"status": "", "rev-parse": "abc1234\n"}, "abc1234"),
        (
            {"status": " M localllm/a.py\n", "rev-parse": "abc1234\n"},
            "abc1234; Python abc1234+dirty",
        ),
        ({"status": "", "rev-parse": "def5678\n"}, "abc1234; Python def5678"),
        ({}, "abc1234"),
    ],
)
def test_a_row_names_the_engine_that_ran(
    monkeypatch: pytest.MonkeyPatch, git: dict[str, str], named: str
) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        known = command[1] in git
        return subprocess.CompletedProcess(command, int(not known), git.get(command[1], ""))

    loaded = replace(machine.facts(), source="abc1234")
    monkeypatch.setattr(report.machine, "facts", lambda: loaded)
    monkeypatch.setattr(subprocess, "run", run)
    assert report.commit() == named


def test_sampling_rows_are_beside_the_greedy_pick() -> None:
    rows = list(sampling.measure(n_rounds=3))
    assert [(row.test, row.subject) for row in rows] == sampling.keys()
    assert all(row.ours > 0 and row.share is not None and row.roof == "us greedy" for row in rows)


@pytest.mark.parametrize("make", [vocabulary.byte_level, vocabulary.sentencepiece])
def test_made_up_vocabularies_encode_and_decode(
    tmp_path: Path, make: Callable[[gguf.GGUFWriter, int], None]
) -> None:
    path = tmp_path / "a.gguf"
    synthetic.write(path, SMALL, "Q8_0", vocabulary=make)
    with GgufFile(path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    assert tokenizer.n_vocab == SMALL.n_vocab
    text = "the rest is 12 lines of text"
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text
    words = [i for i in range(300, 1000) if tokenizer.token_bytes(i).isalpha()]
    ids = [tokenizer.encode(tokenizer.token_bytes(i).decode(), add_special=False) for i in words]
    assert [[i] for i in words if [i] in ids]  # merges lead to it


def test_start_rows_of_a_small_model(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    synthetic.write(path, SMALL, "Q8_0", vocabulary=vocabulary.byte_level)
    row = start.first_token("small", path, 1, rival=False)
    assert row.unit == "s" and 0 < row.ours < 60
    load = start.load_rate("small", path, 1)
    assert load.ours and load.ours > 0 and load.roof == "read GB/s" and load.share is not None
    (rate,) = start.pack_rates(["Q4_K"], 1)
    assert rate.ours > 0 and rate.roof == "copy GB/s" and rate.share is not None
    planned = start.keys()
    assert (rate.test, rate.subject) in planned
    assert {(r.test, start.files.REAL[0]) for r in (row, load)} < set(planned)
    with pytest.raises(RuntimeError, match="boom"):
        start.seconds_to_first_byte([sys.executable, "-c", "raise SystemExit('boom')"])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("--depths -1", "'-1' is no number from 0"),
        ("--batches 0", "'0' is no number from 1"),
        ("--pairs 0", "'0' is no number from 1"),
        ("--threads 5000", "'5000' is no number from 0 to 1024"),
        ("--columns 1 x", "'x' is no number"),
        ("--columns \u00b2", "is no number"),
        ("--rival-seconds nan", "'nan' is no number of seconds"),
        ("--models synthetic:1b:Q4_0+Q9", "no mix 'Q4_0+Q9'"),
        ("--models synthetic:9b:Q4_K", "is no synthetic:SHAPE:MIX"),
        ("--models nope:1b", "no model is called nope:1b"),
        ("--models /nowhere/m.gguf", "there is no file '/nowhere/m.gguf'"),
        ("--rival /nonexistent", "holds no library"),
        ("--isa sse9", "invalid choice: 'sse9'"),
        ("roof", "no section roof"),
    ],
)
def test_wrong_arguments_end_before_the_first_section(
    args: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main([*args.split(), "--no-csv"])
    assert ended.value.code == 2 and said in capsys.readouterr().err
