"""What blind guessing gets: to every question the answer that is most often right in the training
scenes."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from draftlens.evaluate.samples import FAMILIES, pool, shown_by
from draftlens.world.samples import Sample

SCENES = 3000
"""Training scenes of each kind that the guesses are learned from."""


class Guesses:
    """The best constant answer to each question as it stands; to an unknown one, the best of its
    family.

    Args:
        scenes: how many training scenes to learn from.
    """

    def __init__(self, scenes: int = SCENES) -> None:
        known: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for seed in range(scenes):
            rng = np.random.default_rng([seed, 3])
            shown = {kind: shown_by(kind, seed) for kind in dict.fromkeys(FAMILIES.values())}
            for family, kind in FAMILIES.items():
                for sample in pool(family, shown[kind], rng):
                    for key in _keys(family, sample):
                        known[key][sample.turns[-1].answer] += 1
        self._best = {key: answers.most_common(1)[0][0] for key, answers in known.items()}

    def guess(self, family: str, sample: Sample) -> str:
        """An answer to the sample's last question from its words alone."""
        exact, any_of_family = _keys(family, sample)
        return self._best.get(exact) or self._best.get(any_of_family, "")


def _keys(family: str, sample: Sample) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The questions word for word, with those before them, and the family."""
    return (family, *(turn.question for turn in sample.turns)), (family,)
