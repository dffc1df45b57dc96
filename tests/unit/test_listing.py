"""Files of a repository, sorted into models."""

from __future__ import annotations

from localllm.store.listing import group


def test_single_files_and_what_goes_beside() -> None:
    found = group(
        ["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-f16.gguf", "m.imatrix.gguf",
         "mtp-m-Q4_0.gguf", "m-Q4_K_M.gguf.sha256"]
    )  # fmt: skip
    assert [model.label for model in found.models] == ["m-Q4_K_M", "m-Q8_0"]
    assert found.beside == ("m.imatrix.gguf", "mmproj-m-f16.gguf", "mtp-m-Q4_0.gguf")
    assert [str(each) for each in found.quantizations()] == ["Q4_K_M", "Q8_0"]


def test_split_sets_and_folders() -> None:
    names = [f"Q8_0/m-Q8_0-0000{i}-of-00003.gguf" for i in (3, 1, 2)]
    names += [f"BF16/m-0000{i}-of-00002.gguf" for i in (2, 1)]
    names += ["m-Q2_K-00002-of-00002.gguf", "m-Q3_K_M-00001-of-00000.gguf"]
    found = group(names)
    assert [str(model.quantization) for model in found.models] == ["BF16", "Q8_0"]
    assert found.models[1].files == tuple(sorted(names[:3]))
    assert found.incomplete == ("m-Q2_K", "m-Q3_K_M")


def test_a_part_too_many_is_no_set() -> None:
    names = [f"m-0000{i}-of-00002.gguf" for i in (1, 2, 3)]
    assert group(names).incomplete == ("m",) and group(names).models == ()


def test_drafts_alone_are_models() -> None:
    found = group(["Qwen-DRAFT-0.6B-Q4_0.gguf", "mmproj-x.gguf"])
    assert [model.label for model in found.models] == ["Qwen-DRAFT-0.6B-Q4_0"]
    found = group(["Qwen3.6-27B-MTP-Q4_K_M.gguf", "Qwen3.6-27B-MTP-Q8_0.gguf"])
    assert len(found.models) == 2


def test_nothing() -> None:
    assert group([]) == group(["model.safetensors", "a.GGML"])
    assert group(["M.GGUF"]).models[0].files == ("M.GGUF",)
