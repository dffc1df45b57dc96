"""The generator of tiny models: its bytes do not change from run to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.tiny.make import ARCHITECTURES, TYPES, fits, make, pairs


@pytest.mark.parametrize(("arch", "weight_type"), [("llama-factors", "F16"), ("gemma3", "Q6_K")])
def test_same_bytes(tmp_path: Path, arch: str, weight_type: str) -> None:
    first = make(tmp_path / "a", arch, weight_type)
    second = make(tmp_path / "b", arch, weight_type)
    assert first.read_bytes() == second.read_bytes()
    assert first.name == f"tiny-{arch}-{weight_type}.gguf"
    assert list((tmp_path / "a").iterdir()) == [first]


def test_architectures_differ(tmp_path: Path) -> None:
    files = [make(tmp_path, arch, "Q4_0").read_bytes() for arch in ARCHITECTURES]
    assert len(set(files)) == len(ARCHITECTURES)


def test_every_pair_but_the_impossible(tmp_path: Path) -> None:
    all_pairs = {(a, t) for a in ARCHITECTURES for t in TYPES}
    left_out = all_pairs - set(pairs())
    assert left_out == {
        (a, t) for a, t in all_pairs if a == "llama-odd" and t.endswith(("K", "XS"))
    }
    for arch, weight_type in left_out:
        assert not fits(ARCHITECTURES[arch], TYPES[weight_type])
        with pytest.raises(ValueError, match="whole blocks"):
            make(tmp_path, arch, weight_type)
