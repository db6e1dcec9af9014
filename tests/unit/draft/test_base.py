"""What all drafters share: no draft at all, and the choice of children."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from draftlens.core.proposal import Verdict
from draftlens.core.tree import EMPTY
from draftlens.draft import NoDraft, Rows
from draftlens.draft.base import Seen, draw_children
from draftlens.models.cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.ops.sampling import SamplingRule

NUMBERS, STEPS = torch.arange(2), torch.tensor([[0, 0, 0], [4, 4, 4]])
SCORES = torch.randn(2, 3, 9, generator=torch.Generator().manual_seed(0))


def nothing_seen() -> Seen:
    """For drafters that look at nothing of the target."""
    prompt = Prompt(
        torch.zeros(3, 4),
        torch.arange(4)[None],
        [4] * 3,
        torch.full((3, 1), 4),
        torch.zeros(3, 4),
        {},
    )
    return Seen(
        prompt, KVCache(1, 3, 4), None, lambda name: nullcontext(), lambda visual, kept: None
    )


def children(
    rule: SamplingRule, most: int, generator: torch.Generator | None = None
) -> torch.Tensor:
    return draw_children(rule, SCORES, most, NUMBERS, STEPS, generator or torch.Generator())


def test_no_draft_proposes_the_empty_tree() -> None:
    rows, drafter = Rows(torch.zeros(3, 4, dtype=torch.long), SamplingRule()), NoDraft()
    drafter.begin(rows, 5, nothing_seen())
    tree = drafter.propose(rows, 7)
    drafter.update(Verdict(((),) * 3, ((1,),) * 3), rows)
    assert (tree.topology, drafter.topology, drafter.forwards) == (EMPTY, EMPTY, 0)
    assert tree.tokens.shape == (3, 0)
    assert tree.tokens.dtype == torch.int64


def test_greedy_children_are_the_likeliest() -> None:
    assert torch.equal(children(SamplingRule(), 4), SCORES.argsort(-1, descending=True)[..., :4])
    assert torch.equal(children(SamplingRule(), 1), SCORES.argmax(-1, keepdim=True))


def test_coupled_children_are_the_likeliest_under_the_target_noise() -> None:
    rule = SamplingRule(do_sample=True, seed=3)
    ranking = rule.ranking(SCORES, NUMBERS, STEPS)
    assert torch.equal(children(rule, 4), ranking.argsort(-1, descending=True)[..., :4])
    assert torch.equal(children(rule, 1), ranking.argmax(-1, keepdim=True))


def test_only_rejection_draws_of_its_own() -> None:
    for rule, advances in (
        (SamplingRule(), False),
        (SamplingRule(do_sample=True), False),
        (REJECTION, True),
    ):
        generator = torch.Generator().manual_seed(1)
        before = generator.get_state()
        guesses = children(rule, 3, generator)
        assert bool((generator.get_state() != before).any()) is advances
        assert all(len(set(node)) == 3 for row in guesses.tolist() for node in row)


REJECTION = SamplingRule(do_sample=True, rule="rejection")
