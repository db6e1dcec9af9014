"""How much of each entry's pixels the draft reads: prune ratios, drawn by seed, epoch and entry."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftlens.core.errors import ConfigError

if TYPE_CHECKING:  # the command line reads options without data
    from draftlens_lab.train.data import Entry


@dataclass(frozen=True)
class RatioRange:
    """Prune ratios from `low` to `high`, shares between 0 and 1.

    Example:

        >>> RatioRange.parse("0.5..0.97")
        RatioRange(low=0.5, high=0.97)
    """

    low: float
    high: float

    @classmethod
    def parse(cls, text: str) -> RatioRange:
        """A range from ``LOW..HIGH``, or from one number. Raises `ConfigError`."""
        first, dots, last = text.partition("..")
        try:
            ratios = cls(float(first), float(last if dots else first))
        except ValueError:
            ratios = cls(1.0, 0.0)
        if not 0 <= ratios.low <= ratios.high <= 1:
            raise ConfigError(
                f"prune_ratio is a share between 0 and 1, or a range of two such as 0.5..0.97, "
                f"not {text!r}"
            )
        return ratios


@dataclass(frozen=True)
class Draw:
    """What the draft reads of one entry in one epoch.

    Args:
        ratio: share of its visual tokens that are removed; 0 for none.
        answer: the only answer that is trained, counted from 0, whose prompt guides the pruner;
            None for all answers.
    """

    ratio: float = 0.0
    answer: int | None = None


@dataclass
class Draws:
    """Draws a prune ratio, uniformly, and an answer for each entry.

    They depend on the seed, the epoch and the entry only, so a resumed run repeats them. In use a
    draft reads the tokens that are chosen for one question: of a pruned entry with several
    questions about what it shows, one answer is therefore drawn.

    Args:
        unpruned: share of the entries that stay unpruned.
        epoch: the current one, which the trainer sets.
    """

    ratios: RatioRange
    unpruned: float
    seed: int
    epoch: int = 0

    def of(self, entry: Entry) -> Draw:
        if not entry.images and not entry.videos:
            return Draw()
        numbers = random.Random(f"{self.seed} {self.epoch} {entry.number}")
        is_pruned = numbers.random() >= self.unpruned
        ratio = numbers.uniform(self.ratios.low, self.ratios.high)
        answer = numbers.choice(entry.answers_after_media)
        return Draw(ratio, answer) if is_pruned else Draw()
