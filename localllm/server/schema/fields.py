"""Every field that OpenAI's API, vLLM and llama-server know for the two routes that answer, and
what it does here. Nothing is dropped in silence: a field is acted on, or it is without effect on
the answer, or it would change the answer in a way that this server cannot, and is refused. A field
that is in no table is named in the header `x-localllm-ignored`.

Sources: the `openai` package's CompletionCreateParams, vLLM's ChatCompletionRequest and
CompletionRequest, llama-server's README and its schema of completion fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from localllm.params import ALIASES, PARAMETERS
from localllm.server.errors import RequestError

ACTED = "acted on"
WITHOUT_EFFECT = "without effect"
REFUSED = "refused"


@dataclass(frozen=True)
class Field:
    """A row. note: what it does, or for a refused one what it would need. harmless: of a refused
    one, the values that ask for nothing; None and what is empty never do, nor False, unless True
    is harmless."""

    name: str
    effect: str
    note: str = ""
    harmless: tuple[Any, ...] = ()
    schema: Mapping[str, Any] | None = None  # JSON schema, for the OpenAPI description

    def asks_for_nothing(self, value: Any) -> bool:
        if value is False:
            return not any(each is True for each in self.harmless)
        if value is None or value in ([], {}, ""):
            return True
        return any(type(value) is type(each) and value == each for each in self.harmless)


_NUMBER = {"type": ["number", "null"]}
_INTEGER = {"type": ["integer", "null"]}
_FLAG = {"type": ["boolean", "null"]}
_TEXT = {"type": ["string", "null"]}


def _rows(effect: str, names: str, note: str) -> list[Field]:
    return [Field(name, effect, note) for name in names.split()]


_SAMPLER_SCHEMAS = {int: _INTEGER, float: _NUMBER, bool: _FLAG}


def _sampling() -> list[Field]:
    """logprobs is another thing in each route."""
    return [
        Field(name, ACTED, row.help, schema=_SAMPLER_SCHEMAS.get(row.kind))
        for name in [*PARAMETERS, *ALIASES]
        if (row := PARAMETERS[ALIASES.get(name, name)]).name != "logprobs"
    ]


_TOOLS = "tools are not served yet"
_CONSTRAINTS = "constrained output is not served yet"
_MEDIA = "only text is served yet"
_LOGPROBS = "only the log probabilities of the answer's own and likeliest tokens are served"

_SHARED: list[Field] = [
    Field("model", ACTED, "The model's name, as /v1/models lists it.", schema=_TEXT),
    *_sampling(),
    Field("n", ACTED, "Number of answers, 1 to 64.", schema=_INTEGER),
    Field("stream", ACTED, "Send the answer as it comes.", schema=_FLAG),
    Field(
        "stream_options",
        ACTED,
        "include_usage: a last event with the counts; continuous_usage_stats: counts in each.",
        schema={"type": ["object", "null"]},
    ),
    Field("n_probs", ACTED, "llama-server's name of top_logprobs.", schema=_INTEGER),
    Field("priority", ACTED, "As vLLM: the lower, the earlier.", schema=_INTEGER),
    Field("cache_salt", ACTED, "A part of the prefix cache of its own.", schema=_TEXT),
    Field(
        "cache_prompt", ACTED, "false: nothing is taken from the cache or left in it.", schema=_FLAG
    ),
    Field("store", ACTED, "false: nothing of the request stays in the cache.", schema=_FLAG),
    Field(
        "truncate",
        ACTED,
        '"start" or "middle": what goes when the prompt is too long.',
        schema={"enum": ["start", "middle", None]},
    ),
    Field("return_token_ids", ACTED, "Adds token_ids, and prompt_token_ids.", schema=_FLAG),
    Field(
        "keep_alive",
        ACTED,
        "How long the model stays loaded: seconds, 5m, 0, or -1: forever.",
        schema={"type": ["string", "number", "null"]},
    ),
    # OpenAI
    *_rows(
        WITHOUT_EFFECT,
        "user metadata safety_identifier service_tier prompt_cache_key prompt_cache_retention "
        "prompt_cache_options",
        "of OpenAI's accounts and billing",
    ),
    Field("moderation", WITHOUT_EFFECT, "there is no moderation here"),
    Field("prediction", WITHOUT_EFFECT, "changes only how fast OpenAI answers"),
    Field("verbosity", REFUSED, "of OpenAI's models", ("medium",)),
    Field("response_format", REFUSED, _CONSTRAINTS, ({"type": "text"},)),
    # vLLM
    *_rows(
        WITHOUT_EFFECT,
        "request_id session_id stream_interval spaces_between_special_tokens "
        "return_token_offsets return_mm_kwargs routed_experts_prompt_start media_io_kwargs "
        "mm_processor_kwargs kv_transfer_params ec_transfer_params",
        "of vLLM",
    ),
    *_rows(
        REFUSED,
        "structured_outputs guided_json guided_regex guided_choice guided_grammar "
        "guided_decoding_backend guided_whitespace_pattern structural_tag grammar grammar_lazy "
        "grammar_triggers json_schema",
        _CONSTRAINTS,
    ),
    Field("use_beam_search", REFUSED, "there is no beam search here"),
    Field("length_penalty", REFUSED, "it belongs to beam search", (1, 1.0, 0, 0.0)),
    Field("early_stopping", REFUSED, "it belongs to beam search"),
    Field("watermarking", REFUSED, "there are no watermarks here"),
    Field("stop_token_ids", REFUSED, "give the texts as stop"),
    Field("include_stop_str_in_output", REFUSED, "stop strings are never part of the answer"),
    Field("min_tokens", REFUSED, "use ignore_eos with max_tokens", (0,)),
    Field("skip_special_tokens", REFUSED, "control tokens are never shown", (True,)),
    Field("allowed_token_ids", REFUSED, _CONSTRAINTS),
    Field("bad_words", REFUSED, "use logit_bias"),
    Field(
        "prompt_logprobs",
        ACTED,
        "As vLLM: of the prompt's tokens, and so many likeliest ones, 0 to 20; not in a stream.",
        schema=_INTEGER,
    ),
    Field("logprob_token_ids", REFUSED, _LOGPROBS),
    Field("return_tokens_as_token_ids", REFUSED, "use return_token_ids"),
    Field("return_prompt_text", REFUSED, "the prompt's text is not sent back"),
    Field("truncate_prompt_tokens", REFUSED, "use truncate", (-1,)),
    Field("truncation_side", REFUSED, "use truncate"),
    Field("thinking_token_budget", REFUSED, "use reasoning_effort", (-1,)),
    Field("repetition_detection", REFUSED, "use dry_multiplier"),
    Field("vllm_xargs", REFUSED, "of vLLM's extensions"),
    Field("logits_processors", REFUSED, "no code of others runs here"),
    # llama-server
    *_rows(
        WITHOUT_EFFECT,
        "id_slot slot_id n_cache_reuse n_indent timings_per_token "
        "return_progress sse_ping_interval backend_sampling t_max_prompt_ms verbose",
        "of llama-server",
    ),
    *_rows(
        WITHOUT_EFFECT,
        "chat_format chat_parser generation_prompt message_delimiters preserved_tokens",
        "how llama-server finds the parts of an answer",
    ),
    Field("reasoning_budget_tokens", REFUSED, "use reasoning_effort", (-1,)),
    Field("thinking_budget_tokens", REFUSED, "use reasoning_effort", (-1,)),
    *_rows(
        WITHOUT_EFFECT,
        "reasoning_budget_message reasoning_budget_start_tag reasoning_budget_end_tag "
        "reasoning_budget_end_tags",
        "nothing without reasoning_budget_tokens",
    ),
    Field("grammar_type", WITHOUT_EFFECT, "nothing without grammar"),
    Field("min_keep", REFUSED, "samplers keep at least one token", (0, 1)),
    Field("t_max_predict_ms", REFUSED, "use max_tokens", (0,)),
    Field("post_sampling_probs", REFUSED, _LOGPROBS),
    Field("n_keep", REFUSED, "use truncate", (0,)),
    Field("n_discard", REFUSED, "use truncate", (0,)),
    Field("n_cmpl", REFUSED, "use n", (1,)),
    Field("lora", REFUSED, "there are no adapters yet"),
    Field("response_fields", REFUSED, "answers have all their fields"),
    Field("return_tokens", REFUSED, "use return_token_ids"),
    Field("adaptive_target", REFUSED, "there is no such sampler here", (-1, -1.0)),
    Field("adaptive_decay", WITHOUT_EFFECT, "nothing without adaptive_target"),
    *_rows(
        WITHOUT_EFFECT,
        "speculative.n_max speculative.n_min speculative.p_min speculative.type "
        "speculative.ngram_size_n speculative.ngram_size_m speculative.ngram_min_hits",
        "changes only the speed",
    ),
]

CHAT: dict[str, Field] = {
    row.name: row
    for row in [
        *_SHARED,
        Field(
            "messages",
            ACTED,
            "The conversation.",
            schema={"type": "array", "minItems": 1, "items": {"type": "object"}},
        ),
        Field("logprobs", ACTED, "Whether log probabilities are wanted.", schema=_FLAG),
        Field("top_logprobs", ACTED, "With logprobs: of so many tokens, 0 to 20.", schema=_INTEGER),
        Field(
            "reasoning_effort",
            ACTED,
            "none, minimal, low, medium, high, xhigh or max.",
            schema=_TEXT,
        ),
        Field("include_reasoning", ACTED, "false: no reasoning_content.", schema=_FLAG),
        Field(
            "chat_template_kwargs",
            ACTED,
            "Variables of the chat template.",
            schema={"type": ["object", "null"]},
        ),
        Field(
            "reasoning_format",
            REFUSED,
            "reasoning comes as reasoning_content",
            ("auto", "deepseek"),
        ),
        Field("reasoning_control", REFUSED, "use reasoning_effort"),
        Field("reasoning_budget", REFUSED, "use reasoning_effort", (-1,)),
        Field("tools", REFUSED, _TOOLS),
        Field("tool_choice", REFUSED, _TOOLS, ("none", "auto")),
        Field("functions", REFUSED, _TOOLS),
        Field("function_call", REFUSED, _TOOLS, ("none", "auto")),
        Field("parallel_tool_calls", WITHOUT_EFFECT, "nothing without tools"),
        Field("parse_tool_calls", WITHOUT_EFFECT, "nothing without tools"),
        Field("web_search_options", REFUSED, "nothing is searched from here"),
        Field("audio", REFUSED, _MEDIA),
        Field("modalities", REFUSED, _MEDIA, (["text"],)),
        Field("documents", REFUSED, "put them into a message"),
        Field("chat_template", REFUSED, "no template of a request is run"),
        Field("echo", REFUSED, "the last message is not sent back"),
        Field("add_generation_prompt", REFUSED, "the model always begins a new message", (True,)),
        Field("continue_final_message", REFUSED, "use /v1/completions to go on with a text"),
        Field("add_special_tokens", WITHOUT_EFFECT, "the template says where they are"),
    ]
}

COMPLETIONS: dict[str, Field] = {
    row.name: row
    for row in [
        *_SHARED,
        Field(
            "prompt",
            ACTED,
            "A text or token ids, or a list of them.",
            schema={"type": ["string", "array"]},
        ),
        Field(
            "echo",
            ACTED,
            "Begins the answer with the prompt; with logprobs, also its log probabilities.",
            schema=_FLAG,
        ),
        Field("logprobs", ACTED, "Log probabilities of so many tokens, 0 to 20.", schema=_INTEGER),
        Field("add_special_tokens", ACTED, "false: no token in front of the text.", schema=_FLAG),
        Field("parse_special", ACTED, "false: names of control tokens are text.", schema=_FLAG),
        Field("suffix", REFUSED, "filling a gap is not served yet"),
        Field("best_of", REFUSED, "use n", (1,)),
        Field("prompt_embeds", REFUSED, "a prompt is a text or token ids"),
        Field("input_extra", REFUSED, "filling a gap is not served yet"),
        Field("return_routed_experts", REFUSED, "of vLLM"),
        *_rows(
            WITHOUT_EFFECT,
            "reasoning_format reasoning_control parse_tool_calls continue_final_message",
            "of chats",
        ),
    ]
}


_MODEL = _SHARED[0]

TOKENIZE: dict[str, Field] = {
    row.name: row
    for row in [
        _MODEL,
        Field("content", ACTED, "A text, as llama-server has it.", schema={"type": "string"}),
        Field("add_special", ACTED, "With content: tokens around the text.", schema=_FLAG),
        Field("with_pieces", ACTED, "With content: also the text of each token.", schema=_FLAG),
        Field("parse_special", ACTED, "false: names of control tokens are text.", schema=_FLAG),
        Field("prompt", ACTED, "A text, as vLLM has it.", schema={"type": "string"}),
        Field("add_special_tokens", ACTED, "With prompt: tokens around the text.", schema=_FLAG),
        Field("return_token_strs", ACTED, "Also the text of each token.", schema=_FLAG),
        CHAT["messages"],
        *(CHAT[name] for name in ("reasoning_effort", "chat_template_kwargs")),
        *(CHAT[name] for name in ("tools", "chat_template", "add_generation_prompt")),
        CHAT["continue_final_message"],
        *(CHAT[name] for name in ("media_io_kwargs", "mm_processor_kwargs")),
    ]
}

DETOKENIZE: dict[str, Field] = {
    row.name: row
    for row in [
        _MODEL,
        Field(
            "tokens",
            ACTED,
            "Their ids.",
            schema={"type": "array", "items": {"type": "integer"}},
        ),
    ]
}

#: What `stream_options` may hold; OpenAI's include_obfuscation has no effect here.
_STREAM_OPTIONS = ("include_usage", "continuous_usage_stats", "include_obfuscation")


def unknown(body: Mapping[str, Any], table: Mapping[str, Field], *, strict: bool) -> list[str]:
    """The names of fields in no table. Raises `RequestError` for a refused field that asks for
    something, and if `strict` for an unknown one."""
    for name, value in body.items():
        row = table.get(name)
        if row is not None and row.effect == REFUSED and not row.asks_for_nothing(value):
            raise RequestError(
                f"{name} is not supported: {row.note}", param=name, code="unsupported_parameter"
            )
    names = [name for name in body if name not in table]
    options = body.get("stream_options")
    if isinstance(options, dict):
        names += [f"stream_options.{name}" for name in options if name not in _STREAM_OPTIONS]
    if strict and names:
        raise RequestError(
            f"there is no field {names[0][:80]!a}",
            _nearest(names[0], table),
            param=names[0][:80],
            code="unknown_parameter",
        )
    return names


def _nearest(name: str, table: Iterable[str]) -> str | None:
    import difflib

    near = difflib.get_close_matches(name[:80], table, n=1)
    return f"Did you mean {near[0]}?" if near else None


def json_schema(table: Mapping[str, Field], required: list[str]) -> dict[str, Any]:
    """The JSON schema of a request, of the fields that are acted on or without effect."""
    return {
        "type": "object",
        "required": required,
        "properties": {
            row.name: {**(row.schema or {}), "description": row.note}
            for row in table.values()
            if row.effect != REFUSED
        },
    }
