"""Schedules of target and draft in virtual time: one row, two lanes, no models and no clock.

A text says at every position of the answer whether the draft's token is right there, given that all
before it is; after a wrong token everything that the draft writes is wrong until it goes back. The
costs of forwards are functions of their width. So an answer of 512 tokens takes milliseconds, and
all schedules answer the same text.

The first token of the answer comes from the target's prefill and takes no time here. The same text
and costs always give the same play.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Seconds = Callable[[int], float]
"""Maps the number of tokens of a forward to its seconds."""

TARGET = "target"
DRAFT = "draft"
ALONE = 1.0
"""The slowdown of a lane that the other one does not disturb."""

ROUNDING = 1e-12
"""Seconds by which two times may differ and count as equal."""


class DraftToken(Protocol):
    """What the draft thinks at one position of the answer, all before it being right.

    Attributes:
        rank: how many tokens it prefers to the right one; 0 is a right first choice, 1 a right
            second choice.
        confidence: its probability of its first choice.
    """

    @property
    def rank(self) -> int: ...

    @property
    def confidence(self) -> float: ...


@dataclass(frozen=True)
class Drawn:
    """A position of a text that was drawn; the attributes are those of `DraftToken`."""

    rank: int
    confidence: float


Text = Sequence[DraftToken]


@dataclass(frozen=True)
class Costs:
    """What forwards take.

    Args:
        target: seconds of a target forward alone, by its tokens.
        draft: seconds of a draft step alone, by its tokens.
        target_slowdown: factor on a target forward while the draft is busy too.
        draft_slowdown: factor on a draft step while the target is busy too.
        latency: seconds until the other lane has a message.
    """

    target: Seconds
    draft: Seconds
    target_slowdown: float = ALONE
    draft_slowdown: float = ALONE
    latency: float = 50e-6


@dataclass(frozen=True)
class Event:
    """Something that a lane did, for drawing.

    Args:
        lane: `TARGET` or `DRAFT`.
        kind: "check", "draft", "catch up" (a step over several tokens) or "hedge".
        start, end: seconds.
        tokens: width of the forward.
        emitted: tokens that a check added to the answer.
    """

    lane: str
    kind: str
    start: float
    end: float
    tokens: int
    emitted: int = 0


@dataclass(frozen=True)
class Play:
    """What an answer took.

    Args:
        seconds: virtual time from the first token to the last.
        rounds: forwards of the target.
        emitted: tokens after the first.
        drafted: tokens that the draft wrote, hedges excluded.
        accepted: draft tokens that a check found right.
        hedged: draft steps on second choices.
        used_hedges: corrections that found their continuation ready.
        waited: seconds for which the target chose to wait for draft tokens.
        busy: seconds of work by lane.
        runs: right draft tokens between corrections; the last, unfinished run is left out.
        events: in order of their ends.
    """

    seconds: float
    rounds: int
    emitted: int
    drafted: int
    accepted: int
    hedged: int
    used_hedges: int
    waited: float
    busy: Mapping[str, float]
    runs: tuple[int, ...]
    events: tuple[Event, ...]

    @property
    def idle(self) -> dict[str, float]:
        """Seconds without work by lane."""
        return {lane: self.seconds - seconds for lane, seconds in self.busy.items()}

    @property
    def tokens_a_round(self) -> float:
        """Emitted tokens by forwards of the target."""
        return self.emitted / self.rounds

    @property
    def run_length(self) -> float:
        """The paper's M: the mean number of right draft tokens between corrections."""
        return sum(self.runs) / len(self.runs) if self.runs else float(self.emitted)


@dataclass
class _Counts:
    """The figures of a play while it goes on."""

    rounds: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    hedged: int = 0
    used_hedges: int = 0
    waited: float = 0.0
    run: int = 0
    runs: list[int] = field(default_factory=list)

    def checked(self, right: int, emitted: int, is_corrected: bool) -> None:
        """Count a verdict: right draft tokens, emitted tokens, whether a draft token was wrong."""
        self.rounds += 1
        self.accepted += right
        self.emitted += emitted
        self.run += emitted
        if is_corrected:
            self.corrected()

    def corrected(self) -> None:
        """The last token that was emitted is not the draft's."""
        self.runs.append(self.run - 1)
        self.run = 0


class _Lanes:
    """Two lanes that slow each other down while both are busy."""

    def __init__(self, costs: Costs) -> None:
        self.slowdowns = {TARGET: costs.target_slowdown, DRAFT: costs.draft_slowdown}
        self.now = 0.0
        self.left: dict[str, float] = {}
        self.began: dict[str, tuple[float, str, int]] = {}
        self.busy = {TARGET: 0.0, DRAFT: 0.0}
        self.events: list[Event] = []

    def is_free(self, lane: str) -> bool:
        return lane not in self.left

    def start(self, lane: str, seconds: float, kind: str, tokens: int) -> None:
        """Begin work that takes so long alone."""
        self.left[lane] = seconds
        self.began[lane] = (self.now, kind, tokens)

    def end_of(self, lane: str) -> float:
        """When the lane is done if the other one stays as it is."""
        return self.now + self.left[lane] * self._slowdown(lane)

    def go_to(self, time: float) -> None:
        """Let time pass."""
        passed = max(0.0, time - self.now)
        slowdowns = {lane: self._slowdown(lane) for lane in self.left}
        for lane, slowdown in slowdowns.items():
            self.left[lane] -= passed / slowdown
            self.busy[lane] += passed
        self.now = max(time, self.now)

    def is_done(self, lane: str) -> bool:
        return lane in self.left and self.left[lane] <= ROUNDING

    def finish(self, lane: str, emitted: int = 0) -> None:
        """Take the finished work off the lane and record it."""
        del self.left[lane]
        start, kind, tokens = self.began[lane]
        self.events.append(Event(lane, kind, start, self.now, tokens, emitted))

    def work(self, lane: str, seconds: float, kind: str, tokens: int) -> None:
        """Work on one lane, from begin to end, while the other one is free."""
        self.start(lane, seconds, kind, tokens)
        self.go_to(self.end_of(lane))
        self.finish(lane)

    def _slowdown(self, lane: str) -> float:
        return self.slowdowns[lane] if len(self.left) == 2 else ALONE


def _play(lanes: _Lanes, counts: _Counts) -> Play:
    return Play(
        lanes.now,
        counts.rounds,
        counts.emitted,
        counts.drafted,
        counts.accepted,
        counts.hedged,
        counts.used_hedges,
        counts.waited,
        dict(lanes.busy),
        tuple(counts.runs),
        tuple(lanes.events),
    )


def plain(text: Text, costs: Costs) -> Play:
    """Plain decoding: one forward of one token for every token."""
    lanes = _Lanes(costs)
    counts = _Counts()
    for _ in range(1, len(text)):
        lanes.work(TARGET, costs.target(1), "check", 1)
        counts.checked(0, 1, False)
    return _play(lanes, counts)


def serial(text: Text, costs: Costs, gamma: int) -> Play:
    """Draft a chain, check it, draft the next.

    Args:
        text: the answer.
        costs: of forwards.
        gamma: draft tokens of a chain; fewer where the answer ends.
    """
    lanes = _Lanes(costs)
    counts = _Counts()
    position = 1
    pending = 1
    while position < len(text):
        depth = min(gamma, len(text) - position - 1)
        for step in range(depth):
            width = pending if step == 0 else 1
            lanes.work(DRAFT, costs.draft(width), "draft", width)
        counts.drafted += depth
        lanes.work(TARGET, costs.target(depth + 1), "check", depth + 1)
        right = _right(text, position, depth)
        counts.checked(right, right + 1, right < depth)
        position += right + 1
        # After a chain that was right throughout, its last token was never forwarded.
        if depth:
            pending = 2 if right == depth else 1
        else:
            pending += 1
    return _play(lanes, counts)


def lockstep(text: Text, costs: Costs, window: int, starts_ready: bool = False) -> Play:
    """The paper's Algorithm 1: rounds in which the draft writes γ tokens beside a check.

    The draft tokens of a round are one for the token that the running check itself decides, and
    γ - 1 after it. If all that the check judges and decides is as drafted, the next one judges
    these γ - 1 and the token after them (post-verify); otherwise it forwards the last token alone
    (pre-verify).

    Args:
        text: the answer.
        costs: of forwards.
        window: γ.
        starts_ready: whether the draft has written a window by the time of the first token
            (Section 4.2, startup tokens).
    """
    lanes = _Lanes(costs)
    counts = _Counts()
    position = 1
    has_window = starts_ready and text[0].rank == 0
    counts.drafted = window if starts_ready else 0
    while position < len(text):
        size = window - 1 if has_window else 0
        size = min(size, len(text) - position - 1)
        emitted = _lockstep_round(lanes, costs, text, position, size, window)
        right = _right(text, position, size + 1)
        counts.drafted += window
        counts.checked(min(right, size), emitted, right <= size)
        position += emitted
        has_window = right == size + 1
    return _play(lanes, counts)


def _lockstep_round(
    lanes: _Lanes, costs: Costs, text: Text, position: int, size: int, window: int
) -> int:
    """One round; returns the emitted tokens. Both lanes begin together and end at the slower."""
    emitted = min(_right(text, position, size), size) + 1
    lanes.start(TARGET, costs.target(size + 1), "check", size + 1)
    steps = window
    while steps or not lanes.is_free(TARGET):
        if steps and lanes.is_free(DRAFT):
            lanes.start(DRAFT, costs.draft(1), "draft", 1)
        lanes.go_to(min(lanes.end_of(lane) for lane in lanes.left))
        if lanes.is_done(DRAFT):
            lanes.finish(DRAFT)
            steps -= 1
        if lanes.is_done(TARGET):
            lanes.finish(TARGET, emitted)
    lanes.go_to(lanes.now + costs.latency)
    return emitted


def _right(text: Text, position: int, count: int) -> int:
    """How many of the next `count` draft tokens, from the first on, are right."""
    for depth in range(count):
        if text[position + depth].rank:
            return depth
    return count


@dataclass(frozen=True)
class Eager:
    """The options of `eager`.

    Args:
        cap: draft tokens of a window at most.
        wait: draft tokens for which the target waits after a correction.
        ahead: tokens at most that the draft has written and not yet seen judged.
        fill: draft tokens for which it waits elsewhere, when all that it judged last was right.
        hedge: length of a continuation after a second choice; 0 for no hedges.
        width: tokens of a draft step: one of the hypothesis and continuations of second choices
            beside it, in one forward. A sparse tree; needs `hedge`.

    Raises:
        ValueError: the width needs hedges, or a wait is longer than the cap or the lead, which
            would never end.
    """

    cap: int
    wait: int = 0
    ahead: int = 64
    fill: int = 0
    hedge: int = 0
    width: int = 1

    def __post_init__(self) -> None:
        if self.width > 1 and not self.hedge:
            raise ValueError("a draft step over several tokens continues second choices: set hedge")
        if max(self.wait, self.fill) > min(self.cap, self.ahead):
            raise ValueError(
                f"the target cannot wait for {max(self.wait, self.fill)} draft tokens if it "
                f"takes {self.cap} at most and the draft writes {self.ahead} ahead"
            )


@dataclass
class _Written:
    """A draft token.

    Args:
        position: in the answer.
        is_right: whether it and all before it are right.
        arrives: when the target has it.
        branch: the continuation after the second choice here.
    """

    position: int
    is_right: bool
    arrives: float
    branch: list[_Written] = field(default_factory=list)


@dataclass
class _Chain:
    """A hypothesis of the draft, from the position after its last correction on.

    Args:
        tip: position of the next token.
        tokens: those that are not judged yet, as the draft knows; with the last judged one.
        is_right: whether all tokens so far are right.
    """

    tip: int
    tokens: list[_Written] = field(default_factory=list)
    is_right: bool = True


@dataclass(frozen=True)
class _Verdict:
    """A message to the draft.

    Args:
        arrives: when it has it.
        judged: the answer is known up to this position.
        restart: the hypothesis to go on with; None for the same.
    """

    arrives: float
    judged: int
    restart: _Chain | None


def eager(text: Text, costs: Costs, options: Eager, ready: int = 0) -> Play:
    """A free target takes what is there; the draft writes ahead.

    The draft runs its step to the end before it reads a verdict. If `hedge` is not 0, a step goes
    to the continuation of a second choice wherever that is likelier to be needed than the next
    token of the hypothesis, and while the draft may not write further ahead.

    Args:
        text: the answer.
        costs: of forwards.
        options: of the schedule.
        ready: draft tokens that are written by the time of the first token, the one in its place
            included.
    """
    return _EagerPlay(text, costs, options, ready).play()


class _EagerPlay:
    """The state of one simulated answer of `eager`."""

    def __init__(self, text: Text, costs: Costs, options: Eager, ready: int) -> None:
        self.text = text
        self.costs = costs
        self.options = options
        self.lanes = _Lanes(costs)
        self.counts = _Counts()
        self.judged = 1
        self.window = 0
        self.is_behind_correction = True
        self.messages: list[_Verdict] = []
        self.base = 1
        self.chain = _Chain(1)
        self.step_chain = self.chain
        self.hedged: list[_Written] = []
        self.has_token = False
        self.free_since = 0.0
        if ready and text[0].rank == 0:
            self._write_startup(ready)
        # What the target takes windows from; the draft follows when it has read the verdicts.
        self.view = self.chain

    def play(self) -> Play:
        while self.judged < len(self.text):
            self._read_verdicts()
            self._start_target()
            self._start_draft()
            self.lanes.go_to(self._next_time())
            if self.lanes.is_done(DRAFT):
                self._end_step()
            if self.lanes.is_done(TARGET):
                self._end_check()
        return _play(self.lanes, self.counts)

    def _write_startup(self, ready: int) -> None:
        self.is_behind_correction = False
        for _ in range(1, ready):
            self._append_token(self.chain, 0.0)

    def _next_time(self) -> float:
        times = [self.lanes.end_of(lane) for lane in self.lanes.left]
        times += [message.arrives for message in self.messages[:1] if self.lanes.is_free(DRAFT)]
        if self.lanes.is_free(TARGET):
            later = [token.arrives for token in self.view.tokens]
            times += [arrives for arrives in later if arrives > self.lanes.now + ROUNDING]
        return min(times)

    # The target's lane.

    def _available(self) -> int:
        """Draft tokens that the target can judge now."""
        count = 0
        for token in self.view.tokens:
            if token.arrives > self.lanes.now + ROUNDING:
                break
            if token.position >= self.judged:
                count += 1
            elif not token.is_right:
                return 0
        return count

    def _start_target(self) -> None:
        if not self.lanes.is_free(TARGET):
            return
        most = min(self.options.cap, len(self.text) - self.judged - 1)
        wanted = self.options.wait if self.is_behind_correction else self.options.fill
        available = self._available()
        if available < min(wanted, most):
            return
        self.counts.waited += self.lanes.now - self.free_since
        self.window = min(available, most)
        self.lanes.start(TARGET, self.costs.target(self.window + 1), "check", self.window + 1)

    def _end_check(self) -> None:
        right = _right(self.text, self.judged, self.window)
        first = self.judged
        self.judged += right + 1
        self.lanes.finish(TARGET, right + 1)
        self.free_since = self.lanes.now
        wrong = self._wrong_token(first)
        self.counts.checked(right, right + 1, wrong is not None)
        self.is_behind_correction = wrong is not None
        restart = None
        if wrong is not None:
            restart = self._behind(wrong)
            self.view = restart
            self.is_behind_correction = not restart.tokens
        arrives = self.lanes.now + self.costs.latency
        self.messages.append(_Verdict(arrives, self.judged, restart))

    def _wrong_token(self, first: int) -> _Written | None:
        """The draft token that the last check refutes, if the target has it already."""
        for token in self.view.tokens:
            has_arrived = token.arrives <= self.lanes.now + ROUNDING
            if token.position >= self.judged or not has_arrived:
                return None
            if not token.is_right:
                # An older one is refuted already; the draft is about to go back by itself.
                return token if token.position >= first else None
        return None

    def _behind(self, wrong: _Written) -> _Chain:
        """The hypothesis behind a correction: a hedge, or nothing yet."""
        if self.text[wrong.position].rank != 1 or not wrong.branch:
            return _Chain(wrong.position + 1)
        self.counts.used_hedges += 1
        last = wrong.branch[-1]
        return _Chain(last.position + 1, list(wrong.branch), last.is_right)

    # The draft's lane.

    def _read_verdicts(self) -> None:
        if not self.lanes.is_free(DRAFT):
            return
        while self.messages and self.messages[0].arrives <= self.lanes.now + ROUNDING:
            message = self.messages.pop(0)
            self.base = message.judged
            if message.restart is not None:
                self.chain = message.restart
            self._compare()

    def _compare(self) -> None:
        """Compare the draft tokens with what is judged; go back after a wrong one."""
        while self.chain.tokens and self.chain.tokens[0].position < self.base:
            token = self.chain.tokens[0]
            if not token.is_right:
                self._go_back(token)
                return
            self.chain.tokens.pop(0)

    def _go_back(self, wrong: _Written) -> None:
        """The target could not see that this token was wrong: it had not arrived."""
        self.counts.corrected()
        self.chain = self._behind(wrong)
        self.view = self.chain
        self.is_behind_correction = not self.chain.tokens
        self._compare()

    def _start_draft(self) -> None:
        if not self.lanes.is_free(DRAFT):
            return
        chance = self._chance_of_next() if self._may_write() else 0.0
        self.hedged = []
        self.has_token = False
        if self.options.hedge and self.options.width == 1:
            self.hedged = self._likeliest_hedges(chance, 1)
        if self.hedged:
            self.lanes.start(DRAFT, self.costs.draft(1), "hedge", 1)
        elif chance:
            self._start_token()

    def _may_write(self) -> bool:
        tip = max(self.chain.tip, self.base)
        return tip < len(self.text) and tip - self.base < self.options.ahead

    def _chance_of_next(self) -> float:
        """How likely the next token of the hypothesis is to be judged, as the draft thinks."""
        chance = 1.0
        for token in self.chain.tokens:
            if token.position >= self.base:
                chance *= self.text[token.position].confidence
        return chance

    def _start_token(self) -> None:
        chain = self.chain
        # Tokens that the target chose where the draft had not come yet are forwarded as well.
        width = max(self.base - chain.tip, 0) + 1
        chain.tip = max(chain.tip, self.base)
        self.step_chain = chain
        self.has_token = True
        kind = "draft" if width == 1 else "catch up"
        if self.options.width > 1:
            self.hedged = self._likeliest_hedges(0.0, self.options.width - 1)
            width += len(self.hedged)
        self.lanes.start(DRAFT, self.costs.draft(width), kind, width)

    def _end_step(self) -> None:
        self.lanes.finish(DRAFT)
        arrives = self.lanes.now + self.costs.latency
        for place in self.hedged:
            self._append_hedge(place, arrives)
        if self.has_token:
            self._append_token(self.step_chain, arrives)
        self._compare()

    def _append_token(self, chain: _Chain, arrives: float) -> None:
        chain.is_right = chain.is_right and self.text[chain.tip].rank == 0
        chain.tokens.append(_Written(chain.tip, chain.is_right, arrives))
        chain.tip += 1
        self.counts.drafted += 1

    def _append_hedge(self, place: _Written, arrives: float) -> None:
        position = place.position + 1 + len(place.branch)
        is_right = self._is_first_wrong(place) and self.text[place.position].rank == 1
        if place.branch:
            is_right = place.branch[-1].is_right
        is_right = is_right and self.text[position].rank == 0
        place.branch.append(_Written(position, is_right, arrives))
        self.counts.hedged += 1

    def _is_first_wrong(self, place: _Written) -> bool:
        for token in self.chain.tokens:
            if token is place:
                return True
            if not token.is_right:
                return False
        return False

    def _likeliest_hedges(self, least: float, most: int) -> list[_Written]:
        """Where one more step after a second choice is likeliest to be needed.

        Args:
            least: chance that a place must exceed.
            most: number of places.
        """
        places: list[tuple[float, int, _Written]] = []
        reached = SECOND
        for token in self.chain.tokens:
            if token.position < self.base:
                continue
            if reached <= least:
                break
            confidence = self.text[token.position].confidence
            length = len(token.branch)
            fits = token.position + 1 + length < len(self.text)
            if length < self.options.hedge and fits:
                chance = reached * (1 - confidence)
                for written in token.branch:
                    chance *= self.text[written.position].confidence
                if chance > least:
                    places.append((-chance, token.position, token))
            reached *= confidence
        places.sort(key=lambda place: place[:2])
        return [token for _, _, token in places[:most]]


SECOND = 0.6
"""Share of the misses whose right token is the draft's second choice (issue 13, embedded pair)."""

EASY = 0.3
HARD = 2.4
"""Misses in easy and hard stretches of a clustered text, relative to its mean."""

FAR = 9
"""Rank of a right token that is not the second choice."""


def drawn_text(length: int, acceptance: float, seed: int) -> list[Drawn]:
    """A text whose draft tokens are right independently of each other.

    The confidences are calibrated: their mean over right and wrong tokens is the acceptance, and
    the draft is surer where it is right.

    Args:
        length: number of tokens.
        acceptance: chance that a draft token is right.
        seed: of the text.
    """
    rng = random.Random(seed)
    return [_drawn(rng, acceptance) for _ in range(length)]


def clustered_text(length: int, acceptance: float, stay: float, seed: int) -> list[Drawn]:
    """A text whose misses come in clusters: easy and hard stretches.

    Args:
        length: number of tokens.
        acceptance: share of right draft tokens over all.
        stay: chance that a stretch goes on with the next token.
        seed: of the text.
    """
    rng = random.Random(seed)
    misses = 1 - acceptance
    easy = 1 - EASY * misses
    hard = max(0.0, 1 - HARD * misses)
    share = (acceptance - hard) / (easy - hard)
    is_easy = rng.random() < share
    tokens = []
    for _ in range(length):
        tokens.append(_drawn(rng, easy if is_easy else hard))
        if rng.random() >= stay:
            is_easy = rng.random() < share
    return tokens


def text_of_ranks(ranks: Sequence[int]) -> list[Drawn]:
    """A text with these ranks, everywhere the same confidence."""
    return [Drawn(rank, 0.5) for rank in ranks]


def _drawn(rng: random.Random, acceptance: float) -> Drawn:
    share = min(max(acceptance, 0.05), 0.98)
    if rng.random() < acceptance:
        return Drawn(0, rng.betavariate(2 * share + 1, 2 * (1 - share)))
    confidence = rng.betavariate(2 * share, 2 * (1 - share) + 1)
    rank = 1 if rng.random() < SECOND else FAR
    return Drawn(rank, confidence)
