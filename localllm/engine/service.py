"""Our own engine as a `Service`: many requests at once, on a thread of its own."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from localllm import paths
from localllm.engine.blocks import BLOCK_TOKENS, BlockTable
from localllm.engine.cost_curve import CostCurve, measured
from localllm.engine.job import Job
from localllm.engine.kept_conversations import KeptAt
from localllm.engine.kv_files import Shape
from localllm.engine.kv_tier import KvTiers, TierState
from localllm.engine.loop import Loop
from localllm.engine.open import Parts
from localllm.engine.paged import PagedEngine
from localllm.engine.prefix_cache import PrefixCache
from localllm.engine.queue_wait import QueueWait
from localllm.engine.request import RATE_SECONDS, Emit, Request, ServiceState
from localllm.engine.serial import MAX_QUEUE, fault, loaded_model
from localllm.errors import (
    ArgumentError,
    CancelledError,
    LocalLLMError,
)
from localllm.store.kv_cache import model_folder


@dataclass(frozen=True)
class _Ticket:
    job: Job
    service: NativeService

    @property
    def id(self) -> str:
        return str(self.job.arrival)

    def cancel(self) -> None:
        self.service.cancel(self.job)


class NativeService:
    """See `Service`. Owns the parts, which must be of the native engine: `close` closes them.
    costs: of steps; None: they are measured."""

    def __init__(
        self,
        parts: Parts,
        name: str,
        digest: str,
        max_queue: int = MAX_QUEUE,
        costs: CostCurve | None = None,
    ) -> None:
        engine = parts.engine
        if not isinstance(engine, PagedEngine):
            raise ArgumentError(f"the {engine.name} engine serves one request at a time")
        self._parts, self._runner, self._max_queue = parts, engine.runner, max_queue
        tiers = parts.options.tiers
        self._windows = engine.model.info.group_window
        key = _cache_key(parts, engine, digest)
        shape = Shape(blake2b(key, digest_size=32).digest(), self._runner.block_bytes)
        self._folder = f"{model_folder(Path(), digest)}/{shape.key.hex()[:32]}"
        self._tiers = None
        if tiers is not None:
            root = paths.current().kv
            self._tiers = KvTiers(tiers, self._runner, shape, root, root / self._folder)
        self._cache = PrefixCache(self._runner.blocks, self._windows, key, self._tiers)
        stop_ids = sorted(parts.text.tokenizer.stop_ids)
        about = [digest, parts.isa, str(parts.n_threads), parts.options.kv_type]
        if costs is None:
            costs = measured(self._runner, paths.current().cache / "costs", about)
        self._loop = Loop(
            self._runner, self._cache, costs, stop_ids, self._ended, self._tiers, self._wake
        )
        self.info = dataclasses.replace(
            loaded_model(parts, name, digest),
            max_requests=max_queue + self._loop.scheduler.max_sequences,
            uses_disk=tiers is not None and tiers.disk and tiers.disk_bytes != 0,
        )
        self._arrivals = itertools.count()
        self._lock = threading.Condition()
        # Guarded by the lock:
        self._jobs: set[Job] = set()
        self._wait = QueueWait()
        self._arrived: list[Job] = []
        self._cancelled: list[Job] = []
        self._closed = False
        self._state = ServiceState(last_progress_s=time.monotonic())
        self._seen = self._progress()
        self._rates: deque[tuple[float, int]] = deque()  # (time, tokens generated until then)
        if self._tiers is not None:
            self._tiers.wait_ready()
        self._publish()
        self._thread = threading.Thread(target=self._run, name="native-service", daemon=True)
        self._thread.start()

    def submit(self, request: Request, emit: Emit) -> _Ticket:
        n_prompt, n_ctx = len(request.prompt), self.info.n_ctx
        if not n_prompt:
            raise ArgumentError("the prompt has no token")
        self.info.check_room(n_prompt)
        max_tokens = request.params.max_tokens
        ends = n_ctx if max_tokens is None else min(n_ctx, n_prompt + max_tokens)
        self._loop.scheduler.check_fits(ends)
        job = Job(
            request,
            emit,
            next(self._arrivals),
            self.info.tokenizer,
            n_ctx,
            lambda: BlockTable(self._runner.blocks, self._windows),
        )
        with self._lock:
            if self._closed:
                raise CancelledError("the server is stopping")
            if self.lost is not None:
                raise self.lost
            n_waiting = sum(each.began_s is None for each in self._jobs)
            scheduler = self._loop.scheduler
            n_seats = max(0, scheduler.max_sequences - len(scheduler.running))
            if n_waiting >= self._max_queue + n_seats:
                raise self._wait.refusal(n_waiting, scheduler.max_sequences)
            if not self._jobs:  # until now there was nothing to make progress with
                self._state = dataclasses.replace(self._state, last_progress_s=time.monotonic())
            self._jobs.add(job)
            self._arrived.append(job)
            self._lock.notify()
        return _Ticket(job, self)

    @property
    def lost(self) -> LocalLLMError | None:
        return self._loop.lost

    def state(self) -> ServiceState:
        progress = self._progress()
        with self._lock:
            if progress != self._seen:  # a step computes, or the disk reads
                self._seen = progress
                self._state = dataclasses.replace(self._state, last_progress_s=time.monotonic())
            waiting = sum(job.began_s is None for job in self._jobs)
            running = len(self._jobs) - waiting
            return self._state.seen_at(time.monotonic(), running=running, waiting=waiting)

    def _progress(self) -> tuple[int, int]:
        return self._runner.progress, 0 if self._tiers is None else self._tiers.n_read

    def cancel(self, job: Job) -> None:
        """Ends a request, wherever it is. From any thread."""
        with self._lock:
            if job not in self._jobs:
                return
            self._cancelled.append(job)
            if len(self._jobs) == 1:
                self._runner.cancel()  # the step is for nobody else
            self._lock.notify()

    def kept_at(self, salt: bytes) -> KeptAt | None:
        """Where pages of requests with this salt lie on the disk; None: they do not."""
        if not self.info.uses_disk:
            return None
        return KeptAt(self._folder, self._cache.start(salt).name.hex())

    def flush(self, timeout_s: float) -> bool:
        """Whether all that was kept is on the disk in so many seconds."""
        return self._tiers is None or self._tiers.flush(timeout_s)

    def close(self) -> None:
        """Cancels everything and waits for the running step."""
        with self._lock:
            self._closed = True
            self._runner.cancel()
            self._lock.notify()
        self._thread.join()

    def _ended(self, job: Job) -> None:
        with self._lock:
            self._jobs.discard(job)
            if job.began_s is not None:
                self._wait.add(time.monotonic() - job.began_s)
        self._publish()

    def _wake(self) -> None:
        with self._lock:
            self._lock.notify()

    def _run(self) -> None:
        loop = self._loop
        while True:
            with self._lock:
                self._lock.wait_for(
                    lambda: (
                        self._arrived
                        or self._cancelled
                        or self._closed
                        or (loop.has_work and not loop.only_waits)
                    )
                )
                if self._closed:
                    break
                arrived, self._arrived = self._arrived, []
                cancelled, self._cancelled = self._cancelled, []
            for job in arrived:
                loop.add(job)
            for job in cancelled:
                loop.fail(job, CancelledError("the request was cancelled"))
            try:
                if loop.has_work:
                    loop.step(alone=not self._arrived)
            except Exception as e:
                loop.fail_all(fault(e))
            with self._lock:
                if not self._closed:
                    self._runner.reset_cancel()
            self._publish()
        for job in self._arrived:
            loop.add(job)
        loop.fail_all(CancelledError("the server is stopping"))
        self._cache.clear()
        if self._tiers is not None:
            self._tiers.close()
        self._parts.engine.close()

    def _publish(self) -> None:
        """The figures of this moment, for other threads."""
        now, counts, pool = time.monotonic(), self._loop.counts, self._runner.blocks
        groups = range(pool.n_groups)
        free = sum(pool.n_free(group) for group in groups)
        cached = sum(self._cache.n_idle(group) for group in groups)
        self._rates.append((now, counts.generated_tokens))
        while now - self._rates[0][0] > RATE_SECONDS and len(self._rates) > 2:
            self._rates.popleft()
        began, n_before = self._rates[0]
        rate = (counts.generated_tokens - n_before) / (now - began) if now > began else 0.0
        tiers = TierState() if self._tiers is None else self._tiers.state()
        with self._lock:
            moved = counts.steps != self._state.steps
            moved |= counts.restored_tokens != self._state.restored_tokens
            self._state = ServiceState(
                blocks_free=free,
                blocks_used=sum(pool.capacity) - free - cached,
                blocks_cached=cached,
                tokens_per_s=rate,
                steps=counts.steps,
                preemptions=self._loop.scheduler.n_preemptions,
                prompt_tokens=counts.prompt_tokens,
                hit_tokens=counts.hit_tokens,
                computed_tokens=counts.computed_tokens,
                generated_tokens=counts.generated_tokens,
                restored_tokens=counts.restored_tokens,
                kv_ram_bytes=tiers.ram_bytes,
                kv_disk_bytes=tiers.disk_bytes,
                kv_disk_pages=tiers.disk_pages,
                kv_disk_written=tiers.written_pages,
                kv_disk_damaged=tiers.damaged_pages,
                kv_disk_evicted=tiers.evicted_pages,
                kv_disk_skipped=tiers.skipped_pages,
                kv_disk_stopped=int(tiers.stopped),
                last_progress_s=now if moved or not self._jobs else self._state.last_progress_s,
            )


def _cache_key(parts: Parts, engine: PagedEngine, digest: str) -> bytes:
    """All that the contents of a block depend on besides tokens."""
    info = engine.model.info
    about = [
        digest, parts.file_state, parts.engine_version, parts.isa, parts.arithmetic,
        parts.options.kv_type, BLOCK_TOKENS, info.group_window, info.group_n_layers,
        info.n_kv_heads, info.head_dim, engine.runner.block_bytes,
    ]  # fmt: skip
    return repr(about).encode()
