"""Opens a model file with the second engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from localllm import paths
from localllm.engine import llama_library, machine
from localllm.engine.llama_context import CacheCost, check_kv_type
from localllm.engine.llama_cpp import NAME, LlamaCppEngine
from localllm.engine.llama_model import LlamaModel, first_part
from localllm.engine.llama_trial import tried, verdicts
from localllm.engine.llama_vocabulary import tokenizer_of
from localllm.engine.memory_plan import KV_SHARE_OF_FREE_MEMORY, MIN_CONTEXT
from localllm.engine.open import OpenOptions, Parts, TextSide
from localllm.errors import ArgumentError, FormatError, OutOfMemoryError, UnsupportedError
from localllm.store.inspect import GgufFile
from localllm.text.tokenizer import Tokenizer

#: The default context takes at most this much: llama.cpp commits a cache when it makes it.
MAX_DEFAULT_KV_BYTES = 1 << 30


def open_llama_cpp(
    path: Path,
    options: OpenOptions,
    progress: Callable[[float], None] | None,
    say: Callable[[str], None],
) -> Parts:
    """Loads a model file into llama.cpp for one conversation at a time; see `Session.open`.

    The file goes through our own checks, and through a trial in a process of its own, because
    llama.cpp ends its process on some broken files. Raises FileError, FormatError, UnsupportedError
    (the package is missing, or llama.cpp cannot run the model), ArgumentError, OutOfMemoryError,
    CancelledError.
    """
    check_kv_type(options.kv_type)
    library = llama_library.load()
    n_threads = options.n_threads or machine.facts().n_threads
    report = progress or (lambda _share: None)
    with GgufFile(path) as file:
        first = first_part(path, file.n_parts)
        verdict = tried(
            library,
            first,
            kv_type=options.kv_type,
            n_threads=n_threads,
            may_copy=_fits_twice(file.weight_bytes),
            cache_folder=verdicts(),
            progress=lambda share: report(share / 2),
        )
        model = LlamaModel.load(
            library,
            first,
            extra_buffers=verdict.extra_buffers,
            mapped=options.mmap or not _fits(file.weight_bytes),
            progress=lambda share: report(0.5 + share / 2),
        )
        try:
            text = TextSide(_tokenizer(file, model), _scalars(file), file.quantization)
            n_ctx = context_that_fits(verdict.cost, model.n_ctx_train, options.n_ctx, say)
            engine = LlamaCppEngine(
                model,
                path=first,
                n_ctx=n_ctx,
                kv_type=options.kv_type,
                n_threads=n_threads,
                cost=verdict.cost,
            )
            return Parts(
                path=path,
                options=options,
                engine=engine,
                text=text,
                architecture=file.architecture,
                isa=model.isa,
                n_threads=n_threads,
                n_params=model.n_params,
                weight_bytes=model.weight_bytes,
                arithmetic=0,
                engine_version=f"{NAME} {library.version}",
            )
        except BaseException:
            model.close()
            raise


def context_that_fits(cost: CacheCost, trained: int, asked: int, say: Callable[[str], None]) -> int:
    """Tokens of context: what was asked for, or the trained length cut to what memory allows.

    Raises OutOfMemoryError with the numbers when `asked` tokens cannot fit, and ArgumentError when
    they are more than the model was trained on.
    """
    if asked > trained > 0:
        raise ArgumentError(
            f"the context is {asked} tokens, the model was trained on {trained}",
            hint=f"use --ctx {trained} or less",
        )
    free = machine.facts().free_bytes
    if asked:
        if free and cost.of(asked) > free:
            raise OutOfMemoryError(
                f"a context of {asked} tokens needs {cost.of(asked) >> 20} MiB, "
                f"{free >> 20} MiB are free",
                hint="use a smaller --ctx, or --kv-type q8_0, which takes about half",
            )
        return asked
    limit = MAX_DEFAULT_KV_BYTES
    if free:
        limit = min(limit, int(free * KV_SHARE_OF_FREE_MEMORY))
    wanted = trained or MIN_CONTEXT
    if cost.of(wanted) <= limit:
        return wanted
    low, high = min(MIN_CONTEXT, wanted), wanted
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost.of(middle) <= limit else (low, middle)
    say(
        f"the context is {low} of {trained} tokens: llama.cpp takes the memory of its cache at "
        f"once, {cost.of(low) >> 20} MiB"
    )
    return low


def _fits(weight_bytes: int) -> bool:
    """Into memory, with room for a cache."""
    free = machine.facts().free_bytes
    return not free or weight_bytes < free - free // 4


def _fits_twice(weight_bytes: int) -> bool:
    free = machine.facts().free_bytes
    return not free or weight_bytes < free // 2


def _scalars(file: GgufFile) -> dict[str, Any]:
    """The metadata that is not vocabulary."""
    metadata = file.metadata
    return {key: metadata[key] for key in metadata if not metadata.type_of(key).endswith("[]")}


def _tokenizer(file: GgufFile, model: LlamaModel) -> Tokenizer:
    """Ours, or for a kind of vocabulary that it does not know, llama.cpp's."""
    try:
        ours = Tokenizer.from_metadata(
            file.metadata, cache_folder=paths.current().cache / "tokenizers"
        )
    except UnsupportedError:
        return tokenizer_of(model, file.metadata)
    if ours.n_vocab != model.n_vocab:
        raise FormatError(f"the tokenizer has {ours.n_vocab} tokens, llama.cpp {model.n_vocab}")
    return ours
