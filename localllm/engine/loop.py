"""Step by step over many requests: what the scheduler plans is computed, stored and told.

All of it belongs to one thread; see service.py for the others.
"""

from __future__ import annotations

import logging
import math
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass

from localllm.engine.blocks import BLOCK_TOKENS, PoolFullError, SequenceState
from localllm.engine.cost_curve import MOST_DEARER, SLOWER, CostCurve
from localllm.engine.disk_tier import Fetch
from localllm.engine.generate import RUN_SECONDS, run_steps
from localllm.engine.job import Choice, Job
from localllm.engine.kv_tier import FETCH_BYTES, Cold, KvTiers
from localllm.engine.prefix_cache import Further, PrefixCache
from localllm.engine.request import (
    Event,
    Failed,
    Finished,
    Piece,
    PromptLogprobs,
    Timings,
    Usage,
)
from localllm.engine.runner import Feed, Runner, not_a_number
from localllm.engine.sampling import Sampled
from localllm.engine.scheduler import Scheduler
from localllm.errors import CancelledError, FileError, LocalLLMError

log = logging.getLogger("localllm.engine")

#: What is made of answers between two steps, in tokens of their prompts, which a sampler reads one
#: by one: some 3 ms of them. One takes at least as long as some tokens.
FORK_TOKENS, LEAST_FORK_TOKENS = 8192, 256


@dataclass
class Counts:
    """They only grow."""

    steps: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    restored_tokens: int = 0  # that came back from the tiers


class Loop:
    """`ended` is called with every job that is over, before its last event; `wake`, from any
    thread, when there is something to do for `step` again."""

    def __init__(
        self,
        runner: Runner,
        cache: PrefixCache,
        costs: CostCurve,
        stop_ids: list[int],
        ended: Callable[[Job], None],
        tiers: KvTiers | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._runner, self._cache, self._costs = runner, cache, costs
        self._tiers, self._wake = tiers, wake
        self._stop_ids, self._ended = stop_ids, ended
        self.scheduler: Scheduler[Choice] = Scheduler(
            runner.blocks,
            runner.model.info.group_window,
            max_sequences=runner.max_sequences,
            max_step_tokens=runner.max_batch_tokens,
            begin=self._begin,
            restore=self._restore,
            park=self._park,
        )
        #: What was read for whom; filled by another thread.
        self._arrived: queue.SimpleQueue[tuple[Choice, Further, Cold, Fetch]] = queue.SimpleQueue()
        self.counts = Counts()
        self.lost: FileError | None = None  # see `Service.lost`
        self._step_s = RUN_SECONDS  # of a step that only decodes
        self._last_run = 1  # steps of the last hand-over
        self._slower = 1.0  # the last step with prompts took so many times what it should
        #: What long prompts took of those who decode, beyond their due: until it is given back,
        #: they wait.
        self._debt_s = 0.0
        self._dearer = 1.0  # what the last long prompt's tokens cost, over what the curve says
        self._jobs: set[Job] = set()

    @property
    def has_work(self) -> bool:
        return bool(self._jobs)

    @property
    def only_waits(self) -> bool:
        """Whether all that runs waits for the disk, and nothing has come from it."""
        running = self.scheduler.running
        return bool(running) and all(each.is_held for each in running) and self._arrived.empty()

    def add(self, job: Job) -> None:
        """The first choice computes the prompt; the others share it then."""
        self._jobs.add(job)
        self.scheduler.add(job.choices[0])

    def fail(self, job: Job, error: LocalLLMError) -> None:
        """Ends a job, if it has not ended yet."""
        if job not in self._jobs:
            return
        self._jobs.remove(job)
        for choice in job.choices:
            _give_up(choice)
            self.scheduler.remove(choice)
        self._ended(job)
        _emit(job, Failed(error))

    def fail_all(self, error: LocalLLMError) -> None:
        for job in list(self._jobs):
            self.fail(job, error)

    def step(self, *, alone: bool) -> None:
        """One hand-over to the native side. alone: nothing waits to be added, so it may be a run of
        several steps."""
        while not self._arrived.empty():
            self._take_arrived(*self._arrived.get())
        n_forked = self._fork()
        running = self.scheduler.running
        pending = [choice.n_pending for choice in running]
        n_decoding = pending.count(1)
        if not n_decoding:
            self._debt_s = 0.0
        resting = self._debt_s > 0
        budget = short_budget = n_decoding
        if self.scheduler.waiting or any(n > 1 for n in pending):
            costs, most = self._costs, self._runner.max_batch_tokens
            short_budget = costs.short_budget(n_decoding, most)
            if not resting:
                budget = costs.budget(n_decoding, most, dearer=self._dearer)
        plan = self.scheduler.plan(budget, short_budget)
        if not plan and resting:
            self._debt_s = 0.0  # those that decode need blocks of an older prompt that rests
            return
        if not plan:
            held = any(each.is_held or (each.holds_last and not each.n_pending) for each in running)
            if not held and not n_forked and self._jobs:
                oldest = min(self._jobs, key=lambda job: job.choices[0].rank)
                self.fail(oldest, PoolFullError("the cache has no room for this request"))
            return
        now = time.monotonic()
        for choice, _ in plan:
            if choice.job.began_s is None:
                choice.job.began_s = now
                self.counts.prompt_tokens += len(choice.job.request.prompt)
                self.counts.hit_tokens += choice.n_cached
        choices = [choice for choice, _ in plan]
        only_decodes = all(choice.only_decodes for choice in choices)
        # Nobody can be admitted before one of these ends, and then the run ends as well.
        settled = not self.scheduler.waiting or len(running) == self.scheduler.max_sequences
        prompts = [(choice, n) for choice, n in plan if choice.n_pending > 1]
        n_prompt = sum(n for _, n in prompts)
        n_long = sum(n for choice, n in prompts if not choice.is_short)
        if only_decodes and alone and settled and (resting or len(plan) == len(running)):
            self._decode(choices, self._run_length(choices))
        else:
            self._compute(plan)
        seconds = time.monotonic() - now
        if only_decodes:
            self._step_s = seconds / max(1, self._last_run)
        else:
            # The curve is of an empty context; steps far into one take longer.
            self._slower = max(1.0, seconds / self._costs.cost(sum(n for _, n in plan)))
        if n_decoding:
            n_steps = self._last_run if only_decodes else 1
            extra = max(0.0, seconds - self._step_s) * n_long / n_prompt if n_long else 0.0
            due = (SLOWER - 1) * self._step_s * n_steps
            self._debt_s = max(0.0, self._debt_s + extra - due)
            if n_long:
                costs = self._costs
                expected = costs.cost(n_decoding + n_long) - costs.cost(n_decoding)
                self._dearer = min(max(1.0, extra / max(expected, 1e-9)), MOST_DEARER)

    def _run_length(self, choices: list[Choice]) -> int:
        k = min(run_steps(self._step_s), *(choice.answer.n_left for choice in choices))
        if self._debt_s > 0:
            k = min(k, math.ceil(self._debt_s / ((SLOWER - 1) * self._step_s)))
        pool = self._runner.blocks
        wanted = [0] * pool.n_groups
        for choice in choices:
            sequence = choice.sequence
            for group, n in enumerate(sequence.table.missing(sequence.n_computed, k)):
                wanted[group] += n
        fits = all(n <= pool.n_available(group) for group, n in enumerate(wanted))
        return k if fits else 1

    def _decode(self, choices: list[Choice], k: int) -> None:
        feeds = [
            Feed(choice.sequence, choice.tokens[-1:], sampler=choice.sampler) for choice in choices
        ]
        n_logprobs = _n_logprobs(choices)
        try:
            rows = self._runner.decode(feeds, k, self._stop_ids, n_logprobs=n_logprobs, check=False)
        except CancelledError:
            return
        except LocalLLMError as e:
            self._one_by_one([(choice, 1) for choice in choices], e)
            return
        self._last_run = len(rows[0])
        self.counts.steps += len(rows[0])
        self.counts.computed_tokens += len(rows[0]) * len(rows)
        for choice, sampled in zip(choices, rows, strict=True):
            self._take(choice, sampled)

    def _compute(self, plan: list[tuple[Choice, int]]) -> None:
        feeds, ends = [], []
        for choice, n in plan:
            first = choice.sequence.n_computed
            ends.append(first + n == len(choice.tokens))
            samples = ends[-1] and choice.answer.n_left > 0
            wanted = None if choice.rows is None else choice.rows.wanted(first, n)
            tokens, sampler = choice.tokens[first : first + n], choice.sampler if samples else None
            feeds.append(Feed(choice.sequence, tokens, samples, sampler, wanted))
        n_logprobs = _n_logprobs(
            [choice for (choice, _), feed in zip(plan, feeds, strict=True) if feed.sample]
        )
        n_next = max((c.rows.n_top for c, _ in plan if c.rows is not None), default=0)
        try:
            result = self._runner.step(
                feeds, n_logprobs=n_logprobs, n_next_logprobs=n_next, check=False
            )
        except CancelledError:
            return
        except LocalLLMError as e:
            self._one_by_one(plan, e)
            return
        self._last_run = 1
        self.counts.steps += 1
        self.counts.computed_tokens += sum(n for _, n in plan)
        for i, (choice, n) in enumerate(plan):
            if choice.rows is not None:
                choice.rows.take(choice.sequence.n_computed - n, result.next_logprobs[i])
                _tell_rows(choice)
        for i, (choice, _) in enumerate(plan):
            if ends[i]:
                self._take(choice, [result.sampled(i)] if feeds[i].sample else [])
            else:
                self._store(choice)

    def _one_by_one(self, plan: list[tuple[Choice, int]], error: LocalLLMError) -> None:
        """A step failed before anything advanced: who fails alone ends, the others go on."""
        if isinstance(error, FileError):  # the weights went from under all of them
            self.lost = error
            self.fail_all(error)
            return
        if len(plan) == 1:
            self.fail(plan[0][0].job, error)
            return
        for choice, n in plan:
            if choice.job in self._jobs:
                self._compute([(choice, n)])

    def _take(self, choice: Choice, sampled: list[Sampled]) -> None:
        job = choice.job
        if job not in self._jobs:  # another choice of it failed in this step
            return
        if any(each.token < 0 for each in sampled):
            self.fail(job, not_a_number())
            return
        sampled = _asked_for(sampled, job.request.params.logprobs)
        choice.add([each.token for each in sampled])
        chunk = choice.answer.feed(sampled)
        self.counts.generated_tokens += len(chunk.token_ids)
        if job.first_token_s is None:
            job.first_token_s = time.monotonic()
        self._store(choice, tail=chunk.finish_reason is not None)
        if chunk.finish_reason is None:
            _emit(job, Piece(choice.index, chunk))
            return
        self.scheduler.remove(choice)
        job.n_open -= 1
        last = self._finished(job) if not job.n_open else None
        _emit(job, Piece(choice.index, chunk))
        if last is not None:
            self._jobs.remove(job)
            self._ended(job)
            _emit(job, last)

    def _finished(self, job: Job) -> Finished:
        now = time.monotonic()
        assert job.began_s is not None and job.first_token_s is not None
        return Finished(
            Usage(
                len(job.request.prompt),
                job.choices[0].n_cached,
                sum(choice.answer.n_generated for choice in job.choices),
                sum(choice.answer.n_reasoning for choice in job.choices),
            ),
            Timings(
                job.began_s - job.submitted_s,
                job.first_token_s - job.began_s,
                now - job.first_token_s,
            ),
        )

    def _fork(self) -> int:
        """Where a prompt is computed but for its last token, all choices go on from there: as many
        at once as do not hold up those of others."""
        n_forked, left = 0, FORK_TOKENS
        for choice in list(self.scheduler.running):
            if not choice.holds_last or choice.is_held or choice.n_pending:
                continue
            job = choice.job
            alone = all(each.job is job for each in self.scheduler.running)
            try:
                while len(job.choices) < job.request.n and (alone or left > 0):
                    other = job.add_choice()
                    other.sequence = self._runner.fork(choice.sequence)
                    other.mark = choice.mark
                    self.scheduler.add(other)
                    n_forked += 1
                    left -= len(job.request.prompt) + LEAST_FORK_TOKENS
            except LocalLLMError as e:  # no memory
                self.fail(job, e)
                continue
            choice.holds_last = len(job.choices) < job.request.n
        return n_forked

    def _begin(self, choice: Choice) -> None:
        salt = choice.job.request.salt
        n, table, choice.mark = self._cache.find(choice.findable, salt)
        choice.sequence = SequenceState(table, n)
        if choice.job.began_s is None:
            choice.n_cached = n

    def _restore(self, choice: Choice) -> None:
        """More of a choice than the pool knew comes back from the tiers, if that is quicker than to
        compute it. What has to be read is waited for; others go on."""
        tiers, n = self._tiers, choice.sequence.n_computed
        if tiers is None:
            return
        max_blocks = max(1, FETCH_BYTES // sum(self._runner.block_bytes))
        salt = choice.job.request.salt
        further = self._cache.further(choice.findable, n, salt, max_blocks)
        if further is None:
            return
        cold = tiers.collect(further.missing)
        if not cold.to_read:
            self._take_back(choice, further, cold)
            return
        chunk = self._costs.budget(0, self._runner.max_batch_tokens)
        # The curve is of an empty context.
        deep = min(max(self._slower, self._dearer), MOST_DEARER)
        seconds = (further.n - n) / chunk * self._costs.cost(chunk) * deep
        if not tiers.is_worth(cold, seconds):
            return

        def arrived(fetch: Fetch) -> None:
            self._arrived.put((choice, further, cold, fetch))
            self._wake()

        choice.is_held = True
        choice.fetch = tiers.fetch(cold, arrived)

    def _take_arrived(self, choice: Choice, further: Further, cold: Cold, fetch: Fetch) -> None:
        if choice.fetch is not fetch or self._tiers is None:
            return
        choice.fetch, choice.is_held = None, False
        self._tiers.arrived(cold, fetch)
        n = choice.sequence.n_computed
        self._take_back(choice, further, cold)
        if choice.sequence.n_computed > n:
            self._restore(choice)

    def _take_back(self, choice: Choice, further: Further, cold: Cold) -> None:
        n_before = choice.sequence.n_computed
        n, table, mark = self._cache.restore(further, cold)
        if n <= n_before:
            table.clear()
            return
        choice.sequence.table.clear()
        choice.sequence, choice.mark = SequenceState(table, n), mark
        self.counts.restored_tokens += n - n_before
        if choice.job.began_s is None:
            choice.n_cached = n

    def _park(self, choice: Choice) -> None:
        """All of a choice that gives its blocks up becomes findable, for when it goes on."""
        _give_up(choice)
        self._store(choice, tail=True)

    def _store(self, choice: Choice, *, tail: bool = False) -> None:
        """What a choice has computed becomes findable, before its windows leave it behind."""
        sequence = choice.sequence
        n = sequence.n_computed
        may_store, mark = choice.job.request.may_store, choice.mark
        if may_store and mark is not None and (tail or n // BLOCK_TOKENS > mark.n_blocks):
            choice.mark = self._cache.store(choice.tokens[:n], sequence.table, mark, tail=tail)
        sequence.table.drop_left_behind(n)


def _asked_for(sampled: list[Sampled], n_top: int | None) -> list[Sampled]:
    """Without what others of the step asked for."""
    if not sampled or sampled[0].logprob is None:
        return sampled
    if n_top is None:
        return [Sampled(each.token) for each in sampled]
    return [Sampled(each.token, each.logprob, each.top[:n_top]) for each in sampled]


def _give_up(choice: Choice) -> None:
    """What is read for a choice is not wanted any more."""
    if choice.fetch is not None:
        choice.fetch.is_given_up, choice.fetch = True, None


def _tell_rows(choice: Choice) -> None:
    if choice.rows is not None and choice.rows.is_complete:
        _emit(choice.job, PromptLogprobs(choice.rows.rows()))
        choice.rows = None


def _emit(job: Job, event: Event) -> None:
    """Whoever fails to listen does not stop the others."""
    try:
        job.emit(event)
    except Exception:
        log.exception("a front end failed to take an event of request %d", job.arrival)


def _n_logprobs(choices: list[Choice]) -> int | None:
    """What a step has to say for all of them."""
    asked = [choice.job.request.params.logprobs for choice in choices]
    return max((n for n in asked if n is not None), default=None)
