"""What the unmodified library answers, and drafts that agree with a model in part."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from families import FAMILIES, Family, inputs, tokenizer
from rotary import renewed
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

from draftlens.core.sampling import gumbel
from draftlens.core.tree import ROOT, Topology, cut

NEW = 13
"""New tokens: the one of prefill and 12 more, which chains of 1, 3 and 5 and a bonus token fill
without a rest."""

LONG = 25
"""The same with 24 more, for endings late in an answer, caches that grow and statistics."""

NEAR_TIE = 4e-5
"""Scores this close could fall either way: in float32, checking many tokens at once moves logits by
up to 1.5e-5."""

METHODS: Mapping[str, Any] = {
    "chain1": {"num_speculative_tokens": 1},
    "chain3": {"num_speculative_tokens": 3},
    "chain5": {"num_speculative_tokens": 5},
    "eagle": {"tree": "eagle"},
    "odd": {"tree": [[0], [1], [2], [1, 0], [1, 1], [2, 0], [1, 1, 0], [1, 1, 0, 0]]},
}
"""In the odd tree the likeliest draft token is a leaf and the longest path begins at the second
likeliest."""

ALL_KINDS = [(family, kind) for family in FAMILIES for kind in family.kinds]


def self_drafting(kv: str) -> dict[str, str]:
    """The method whose target drafts for itself, by the source of its keys and values: `gather`
    for those of the target's prefill, else as for `self-sd` of the laboratory."""
    if kv == "gather":
        return {"method": "specvlm", "draft": "self"}
    return {"method": "self-sd", "kv": kv}


@cache
def target(family: Family) -> Any:
    """The family's model."""
    return family.build()


def noisy(model: Any, amount: float = 0.05) -> Any:
    """A copy with noise on all weights: a draft that agrees in part."""
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in draft.parameters():
            if weight.ndim > 1:
                weight += torch.randn(weight.shape, generator=generator) * weight.std() * amount
    return draft


@cache
def draft(family: Family, kind: str = "noisy") -> Any:
    """A draft for the family's model: `random`, `self` or `noisy`."""
    if kind == "random":
        return family.build(seed=7)
    return target(family) if kind == "self" else noisy(target(family))


@cache
def reference(family: Family, kind: str, new: int = NEW) -> list[list[int]]:
    """The first tokens, at most `LONG`, of stock's answer to the kind's whole batch, which never
    ends by itself."""
    if new < LONG:
        return [row[:new] for row in reference(family, kind, LONG)]
    return stock(target(family), inputs(family, kind), max_new_tokens=LONG)


def stock(model: Any, given: Mapping[str, Any], **options: Any) -> list[list[int]]:
    """New tokens of each row by `model.generate`, up to and with its end-of-sequence token, without
    padding."""
    output = renewed(model).generate(
        **given, do_sample=False, return_dict_in_generate=True, output_scores=True, **options
    )
    rows = answers(model, given, output.sequences, **options)
    best = torch.stack(output.scores, 1).topk(2).values
    for gaps, row in zip(best[..., 0] - best[..., 1], rows, strict=True):
        assert gaps[: len(row)].min() > NEAR_TIE, "a near-tie: choose another prompt"
    return rows


def answers(
    model: Any, given: Mapping[str, Any], sequences: torch.Tensor, **options: Any
) -> list[list[int]]:
    """The rows of what `generate` returned, as `Result.tokens` has them."""
    config = options.get("generation_config") or model.generation_config
    eos = options.get("eos_token_id", config.eos_token_id)
    ends = set(eos if isinstance(eos, list) else [eos])
    return [trim(row, ends) for row in sequences[:, given["input_ids"].shape[1] :].tolist()]


def trim(row: list[int], ends: set[int | None]) -> list[int]:
    """A row of `generate` cut after its first end-of-sequence token, else before its padding."""
    for count, token in enumerate(row, start=1):
        if token in ends:
            return row[:count]
    while row and row[-1] == tokenizer().pad_token_id:
        row = row[:-1]
    return row


def staggered(rows: list[list[int]]) -> list[int]:
    """End-of-sequence ids that end two of three rows, early and late, and leave the third
    running, of rows of `LONG` tokens."""
    for first in rows[0][3:9] + rows[1][3:9] + rows[2][3:9]:
        for second in rows[0][11:20] + rows[1][11:20] + rows[2][11:20]:
            ends = [
                min((row.index(token) for token in (first, second) if token in row), default=LONG)
                for row in rows
            ]
            early, late, never = sorted(ends)
            if 2 < early < 10 < late < 22 < never == LONG:
                return [first, second]
    raise AssertionError("these rows have no such tokens")


def rounds(
    tree: Topology, ranks: list[list[int]], first: Sequence[int] | None = None, new: int = NEW
) -> Counter[int]:
    """How often how many draft tokens stand, if each round the draft says what it would say had it
    read the answer afresh.

    Args:
        tree: what the draft grows.
        ranks: per row and token of the answer, how many tokens the draft likes better there.
        first: how many tokens prefill yields in each row; one by default.
        new: tokens of each answer.
    """
    said, depths = list(first or [1] * len(ranks)), Counter[int]()
    while min(said) < new:
        room = new - min(said) - 1
        for row, done in enumerate(said):
            if done < new:
                accepted = reach(cut(tree, room), ranks[row][done:])
                depths[accepted] += 1
                said[row] = min(done + accepted + 1, new)
    return depths


def reach(tree: Topology, ranks: list[int]) -> int:
    """How deep a tree of a draft's best draft tokens goes along an answer whose tokens it ranks
    so."""
    node, depth = ROOT, 0
    while depth < len(ranks) and ranks[depth] < len(children := tree.children.get(node, ())):
        node, depth = children[ranks[depth]], depth + 1
    return depth


def ranks_of(logits: torch.Tensor, answer: torch.Tensor) -> list[list[int]]:
    """How many tokens have higher logits ``[B, T, V]`` than each of the answer's, int64 ``[B,
    T]``."""
    above = logits - logits.gather(2, answer[..., None])
    ranks = (above > 0).sum(-1)
    ties = ((above.abs() < NEAR_TIE).sum(-1) > 1) & (ranks < 5)
    assert not ties.any(), "a near-tie of the draft: choose another prompt"
    return [list(map(int, row)) for row in ranks]


class Divisible(StoppingCriteria):
    """Ends a row at its first token that 7 divides, from the third on."""

    def __init__(self, prompt_length: int, as_bool: bool = False) -> None:
        self.prompt_length, self.as_bool = prompt_length, as_bool

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        """One truth per row."""
        done = (input_ids[:, -1] % 7 == 0) & (input_ids.shape[1] >= self.prompt_length + 3)
        return bool(done.all()) if self.as_bool else done


class NoEcho(LogitsProcessor):
    """Forbids the ids next to the last four, and likes those next to the fifth last: five tokens of
    history count."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Change the scores in place, as careless processors do."""
        scores.scatter_(1, (input_ids[:, -4:] + 1) % scores.shape[1], -torch.inf)
        return scores.scatter_add_(
            1, (input_ids[:, -5:-4] + 2) % scores.shape[1], torch.full((len(scores), 1), 4.0)
        )


class Noise(LogitsProcessor):
    """Makes greedy decoding draw as the coupled rule does."""

    def __init__(self, length: int, seeds: list[int]) -> None:
        self.length, self.seeds = length, torch.tensor(seeds)[:, None]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        steps = torch.tensor(input_ids.shape[1] - self.length)
        return scores + gumbel(self.seeds, steps, scores.shape[1])[:, 0]
