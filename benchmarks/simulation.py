"""A virtual machine on which the automatic tree runs unchanged: no models, no clock.

The cost of every forward comes from a cost curve, and a text says at which positions the draft's
tokens are right. So a cell of thousands of rounds takes milliseconds, and any two ways of drafting
can be compared on the same text.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from draftlens.core.tree import EMPTY, ROOT, Topology, cut
from draftlens.drafting.adaptive.controller import PairHistory, RoundState, TreeController
from draftlens.drafting.adaptive.round_plan import level_widths

NEVER = 99
"""Rank of a token that is not among the draft's choices."""

Seconds = Callable[[int], float]
"""Maps the width of a forward, all rows together, to its seconds."""


@dataclass(frozen=True)
class Machine:
    """What forwards take.

    Args:
        target: seconds of a forward of the target.
        draft: of the draft.
        noise: standard deviation of the logarithm of every timing.
        accidents: share of the timings that take three times as long.
        prompt: tokens that the draft has to read before it drafts, in each row.
    """

    target: Seconds
    draft: Seconds
    noise: float = 0.03
    accidents: float = 0.01
    prompt: int = 0


@dataclass(frozen=True)
class Token:
    """A token of the answer, as the draft sees it.

    Args:
        rank: how many other tokens the draft prefers to it; `NEVER` for too many.
        confidence: the draft's probability of its own first choice there.
    """

    rank: int
    confidence: float


Text = Sequence[Token]
"""The answer of one row."""


@dataclass
class Outcome:
    """What an answer took.

    Args:
        seconds: virtual time of all rounds; the prefill is not included.
        rounds: number of verifications.
        trees: how often each tree was verified.
        draft_seconds: the part of `seconds` that was spent in the draft.
    """

    seconds: float = 0.0
    rounds: int = 0
    trees: Counter[Topology] = field(default_factory=Counter)
    draft_seconds: float = 0.0


def correct_path(topology: Topology, text: Text, position: int) -> tuple[int, ...]:
    """The correct nodes of a tree that drafts the text from a position on."""
    path: list[int] = []
    parent = ROOT
    for token in text[position : position + topology.depth]:
        children = topology.children.get(parent, ())
        if token.rank >= len(children):
            break
        parent = children[token.rank]
        path.append(parent)
    return tuple(path)


class _Run:
    """The state of one simulated answer."""

    def __init__(self, machine: Machine, texts: Sequence[Text], seed: int) -> None:
        self.machine = machine
        self.texts = texts
        self.rng = random.Random(seed)
        self.positions = [1] * len(texts)  # the prefill gives the first token
        self.pending = [1] * len(texts)
        self.outcome = Outcome()
        self.has_read = not machine.prompt

    @property
    def running(self) -> list[int]:
        pairs = zip(self.positions, self.texts, strict=True)
        return [row for row, (position, text) in enumerate(pairs) if position < len(text)]

    @property
    def remaining(self) -> int:
        return max(len(t) - p for p, t in zip(self.positions, self.texts, strict=True))

    def timed(self, seconds: float) -> float:
        """A timing with noise, which is added to the outcome without it: the noise of the machine
        is the same for all ways of drafting."""
        self.outcome.seconds += seconds
        noisy = seconds * self.rng.lognormvariate(0.0, self.machine.noise)
        return 3 * noisy if self.rng.random() < self.machine.accidents else noisy

    def read(self) -> float:
        """Let the draft read its prompt; the time."""
        self.has_read = True
        return self.draft([len(self.texts) * self.machine.prompt])

    def draft(self, widths: Sequence[int]) -> float:
        before = self.outcome.seconds
        noisy = self.timed(sum(map(self.machine.draft, widths)))
        self.outcome.draft_seconds += self.outcome.seconds - before
        return noisy

    def check(self, topology: Topology) -> tuple[list[tuple[int, ...]], float]:
        """Verify a tree; the paths of the running rows and the time."""
        paths = []
        for row in self.running:
            path = correct_path(topology, self.texts[row], self.positions[row])
            paths.append(path)
            self.positions[row] += len(path) + 1
            inner = sum(node in topology.children for node in path)
            self.pending[row] = len(path) + 1 - inner if topology else self.pending[row] + 1
        self.outcome.rounds += 1
        self.outcome.trees[topology] += 1
        seconds = self.timed(self.machine.target(len(self.texts) * (len(topology) + 1)))
        return paths, seconds

    def confidences(self, depth: int) -> list[list[float]]:
        """Of each running row, the confidences of the next first choices."""
        values = []
        for row in self.running:
            start = self.positions[row]
            tokens = [
                self.texts[row][min(start + d, len(self.texts[row]) - 1)] for d in range(depth)
            ]
            values.append([token.confidence for token in tokens])
        return values


def play_fixed(
    machine: Machine, texts: Sequence[Text], topology: Topology, seed: int = 0
) -> Outcome:
    """Answer with the same tree in every round; the empty tree is plain decoding."""
    run = _Run(machine, texts, seed)
    rows = len(texts)
    if topology and not run.has_read:
        run.read()
    while run.running:
        tree = cut(topology, run.remaining - 1)
        if tree:
            widths = [rows * max(run.pending), *(rows * w for w in level_widths(tree)[1:])]
            run.draft(widths)
        run.check(tree)
    return run.outcome


def play_auto(
    machine: Machine,
    texts: Sequence[Text],
    history: PairHistory,
    seed: int = 0,
    most: int | None = None,
) -> Outcome:
    """Answer as the automatic tree does, with what is known of the pair and adding to it.

    Args:
        machine, texts, seed: as for `play_fixed`.
        history: of the pair.
        most: the limit of new tokens that the caller gave; None for the length of the texts.
    """
    run = _Run(machine, texts, seed)
    controller = TreeController(history)
    while run.running:
        _play_round(run, controller, most)
    controller.ended()
    return run.outcome


def _play_round(run: _Run, controller: TreeController, most: int | None) -> None:
    rows = len(run.texts)
    remaining = run.remaining if most is None else most - max(run.positions)
    if not run.has_read and not _read(run, controller, remaining):
        paths, seconds = run.check(EMPTY)
        controller.judged(EMPTY, paths, seconds)
        return
    at = RoundState(rows, 0, 0, max(run.pending), remaining)
    tree = cut(controller.tree(at), remaining - 1)
    widths: list[int] = []
    if tree:
        widths = [rows * max(run.pending)]
        tree = cut(controller.caught_up(*_agreement(run)), remaining - 1)
    if tree:
        tree = _grown(run, controller, tree, widths)
    if widths:
        controller.drafted(widths, run.draft(widths))
        if not tree:
            run.pending = [0] * rows
    paths, seconds = run.check(tree)
    controller.judged(tree, paths, seconds)


def _read(run: _Run, controller: TreeController, remaining: int) -> bool:
    """Whether the draft has read its prompt now."""
    rows = len(run.texts)
    prompt = run.machine.prompt
    if not controller.may_read(RoundState(rows, 0, 0, prompt, remaining)):
        return False
    controller.has_read(rows * prompt, run.read())
    return True


def _grown(run: _Run, controller: TreeController, tree: Topology, widths: list[int]) -> Topology:
    """The levels of a tree that are grown and verified; the widths of their forwards are added."""
    rows = len(run.texts)
    levels = level_widths(tree)
    confidences = run.confidences(tree.depth)
    depth = 1
    while controller.grown([values[depth - 1] for values in confidences]) and depth < tree.depth:
        widths.append(rows * levels[depth])
        depth += 1
    return cut(tree, min(controller.kept_depth, depth))


def _agreement(run: _Run) -> tuple[int, int]:
    """How many of the tokens that the draft lacks it would have proposed, and how many not."""
    hits = misses = 0
    for row in run.running:
        start = run.positions[row] - run.pending[row] + 1
        for token in run.texts[row][start : run.positions[row]]:
            hits += token.rank == 0
            misses += token.rank != 0
    return hits, misses


def plain_seconds(machine: Machine, texts: Sequence[Text]) -> float:
    """Seconds of plain decoding."""
    return play_fixed(machine, texts, EMPTY).seconds


def drawn_text(
    length: int, acceptance: float, seed: int, informative: bool = True, until: float = 1.0
) -> list[Token]:
    """A text whose first choices are right with the same probability everywhere.

    Args:
        length: number of tokens.
        acceptance: this probability.
        seed: of the text.
        informative: whether the draft is surer where it is right; otherwise its confidence is the
            same everywhere.
        until: part of the text after which the draft is never right.
    """
    rng = random.Random(seed)
    tokens = []
    for index in range(length):
        is_right = rng.random() < acceptance and index < until * length
        tokens.append(_token(is_right, acceptance, rng, informative))
    return tokens


def recorded_text(length: int, by_depth: dict[int, int], seed: int) -> list[Token]:
    """A text with the accepted lengths of recorded rounds of a chain, in random order.

    Args:
        length: number of tokens.
        by_depth: number of rounds by accepted length; the largest one is the chain's.
        seed: of the order.
    """
    rng = random.Random(seed)
    longest = max(by_depth)
    right = sum(depth * count for depth, count in by_depth.items())
    wrong = sum(count for depth, count in by_depth.items() if depth < longest)
    share = right / (right + wrong)
    tokens = [_token(True, share, rng)]
    while len(tokens) < length:
        rounds = [depth for depth, count in by_depth.items() for _ in range(count)]
        rng.shuffle(rounds)
        for depth in rounds:
            tokens += [_token(True, share, rng) for _ in range(depth)]
            # What follows a chain that was right throughout is unknown.
            follows = depth == longest and rng.random() < share
            tokens.append(_token(follows, share, rng))
    return tokens[:length]


def _token(
    is_right: bool, acceptance: float, rng: random.Random, informative: bool = True
) -> Token:
    """A token whose confidence is calibrated: the draft is right as often as it is sure."""
    share = min(max(acceptance, 0.05), 0.98)
    confidence = 0.8
    if informative:
        confidence = rng.betavariate(2 * share + is_right, 2 * (1 - share) + (not is_right))
    if is_right:
        return Token(0, confidence)
    # Most tokens that are not the first choice are one of the next three.
    rank = rng.choices([1, 2, 3, NEVER], [0.5, 0.2, 0.1, 0.2])[0]
    return Token(rank if acceptance else NEVER, confidence)
