"""Agreement of a draft with its target, and its dependence on the draft's visual tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftlens.models.prompt import Prompt
from draftlens.models.prompt_subset import gather
from draftlens_lab.evaluate.answers import Answer, ModelAnswerer, OnAnswers
from draftlens_lab.evaluate.ranks import Ranks, draft_ranks
from draftlens_lab.measure.pruning import kept_indices
from draftlens_lab.measure.rounds import GAMMA, GAMMAS, acceptance_length, by_depth, rounds
from draftlens_lab.measure.statistics import Share, central_interval, resampled_ratios, resamples
from draftlens_lab.world import seen_spans
from draftlens_lab.world.samples import Sample
from draftlens_lab.world.wording import unmark

KEPT_SHARES = (Fraction(1), *(Fraction(1, n) for n in (2, 4, 10, 20)), Fraction(0))
"""Shares of the visual tokens that the draft keeps; the first is all of them."""

DRAWS = 3
"""Number of random choices for each share between none and all."""

TOP = 4
"""Largest rank that is reported."""

Prune = Callable[[Prompt, Sequence[Sample]], Prompt]
Decode = Callable[[list[int]], str]
Figures = dict[str, Any]


def ranks_of(
    answerer: ModelAnswerer,
    samples: Sequence[Sample],
    answers: Sequence[Answer],
    frames: int,
    prunings: Sequence[Prune],
    on_answers: OnAnswers,
) -> list[list[Ranks]]:
    """The draft's ranks of the target's answers.

    Returns:
        By pruning and by sample, the ranks of the answer's tokens.
    """
    engine = answerer.engine
    assert engine.draft is not None
    target = engine.target.backbone
    draft = engine.draft.backbone
    table: list[list[Ranks]] = [[] for _ in prunings]
    start = 0
    for batch in answerer.batches(samples, frames):
        inputs = answerer.sample_inputs(batch, frames)
        tokens = [answer.tokens for answer in answers[start : start + len(batch)]]
        prepared = target.prepare(inputs.target, max_new_tokens=1, do_sample=False)
        prompt = draft.encode(draft.prepare(inputs.draft or inputs.target, max_new_tokens=1))
        for ranks, prune in zip(table, prunings, strict=True):
            pruned = prune(prompt, batch)
            ranks += draft_ranks(draft, pruned, tokens, prepared, target.vocab_size)
        start += len(batch)
        on_answers(len(batch))
    return table


def agreement(
    samples: Sequence[Sample], answers: Sequence[Answer], ranks: Sequence[Ranks], decode: Decode
) -> Figures:
    """Agreement of a draft that sees all visual tokens.

    Args:
        decode: converts token ids to text without special tokens.

    Returns:
        JSON values: `clips`; the shares `agreed` (tokens ranked first) and `top` (by rank, tokens
        with at most this rank); `acceptance_length` by γ, `by_depth`; `right_captions`, and for
        these the shares of agreement for `seen` tokens (that state something visible) and
        `connecting` tokens.
    """
    hits = _hits(ranks)
    all_ranks = [rank for row in ranks for rank in row]
    right_captions = _right_captions(samples, answers, hits, decode)
    top = {
        str(limit): Share.of(rank <= limit for rank in all_ranks).to_json()
        for limit in range(1, TOP + 1)
    }
    return {
        "clips": len(samples),
        "agreed": top["1"],
        "top": top,
        "acceptance_length": {str(gamma): acceptance_length(hits, gamma) for gamma in GAMMAS},
        "by_depth": by_depth(hits, GAMMAS[-1]),
        "right_captions": right_captions.number,
        "seen": Share.of(right_captions.visible_hits).to_json(),
        "connecting": Share.of(right_captions.connecting_hits).to_json(),
    }


@dataclass
class _RightCaptions:
    number: int = 0
    visible_hits: list[bool] = field(default_factory=list)
    connecting_hits: list[bool] = field(default_factory=list)

    def add(self, hits: Sequence[bool], kinds: Sequence[bool | None]) -> None:
        self.number += 1
        for hit, kind in zip(hits, kinds, strict=True):
            if kind is not None:
                hits_of_kind = self.visible_hits if kind else self.connecting_hits
                hits_of_kind.append(hit)


def _right_captions(
    samples: Sequence[Sample],
    answers: Sequence[Answer],
    hits: Sequence[Sequence[bool]],
    decode: Decode,
) -> _RightCaptions:
    captions = _RightCaptions()
    for sample, answer, row in zip(samples, answers, hits, strict=True):
        turn = sample.turns[-1]
        if answer.text == turn.answer:
            captions.add(row, token_kinds(turn.marked_answer, answer.tokens, decode)[1:])
    return captions


def token_kinds(told: str, tokens: Sequence[int], decode: Decode) -> list[bool | None]:
    """Whether each token of a caption states something visible.

    Args:
        tokens: ids of the same caption without marks.
        decode: converts token ids to text without special tokens.

    Returns:
        For each token, whether its text lies in a marked part; None for a token without text, such
        as the end of the answer.
    """
    spans = seen_spans(told)
    text = unmark(told)
    kinds: list[bool | None] = []
    for start, end in pairwise(_token_ends(tokens, decode)):
        piece = text[start:end]
        if not piece.strip():
            kinds.append(None)
            continue
        first_letter = start + len(piece) - len(piece.lstrip())
        kinds.append(any(first_letter < stop and end > begin for begin, stop in spans))
    return kinds


def _token_ends(tokens: Sequence[int], decode: Decode) -> list[int]:
    """Length of the decoded text before the first token and after each token, without counting
    space before the text.

    The text so far is decoded as a whole, since a character may be spread over several tokens.
    """
    lengths = [len(decode(list(tokens[:count]))) for count in range(len(tokens) + 1)]
    text = decode(list(tokens))
    leading_space = len(text) - len(text.lstrip())
    return [max(0, length - leading_space) for length in lengths]


@dataclass(frozen=True)
class Pruning:
    """A random choice of visual tokens, which is the same for a scene in every batch.

    Args:
        kept: share of the visual tokens that remain; all text tokens remain.
    """

    kept: Fraction
    draw: int

    def __call__(self, prompt: Prompt, samples: Sequence[Sample]) -> Prompt:
        """The prompt without the other visual tokens; every token keeps its position."""
        if self.kept == 1:
            return prompt
        rows = [self._kept_tokens(prompt, row, sample) for row, sample in enumerate(samples)]
        return gather(prompt, rows)

    def _kept_tokens(self, prompt: Prompt, row: int, sample: Sample) -> Tensor:
        """Indices of the tokens of one row that remain, int64 ``[K]``."""
        visual = prompt.visual[row, : prompt.lengths[row]].cpu()
        count = int(visual.sum())
        rng = np.random.default_rng([sample.scenes[0].seed, 5, self.kept.denominator, self.draw])
        choice = rng.permutation(count)[: int(count * self.kept)]
        return kept_indices(visual, torch.from_numpy(choice))


def prunings() -> list[Pruning]:
    """All prunings of the evaluation: every share of KEPT_SHARES, those between none and all DRAWS
    times."""
    result = []
    for share in KEPT_SHARES:
        draws = DRAWS if 0 < share < 1 else 1
        result += [Pruning(share, draw) for draw in range(draws)]
    return result


def visual_dependence(
    tried: Sequence[Pruning], ranks: Sequence[Sequence[Ranks]], seed: int
) -> dict[str, Any]:
    """The loss of acceptance when the draft keeps fewer visual tokens.

    Returns:
        JSON values: `gamma`, `clips`, and in `kept` a row for each share, all tokens first, with
        `removed` (share), `draws`, `agreed`, `acceptance_length` at γ and its interval
        `length_interval`, `fall` against all tokens (0.2 is 20% lower) and its interval
        `fall_interval`. Intervals are bootstrapped over clips.
    """
    clips = len(ranks[0])
    indices = resamples(clips, seed)
    rows = []
    whole: _Acceptance | None = None
    for share in KEPT_SHARES:
        draws = [row for pruning, row in zip(tried, ranks, strict=True) if pruning.kept == share]
        acceptance = _Acceptance(draws, indices)
        if whole is None:
            whole = acceptance
        rows.append({"removed": float(1 - share), **acceptance.compared_with(whole)})
    return {"gamma": GAMMA, "clips": clips, "kept": rows}


def acceptance_compared(ranks: Mapping[str, Sequence[Ranks]], seed: int) -> Figures:
    """The acceptance of a draft that is shown different things.

    Returns:
        JSON values: `gamma`, `asked`, and in `shown` the figures of a row of `visual_dependence`
        for each name.
    """
    rows: dict[str, Figures] = {}
    whole: _Acceptance | None = None
    asked = len(next(iter(ranks.values())))
    indices = resamples(asked, seed)
    for name, row in ranks.items():
        acceptance = _Acceptance([row], indices)
        whole = whole or acceptance
        rows[name] = acceptance.compared_with(whole)
    return {"gamma": GAMMA, "asked": asked, "shown": rows}


class _Acceptance:
    """Acceptance of a draft that keeps one share of its visual tokens."""

    def __init__(self, draws: Sequence[Sequence[Ranks]], indices: NDArray[np.int64]) -> None:
        by_clip = list(zip(*draws, strict=True))
        self.hits = [_hits(clip) for clip in by_clip]
        self.draws = len(draws)
        tokens = [sum(len(row) for row in clip) for clip in self.hits]
        passes = [sum(len(rounds(row, GAMMA)) for row in clip) for clip in self.hits]
        self.length = sum(tokens) / max(1, sum(passes))
        self.lengths = resampled_ratios(tokens, passes, indices)

    def compared_with(self, whole: _Acceptance) -> Figures:
        """Figures as JSON values, compared with those for all visual tokens."""
        agreed = Share.of(hit for clip in self.hits for row in clip for hit in row)
        falls = 1 - self.lengths / np.maximum(whole.lengths, 1e-9)
        return {
            "draws": self.draws,
            "agreed": agreed.to_json(),
            "acceptance_length": self.length,
            "length_interval": central_interval(self.lengths),
            "fall": 1 - self.length / whole.length if whole.length else None,
            "fall_interval": central_interval(falls),
        }


def _hits(ranks: Sequence[Ranks]) -> list[list[bool]]:
    return [[rank == 1 for rank in row] for row in ranks]
