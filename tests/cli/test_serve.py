"""`localllm serve`: its own flags and those of others, and a whole server as a process."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from stand_ins.command_line import ROOT, cli, is_error, root
from stand_ins.conditions import wait, wait_for_pages
from stand_ins.server_process import served

from localllm import paths
from localllm.cli.serve import command
from localllm.cli.serve_flags import FLAGS, VARIABLES, translate
from localllm.errors import ArgumentError

OPENSSL = shutil.which("openssl")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the servers of a test keep."""
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_vllm_command_lines_work() -> None:
    line = (
        "m --max-model-len 4096 --gpu-memory-utilization 0.9 --max-num-seqs 64 --swap-space=4 "
        "--max-num-batched-tokens 8192 --enable-prefix-caching --block-size 16 --seed 1 "
        "--quantization awq --kv-cache-dtype fp8 --tensor-parallel-size 1 --served-model-name a b "
        "--speculative-model d --num-speculative-tokens 5 --api-key secret-key --port 9 "
        "--dtype auto"
    )
    got = translate(line.split())
    ours = (
        "m --ctx 4096 --parallel 64 --swap-space 4GiB --sampling seed=1 --kv-type q8_0 "
        "--name a --name b --api-key secret-key --port 9"
    )
    assert got.args == ours.split()
    assert len(got.notes) == 7 and got.notes[0].startswith("--gpu-memory-utilization: ")
    assert got.notes[-1].startswith("--speculative-model, --num-speculative-tokens: ")


def test_llama_server_command_lines_work() -> None:
    line = (
        "-m x.gguf -c 8192 -ngl 99 -t 4 -np 4 -cb -fa on -ctk q8_0 --jinja -a n,o --mlock -fa -b 1"
    )
    ours = "x.gguf --ctx 8192 --threads 4 --parallel 4 --kv-type q8_0 --name n --name o"
    assert translate(line.split()).args == ours.split()
    assert translate(["-hf", "a/b:Q4_0"]).args == ["hf.co/a/b:Q4_0"]
    origins = ["--allowed-origins", '["http://a:1","http://b"]']
    assert translate(origins).args == ["--cors-origin", "http://a:1", "--cors-origin", "http://b"]
    assert translate(["--api_key_file", "f"]).args == ["--api-key=@f"]
    assert translate(["m", "--", "--mlock"]).args == ["m", "--", "--mlock"]


#: Lines as people write them for vLLM (Qwen, gpt-oss and Llama guides, start scripts, charts).
LINES = (
    "mistralai/Mistral-7B-Instruct-v0.3 --port 8000",
    "openai/gpt-oss-120b --dtype auto --port 8000 --host 127.0.0.1",
    "gradientai/Llama-3-8B-Instruct-Gradient-1048k --swap-space 16 --disable-log-requests "
    "--tensor_parallel_size 1 --max_model_len 65000",
    "Qwen/Qwen3-4B --port 8000 --enable-prefix-caching "
    '--speculative_config \'{"method": "ngram", "num_speculative_tokens": 5}\'',
    "Qwen/Qwen2.5-3B-Instruct --enable-prefix-caching --enable-chunked-prefill",
    "Qwen/Qwen3-1.7B --port 9998 --tensor-parallel-size 1 --gpu-memory-utilization 0.15",
    "Qwen/Qwen2.5-14B-Instruct --api-key sk-a-key-2026 --port 8000 --host 0.0.0.0 "
    "--enable-auto-tool-choice --tool-call-parser hermes --trust-remote-code",
    "Qwen/Qwen3.5-9B --port 8000 --max-model-len 32768 --dtype auto "
    "--gpu-memory-utilization 0.90 --language-model-only",
    "Qwen/Qwen2.5-7B-Instruct-AWQ --max-model-len 64K --reasoning-parser qwen3 "
    "--served-model-name a/b c -tp 1 --enforce-eager --kv-cache-dtype fp8_e5m2",
    "Qwen/Qwen3-8B --max-logprobs 5 --slots --no-warmup -v --log-disable --timeout 60 -n 100",
    "Qwen/Qwen3-8B --host 127.0.0.1 --port 8000 --dtype auto --gpu-memory-utilization 0.90 "
    "--max-model-len 9000 --no-enable-prefix-caching --max-num-batched-tokens 2048",
    "--model=/models/Qwen3-4B --served-model-name=q --api-key a-long-secret --max-model-len=auto "
    "--max-num-seqs 1 --seed 1024 --async-scheduling --tokenizer-mode auto --disable-log-stats",
    'Qwen/Qwen3-0.6B -tp 1 --dtype bfloat16 -cc \'{"custom_ops": ["all"]}\'',
)


@pytest.mark.parametrize("line", LINES)
def test_lines_for_vllm(line: str) -> None:
    """Each is taken by the command itself, with its model and its port."""
    context = command.make_context("serve", shlex.split(line), parent=root())
    (model,) = context.params["models"]
    assert model in line and context.params["port"] in (8000, 9998)
    lengths = {" 64K": 65536, " 9000": 9000, " 32768": 32768, " 65000": 65000}
    asked = [n for text, n in lengths.items() if text in line]
    assert context.params["ctx"] == (asked or [0])[0]


def test_parameters_of_answers_on_the_command_line() -> None:
    """As in guides for llama-server (Qwen, Unsloth), its variables, and vLLM's JSON."""
    line = "m --temp 0.6 --top-p 0.8 --top-k 20 --min-p 0.0 --presence-penalty 1.5 -n -1"
    context = command.make_context("serve", shlex.split(line), parent=root())
    assert dict(context.params["sampling"]) == {
        "temperature": 0.6, "top_p": 0.8, "top_k": 20, "min_p": 0.0, "presence_penalty": 1.5,
        "max_tokens": None,
    }  # fmt: skip
    given = '{"temperature": 0.2, "repetition_penalty": 1.1}'
    line = f"m --override-generation-config '{given}'"
    context = command.make_context("serve", shlex.split(line), parent=root())
    assert dict(context.params["sampling"]) == {"temperature": 0.2, "repeat_penalty": 1.1}
    given = '{"max_new_tokens": 9, "top_k": -1, "top_p": null, "stop": ["a", "b"]}'
    context = command.make_context(
        "serve", ["m", "--override-generation-config", given], parent=root()
    )
    assert dict(context.params["sampling"]) == {"max_tokens": 9, "top_k": 0, "stop": ("a", "b")}
    variables = {"LLAMA_ARG_TEMPERATURE": "0.5", "LLAMA_ARG_TOP_K": "7"}
    args = translate(["m", "--temp", "1"], variables).args
    assert args[-1] == "temperature=1" and "top_k=7" in args
    chain = translate(["--samplers", "penalties;top_k;temperature"]).args
    assert chain == ["--sampling", "samplers=penalties,top_k,temperature"]


@pytest.mark.parametrize(
    ("line", "sampling"),
    [("--seed 42", {"seed": 42}), ("-s -1", {}), ("--seed 4294967295", {}),
     (r"-r USER: -r '\n\x'", {"stop": ("USER:", "\n\\x")}),
     (r"-r '\n' --no-escape", {"stop": (r"\n",)}),
     ("-r a,b --sampling stop=c", {"stop": ("c",)}),
     ("-l 15043+1.5 -l 7-inf", {"logit_bias": ((7, -math.inf), (15043, 1.5))}),
     ("--dry-sequence-breaker none", {"dry_sequence_breakers": ()}),
     (r"--dry-sequence-breaker '\t' --dry-sequence-breaker ;",
      {"dry_sequence_breakers": ("\t", ";")}),
     ("--override-generation-config '{\"seed\": -1}'", {})],
)  # fmt: skip
def test_flags_of_lists_and_seeds(line: str, sampling: dict[str, object]) -> None:
    """Those of llama-server that may be there several times count together."""
    context = command.make_context("serve", ["m", *shlex.split(line)], parent=root())
    assert dict(context.params["sampling"]) == sampling


def test_a_seed_of_the_command_line_repeats_answers(tiny: Callable[[str, str], Path]) -> None:
    def told(*flags: str, **more: int) -> list[str]:
        body = {"prompt": "the", "temperature": 1.5, "max_tokens": 12, **more}
        with served(tiny("llama", "F32"), *flags, "--ignore-eos", "--no-kv-disk") as server:
            answers = [
                httpx2.post(f"{server.url}/v1/completions", json=body, timeout=30).json()
                for _ in range(2)
            ]
        return [each["choices"][0]["text"] for each in answers]

    first = told("--seed", "42")
    assert first[0] == first[1] == told("--seed=7", seed=42)[0]
    assert first[0] != told("--seed", "7")[0]


@pytest.mark.parametrize(
    ("line", "words"),
    [("--temp 9", "^--temp: 9.0 is out of range"), ("--sampling temperatur=1", "no parameter"),
     ("--temp x", "^--temp: 'x' is no number"), ("--top-k 1.5", "^--top-k: '1.5' is no whole"),
     ("--sampling temperature=x", "^--sampling: temperature: 'x' is no number"),
     ("-s x", "^-s: 'x' is no whole number"), ("-l 5", "^-l: '5' is no token with its bias"),
     ("-l 5+1000", "^-l: .* is out of range"),
     ('--override-generation-config {"top_p":"x"}', "config: top_p: 'x' is no number"),
     ("--sampling top_k", "NAME=VALUE"), ("--sampling logprobs=3", "NAME=VALUE"),
     ("--mirostat 1", "mirostat"), ("--override-generation-config []", "no JSON object")],
)  # fmt: skip
def test_wrong_parameters_of_answers(line: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        command.make_context("serve", ["m", *line.split()], parent=root())


def test_parameters_of_the_command_line_are_the_defaults(
    tiny: Callable[[str, str], Path],
) -> None:
    with served(tiny("llama", "F32"), "-n", "3", "--ignore-eos", "--no-kv-disk") as server:
        for more, n_tokens in (({}, 3), ({"max_tokens": 5}, 5)):
            body = {"prompt": "the", **more}
            answer = httpx2.post(f"{server.url}/v1/completions", json=body, timeout=30).json()
            assert answer["usage"]["completion_tokens"] == n_tokens


#: Speculation as llama-server and vLLM are asked for it; it changes how fast answers come.
SPECULATION = (
    "-md d.gguf -hfd a/b --spec-type ngram-mod,draft-mtp --spec-draft-n-max 3 --spec-draft-n-min 1 "
    "--spec-draft-p-min 0.5 --draft-p-split 0.1 -ngld 99 -devd none -td 4 -tbd 4 -Cd ff -Crd 0-3 "
    "--cpu-strict-draft 1 --prio-draft 1 --poll-draft 0 -Cbd ff -otd exps=CPU -cmoed -ncmoed 3 "
    "-ctkd q8_0 -ctvd q8_0 --spec-draft-sampling greedy --no-spec-draft-backend-sampling "
    "--spec-ngram-mod-n-match 24 --spec-ngram-map-k4v-min-hits 1 --spec-ngram-simple-size-n 12 "
    "--spec-synth-len 3 --draft-max 16 --draft-min 5 -lcs a -lcd b --spec-default",
    "-sc {} --spec-method ngram --spec-model d --spec-tokens 4 --speculative-config={}",
    "--speculative-model [ngram] --num-speculative-tokens 5 --ngram-prompt-lookup-max 4 "
    "--ngram_prompt_lookup_min 1 --speculative-disable-by-batch-size 8 -spec-draft-tp 1 "
    "--speculative-disable-mqa-scorer --disable-logprobs-during-spec-decoding false "
    "--spec-decoding-acceptance-method rejection_sampler --num-lookahead-slots 5",
)


@pytest.mark.parametrize("line", SPECULATION, ids=["llama-server", "vLLM", "older vLLM"])
def test_flags_of_speculation_are_told_once(line: str) -> None:
    words = line.split()
    got = translate(["m", *words])
    assert got.args == ["m"] and len(got.notes) == 1
    names, _, why = got.notes[0].partition(": ")
    given = [word.partition("=")[0].replace("_", "-") for word in words if word.startswith("-")]
    assert names.split(", ") == list(dict.fromkeys(given)) and "no speculation yet" in why
    variables = {"LLAMA_ARG_SPEC_TYPE": "ngram-mod", "LLAMA_ARG_SPEC_DRAFT_N_MAX": "3"}
    assert sorted(translate(["m"], variables).notes[0].partition(": ")[0].split(", ")) == [
        "LLAMA_ARG_SPEC_DRAFT_N_MAX",
        "LLAMA_ARG_SPEC_TYPE",
    ]


def test_what_would_change_answers_is_no_note() -> None:
    for flags in ("--rope-scaling yarn", "--grammar x", "--override-kv a=int:1", "--embeddings",
                  "--api-prefix /a", "--tools all", "--models-dir d",
                  "--adaptive-target 0.5", "--fim-qwen-7b-spec", "--sampler-seq edk"):  # fmt: skip
        with pytest.raises(ArgumentError, match=flags.split()[0]):
            translate(["m", *flags.split()])
    assert translate(["m", "--adaptive-target", "-1"]).args == ["m"]
    many = "--no-context-shift --cache-reuse 256 -fit off -ncmoe 9 -ot exps=CPU --no-repack -lv 3"
    got = translate(["m", *many.split(), "--cors-origins", "http://a,http://b"])
    assert got.args == ["m", "--cors-origin", "http://a", "--cors-origin", "http://b"]
    assert len(got.notes) == 5


def test_two_parts_of_a_model_need_another_engine() -> None:
    with pytest.raises(ArgumentError, match="needs the vLLM engine"):
        command.make_context(
            "serve", shlex.split("Qwen/Qwen3-8B --tensor-parallel-size 2"), parent=root()
        )
    with pytest.raises(ArgumentError, match="adapters"):
        command.make_context("serve", ["Qwen/Qwen3-8B", "--enable-lora"], parent=root())


def test_variables_of_llama_server() -> None:
    variables = {
        "LLAMA_ARG_CTX_SIZE": "4096",
        "LLAMA_ARG_N_PARALLEL": "-1",
        "LLAMA_ARG_PORT": "9",
        "LLAMA_API_KEY": "a-secret-key",
        "LLAMA_ARG_HF_REPO": "a/b:Q4_0",
        "LLAMA_ARG_HOST": "",
    }
    got = translate(["--port", "8", "m"], variables)
    assert got.args == ["--port", "8", "m", "--ctx", "4096", "--api-key", "a-secret-key"]
    assert got.model == "hf.co/a/b:Q4_0" and not any("secret" in note for note in got.notes)
    context = command.make_context("serve", ["--port", "8"], parent=root())
    assert context.params["models"] == ()
    others = {
        "VLLM_API_KEY": "a-secret-key",
        "LLAMA_ARG_NEW": "1",
        "LLAMA_ARG_OLD": "",
        "PATH": "x",
    }
    got = translate(["m"], others)
    assert got.args == ["m", "--api-key", "a-secret-key"]
    assert got.notes == [
        "VLLM_API_KEY is taken as --api-key",
        "LLAMA_ARG_NEW: there is no such setting here",
    ]


def test_each_variable_stands_for_a_flag() -> None:
    ours = {name for parameter in command.params for name in parameter.opts}
    known = ours | {name for flag in FLAGS for name in flag.names.split()}
    assert set(VARIABLES.values()) <= known and len(VARIABLES) > 35
    got = translate(
        ["m"],
        {"LLAMA_ARG_N_GPU_LAYERS": "99", "LLAMA_ARG_JINJA": "1", "LLAMA_ARG_CONT_BATCHING": "0",
         "LLAMA_ARG_FLASH_ATTN": "on", "LLAMA_ARG_CACHE_TYPE_V": "q8_0"},
    )  # fmt: skip
    assert got.args == ["m", "--kv-type", "q8_0"] and not got.model
    told = [note.partition(":")[0] for note in got.notes if ":" in note]
    assert told == ["LLAMA_ARG_N_GPU_LAYERS", "LLAMA_ARG_FLASH_ATTN", "LLAMA_ARG_JINJA"]
    with pytest.raises(ArgumentError, match=r"LLAMA_ARG_MMPROJ: .*pictures"):
        translate(["m"], {"LLAMA_ARG_MMPROJ": "p.gguf"})
    with pytest.raises(ArgumentError, match="LLAMA_ARG_FLASH_ATTN: 'x'"):
        translate(["m"], {"LLAMA_ARG_FLASH_ATTN": "x"})


def test_a_file_of_a_repository() -> None:
    page = "https://hf.co/a/b/blob/main/c-Q8_0.gguf"
    assert translate(["-hff", "c-Q8_0.gguf", "-hf", "a/b:Q4_0"]).args == [page]
    variables = {"LLAMA_ARG_HF_REPO": "a/b", "LLAMA_ARG_HF_FILE": "c-Q8_0.gguf"}
    assert translate([], variables).model == page
    with pytest.raises(ArgumentError, match="no repository"):
        translate(["m", "-hff", "c.gguf"])


def test_a_short_key_is_one_where_only_this_machine_can_ask(
    tiny: Callable[[str, str], Path], tmp_path: Path
) -> None:
    path, other = tiny("llama", "F32"), tmp_path / "qwen2.5.gguf"
    shutil.copy(path, other)
    (tmp_path / "again").mkdir()
    again = shutil.copy(path, tmp_path / "again" / "qwen2.5.gguf")
    with served(path, other, again, "--api-key", "EMPTY") as server:
        models = f"{server.url}/v1/models"
        assert httpx2.get(models).status_code == 401
        listed = httpx2.get(models, headers={"authorization": "Bearer EMPTY"}).json()["data"]
        # A file is called by its name; where it lies is told only to tell two apart.
        assert [each["id"] for each in listed] == [path.stem, "qwen2.5", str(again)]


@pytest.mark.parametrize("words", [["-np", "-1"], ["--parallel=auto"], ["--parallel", "-1"]])
def test_as_many_answers_as_is_good(words: list[str]) -> None:
    assert translate(["m", *words]).args == ["m"]
    assert translate(["m", "--parallel", "3"]).args == ["m", "--parallel", "3"]


@pytest.mark.parametrize(
    "line",
    ["--tensor-parallel-size 2", "-pp 4", "--tensor-parallel-size=8", "--lora x", "--mmproj y",
     "-ctk q4_0", "--max-model-len", "--allowed-origins [1]"],
)  # fmt: skip
def test_what_cannot_be_done_says_so(line: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        translate(line.split())
    assert line.split()[0].split("=")[0] in caught.value.message


def test_no_flag_is_there_twice() -> None:
    names = [name for flag in FLAGS for name in flag.names.split()]
    assert len(names) == len(set(names)) and all(f.say or f.to or f.fails for f in FLAGS)


@pytest.mark.parametrize(
    ("args", "words"),
    [(["--host", "0.0.0.0"], "--api-key"),
     (["--api-key", "short", "--host", "0.0.0.0"], "5 characters"),
     (["--api-key", ""], "0 characters"),
     (["--cors-origin", "*"], "no origin"), (["--cors-origin", "http://*.a"], "no origin"),
     (["--name", "a b"], "no name"), (["--port", "70000"], "--port"),
     (["--api-key", "@/no/such"], "/no/such"), (["--memory", "8X"], "--memory"),
     (["--tls-key", "/no/such"], "needs --tls-cert"),
     (["--ssl-keyfile", "/no/such"], "needs --tls-cert"),
     (["--keep-alive", "5d"], "--keep-alive"), (["--name", "a", "x.gguf"], "--name")],
)  # fmt: skip
def test_wrong_usage(
    args: list[str], words: str, tiny: Callable[[str, str], Path], tmp_path: Path
) -> None:
    done = cli("serve", str(tiny("llama", "F32")), *args, home=tmp_path)
    assert done.returncode in (1, 2) and is_error(done.stderr, words)


def test_help_needs_no_server() -> None:
    code = (
        "import sys; from localllm.cli.main import main; main(['--help']); "
        "print([m for m in ('fastapi', 'uvicorn', 'pydantic', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.rstrip().endswith("[]")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_server_answers_and_ends(
    tiny: Callable[[str, str], Path], sent: signal.Signals, home: Path
) -> None:
    with served(tiny("llama", "F32"), "--name", "tiny", "--max-num-seqs", "4") as server:
        assert httpx2.get(f"{server.url}/health").json() == {"status": "ok"}
        words = [{"role": "user", "content": "hello"}]
        ask = {"messages": words, "max_tokens": 5, "ignore_eos": True}
        page = {"origin": "http://localhost:5173"}
        answer = httpx2.post(
            f"{server.url}/v1/chat/completions", json=ask, headers=page, timeout=30
        )
        assert answer.json()["usage"]["completion_tokens"] == 5
        assert answer.json()["model"] == "tiny"
        assert httpx2.get(server.url, headers={"origin": "https://evil.example"}).status_code == 403
        announced_at = paths.current().servers / f"{server.process.pid}.json"
        assert announced_at.exists()
        server.process.send_signal(sent)
        assert server.process.wait(15) == 0
        assert not announced_at.exists()


def test_the_port_is_free_after_a_kill(tiny: Callable[[str, str], Path]) -> None:
    body = {"prompt": "a", "max_tokens": 1500, "stream": True, "ignore_eos": True}
    with served(tiny("llama", "F32")) as server:
        url = server.url
        with httpx2.stream("POST", f"{url}/v1/completions", json=body) as answer:
            assert next(answer.iter_lines()).startswith("data: ")
            server.process.kill()
            server.process.wait()
    began = time.monotonic()
    with served(tiny("llama", "F32"), "--port", url.rsplit(":", 1)[1]) as server:
        assert server.url == url and time.monotonic() - began < 20
        assert json.loads(httpx2.get(f"{server.url}/v1/models").text)["object"] == "list"


def test_after_a_kill_a_conversation_goes_on(tiny: Callable[[str, str], Path], home: Path) -> None:
    turns: list[int] = []
    cached = []
    for i in range(3):
        turns += [(7 * i + j) % 190 + 5 for j in range(100)]
        with served(tiny("llama", "F32"), "--kv-disk", "50MiB", "--swap-space", "1MiB") as server:
            ask = {"prompt": turns, "max_tokens": 5, "ignore_eos": True}
            answer = httpx2.post(f"{server.url}/v1/completions", json=ask, timeout=30).json()
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            # What a page with room for more held before is a page of its own.
            wait_for_pages(home, answer["usage"]["total_tokens"] + 32 * (i > 0))
    assert cached == [0, 100, 200]


def test_nothing_goes_to_the_disk_if_nothing_may(
    tiny: Callable[[str, str], Path], home: Path
) -> None:
    def written() -> bool:
        return any(path.is_file() for path in (home / "cache" / "kv").rglob("*"))

    for flags in (["--no-kv-disk"], []):
        with served(tiny("llama", "F32"), *flags) as server:
            for store in (True, False) if flags else (False, True):
                ask = {"prompt": "hello there", "max_tokens": 50, "store": store}
                assert httpx2.post(f"{server.url}/v1/completions", json=ask, timeout=30).is_success
                if store and not flags:
                    wait(written)
                time.sleep(0.3)
                assert written() == (store and not flags)


@pytest.mark.skipif(OPENSSL is None, reason="openssl is not here")
def test_tls(tiny: Callable[[str, str], Path], tmp_path: Path) -> None:
    assert OPENSSL is not None
    made = f"req -x509 -newkey rsa:2048 -nodes -keyout {tmp_path}/k.pem -out {tmp_path}/c.pem"
    made += " -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([OPENSSL, *made.split()], check=True, capture_output=True)
    files = ["--ssl-certfile", f"{tmp_path}/c.pem", "--tls-key", f"{tmp_path}/k.pem"]
    with served(tiny("llama", "F32"), *files) as server:
        assert server.url.startswith("https://")
        trusted = ssl.create_default_context(cafile=f"{tmp_path}/c.pem")
        assert httpx2.get(f"{server.url}/health", verify=trusted).json() == {"status": "ok"}
    bad = cli("serve", str(tiny("llama", "F32")), "--tls-cert", "/no/such", home=tmp_path)
    assert bad.returncode == 1 and is_error(bad.stderr, "TLS")
    assert "for weights" not in bad.stderr  # before a model is loaded


def test_the_program_in_the_readme(real_model: Callable[[str], Path]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^```python\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    assert block and "`localllm serve smollm2:135m`" in readme
    with served(real_model("smollm2:135m"), "--name", "smollm2:135m") as server:
        code = block[1].replace("http://127.0.0.1:8000", server.url)
        assert code != block[1]
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
        )
        assert len(done.stdout.split()) > 3
