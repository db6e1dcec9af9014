"""Training of the middle layers to find the shot that a question is about.

An answer about a reel needs two steps: from what the question names to the number of a shot, and
from there to what the shot shows. The loss of the answer alone teaches both only together. A head
on the middle layers therefore classifies, from the first tokens of an answer, the number of its
shot. Later tokens could tell it from what was said before. The head is discarded afterwards.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from draftlens.world.dialogue import Turn
from draftlens.world.focus import FocusTurn
from draftlens.world.samples import Sample
from draftlens.world.scene import Scene
from recipes.pair.data import IGNORED, encode

ASKED_LOSS_WEIGHT = 0.3
FIRST_TOKENS = 8  # of an answer
# Forms of questions about one shot, which is that of the last region.
ONE_SHOT = ("word", "after", "ordinal", "after this", "of them", "place")


def asked_labels(tokenizer: Any, samples: Sequence[Sample], num_frames: int) -> torch.Tensor:
    """The number of the shot that the next token is about, int64 ``[B, L]``; `IGNORED` where the
    next token is not among the first ones of an answer about one shot."""
    rows = [_row(tokenizer, sample, num_frames) for sample in samples]
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [IGNORED] * (longest - len(row)) for row in rows])


def asked_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy; 0 without labels.

    Args:
        scores: float ``[B, L, C]``.
        labels: int64 ``[B, L]``, or `IGNORED`.
    """
    total = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")
    return total / (labels != IGNORED).sum().clamp(min=1)


def _row(tokenizer: Any, sample: Sample, num_frames: int) -> list[int]:
    shots = [_shot_of(turn, sample.scenes[0]) for turn in sample.turns]
    turns = encode(tokenizer, sample, num_frames).turns
    here = []
    for index, turn in enumerate(turns):
        is_first = turns[max(0, index - FIRST_TOKENS)] != turn
        here.append(shots[turn] if turn != IGNORED and is_first else IGNORED)
    return [*here[1:], IGNORED]


def _shot_of(turn: Turn, reel: Scene) -> int:
    """The index of the shot that a question is about; `IGNORED` if it is about none or several."""
    if not isinstance(turn, FocusTurn) or turn.form not in ONE_SHOT:
        return IGNORED
    starts = [shot.start for shot in reel.shots]
    return starts.index(turn.regions[-1].start)
