"""What all drafters share: no draft at all, and the choice of children."""

from __future__ import annotations

import torch
from batches import batch_of, sequences

from draftlens.core.sampling import SamplingRule, row_seeds
from draftlens.core.tree import EMPTY, Verdict
from draftlens.decoding.plan import DRAFT_NOISE, NoDraft, TargetContext, draw_children
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt

STEPS = torch.tensor([[0, 0, 0], [4, 4, 4]])
SCORES = torch.randn(2, 3, 9, generator=torch.Generator().manual_seed(0))


def nothing_seen() -> TargetContext:
    """For drafters that look at nothing of the target."""
    prompt = Prompt(
        torch.zeros(3, 4),
        torch.arange(4)[None],
        [4] * 3,
        torch.full((3, 1), 4),
        torch.zeros(3, 4),
        {},
    )
    return TargetContext(prompt, KVCache(1, 3, 4), room=5)


def children(rule: SamplingRule, most: int, seed: int = 0) -> torch.Tensor:
    batch = batch_of(sequences(torch.zeros(2, 4, dtype=torch.long), [[0], [0]], rule, seed))
    return draw_children(batch, SCORES, most, STEPS)


def test_no_draft_proposes_the_empty_tree() -> None:
    batch = batch_of(sequences(torch.zeros(3, 4, dtype=torch.long), [[], [], []]))
    drafter = NoDraft()
    drafter.begin(batch, drafter.encode({}), nothing_seen())
    tree = drafter.propose(batch, 7)
    drafter.update(Verdict(((),) * 3, ((1,),) * 3), batch)
    assert (tree.topologies, drafter.max_nodes, drafter.forwards) == ((EMPTY,) * 3, 0, 0)
    assert tree.tokens.shape == (3, 0)
    assert tree.tokens.dtype == torch.int64


def test_greedy_children_are_the_likeliest() -> None:
    assert torch.equal(children(SamplingRule(), 4), SCORES.argsort(-1, descending=True)[..., :4])
    assert torch.equal(children(SamplingRule(), 1), SCORES.argmax(-1, keepdim=True))


def test_coupled_children_are_the_likeliest_under_the_target_noise() -> None:
    rule = SamplingRule(do_sample=True)
    ranking = rule.ranking(SCORES, torch.tensor(row_seeds(3, 2)), STEPS)
    likeliest = ranking.argsort(-1, descending=True)
    assert torch.equal(children(rule, 4, seed=3), likeliest[..., :4])
    assert torch.equal(children(rule, 1, seed=3), ranking.argmax(-1, keepdim=True))


REJECTION = SamplingRule(do_sample=True, acceptance="rejection")


def test_only_rejection_draws_of_its_own() -> None:
    """With noise that is a function of the same key, but is not the target's."""
    seeds = torch.tensor(row_seeds(1, 2))
    for rule, is_own in (
        (SamplingRule(), False),
        (SamplingRule(do_sample=True), False),
        (REJECTION, True),
    ):
        draft_tokens = children(rule, 3, seed=1)
        assert torch.equal(draft_tokens, children(rule, 3, seed=1))
        targets = rule.ranking(SCORES, seeds, STEPS).topk(3).indices
        assert torch.equal(draft_tokens, targets) is not is_own
        assert all(len(set(node)) == 3 for row in draft_tokens.tolist() for node in row)
    own = REJECTION.ranking(SCORES, seeds ^ DRAFT_NOISE, STEPS)
    assert torch.equal(children(REJECTION, 3, seed=1), own.topk(3).indices)
