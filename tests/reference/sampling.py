"""The sampler chain in NumPy, written from the definitions of its samplers with plain sorts.

Probabilities are float64; a changed logit is rounded to float32, as the engine states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from localllm.params import GenerateParams

F64 = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

WORD = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


def _keys(seed: int, position: int) -> tuple[int, int]:
    shared = mix((mix((seed + GOLDEN) & WORD) + position * GOLDEN) & WORD)
    return shared, mix(shared ^ 0xD1B54A32D192ED03)


def noise(seed: int, position: int, token: int) -> float:
    """Gumbel noise: eight bits from a hash of eight tokens, 44 from the token's own."""
    shared, own = _keys(seed, position)
    byte = mix((shared + (token // 8 + 1) * GOLDEN) & WORD) >> 8 * (token % 8) & 0xFF
    bits = byte << 44 | mix((own + (token + 1) * GOLDEN) & WORD) >> 20
    return -math.log(-math.log((bits + 0.5) * 2.0**-52))


def noise_row(seed: int, position: int, n_vocab: int) -> F64:
    """The noise of all tokens at a position."""
    return np.array([noise(seed, position, token) for token in range(n_vocab)])


def coin(seed: int, position: int) -> float:
    """XTC's number in [0, 1) of a position."""
    own = _keys(seed, position)[1] ^ 0x8CB92BA72F3D8DD7
    return (mix((mix(own) + GOLDEN) & WORD) >> 11) * 2.0**-53


@dataclass
class Left:
    """The candidates that are left: ids ascending, their logits, and the temperature so far."""

    ids: Ids
    logits: F64
    temperature: float = 1.0

    @property
    def x(self) -> F64:
        return self.logits / self.temperature

    @property
    def p(self) -> F64:
        e = np.exp(self.x - self.x.max())
        return np.asarray(e / e.sum())

    def keep(self, mask: npt.NDArray[np.bool_]) -> None:
        assert mask.any()
        self.ids, self.logits = self.ids[mask], self.logits[mask]

    def keep_until(self, order: Ids, target: float) -> None:
        """Of the candidates in this order, as many as it takes to reach the probability."""
        n = int(np.searchsorted(np.cumsum(self.p[order]), target)) + 1
        mask = np.zeros(len(self.ids), dtype=bool)
        mask[order[:n]] = True
        self.keep(mask)


def f32(x: float) -> float:
    return float(np.float32(x))


def changed(left: Left, i: int, x: float) -> None:
    """Sets a logit from its new x = logit / temperature."""
    largest = float(np.finfo(np.float32).max)
    left.logits[i] = f32(min(max(x * left.temperature, -largest), largest))


def penalties(left: Left, params: GenerateParams, history: Sequence[int]) -> None:
    n = len(history) if params.repeat_last_n < 0 else params.repeat_last_n
    window = list(history)[-n:] if n else []
    for i, token in enumerate(left.ids):
        count = window.count(int(token))
        if count:
            x, r = float(left.x[i]), f32(params.repeat_penalty)
            x = x / r if x > 0 else x * r
            x -= count * f32(params.frequency_penalty) + f32(params.presence_penalty)
            changed(left, i, x)


def dry(
    left: Left, params: GenerateParams, history: Sequence[int], breakers: Sequence[int]
) -> None:
    n = len(history) if params.dry_penalty_last_n < 0 else params.dry_penalty_last_n
    window = list(history)[-n:] if n else []
    repeats: dict[int, int] = {}
    for follower in range(1, len(window)):  # the token after an earlier stretch
        same = 0
        while (
            same < follower
            and window[follower - 1 - same] == window[-1 - same]
            and window[-1 - same] not in breakers
        ):
            same += 1
        token = window[follower]
        repeats[token] = max(repeats.get(token, 0), same)
    for i, token in enumerate(left.ids):
        extra = repeats.get(int(token), 0) - params.dry_allowed_length
        if extra >= 0 and token not in breakers:
            power = f32(params.dry_base) ** extra
            changed(left, i, float(left.x[i]) - f32(params.dry_multiplier) * power)


def top_k(left: Left, k: int) -> None:
    if k:
        left.keep(np.isin(left.ids, left.ids[np.argsort(-left.x, kind="stable")[:k]]))


def top_p(left: Left, p: float) -> None:
    if p < 1:
        left.keep_until(np.argsort(-left.x, kind="stable"), f32(p))


def min_p(left: Left, p: float) -> None:
    left.keep(left.p >= f32(p) * left.p.max())


def typical_p(left: Left, p: float) -> None:
    if p < 1:
        x = left.x - left.x.max()
        surprise = math.log(np.exp(x).sum()) - x
        entropy = float((left.p * surprise).sum())
        left.keep_until(np.argsort(np.abs(surprise - entropy), kind="stable"), f32(p))


def top_n_sigma(left: Left, n: float) -> None:
    if n > 0:
        left.keep(left.x >= left.x.max() - f32(n) * left.x.std())


def xtc(left: Left, params: GenerateParams, position: int) -> None:
    above = np.flatnonzero(left.p >= f32(params.xtc_threshold))
    tossed = coin(params.seed, position) < f32(params.xtc_probability)
    if tossed and params.xtc_threshold <= 0.5 and len(above) > 1:
        least = min(above, key=lambda i: (left.p[i], -i))
        left.keep(np.array([i == least or i not in above for i in range(len(left.ids))]))


def temperature(left: Left, params: GenerateParams) -> None:
    t, spread = f32(params.temperature), f32(params.dynatemp_range)
    if spread > 0 and len(left.ids) > 1:
        p = left.p[left.p > 0]
        share = float(-(p * np.log(p)).sum()) / math.log(len(left.ids))
        low = max(0.0, t - spread)
        t = low + (t + spread - low) * min(share, 1.0) ** f32(params.dynatemp_exponent)
    left.temperature = t


def mirostat(left: Left, mu: float) -> None:
    """Leaves the candidates with at most mu bits of surprise, or the likeliest."""
    surprise = -np.log2(left.p)
    mask = surprise <= mu
    mask[left.x.argmax()] = True
    left.keep(mask)


STEPS = {
    "top_k": lambda left, params: top_k(left, params.top_k),
    "top_p": lambda left, params: top_p(left, params.top_p),
    "min_p": lambda left, params: min_p(left, params.min_p),
    "typical_p": lambda left, params: typical_p(left, params.typical_p),
    "top_n_sigma": lambda left, params: top_n_sigma(left, params.top_n_sigma),
    "temperature": temperature,
}


def candidates(
    params: GenerateParams,
    logits: npt.NDArray[np.float32],
    position: int = 0,
    *,
    history: Sequence[int] = (),
    breakers: Sequence[int] = (),
    banned: Sequence[int] = (),
    mu: float | None = None,
) -> Left:
    """What the chain leaves of finite, NaN and minus infinite logits. mu: mirostat's, in bits."""
    x = logits.astype(np.float64)
    for token, bias in params.logit_bias:
        x[token] = np.float32(x[token] + f32(bias))
    x[list(banned)] = -np.inf
    ids = np.flatnonzero(x > -np.inf)
    left = Left(ids, x[ids])
    greedy = params.temperature == 0 and "temperature" in params.samplers
    order: Sequence[str] = params.samplers
    if mu is not None:
        order = [s for s in ("penalties", "dry", "temperature") if s in order]
    for name in order if len(ids) else ():
        if name == "penalties":
            penalties(left, params, history)
        elif name == "dry" and params.dry_multiplier > 0:
            dry(left, params, history, breakers)
        elif name == "xtc" and not greedy:
            xtc(left, params, position)
        elif name in STEPS and not greedy:
            STEPS[name](left, params)
    if greedy and len(ids):
        left.keep(np.arange(len(left.ids)) == left.x.argmax())
    elif mu is not None and len(ids):
        mirostat(left, mu)
    return left


def pick(left: Left, noises: F64) -> int:
    """The token with the largest x + noise [n_vocab]; -1 when there is none."""
    return int(left.ids[np.argmax(left.x + noises[left.ids])]) if len(left.ids) else -1
