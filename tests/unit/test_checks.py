"""Each check script finds a planted violation and passes the clean form of it."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"


def script(name: str) -> ModuleType:
    """A module of scripts/, which is no package."""
    if str(SCRIPTS) not in sys.path:
        sys.path.insert(0, str(SCRIPTS))
    return importlib.import_module(name)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An empty git repository."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")


def c_function(name: str, lines: int) -> str:
    """A function of that many lines, with a two-line signature and a label."""
    body = "    work();\n" * (lines - 5)
    return f"static int {name}(int a,\n    int b) {{\n{body}done:\n    return 0;\n}}\n"


def sizes(root: Path) -> list[str]:
    found: list[str] = script("check_sizes").violations(root)
    return found


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        ("localllm/a.py", 500),
        ("native/src/gguf/a.c", 700),
        ("native/src/backend/cpu/a.c", 800),
        ("native/src/gguf/a.h", 250),
        ("native/src/backend/cpu/avx2/a.h", 250),
        ("native/src/backend/cuda/a.cu", 800),
    ],
)
def test_file_length(tree: Path, path: str, limit: int) -> None:
    put(tree, path, "\n" * limit)
    assert sizes(tree) == []
    put(tree, path, "\n" * (limit + 1))
    assert sizes(tree) == [f"{path}: file has {limit + 1} lines, the limit is {limit}"]


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        ("native/src/gguf/a.c", 80),
        ("native/src/exec/forward.c", 150),
        ("native/src/backend/cpu/matmul.c", 150),
    ],
)
def test_c_function_length(tree: Path, path: str, limit: int) -> None:
    before = "typedef struct {\n    int a;\n} s;\n\n#define N 3\n\nconst int t[] = {\n    1,\n};\n"
    put(tree, path, before + c_function("fits", limit) + c_function("g", limit))
    assert sizes(tree) == []
    put(tree, path, before + c_function("fits", limit) + c_function("grown", limit + 1))
    assert sizes(tree) == [f"{path}: grown has {limit + 1} lines, the limit is {limit}"]


def test_python_function_length(tree: Path) -> None:
    put(tree, "localllm/a.py", "class A:\n    def f(self):\n" + "        x = 1\n" * 79)
    assert sizes(tree) == []
    put(tree, "localllm/a.py", "class A:\n    def f(self):\n" + "        x = 1\n" * 80)
    assert sizes(tree) == ["localllm/a.py: f has 81 lines, the limit is 80"]


@pytest.mark.parametrize(
    "name", ["localllm/utils.py", "native/src/base/common.h", "tests/Helpers.py"]
)
def test_vague_file_names(tree: Path, name: str) -> None:
    put(tree, name, "")
    assert sizes(tree) == [f"{name}: a file name must say what the file holds"]


def test_exceptions_hold_and_may_only_shrink(tree: Path) -> None:
    put(tree, "a.py", "\n" * 510)
    put(tree, "scripts/size_exceptions.txt", "# path what lines\na.py file 510\n")
    assert sizes(tree) == []
    put(tree, "a.py", "\n" * 511)
    assert sizes(tree) == ["a.py: file has 511 lines, the limit is 500"]
    put(tree, "a.py", "\n" * 505)
    assert sizes(tree) == ["scripts/size_exceptions.txt: a.py file 510 can be removed or lowered"]


def test_ignored_files_do_not_count(tree: Path) -> None:
    put(tree, ".gitignore", "build/\n")
    put(tree, "build/a.py", "\n" * 900)
    assert sizes(tree) == []


@pytest.mark.parametrize(
    ("path", "code", "reason"),
    [
        ("store/a.py", "import localllm.engine.runner", "store must not import localllm.engine"),
        ("store/a.py", "from localllm.text import x", "store must not import localllm.text"),
        ("errors.py", "from localllm import paths", "errors must not import localllm.paths"),
        ("engine/a.py", "from ..cli import main", "engine must not import localllm.cli"),
        ("engine/a.py", "def f():\n    from localllm import session", "engine must not import"),
        ("cli/run.py", "from localllm.engine.runner import R", "only through the session"),
        ("cli/run.py", "from localllm import native", "only engine, text and store/inspect.py"),
        ("store/a.py", "from localllm.native import lib", "only engine, text and store/inspect.py"),
        ("engine/a.py", "from localllm._native import ffi", "only localllm/native.py"),
        ("session.py", "import localllm._native", "only localllm/native.py"),
        ("novel/a.py", "from localllm import errors", "localllm.novel has no rank"),
    ],
)
def test_import_against_the_direction(tmp_path: Path, path: str, code: str, reason: str) -> None:
    put(tmp_path, f"localllm/{path}", f"{code}\n")
    (problem,) = script("check_imports").violations(tmp_path)
    assert f"localllm/{path}:" in problem
    assert reason in problem


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("cli/run.py", "from localllm.session import Session\nfrom localllm.cli import output"),
        (
            "session.py",
            "from localllm.engine.runner import R\nfrom localllm import text, __version__",
        ),
        ("engine/runner.py", "from localllm import native\nfrom localllm.native import lib"),
        ("store/inspect.py", "from .. import native\nfrom ..errors import FormatError"),
        ("text/tokenizer.py", "from localllm.store import inspect\nimport numpy"),
        ("native.py", "from localllm._native import ffi"),
    ],
)
def test_import_along_the_direction(tmp_path: Path, path: str, code: str) -> None:
    put(tmp_path, f"localllm/{path}", f"{code}\n")
    assert script("check_imports").violations(tmp_path) == []


def test_exported_symbol_without_its_suffix(tmp_path: Path) -> None:
    compiler = os.environ.get("CC", "cc")
    if not shutil.which(compiler) or not shutil.which("nm"):
        pytest.skip("needs a C compiler and nm")
    violations = script("check_symbols").violations
    assert violations(tmp_path) == [f"{tmp_path}: no kernel objects here"]
    folder = tmp_path / "CMakeFiles" / "llm_cpu_avx2.dir"
    put(
        tmp_path,
        "a.c",
        "static int hidden(void) { return 1; }\nint dot_avx2(void) { return hidden(); }\n",
    )
    compile_it = [compiler, "-c", str(tmp_path / "a.c"), "-o", str(folder / "a.c.o")]
    folder.mkdir(parents=True)
    subprocess.run(compile_it, check=True)
    assert violations(tmp_path) == []
    put(
        tmp_path,
        "a.c",
        "int dot_avx2(void) { return 1; }\nint table = 3;\nint dot_avx512(void) { return 1; }\n",
    )
    subprocess.run(compile_it, check=True)
    assert sorted(violations(tmp_path)) == [
        "a.c.o (avx2): exports dot_avx512",
        "a.c.o (avx2): exports table",
    ]


def test_vector_code(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if not compiler or platform.machine() != "x86_64":
        pytest.skip("needs a compiler for x86-64")
    violations = script("check_vector_code").violations
    assert violations(tmp_path) == [f"{tmp_path}: no matmul objects here"]
    folder = tmp_path / "CMakeFiles" / "llm_cpu_avx2.dir"
    folder.mkdir(parents=True)
    source = "#include <immintrin.h>\nvoid f(__m512i *x) { *x = _mm512_add_epi32(*x, *x); }\n"
    put(tmp_path, "a.c", source)
    target = folder / "matmul_q32.c.o"
    subprocess.run(
        [compiler, "-O2", "-mavx512f", "-c", str(tmp_path / "a.c"), "-o", str(target)], check=True
    )
    assert violations(tmp_path) == [
        "matmul_q32.c.o (avx2): no vpmaddubsw.*%ymm",
        "matmul_q32.c.o (avx2): has %zmm",
    ]


def test_vector_code_of_arm(tmp_path: Path) -> None:
    compiler = shutil.which("aarch64-linux-gnu-gcc")
    if not compiler:
        pytest.skip("needs a compiler for aarch64")
    folder = tmp_path / "CMakeFiles" / "llm_cpu_neon.dir"
    folder.mkdir(parents=True)
    target = folder / "matmul_q32.c.o"
    put(tmp_path, "a.c", 'void f(void) { __asm__("usmmla v0.4s, v1.16b, v2.16b"); }\n')
    options = ["-march=armv8.2-a+i8mm", "-c", str(tmp_path / "a.c"), "-o", str(target)]
    subprocess.run([compiler, *options], check=True)
    assert script("check_vector_code").violations(tmp_path) == [
        r"matmul_q32.c.o (neon): no \bsdot\t.*\.4b\[\d\]",
        r"matmul_q32.c.o (neon): has mmla\t",
    ]


def test_a_stage_left_out_fails_on_ci_only(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = script("stages").Stages
    for ci, status in (("", 0), ("true", 1)):
        monkeypatch.setenv("CI", ci)
        run = stages()
        run.left_out("fuzzing", "no clang")
        assert run.summary() == status


def test_a_failed_stage_shows_its_output_and_later_ones_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stages = script("stages").Stages()
    assert not stages.run("first", [sys.executable, "-c", "print('reason'); raise SystemExit(3)"])
    assert stages.run("second", [sys.executable, "-c", "print('quiet')"])
    assert stages.summary() == 1
    out = capsys.readouterr().out
    assert "reason" in out
    assert "FAILED (status 3)" in out
    assert "quiet" not in out
    assert "failed: first" in out


def test_the_cdef_holds_the_declarations_and_integer_defines_only() -> None:
    sys.path.insert(0, str(ROOT / "native" / "binding"))
    cdef = importlib.import_module("generate").cdef_of(
        '#ifndef H\n#define H\n#include <stdint.h>\n#ifdef __cplusplus\nextern "C" {\n#endif\n'
        "#define LLM_N 32 /* tokens */\n#define OTHER(x) x\nint32_t f(void);\n#endif\n"
    )
    assert cdef.split("\n") == ["", "", "", "#define LLM_N 32", "", "int32_t f(void);", ""]
