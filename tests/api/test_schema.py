"""The tables of fields know what others know, and what is too long is cut only where asked."""

from __future__ import annotations

import json
import typing
from typing import Any

import httpx2
import pytest
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params
from stand_ins.api_server import FakeService, Running, running

from localllm.engine.request import LoadedModel
from localllm.errors import (
    ArgumentError,
    CancelledError,
    ContextFullError,
    LocalLLMError,
    OutOfMemoryError,
    QueueFullError,
)
from localllm.server import errors
from localllm.server.errors import RequestError
from localllm.server.schema import fields
from localllm.server.truncate import fit_ids, fit_messages, room

VLLM = """frequency_penalty logit_bias max_tokens n presence_penalty response_format seed stop
stream stream_options temperature top_p use_beam_search top_k min_p repetition_penalty
length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
spaces_between_special_tokens truncate_prompt_tokens prompt_logprobs allowed_token_ids bad_words
echo add_special_tokens structured_outputs priority request_id return_tokens_as_token_ids
return_token_ids cache_salt kv_transfer_params vllm_xargs logprobs watermarking truncation_side
logprob_token_ids mm_processor_kwargs media_io_kwargs session_id routed_experts_prompt_start
return_token_offsets return_mm_kwargs ec_transfer_params repetition_detection stream_interval
thinking_token_budget"""
LLAMA_SERVER = """n_predict temperature dynatemp_range dynatemp_exponent top_k top_p min_p typical_p
repeat_penalty repeat_last_n presence_penalty frequency_penalty dry_multiplier dry_base
dry_allowed_length dry_penalty_last_n dry_sequence_breakers xtc_probability xtc_threshold mirostat
mirostat_tau mirostat_eta grammar json_schema seed ignore_eos logit_bias n_probs min_keep
t_max_predict_ms id_slot cache_prompt n_cache_reuse n_keep n_cmpl n_indent return_tokens samplers
timings_per_token return_progress sse_ping_interval post_sampling_probs response_fields lora stop
stream verbose n_discard top_n_sigma adaptive_target adaptive_decay backend_sampling grammar_lazy
grammar_triggers grammar_type preserved_tokens chat_format chat_parser generation_prompt
message_delimiters reasoning_format reasoning_control reasoning_budget_tokens thinking_budget_tokens
reasoning_budget_message reasoning_budget_start_tag reasoning_budget_end_tag
reasoning_budget_end_tags parse_tool_calls continue_final_message echo speculative.type
speculative.n_max speculative.n_min speculative.p_min speculative.ngram_size_n
speculative.ngram_size_m speculative.ngram_min_hits"""


@pytest.mark.parametrize(
    ("table", "params"), [(fields.CHAT, chat_params), (fields.COMPLETIONS, text_params)]
)
def test_every_field_of_openai_is_known(table: dict[str, Any], params: Any) -> None:
    known = typing.get_type_hints(params.CompletionCreateParamsBase)
    assert len(known) > 15 and set(known) | {"stream"} <= set(table)


@pytest.mark.parametrize("names", [VLLM, LLAMA_SERVER])
@pytest.mark.parametrize("table", [fields.CHAT, fields.COMPLETIONS])
def test_every_field_of_the_others_is_known(table: dict[str, Any], names: str) -> None:
    assert set(names.split()) <= set(table)


def test_options_of_a_stream_are_known_too(fake_info: LoadedModel, http: httpx2.Client) -> None:
    options: dict[str, Any] = {"include_usage": True, "continuous_usage_stats": True, "new": 1}
    body = {
        "messages": [{"role": "user", "content": "say abc"}],
        "stream": True,
        "stream_options": options,
    }
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.headers["x-localllm-ignored"] == "stream_options.new"
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    used = [json.loads(line)["usage"] for line in lines if line.startswith("{")]
    n_given = [each["completion_tokens"] for each in used]
    assert n_given == sorted(n_given) and n_given[0] == 0 and n_given[-2] == n_given[-1] == 3
    assert len({each["prompt_tokens"] for each in used}) == 1 and used[0]["prompt_tokens"] > 3
    assert "prompt_tokens_details" in used[-1]
    with running(FakeService(fake_info), strict=True) as server:
        refused = httpx2.post(f"{server.url}/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "stream_options.new"
    options["continuous_usage_stats"] = "yes"
    assert http.post("/v1/chat/completions", json=body).status_code == 400


def test_what_is_refused_says_why() -> None:
    for row in [*fields.CHAT.values(), *fields.COMPLETIONS.values()]:
        assert row.note, row.name
        assert row.effect in (fields.ACTED, fields.WITHOUT_EFFECT, fields.REFUSED)
        assert row.effect == fields.REFUSED or not row.harmless


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(ContextFullError("x"), 400, "context_length_exceeded"),
     (ArgumentError("x"), 400, "invalid_value"),
     (QueueFullError("x"), 429, "queue_full"), (OutOfMemoryError("x"), 503, "out_of_memory"),
     (CancelledError("x"), 503, "cancelled"), (LocalLLMError("x"), 500, "internal_error"),
     (KeyError("secret"), 500, "internal_error")],
)  # fmt: skip
def test_every_error_has_its_answer(error: Exception, status: int, code: str) -> None:
    kind = errors.kind_of(error)
    assert (kind.status, kind.code) == (status, code) and b"secret" not in errors.body(error)


def test_error_bodies_are_short_whatever_they_say() -> None:
    for text in ("x" * 10**6, "\x01" * 10**5, "😀" * 10**5, "\ud800" * 10**4, '"\\' * 10**5):
        assert 50 < len(errors.body(RequestError(text, param=text[:5000]))) <= 4096


def turns(n: int) -> list[dict[str, str]]:
    found = [{"role": "system", "content": "s"}]
    for i in range(n):
        found += [{"role": "user", "content": f"u{i}"}, {"role": "assistant", "content": f"a{i}"}]
    return [*found, {"role": "user", "content": "last"}]


def contents(limit: int, side: str, messages: Any = None) -> list[str]:
    def render(some: Any) -> list[str]:
        return [m["content"] for m in some]

    return fit_messages(messages or turns(5), render, len, limit, side).value


def test_the_newest_turns_stay() -> None:
    assert contents(12, "start") == [m["content"] for m in turns(5)]
    assert contents(11, "start") == ["s", "u1", "a1", "u2", "a2", "u3", "a3", "u4", "a4", "last"]
    assert contents(5, "start") == ["s", "u4", "a4", "last"]
    assert contents(2, "start") == contents(3, "start") == ["s", "last"]
    assert contents(7, "middle") == ["s", "u0", "a0", "u4", "a4", "last"]
    assert contents(4, "middle") == ["s", "u0", "a0", "last"]
    for limit, side in ((1, "start"), (3, "middle")):
        with pytest.raises(ContextFullError, match="12 tokens"):
            contents(limit, side)


def test_ids_are_cut_at_one_place() -> None:
    ids = [1, *range(10, 30)]
    assert fit_ids(ids, 30, "start", 1).cut is None
    kept = fit_ids(ids, 5, "start", 1)
    assert kept.value == [1, 26, 27, 28, 29] and kept.cut and kept.cut.n_tokens == 16
    assert fit_ids(ids, 5, "middle", 1).value == [1, 10, 27, 28, 29]
    assert fit_ids(ids, 1, "start", 1).value == [29]
    assert room(100, 30) == 70 and room(100, None) == 75 and room(100, 200) == 1


def test_truncation_is_told(fake: Running, fake_info: LoadedModel, http: httpx2.Client) -> None:
    long = [{"role": "user", "content": f"question {i} " + "x y z " * 10} for i in range(30)]
    messages = [
        {"role": "system", "content": "be kind"},
        *long,
        {"role": "user", "content": "say a"},
    ]
    refused = http.post("/v1/chat/completions", json={"messages": messages})
    assert refused.status_code == 400
    for stream in (False, True):
        body = {"messages": messages, "truncate": "start", "max_tokens": 100, "stream": stream}
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200 and '"truncated"' in answer.text
        assert answer.headers["x-localllm-truncated"].startswith("start; messages=")
    service = fake.service
    assert isinstance(service, FakeService)
    prompt = service.tickets[-1].request.prompt
    text = fake_info.tokenizer.decode(prompt, skip_special=False)
    assert (
        len(prompt) <= 412 and "be kind" in text and "say a" in text and "question 0 " not in text
    )
    cut = http.post("/v1/completions", json={"prompt": "x y z " * 400, "truncate": "middle"})
    assert cut.json()["truncated"]["tokens"] > 0
    one = http.post(
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "x " * 900}], "truncate": "start"},
    )
    assert one.json()["error"]["code"] == "context_length_exceeded"
