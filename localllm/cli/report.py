"""What is told about an answer: the JSON object, the lines of `--verbose`, the footer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from localllm.cli import output

if TYPE_CHECKING:
    from localllm.cli.answer_view import Shown
    from localllm.cli.finding import Found
    from localllm.params import GenerateParams
    from localllm.remote_session import AnySession
    from localllm.session import Stats, TokenLogprobs


def facts(
    found: Found, session: AnySession, params: GenerateParams, kv_type: str, finish_reason: str
) -> dict[str, Any]:
    """What `--json` prints beside the text, and `--verbose` shows. Speeds are None where nothing
    was timed. The first token comes out of the prompt's last step: decoding made the others."""
    stats, info = session.stats, session.info
    return {
        "model": found.label,
        "id": session.answer.id if session.answer else None,
        "digest": found.digest,
        "engine": info.engine,
        "template": info.template,
        "finish_reason": finish_reason,
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "generated_tokens": stats.generated_tokens,
        "reasoning_tokens": stats.reasoning_tokens,
        "seed": params.seed,
        "temperature": params.temperature,
        "params": params.changed(),
        "load_s": round(stats.load_s, 6),
        "prompt_s": round(stats.prompt_s, 6),
        "first_token_s": round(stats.first_token_s, 6),
        "decode_s": round(stats.decode_s, 6),
        "prompt_tokens_per_s": speed(stats.prompt_tokens - stats.cached_tokens, stats.prompt_s),
        "decode_tokens_per_s": speed(stats.generated_tokens - 1, stats.decode_s),
        "isa": info.isa,
        "n_threads": info.n_threads,
        "n_ctx": info.n_ctx,
        "kv_type": kv_type,
        "kv_bytes": info.kv_bytes,
        "weight_bytes": info.weight_bytes,
        "architecture": info.architecture,
        "description": info.description,
        "notes": list(session.notes),
    }


def with_text(report: dict[str, Any], shown: Shown) -> dict[str, Any]:
    """The JSON object of an answer: the exact text, its reasoning, and the facts."""
    rest = dict(report)
    out = {"model": rest.pop("model"), "text": shown.text, "reasoning": shown.reasoning, **rest}
    if shown.logprobs:
        out["logprobs"] = [_logprob(token) for token in shown.logprobs]
    return out


def speed(n_tokens: int, seconds: float) -> float | None:
    """Tokens a second; None where nothing was timed."""
    return round(n_tokens / seconds, 2) if n_tokens > 0 and seconds > 0 else None


def footer(stats: Stats) -> str:
    """The line after an answer: what was computed, and how fast."""
    tokens = count(stats.prompt_tokens, "prompt token")
    if stats.cached_tokens:
        tokens = f"{stats.cached_tokens:,} of {tokens} from cache"
    parts = [tokens]
    if stats.generated_tokens:
        parts.append(f"first token {stats.first_token_s:.1f} s")
    if decode_speed := speed(stats.generated_tokens - 1, stats.decode_s):
        parts.append(
            f"{decode_speed:.0f} tok/s" if decode_speed >= 10 else f"{decode_speed:.1f} tok/s"
        )
    return ", ".join(parts)


def count(n: int, thing: str) -> str:
    """`1 token`, `1,840 tokens`."""
    return f"{n:,} {thing}{'' if n == 1 else 's'}"


def verbose_text(report: dict[str, Any]) -> str:
    """Counts and timings, a line for each kind."""
    prompt_speed, decode_speed = report["prompt_tokens_per_s"], report["decode_tokens_per_s"]
    reasoning = report["reasoning_tokens"]
    rows = {
        "model": f"{report['description']} ({report['architecture']}, {report['engine']} engine)",
        "load": f"{report['load_s']:.3f} s",
        "prompt": f"{report['prompt_tokens']} tokens"
        + (f", {report['cached_tokens']} of them from cache," if report["cached_tokens"] else "")
        + f" in {report['prompt_s']:.3f} s"
        + (f", {prompt_speed:.1f} tokens/s" if prompt_speed else ""),
        "first token": f"after {report['first_token_s']:.3f} s",
        "answer": f"{report['generated_tokens']} tokens"
        + (f", {decode_speed:.1f} tokens/s" if decode_speed else "")
        + (f", {reasoning} of them reasoning" if reasoning else "")
        + f", ended by {report['finish_reason']}",
        "seed": f"{report['seed']}, temperature {report['temperature']:g}",
        "template": _template(report["template"]),
        "threads": f"{report['n_threads']}, {report['isa']}",
        "weights": output.size_text(report["weight_bytes"]),
        "context": f"{report['n_ctx']} tokens, {report['kv_type']}, "
        f"{output.size_text(report['kv_bytes'])} reserved",
    }
    lines = [f"{name:12} {output.escape_line(text)}" for name, text in rows.items() if text]
    return "\n" + "\n".join(lines)


def _template(origin: str | None) -> str:
    """Where the chat template comes from, if not from the file."""
    if origin is None:
        return "none"
    family = origin.removeprefix("fallback:")
    return f"of the {family} family, the file has none" if family != origin else ""


def _logprob(token: TokenLogprobs) -> dict[str, Any]:
    return {
        "text": token.text,
        "logprob": token.value,
        "top": [{"text": text, "logprob": value} for text, value in token.top],
    }
