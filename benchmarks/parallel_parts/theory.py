"""What drafting and checking at the same time should gain: closed formulas, a rule for the pace.

Symbols, as in the paper ParallelVLM: T_p is the time of a target forward, T_q that of a draft step,
c = T_p / T_q, γ the number of tokens that the draft writes in a round, and β the chance that a
draft token is right when all before it are. "Lock-step" is the paper's Algorithm 1: in every round
the draft writes γ tokens and the target judges those of the round before, and both wait for the
slower one. After a correction the target has nothing to judge but its own next token (pre-verify).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Seconds = Callable[[int], float]
"""Maps the number of tokens of a forward to its seconds."""

NEARLY_CERTAIN = 0.99
"""The largest chance of a right draft token that `best_pace` counts on."""

NEGLIGIBLE = 1e-4
"""Chance of reaching a round below which further rounds are not looked at one by one."""

MOST_ROUNDS = 256
"""Rounds of a run that are looked at one by one."""

NOT_WORSE = 2e-3
"""Relative gain below which a smaller window, a filled one or a shorter wait is kept."""

LIKELY = 0.62
"""The target waits for draft tokens after a correction only if all are right with this chance."""

ROUNDING = 1e-9
"""What a quotient of times may lack to a whole number of steps."""


def acceptance_of_run(length: float) -> float:
    """β from the mean run length M between corrections: β = M / (M + 1).

    A run is a geometric number of right draft tokens, whose mean is β / (1 - β).

    Raises:
        ValueError: the length is negative.
    """
    if length < 0:
        raise ValueError(f"a mean run length must not be negative, but is {length}")
    return length / (length + 1)


def chain_tokens(acceptance: float, gamma: int) -> float:
    """Tokens of a serial round: right draft tokens of a chain and the target's own token.

    (1 - β^(γ+1)) / (1 - β); Leviathan et al. 2022, equation 1.
    """
    return math.fsum(acceptance**depth for depth in range(gamma + 1))


def acceptance_of_chain(tokens: float, gamma: int) -> float:
    """β for which a chain gives this many tokens a pass: the inverse of `chain_tokens`.

    Raises:
        ValueError: a chain of this length cannot give as many tokens.
    """
    if not 1 <= tokens <= gamma + 1:
        raise ValueError(f"a chain of {gamma} gives 1 to {gamma + 1} tokens, not {tokens}")
    low = 0.0
    high = 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if chain_tokens(middle, gamma) < tokens:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def lockstep_tokens(acceptance: float, window: int) -> float:
    """R(β, γ), the tokens a round in lock-step: (1 - β^γ) / ((1 - β)(1 + β - β^γ)).

    A post-verify judges γ draft tokens and emits (1 - β^γ) / (1 - β) tokens in the mean; another
    one follows with chance β^γ. A pre-verify emits one token, and a post-verify follows with chance
    β. R is the mean over the stationary state of this chain of two states. The formula is not in
    the paper; it reads Algorithm 1 for independent misses.

    Raises:
        ValueError: the window is less than 1.
    """
    if window < 1:
        raise ValueError(f"a window has at least one draft token, not {window}")
    if acceptance >= 1:
        return float(window)
    all_right = acceptance**window
    return (1 - all_right) / ((1 - acceptance) * (1 + acceptance - all_right))


def lockstep_speedup(acceptance: float, window: int, ratio: float) -> float:
    """Speedup of lock-step over plain decoding: R · T_p / max(γ·T_q, T_p).

    Args:
        acceptance: β.
        window: γ.
        ratio: c.
    """
    return lockstep_tokens(acceptance, window) * ratio / max(window, ratio)


def emitted_rate(acceptance: float, window: int) -> float:
    """Table 7's τ as R / γ: tokens emitted for each one that the draft had time to write."""
    return lockstep_tokens(acceptance, window) / window


def equation_7(rate: float, ratio: float) -> float:
    """Theorem 1 and Equation 7: the speedup τ · c, which needs τ = emitted / (γ · rounds)."""
    return rate * ratio


def theorem_2(window: int, ratio: float) -> float:
    """Speedup of a serial chain of which all is accepted: c (γ + 1) / (γ + c)."""
    return ratio * (window + 1) / (window + ratio)


def theorem_3(window: int, ratio: float) -> float:
    """Speedup of lock-step of which all is accepted: min(γ, c)."""
    return min(float(window), ratio)


def theorem_3_gain(ratio: float) -> float:
    """Theorem 3: lock-step over a serial chain at γ = c, all accepted, 2c / (c + 1)."""
    return 2 * ratio / (ratio + 1)


def theorem_4(rate: float, window: int, ratio: float) -> float:
    """Speedup of a serial chain: c (τγ + 1) / (γ + c), with τ = accepted / drafted."""
    return ratio * (rate * window + 1) / (window + ratio)


def theorem_5(rate: float, window: int, ratio: float) -> float:
    """Speedup of lock-step: τγ · c / max(γ, c); true if τ = emitted / (γ · rounds)."""
    return rate * window * ratio / max(window, ratio)


def theorem_6(rate: float, ratio: float) -> float:
    """Speedup of lock-step at γ = c with rollbacks: half the sum of τ^k for k = 1 to 2c.

    τ is the chance of a single draft token here (the proof draws independent ω_i), unlike Theorem
    5's. Equation 13 prints the factor 1 + τγ; the proof and this sum have 1 + τ^γ.
    """
    if rate >= 1:
        return ratio
    return rate * (1 - math.pow(rate, 2 * ratio)) / (2 * (1 - rate))


def waiting_tokens(acceptance: float, window: int, ratio: float, wait: int) -> float:
    """Tokens per T_p when the target waits for `wait` draft tokens after every correction.

    1 / ((1 - β)(1 + s/c + β^(s+1) / (1 - β^γ))), where s = 0 is pre-verify. The target's forwards
    are taken to cost the same at all widths, and the draft writes a window in the time of one. The
    formula is not in the paper.
    """
    if acceptance >= 1:
        return float(window)
    further = acceptance ** (wait + 1) / (1 - acceptance**window)
    return 1 / ((1 - acceptance) * (1 + wait / ratio + further))


def best_wait(acceptance: float, window: int, ratio: float) -> int:
    """The number of draft tokens, at most γ - 1, for which `waiting_tokens` is largest."""
    return max(range(window), key=lambda wait: waiting_tokens(acceptance, window, ratio, wait))


def serial_seconds(target: Seconds, draft: float, acceptance: float, gamma: int) -> float:
    """Seconds a token of a serial chain; γ = 0 is plain decoding.

    Args:
        target: seconds of a target forward by its tokens.
        draft: seconds of a draft step.
        acceptance: β.
        gamma: draft tokens of a chain.
    """
    seconds = gamma * draft + target(gamma + 1)
    return seconds / chain_tokens(acceptance, gamma)


def best_serial(target: Seconds, draft: float, acceptance: float, longest: int = 32) -> int:
    """The length of the fastest serial chain; 0 where plain decoding is faster than all."""
    lengths = range(longest + 1)
    return min(lengths, key=lambda gamma: serial_seconds(target, draft, acceptance, gamma))


def gain_over_serial(acceptance: float, ratio: float, window: int) -> float:
    """Lock-step over the fastest serial chain with the same draft, all widths at the same cost."""
    length = best_serial(lambda _: ratio, 1.0, acceptance, longest=64)
    serial = serial_seconds(lambda _: ratio, 1.0, acceptance, length)
    return lockstep_speedup(acceptance, window, ratio) * serial / ratio


def round_bound(
    target: float, draft: float, window: int, target_share: float, draft_share: float
) -> float:
    """The least time of a round on a shared device: max(T_p, γT_q, b_p·T_p + b_q·γT_q).

    Args:
        target: seconds of a target forward alone.
        draft: seconds of a draft step alone.
        window: γ.
        target_share: share of the device's bandwidth (or arithmetic) that the target takes alone.
        draft_share: that of the draft.
    """
    used = target_share * target + draft_share * window * draft
    return max(target, window * draft, used)


@dataclass(frozen=True)
class Pace:
    """How target and draft should share an answer.

    Args:
        schedule: "plain", "serial" or "parallel", the one predicted to be fastest.
        cap: draft tokens of a window at most; the length of the chain if the schedule is serial.
        ahead: tokens at most that the draft may have written and not yet seen judged.
        wait: draft tokens for which the target waits after a correction.
        fill: draft tokens for which it waits elsewhere, when all that it judged last was right.
        seconds: predicted seconds a token of this schedule.
        plain_seconds: of plain decoding.
        serial_seconds: of the fastest serial chain (one draft token at least).
        parallel_seconds: of the fastest parallel pace.
    """

    schedule: str
    cap: int
    ahead: int
    wait: int
    fill: int
    seconds: float
    plain_seconds: float
    serial_seconds: float
    parallel_seconds: float


def best_pace(
    target: Seconds,
    draft: float,
    acceptance: float,
    *,
    longest: int = 16,
    target_slowdown: float = 1.0,
    draft_slowdown: float = 1.0,
    latency: float = 50e-6,
    margin: float = 0.03,
) -> Pace:
    """The window, the lead of the draft and the wait that are predicted to be fastest.

    The prediction for a parallel pace is exact for independent misses but for two things: it
    takes half a draft step as the time until the draft notices a correction, and it counts a last
    window like any other. Every cap up to `longest` and every wait up to the cap is tried, so a
    curve with steps needs no special case: a cap at the end of a step wins.

    Args:
        target: seconds of a target forward alone, by its tokens (those of a window and one).
        draft: seconds of a draft step alone.
        acceptance: β, the running share of right draft tokens among those that follow right ones.
        longest: the largest window that is considered.
        target_slowdown: factor on the target's forwards while the draft works beside it.
        draft_slowdown: factor on the draft's steps while the target works beside it.
        latency: seconds of a message between the lanes.
        margin: the gain over plain and serial that a parallel pace must promise to be chosen.

    Raises:
        ValueError: a time is not positive, or the acceptance is no probability.

    Example:
        >>> pace = best_pace(lambda width: 0.420, 0.0466, 0.87)
        >>> pace.schedule, pace.cap, pace.wait
        ('parallel', 8, 3)
    """
    if draft <= 0 or target(1) <= 0:
        raise ValueError("the seconds of target and draft must be positive")
    if not 0 <= acceptance <= 1:
        raise ValueError(f"acceptance must be a probability, but is {acceptance}")
    acceptance = min(acceptance, NEARLY_CERTAIN)
    plain = target(1)
    length = max(best_serial(target, draft, acceptance, longest), 1)
    serial = serial_seconds(target, draft, acceptance, length)
    cap, wait, fill = best_window(
        target,
        draft,
        acceptance,
        longest=longest,
        target_slowdown=target_slowdown,
        draft_slowdown=draft_slowdown,
        latency=latency,
    )
    slowed = _times(target, target_slowdown)
    step = draft_slowdown * draft
    parallel = parallel_seconds(slowed, step, acceptance, cap, wait, fill, latency)
    figures = (plain, serial, parallel)
    if parallel * (1 + margin) <= min(plain, serial):
        return Pace("parallel", cap, lead(cap), wait, fill, parallel, *figures)
    if serial < plain:
        return Pace("serial", length, length, 0, 0, serial, *figures)
    return Pace("plain", 0, 0, 0, 0, plain, *figures)


def lead(cap: int) -> int:
    """How far a draft should write ahead: 2·cap + 1 tokens that are not yet judged.

    A window of `cap` is being judged, together with the draft token after it, which the target's
    own token decides. Another `cap` are all that the next window can take.
    """
    return 2 * cap + 1


def parallel_seconds(
    target: Seconds,
    draft: float,
    acceptance: float,
    cap: int,
    wait: int,
    fill: int = 0,
    latency: float = 0.0,
) -> float:
    """Predicted seconds a token when a free target takes what is there.

    Between two corrections there are 1 / (1 - β) tokens in the mean. As long as all draft tokens
    are right, the windows are the same after every correction. So the time between corrections is
    the sum over these windows of their times, each weighted by the chance that it is reached: β to
    the power of the number that were judged before it.

    Args:
        target: seconds of a target forward by its tokens, beside the draft.
        draft: seconds of a draft step, beside the target.
        acceptance: β, less than 1.
        cap: draft tokens of a window at most.
        wait: draft tokens for which the target waits after a correction.
        fill: draft tokens for which it waits elsewhere.
        latency: seconds of a message.

    Raises:
        ValueError: the wait or the fill is larger than the cap.
    """
    most = max(wait, fill)
    if most > cap:
        raise ValueError(f"a target that takes {cap} draft tokens at most cannot wait for {most}")
    # The draft notices a correction at the end of its running step.
    run = _Run(draft, lead(cap), latency + draft / 2)
    now = 0.0
    if wait:
        now = run.time_of(wait) + latency
    total = now
    window = wait
    judged = 0
    reached = 1.0
    for _ in range(MOST_ROUNDS):
        seconds = target(window + 1)
        total += reached * seconds
        now += seconds
        run.write_until(now - latency)
        judged += window + 1
        reached = acceptance**judged
        # A draft that has to stop is fast enough for full windows from now on.
        is_steady = run.written == run.allowed and window == cap
        run.allow(judged, now + latency)
        if run.written < judged + fill:
            waited = max(0.0, run.time_of(judged + fill) + latency - now)
            total += reached * waited
            now += waited
        window = max(0, min(run.written - judged, cap))
        if reached < NEGLIGIBLE or is_steady:
            break
    # The windows that follow are taken to be like the last one.
    total += reached * target(window + 1) / (1 - acceptance ** (window + 1))
    return total * (1 - acceptance)


class _Run:
    """What a draft writes on a run of right tokens after a correction at time 0."""

    def __init__(self, step: float, ahead: int, begins: float) -> None:
        self.step = step
        self.ahead = ahead
        self.written = 0
        self.allowed = ahead
        self.free_at = begins

    def time_of(self, count: int) -> float:
        """When the first `count` are written, which the draft may; they count from then on."""
        missing = count - self.written
        self.write_until(self.free_at + missing * self.step)
        return self.free_at

    def write_until(self, now: float) -> None:
        """Write as many tokens as fit, up to the allowed number."""
        fits = math.floor((now - self.free_at) / self.step + ROUNDING)
        fits = max(0, min(fits, self.allowed - self.written))
        self.written += fits
        self.free_at += fits * self.step

    def allow(self, judged: int, now: float) -> None:
        """Let the draft write ahead of a new verdict; a draft that had to stop goes on now."""
        if self.written == self.allowed:
            self.free_at = max(self.free_at, now)
        self.allowed = judged + self.ahead


def best_window(
    target: Seconds,
    draft: float,
    acceptance: float,
    *,
    longest: int = 16,
    target_slowdown: float = 1.0,
    draft_slowdown: float = 1.0,
    latency: float = 50e-6,
    likely: float = LIKELY,
    fills: tuple[bool, ...] = (True,),
) -> tuple[int, int, int]:
    """Cap, wait and fill of the fastest parallel pace; the arguments are those of `best_pace`, and
    two that only serve to judge the choice that is made here.

    Args:
        likely: see `LIKELY`; 0 for any wait, 1 for none.
        fills: whether windows on an unbroken run are filled up to the cap; with both values, what
            the prediction prefers.

    Windows on an unbroken run are always filled, and a wait is only for draft tokens that are
    likely to be right. With independent misses neither limit would gain much; in virtual time with
    clustered ones both do (`benchmarks/results/parallel_pairs.md`): after a correction another miss
    is likelier than β says.
    """
    acceptance = min(acceptance, NEARLY_CERTAIN)
    slowed = _times(target, target_slowdown)
    step = draft_slowdown * draft
    best = (1, 0, 0)
    least = math.inf
    for cap in range(1, longest + 1):
        if cap > 1 and cap > slowed(cap + 1) / step + 1:
            # The draft never has as many ready.
            continue
        for wait in range(cap + 1):
            if acceptance**wait < likely:
                break
            for is_filled in fills:
                fill = cap if is_filled else 0
                seconds = parallel_seconds(slowed, step, acceptance, cap, wait, fill, latency)
                if seconds < least * (1 - NOT_WORSE):
                    best = (cap, wait, fill)
                    least = seconds
    return best


SAFE_WINDOW = 8
"""A window up to which more draft tokens hardly ever cost anything (`simple_window`)."""

WORTH_WRITING = 0.3
"""The least chance that all tokens of a window larger than `SAFE_WINDOW` are right."""

TOO_SLOW = 1.5
"""c below which a target that waits for a slow draft is slower than plain decoding."""


def simple_window(ratio: float, acceptance: float, longest: int = 16) -> tuple[int, int, int]:
    """Cap, wait and fill from two numbers that an engine can measure while it answers.

    The cap is what the draft writes during a check, and beyond `SAFE_WINDOW` only what is likely to
    be right. Windows on an unbroken run are filled, but not for a draft that is about as slow as
    the target. The target waits after a correction for draft tokens that are all likely to be
    right, as many as `waiting_tokens` prefers. The constants were chosen on the cells of
    `rule_check`.

    Args:
        ratio: c, the median pass of the target by the median step of the draft.
        acceptance: β.
        longest: the largest window that is considered.

    Raises:
        ValueError: the ratio is not positive, or the acceptance is no probability.

    Example:
        >>> simple_window(9.0, 0.87)
        (8, 3, 8)
        >>> simple_window(1.0, 0.87)
        (1, 0, 0)
    """
    if ratio <= 0:
        raise ValueError(f"the ratio of the times must be positive, not {ratio}")
    if not 0 <= acceptance <= 1:
        raise ValueError(f"acceptance must be a probability, but is {acceptance}")
    acceptance = min(max(acceptance, 1 - NEARLY_CERTAIN), NEARLY_CERTAIN)
    likely = int(math.log(WORTH_WRITING) / math.log(acceptance))
    cap = max(1, min(round(ratio) - 1, max(SAFE_WINDOW, likely), longest))
    fill = cap if ratio >= TOO_SLOW else 0
    wait = best_wait(acceptance, cap, ratio)
    while acceptance**wait < LIKELY:
        wait -= 1
    return cap, wait, fill


def _times(target: Seconds, slowdown: float) -> Seconds:
    def slowed(width: int) -> float:
        return slowdown * target(width)

    return slowed


def tree_nodes(branches: int, depth: int) -> int:
    """Nodes of a full tree without its root: b + b² + ... + b^depth (the paper's App. A)."""
    return sum(branches**level for level in range(1, depth + 1))
