"""Notes of how fast a model answered here, from which `recommend` predicts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from localllm import paths
from localllm.errors import LocalLLMError
from localllm.store import speeds
from localllm.store.recommend import CONTEXT
from localllm.store.speeds import BENCH, LEAST_S, LEAST_TOKENS, RUN, Measured

if TYPE_CHECKING:
    from localllm.cli.finding import Found
    from localllm.session import Session
    from localllm.store.work import Work


def of_answer(found: Found, session: Session) -> None:
    """Notes the speed of the session's last answer, if it was long enough to tell one."""
    stats, info = session.stats, session.info
    if stats.generated_tokens <= LEAST_TOKENS or stats.decode_s < LEAST_S:
        return
    from localllm.store.work import work_of

    with contextlib.suppress(LocalLLMError):  # a header that only the other engine can read
        speeds.note(
            paths.current().cache,
            Measured(
                name=found.label,
                digest=found.digest or "",
                engine=info.engine,
                isa=info.isa,
                n_threads=info.n_threads,
                weight_bytes=work_of(found.path).step_bytes,
                kv_bytes=info.kv_bytes / info.n_ctx,
                depth=stats.prompt_tokens + stats.generated_tokens / 2,
                # The first token comes out of the prompt's last step.
                tokens_per_s=(stats.generated_tokens - 1) / stats.decode_s,
                by=RUN,
            ),
        )


def of_bench(figures: Mapping[str, Any], work: Work, *, is_busy: bool) -> None:
    """Notes what a bench measured, of its decode tests the one nearest to what is predicted. Beside
    other programs it tells no more than an answer does."""
    decodes = [test for test in figures["tests"] if test["kind"] == "decode"]
    if not decodes or work.step_bytes < 1:
        return
    test = min(decodes, key=lambda each: abs(each["depth"] - CONTEXT // 2))
    model = figures["model"]
    for engine in figures["engines"]:
        speeds.note(
            paths.current().cache,
            Measured(
                name=model["name"],
                digest=model["digest"] or "",
                engine=engine["name"],
                isa=engine["isa"],
                n_threads=engine["n_threads"],
                weight_bytes=work.step_bytes,
                kv_bytes=engine["kv_bytes"] / engine["n_ctx"],
                depth=test["depth"],
                tokens_per_s=test["engines"][engine["name"]]["median"],
                by=RUN if is_busy else BENCH,
            ),
        )
