"""The baseline of blind guessing: for every question the most frequent right answer in training
scenes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from draftlens_lab.evaluate.samples import FAMILIES, KINDS, possible_samples, scenes_of
from draftlens_lab.world.samples import Sample

SCENES = 3000
"""Number of training scenes of each kind that the guesses are learned from."""


@dataclass(frozen=True)
class _Question:
    family: str
    turns: tuple[str, ...]


class Guesses:
    """The best constant answer to each question; for an unknown one, the best of its family."""

    def __init__(self, scenes: int = SCENES) -> None:
        by_question: defaultdict[_Question, Counter[str]] = defaultdict(Counter)
        by_family: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for seed in range(scenes):
            for family, sample in _training_samples(seed):
                answer = sample.turns[-1].answer
                by_question[_question(family, sample)][answer] += 1
                by_family[family][answer] += 1
        self._by_question = {
            question: _most_frequent(counts) for question, counts in by_question.items()
        }
        self._by_family = {family: _most_frequent(counts) for family, counts in by_family.items()}

    def guess(self, family: str, sample: Sample) -> str:
        """An answer to the sample's last question that depends on its wording alone; empty if the
        family is unknown."""
        family_guess = self._by_family.get(family, "")
        return self._by_question.get(_question(family, sample), family_guess)


def _training_samples(seed: int) -> Iterator[tuple[str, Sample]]:
    rng = np.random.default_rng([seed, 3])
    scenes_by_kind = {kind: scenes_of(kind, seed) for kind in KINDS}
    for family, kind in FAMILIES.items():
        for sample in possible_samples(family, scenes_by_kind[kind], rng):
            yield family, sample


def _question(family: str, sample: Sample) -> _Question:
    return _Question(family, tuple(turn.question for turn in sample.turns))


def _most_frequent(counts: Counter[str]) -> str:
    return counts.most_common(1)[0][0]
