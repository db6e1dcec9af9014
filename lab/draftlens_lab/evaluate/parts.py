"""Questions about a part of what is seen: reels and pairs of pictures.

Answers are long and state several facts. For questions about reels, the draft is also shown only
the cells that carry the answer, and only the others: the gap is what the choice of visual tokens
can win.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftlens.models.prompt import Prompt
from draftlens.models.prompt_subset import gather
from draftlens_lab.evaluate.accuracy import count_facts
from draftlens_lab.evaluate.agreement import acceptance_compared
from draftlens_lab.evaluate.answers import Answer
from draftlens_lab.evaluate.ranks import Ranks
from draftlens_lab.evaluate.samples import first_seed
from draftlens_lab.measure.pruning import kept_indices
from draftlens_lab.measure.statistics import Share
from draftlens_lab.world import (
    FocusTurn,
    chats,
    evidence,
    focus_turns,
    needle_turns,
    read_facts,
    sample_pair,
    sample_reel,
    spot_turns,
)
from draftlens_lab.world.reel import MIN_SHOTS, NEEDLES, SHOT_FRAMES
from draftlens_lab.world.regions import ROWS
from draftlens_lab.world.samples import Sample

PART_FAMILIES = {"focus": "focus", "needle": "needle", "chat": "chat", "pairs": "spot"}
"""Family of questions about a part to the kind of sample that they are about."""

REEL_FAMILIES = ("focus", "needle", "chat")
"""The families about reels."""

LEAST_FRAMES = MIN_SHOTS * SHOT_FRAMES
"""Fewest frames of a reel."""

PARTS = 700_000
"""Offset of the seeds of questions about parts."""

SEEDS_PER_FAMILY = 50_000


def part_samples(family: str, number: int, seed: int, frames: int) -> list[Sample]:
    """Held-out scenes with one question of a family each; a chat has an earlier question, too."""
    place = list(PART_FAMILIES).index(family)
    first = first_seed(seed) + PARTS + SEEDS_PER_FAMILY * place
    return [_part_sample(family, first + index, index, frames) for index in range(number)]


def _part_sample(family: str, seed: int, index: int, frames: int) -> Sample:
    rng = np.random.default_rng([seed, 3])
    kind = PART_FAMILIES[family]
    if family == "pairs":
        pictures = sample_pair(seed)
        turns = [turn for turn in spot_turns(*pictures) if turn.family == family]
        return Sample(kind, pictures, (turns[int(rng.integers(len(turns)))],))
    needle = NEEDLES[index % len(NEEDLES)] if family == "needle" else None
    reel = sample_reel(seed, frames, needle)
    dialogues: list[tuple[FocusTurn, ...]]
    if family == "chat":
        dialogues = list(chats(reel))
    elif family == "needle":
        dialogues = [(needle_turns(reel)[0],)]
    else:
        forms = list(focus_turns(reel).values())
        dialogues = [(turn,) for turn in forms[index % len(forms)]]
    return Sample(kind, (reel.scene,), dialogues[int(rng.integers(len(dialogues)))], frames)


def parts_right(samples: Sequence[Sample], answers: Sequence[Answer]) -> dict[str, Any]:
    """Accuracy of answers about parts.

    Returns:
        JSON values: `asked`; the shares `exact` (answers that are right word for word) and `facts`
        (as in `captions_right`; without facts, as of a secret word, the whole answer counts as
        one); and both by form of the question in `forms`.
    """
    rows: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        rows.setdefault(_last_turn(sample).form, []).append(index)
    forms = {
        form: _shares([samples[i] for i in rows[form]], [answers[i] for i in rows[form]])
        for form in sorted(rows)
    }
    return {"asked": len(samples), **_shares(samples, answers), "forms": forms}


@dataclass(frozen=True)
class EvidencePruning:
    """A choice of the draft's visual tokens by where the answer can be seen."""

    shown: str

    def __call__(self, prompt: Prompt, samples: Sequence[Sample]) -> Prompt:
        """The prompt without the other visual tokens; every token keeps its position."""
        if self.shown == "all":
            return prompt
        rows = [self._kept_tokens(prompt, row, sample) for row, sample in enumerate(samples)]
        return gather(prompt, rows)

    def _kept_tokens(self, prompt: Prompt, row: int, sample: Sample) -> Tensor:
        """Indices of the tokens of one row that remain, int64 ``[K]``."""
        visual = prompt.visual[row, : prompt.lengths[row]].cpu()
        cells = prompt.cells[row, : prompt.lengths[row]].cpu()[visual]
        if self.shown == "tenth":
            rng = np.random.default_rng([sample.scenes[0].seed, 9])
            choice = rng.permutation(len(cells))[: len(cells) // 10]
            return kept_indices(visual, torch.from_numpy(choice))
        seen = evidence(_last_turn(sample).regions, sample.frames)
        in_frame, in_cell = _in_evidence(cells, seen.frames, seen.cells, sample.frames)
        chosen = {"evidence": in_cell, "frames": in_frame, "others": ~in_frame}[self.shown]
        return kept_indices(visual, chosen.nonzero()[:, 0])


SHOWN = ("all", "frames", "evidence", "others", "tenth")
"""What a draft is shown; the first is everything."""


def evidence_prunings() -> list[EvidencePruning]:
    return [EvidencePruning(shown) for shown in SHOWN]


def oracle_gap(ranks: Sequence[Sequence[Ranks]], seed: int) -> dict[str, Any]:
    """How the acceptance depends on whether the draft is shown the evidence.

    Returns:
        JSON values: `gamma`, `asked`, and in `shown` the figures of `visual_dependence` for each of
        SHOWN.
    """
    return acceptance_compared(dict(zip(SHOWN, ranks, strict=True)), seed)


def _in_evidence(
    cells: Tensor, frames: Sequence[int], parts: Sequence[Sequence[int]], num_frames: int
) -> tuple[Tensor, Tensor]:
    """Whether visual tokens are in the frames of the evidence, and whether they are in its cells.

    Args:
        cells: frame, row and column of each token, int64 ``[N, 3]``. A model may have merged frames
            and may have any number of rows.
        parts: their cells, of 16.

    Returns:
        Two masks, bool ``[N]``.
    """
    sides = cells.max(0).values + 1
    carries = torch.zeros(num_frames, ROWS * ROWS, dtype=torch.bool)
    for frame, part in zip(frames, parts, strict=True):
        carries[frame, list(part)] = True
    token_frames = cells[:, 0] * num_frames // sides[0]
    rows = cells[:, 1] * ROWS // sides[1]
    columns = cells[:, 2] * ROWS // sides[2]
    return carries.any(1)[token_frames], carries[token_frames, ROWS * rows + columns]


def _shares(samples: Sequence[Sample], answers: Sequence[Answer]) -> dict[str, Any]:
    right = Counter[str]()
    total = Counter[str]()
    exact = []
    for sample, answer in zip(samples, answers, strict=True):
        turn = _last_turn(sample)
        exact.append(answer.text == turn.answer)
        truth = read_facts(turn.answer)
        if truth:
            count_facts(truth, read_facts(answer.text), right, total)
        else:
            total["answer"] += 1
            right["answer"] += exact[-1]
    return {
        "exact": Share.of(exact).to_json(),
        "facts": Share(right.total(), total.total()).to_json(),
    }


def _last_turn(sample: Sample) -> FocusTurn:
    turn = sample.turns[-1]
    assert isinstance(turn, FocusTurn)
    return turn
