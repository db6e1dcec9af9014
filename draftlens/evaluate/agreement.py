"""How well a draft foresees its target, and how much of that it owes to what it sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftlens.evaluate.asking import Answer, Asker, Done, conversation
from draftlens.evaluate.ranks import Ranks, draft_ranks
from draftlens.evaluate.rounds import GAMMA, GAMMAS, acceptance_length, by_depth, rounds
from draftlens.evaluate.shares import Share, middle, ratio, resamples
from draftlens.models.gather import gather
from draftlens.models.prompt import Prompt
from draftlens.world import seen_spans
from draftlens.world.samples import Sample
from draftlens.world.wording import unmark

KEPT = (Fraction(1), *(Fraction(1, n) for n in (2, 4, 10, 20)), Fraction(0))
"""Shares of the draft's visual tokens that it is left with."""

DRAWS = 3
"""Random choices of each share between all and none."""

TOP = 4
Prune = Callable[[Prompt, Sequence[Sample]], Prompt]
Decode = Callable[[list[int]], str]
Figures = dict[str, Any]


def ranks_of(
    asker: Asker,
    samples: Sequence[Sample],
    answers: Sequence[Answer],
    frames: int,
    prunings: Sequence[Prune],
    done: Done,
) -> list[list[Ranks]]:
    """The draft's ranks of the target's answers, by pruning of the draft's prompt and by sample.

    Args:
        asker: with target and draft.
        samples, answers: what the target said to what.
        frames: that clips are shown as.
        prunings: what is left of the draft's prompt.
        done: told how many samples more are read.
    """
    engine, table = asker.engine, [list[Ranks]() for _ in prunings]
    assert engine.draft is not None
    target, draft, at = engine.target.backbone, engine.draft.backbone, 0
    for batch in asker.batches(samples, frames):
        inputs = asker.inputs([conversation(sample, frames, asker.side) for sample in batch])
        said = [answer.tokens for answer in answers[at : at + len(batch)]]
        prepared = target.prepare(inputs.target, max_new_tokens=1, do_sample=False)
        prompt = draft.encode(draft.prepare(inputs.draft or inputs.target, max_new_tokens=1))
        for ranks, prune in zip(table, prunings, strict=True):
            ranks += draft_ranks(draft, prune(prompt, batch), said, prepared, target.vocab_size)
        at += len(batch)
        done(len(batch))
    return table


def agreement(
    samples: Sequence[Sample], answers: Sequence[Answer], ranks: Sequence[Ranks], decode: Decode
) -> Figures:
    """The figures of a draft that sees everything, JSON values.

    Args:
        samples: clips whose captions were asked for.
        answers, ranks: the target's captions and where the draft ranks their tokens.
        decode: token ids to text without special tokens.

    Returns:
        `clips`; shares `agreed` (tokens ranked first) and `top` (by rank, tokens ranked so high or
        higher); `acceptance_length` by γ, `by_depth`; `right_captions`, and of these the shares
        agreed of `seen` tokens (those that tell something seen) and `connecting` ones.
    """
    hits = [[rank == 1 for rank in row] for row in ranks]
    flat = [rank for row in ranks for rank in row]
    seen, connecting, right = list[bool](), list[bool](), 0
    for sample, answer, row in zip(samples, answers, hits, strict=True):
        if answer.text != sample.turns[-1].answer:
            continue
        right += 1
        for hit, kind in zip(
            row, token_kinds(sample.turns[-1].marked_answer, answer.tokens, decode)[1:], strict=True
        ):
            if kind is not None:
                (seen if kind else connecting).append(hit)
    return {
        "clips": len(samples),
        "agreed": Share.of(rank == 1 for rank in flat).to_json(),
        "top": {str(n): Share.of(rank <= n for rank in flat).to_json() for n in range(1, TOP + 1)},
        "acceptance_length": {str(gamma): acceptance_length(hits, gamma) for gamma in GAMMAS},
        "by_depth": by_depth(hits, GAMMAS[-1]),
        "right_captions": right,
        "seen": Share.of(seen).to_json(),
        "connecting": Share.of(connecting).to_json(),
    }


def token_kinds(told: str, tokens: Sequence[int], decode: Decode) -> list[bool | None]:
    """Of each token, whether it tells something seen; None where it is no text (the end of the
    answer).

    Args:
        told: the caption with marks around what had to be seen.
        tokens: of the same caption without them.
    """
    spans, text = seen_spans(told), decode(list(tokens))
    shift = len(text) - len(text.lstrip())
    ends = [len(decode(list(tokens[:count]))) - shift for count in range(len(tokens) + 1)]
    kinds: list[bool | None] = []
    for start, end in pairwise(ends):
        piece = unmark(told)[max(start, 0) : max(end, 0)]
        first = max(start, 0) + len(piece) - len(piece.lstrip())
        kinds.append(any(first < b and end > a for a, b in spans) if piece.strip() else None)
    return kinds


@dataclass(frozen=True)
class Pruning:
    """Leaves a random choice of visual tokens, the same for the same scene whatever batch it stands
    in.

    Args:
        kept: share of the visual tokens; all text stays.
        draw: number of the choice.
    """

    kept: Fraction
    draw: int

    def __call__(self, prompt: Prompt, samples: Sequence[Sample]) -> Prompt:
        """The prompt without the rest, every token at its own position."""
        if self.kept == 1:
            return prompt
        return gather(
            prompt, [self._chosen(prompt, row, sample) for row, sample in enumerate(samples)]
        )

    def _chosen(self, prompt: Prompt, row: int, sample: Sample) -> Tensor:
        visual = prompt.visual[row, : prompt.lengths[row]].cpu()
        at = visual.nonzero()[:, 0]
        rng = np.random.default_rng([sample.scenes[0].seed, 5, self.kept.denominator, self.draw])
        stays = ~visual
        stays[at[torch.from_numpy(rng.permutation(len(at))[: int(len(at) * self.kept)])]] = True
        return stays.nonzero()[:, 0]


def prunings() -> list[Pruning]:
    """All that is tried: every share of KEPT, those between all and none DRAWS times."""
    return [Pruning(kept, draw) for kept in KEPT for draw in range(DRAWS if 0 < kept < 1 else 1)]


def visual_dependence(
    tried: Sequence[Pruning], ranks: Sequence[Sequence[Ranks]], seed: int
) -> dict[str, Any]:
    """What is lost with each share of the draft's visual tokens, JSON values.

    Args:
        tried, ranks: prunings, and for each the draft's ranks by clip.
        seed: of the resampling of clips.

    Returns:
        `gamma`, `clips`, and in `kept` by share, all tokens first: `removed` (share), `draws`,
        `agreed`, `acceptance_length` at γ and its interval `length_interval`; `fall` against all
        tokens (0.2 is 20% lower) and its interval `fall_interval`, all bootstrapped over clips.
    """
    clips = len(ranks[0])
    drawn = resamples(clips, seed)
    by_share = {
        kept: _Lost(
            [row for pruning, row in zip(tried, ranks, strict=True) if pruning.kept == kept], drawn
        )
        for kept in KEPT
    }
    rows = [
        {"removed": float(1 - kept), **lost.figures(by_share[KEPT[0]])}
        for kept, lost in by_share.items()
    ]
    return {"gamma": GAMMA, "clips": clips, "kept": rows}


class _Lost:
    """What one share of the visual tokens gives.

    Args:
        draws: by draw and clip, the draft's ranks.
        drawn: resampled clips.
    """

    def __init__(self, draws: Sequence[Sequence[Ranks]], drawn: NDArray[np.int64]) -> None:
        self.hits = [
            [[rank == 1 for rank in row] for row in clip] for clip in zip(*draws, strict=True)
        ]
        tokens = [sum(map(len, clip)) for clip in self.hits]
        passes = [sum(len(rounds(row, GAMMA)) for row in clip) for clip in self.hits]
        self.draws, self.length = len(draws), sum(tokens) / max(1, sum(passes))
        self.lengths = ratio(tokens, passes, drawn)

    def figures(self, whole: _Lost) -> Figures:
        """JSON values, compared with what all visual tokens give."""
        return {
            "draws": self.draws,
            "agreed": Share.of(hit for clip in self.hits for row in clip for hit in row).to_json(),
            "acceptance_length": self.length,
            "length_interval": middle(self.lengths),
            "fall": 1 - self.length / whole.length if whole.length else None,
            "fall_interval": middle(1 - self.lengths / np.maximum(whole.lengths, 1e-9)),
        }
