"""The second engine: the same answers as ours where both run, on models and parameters alike."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from reference.llama_oracle import dequantize_file
from reference.tolerances import LLAMA_LOGPROB
from stand_ins.foreign_models import make_foreign

from localllm.engine.llama_context import CancelFlag
from localllm.engine.llama_cpp import LlamaCppEngine, batches
from localllm.engine.llama_open import open_llama_cpp
from localllm.engine.open import OpenOptions
from localllm.engine.sampling import Sampler
from localllm.errors import CancelledError
from localllm.params import GenerateParams
from localllm.session import Session

FULL = os.environ.get("FULL") == "1"
ROOT = Path(__file__).resolve().parents[2]
LINES = (Path(__file__).parent / "prompts.txt").read_text("utf-8").splitlines()
STORY = (Path(__file__).parent / "story.txt").read_text("utf-8")
N_NEW = 32
GREEDY = GenerateParams(temperature=0, max_tokens=N_NEW, ignore_eos=True)

Tiny = Callable[[str, str], Path]
Logits = np.ndarray


@pytest.fixture(autouse=True, scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The verdicts of trials stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALLLM_HOME", str(tmp_path_factory.mktemp("home")))
        yield


def engine_of(path: Path, n_ctx: int = 512, kv_type: str = "f16") -> LlamaCppEngine:
    options = OpenOptions("llama.cpp", n_threads=1, n_ctx=n_ctx, kv_type=kv_type)
    engine = open_llama_cpp(path, options, None, lambda line: None).engine
    assert isinstance(engine, LlamaCppEngine)
    return engine


class Watched(Sampler):
    """Keeps the logits that it picked from last."""

    seen: Logits

    def pick(self, logits: Logits, position: int) -> int:
        self.seen = logits.copy()
        return super().pick(logits, position)


def sampler_for(engine: LlamaCppEngine, params: GenerateParams = GREEDY) -> Watched:
    return Watched(params, engine.model.n_vocab)


def ask(engine: LlamaCppEngine, prompt: list[int]) -> tuple[int, Logits]:
    """(tokens that were kept, logits after the prompt)"""
    kept = engine.begin(prompt)
    sampler = sampler_for(engine)
    engine.prefill(prompt[kept:], sampler, None, lambda n: None)
    return kept, sampler.seen


def answer(engine: LlamaCppEngine, prompt: list[int], n: int, params: GenerateParams) -> list[int]:
    sampler = sampler_for(engine, params)
    kept = engine.begin(prompt)
    sampler.accept(prompt)
    tokens = [engine.prefill(prompt[kept:], sampler, None, lambda n: None).token]
    while len(tokens) < n:
        steps = engine.decode(tokens[-1], min(7, n - len(tokens)), sampler, [], None)
        tokens += [s.token for s in steps]
    return tokens


def continuations(path: Path, engine: str, lines: list[str]) -> list[list[int]]:
    with Session.open(path, engine=engine, n_ctx=256) as session:
        return [[i for c in session.complete(line, GREEDY) for i in c.token_ids] for line in lines]


@pytest.mark.parametrize("architecture", ["llama", "llama-yarn", "qwen2", "qwen3", "gemma3"])
def test_same_greedy_tokens_on_tiny_models(tiny: Tiny, architecture: str) -> None:
    path = tiny(architecture, "F32")
    ours, theirs = (continuations(path, e, LINES) for e in ("native", "llama.cpp"))
    assert all(len(tokens) == N_NEW for tokens in ours)
    assert sum(a == b for a, b in zip(ours, theirs, strict=True)) >= len(LINES) - 2


@pytest.mark.parametrize("name", ["smollm2:135m", "gemma3:270m"] if FULL else ["smollm2:135m"])
def test_same_greedy_tokens_on_real_models(name: str, real_model: Callable[[str], Path]) -> None:
    quantized = real_model(name)
    f32 = dequantize_file(quantized, quantized.with_name(f"{quantized.stem}.f32.gguf"))
    lines = LINES if FULL else LINES[:2]
    ours, theirs = (continuations(f32, e, lines) for e in ("native", "llama.cpp"))
    assert sum(a == b for a, b in zip(ours, theirs, strict=True)) >= len(lines) - len(lines) // 10


def test_parameters_mean_the_same(tiny: Tiny) -> None:
    """The sampler is ours: with all of the chain in use and much noise, the same text."""
    params = GenerateParams(
        temperature=1.3, seed=11, top_k=50, top_p=0.9, min_p=0.01, repeat_penalty=1.3,
        presence_penalty=0.5, dry_multiplier=0.8, max_tokens=24, ignore_eos=True,
    )  # fmt: skip
    equal = 0
    for line in LINES[:10]:
        texts = []
        for engine in ("native", "llama.cpp"):
            with Session.open(tiny("llama", "F32"), engine=engine, n_threads=1) as session:
                texts.append("".join(c.text for c in session.complete(line, params)))
        equal += texts[0] == texts[1]
    assert equal >= 9


def test_logprobs(tiny: Tiny) -> None:
    params = GenerateParams(temperature=0, logprobs=3, max_tokens=4, ignore_eos=True)
    found = []
    for engine in ("native", "llama.cpp"):
        with Session.open(tiny("qwen3", "F32"), engine=engine, n_threads=1) as session:
            found.append([p for c in session.complete("abc", params) for p in c.logprobs])
    assert len(found[0]) == len(found[1]) == 4
    for a, b in zip(*found, strict=True):
        assert a.text == b.text and len(b.top) == 3
        assert abs(a.value - b.value) < LLAMA_LOGPROB.value
        assert [t for t, _ in a.top] == [t for t, _ in b.top]


@pytest.mark.parametrize("n", [1, 2, 3, 16, 17, 255, 256, 257, 258, 272, 273, 700, 1025])
def test_batches(n: int) -> None:
    sizes = batches(n)
    assert sum(sizes) == n and sizes[-1] == 1 and max(sizes) <= 256
    assert all(size % 16 == 0 for size in sizes[:-2])
    assert n < 17 or min(sizes[:-1]) >= 16


@pytest.mark.parametrize("source", ["gemma3", "llama", "smollm2:135m"])
def test_a_kept_prompt_gives_the_same_bits(
    source: str, tiny: Tiny, real_model: Callable[[str], Path]
) -> None:
    """Whatever was kept of a prompt: the logits after it are those from scratch."""
    path = real_model(source) if ":" in source else tiny(source, "Q4_K")
    engine = engine_of(path)
    rng = np.random.default_rng(5)
    n_vocab = engine.model.n_vocab
    for _ in range(1 if ":" in source else 12):
        prompt = rng.integers(0, n_vocab, rng.integers(2, 320)).tolist()
        engine.forget()
        kept, scratch = ask(engine, prompt)
        assert kept == 0
        kept, again = ask(engine, prompt)
        assert len(prompt) - 32 <= kept < len(prompt) or len(prompt) < 32
        assert np.array_equal(scratch, again)
        other = prompt[: len(prompt) // 2] + rng.integers(0, n_vocab, 40).tolist()
        ask(engine, other)
        _, back = ask(engine, prompt)
        assert np.array_equal(scratch, back)
    engine.close()


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "mamba"])
def test_the_next_turn_computes_only_what_is_new(name: str, tiny: Tiny, tmp_path: Path) -> None:
    path = make_foreign(tmp_path, name) if name in ("gpt2", "mamba") else tiny(name, "Q4_K")
    engine = engine_of(path)
    prompt = list(range(3, 90))
    said = answer(engine, prompt, 20, GREEDY)
    following = [*prompt, *said, *range(7, 30)]
    kept, logits = ask(engine, following)
    # The last token that was sampled has not been computed yet.
    assert kept == len(prompt) + len(said) - 1
    if name != "mamba":
        answer(engine, following, 9, GREEDY)
        kept, again = ask(engine, following)
        assert kept > 0 and np.array_equal(logits, again)
    engine.forget()
    _, scratch = ask(engine, following)
    # Tokens of an answer are computed one by one, those of a prompt in batches.
    assert np.abs(logits - scratch).max() < 0.05 * scratch.std()
    assert logits.argmax() == scratch.argmax()
    engine.close()


def test_a_state_that_cannot_go_back_starts_anew(tmp_path: Path) -> None:
    engine = engine_of(make_foreign(tmp_path, "mamba"))
    prompt = list(range(3, 60))
    first = answer(engine, prompt, 8, GREEDY)
    assert engine.begin(prompt) == 0 and engine.n_kept == 0
    assert answer(engine, prompt, 8, GREEDY) == first
    engine.close()


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_window_that_was_left_behind_is_computed_again(name: str, tiny: Tiny) -> None:
    """gemma3's window is 40 tokens: a cache of 512 forgets what lies far behind."""
    engine = engine_of(tiny(name, "F32"), n_ctx=2048)
    text = np.random.default_rng(1).integers(0, engine.model.n_vocab, 1500).tolist()
    early = [*text[:100], 5, 6, 7]
    engine.forget()
    _, scratch = ask(engine, early)
    ask(engine, text)
    kept, logits = ask(engine, early)
    assert kept == (0 if name == "gemma3" else 80)
    assert np.array_equal(logits, scratch)
    engine.close()


def test_a_window_that_is_there_in_part_is_not_enough(tiny: Tiny) -> None:
    engine = engine_of(tiny("gemma3", "F32"), n_ctx=2048)
    text = np.random.default_rng(1).integers(0, engine.model.n_vocab, 1500).tolist()
    for behind, is_kept in ((20, False), (60, True)):
        ask(engine, text)
        context = engine._context
        assert context is not None
        oldest = context._api.llama_memory_seq_pos_min(context._memory, 0)
        assert 100 < oldest < 1460
        n = oldest + behind
        assert context.roll_back(n) is is_kept
        assert context.n_computed == (n if is_kept else 0)
        engine.forget()
    engine.close()


def test_same_seed_same_text(real_model: Callable[[str], Path]) -> None:
    params = GenerateParams(temperature=1.2, seed=42, max_tokens=24)
    messages = [{"role": "user", "content": "Tell me about rain, in one paragraph of many words."}]
    with Session.open(real_model("smollm2:135m"), engine="llama.cpp", n_ctx=512) as session:
        texts = ["".join(c.text for c in session.chat(messages, params)) for _ in range(2)]
        assert session.stats.cached_tokens > 0
        session.forget()
        texts.append("".join(c.text for c in session.chat(messages, params)))
        assert session.stats.cached_tokens == 0
        other = GenerateParams(temperature=1.2, seed=43, max_tokens=24)
        changed = "".join(c.text for c in session.chat(messages, other))
    assert len(set(texts)) == 1 and len(texts[0]) > 20
    assert changed != texts[0]


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba"])
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_cancel(name: str, kv_type: str, tiny: Tiny, tmp_path: Path) -> None:
    """In a prompt and in an answer; what was computed before it is of use, and right."""
    path = make_foreign(tmp_path, name) if name == "mamba" else tiny(name, "F32")
    engine = engine_of(path, kv_type=kv_type)
    prompt = [i % engine.model.n_vocab for i in range(400)]
    wanted = answer(engine, prompt, 6, GREEDY)
    engine.forget()
    sampler, seen = sampler_for(engine), []

    def stop_in_the_middle(n_done: int) -> None:
        seen.append(n_done)
        if n_done:
            engine.cancel()

    engine.begin(prompt)
    with pytest.raises(CancelledError):
        engine.prefill(prompt, sampler, None, stop_in_the_middle)
    assert seen == [0, 256] and engine.n_kept == 256
    with pytest.raises(CancelledError):
        engine.decode(5, 4, sampler, [], None)
    assert engine.n_kept == 256
    engine.reset_cancel()
    assert answer(engine, prompt, 6, GREEDY) == wanted
    engine.close()


def test_a_step_shows_that_it_computes(tiny: Tiny) -> None:
    engine = engine_of(tiny("llama", "F32"))
    prompt = list(range(3, 40))
    engine.begin(prompt)
    seen: list[int] = []
    engine.prefill(prompt, sampler_for(engine), None, lambda n: seen.append(engine.progress))
    assert len(seen) == 3  # two steps: all but the last token, and that
    assert all(after - before > 10 for before, after in itertools.pairwise(seen))
    engine.close()


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba"])
def test_cancel_inside_a_step(
    name: str, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp sees the flag between the nodes of a step's graph. What stood before the step is
    kept, unless it is a state that the step may have half changed."""
    path = make_foreign(tmp_path, name) if name == "mamba" else tiny(name, "F32")
    engine = engine_of(path)
    prompt = list(range(3, 90))
    wanted = answer(engine, prompt, 6, GREEDY)
    engine.forget()
    answer(engine, prompt[:40], 1, GREEDY)
    assert engine.n_kept == 40
    with monkeypatch.context() as patch:
        patch.setattr(CancelFlag, "is_raised", False)  # raised only after we looked
        engine.cancel()
        with pytest.raises(CancelledError):
            engine.decode(5, 4, sampler_for(engine), [], None)
        assert engine.n_kept == (0 if name == "mamba" else 40)
        engine.begin(prompt)
        with pytest.raises(CancelledError):
            engine.prefill(prompt[engine.n_kept :], sampler_for(engine), None, lambda n: None)
    engine.reset_cancel()
    assert answer(engine, prompt, 6, GREEDY) == wanted
    engine.close()
