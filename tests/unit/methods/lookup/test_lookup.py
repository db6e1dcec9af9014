"""The drafter that looks up texts: rows that join, leave and end."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from batches import batch_of, sequences
from families import FAMILIES

from draftlens.core.errors import ConfigError
from draftlens.core.references import NO_REFERENCES, References
from draftlens.core.sequence import Sequence
from draftlens.core.tree import EMPTY, DraftTree, Verdict, chain
from draftlens.decoding.plan import TargetContext
from draftlens.drafting.adaptive.costs import CostCurve, ForwardCosts
from draftlens.methods.base import Models, from_dict
from draftlens.methods.lookup.acceptance import DraftBudget
from draftlens.methods.lookup.drafter import LookupDrafter
from draftlens.methods.lookup.ngram_index import Vocabulary
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt

PAD = 0
PROMPTS = torch.tensor([[PAD, 5, 6, 7, 8], [1, 2, 3, 4, 1], [PAD, PAD, 50, 9, 50]])


def drafter(**options: Any) -> LookupDrafter:
    defaults: dict[str, Any] = {"length": 3, "branches": 2, "max_nodes": 6}
    return LookupDrafter(Vocabulary(60, frozenset({50})), **{**defaults, **options})


def context(prompt_ids: torch.Tensor, references: References = NO_REFERENCES) -> TargetContext:
    rows, width = prompt_ids.shape
    lengths = (prompt_ids != PAD).sum(1).tolist()
    empty = torch.zeros(rows, width)
    prompt = Prompt(empty, empty, lengths, empty, empty, {})
    return TargetContext(prompt, KVCache(1, rows, 1), extras={"references": references})


def joined(
    looks: LookupDrafter,
    prompt_ids: torch.Tensor,
    answers: Seq[Seq[int]],
    references: References = NO_REFERENCES,
) -> list[Sequence]:
    rows = sequences(prompt_ids, answers)
    looks.begin(batch_of(rows), looks.encode({}), context(prompt_ids, references))
    return rows


def draft_tokens(tree: DraftTree) -> list[list[int]]:
    """Of each row, fillers left out."""
    pairs = zip(tree.topologies, tree.tokens.tolist(), strict=True)
    return [tokens[: len(topology)] for topology, tokens in pairs]


def go_on(looks: LookupDrafter, rows: Seq[Sequence], said: Seq[Seq[int]]) -> None:
    """Emit tokens in every row."""
    for row, tokens in zip(rows, said, strict=True):
        row.tokens.extend(tokens)
    paths = tuple(() for _ in rows)
    looks.update(Verdict(paths, tuple(map(tuple, said))), batch_of(rows))


def test_rows_have_their_own_trees_and_last_tokens_as_fillers() -> None:
    looks = drafter()
    rows = joined(looks, PROMPTS, [[6], [1], [9]])
    tree = looks.propose(batch_of(rows), budget=10)
    assert draft_tokens(tree) == [[7, 8], [2, 3, 4], []]
    assert tree.topologies == (chain(2), chain(3), EMPTY)
    assert tree.tokens.tolist() == [[7, 8, 6], [2, 3, 4], [9, 9, 9]]
    assert tree.probs is None


def test_padding_is_no_part_of_a_prompt() -> None:
    looks = drafter()
    rows = joined(looks, PROMPTS, [[PAD], [2], [PAD]])
    assert draft_tokens(looks.propose(batch_of(rows), 10)) == [[], [3, 4, 1], []]


def test_the_budget_cuts_and_ended_rows_have_no_draft_tokens() -> None:
    looks = drafter()
    rows = joined(looks, PROMPTS, [[6], [1], [9]])
    assert draft_tokens(looks.propose(batch_of(rows), budget=1)) == [[7], [2], []]
    nothing = looks.propose(batch_of(rows), budget=0)
    assert nothing.topologies == (EMPTY,) * 3
    assert nothing.tokens.shape == (3, 0)
    rows[1].finished = True
    assert draft_tokens(looks.propose(batch_of(rows), budget=10)) == [[7, 8], [], []]


def test_an_answer_is_looked_up_too() -> None:
    looks = drafter(branches=1)
    rows = joined(looks, PROMPTS[:1], [[30, 31, 32]])
    assert draft_tokens(looks.propose(batch_of(rows), 10)) == [[]]
    go_on(looks, rows, [[40, 30]])
    assert draft_tokens(looks.propose(batch_of(rows), 10)) == [[31, 32, 40]]


def test_tokens_of_another_drafter_are_compared_and_followed() -> None:
    looks = drafter()
    rows = joined(looks, PROMPTS, [[6], [1], [9]])
    looks.propose(batch_of(rows), budget=10)
    for row, tokens in zip(rows, ([7, 30], [2, 3, 4], [31]), strict=True):
        row.tokens.extend(tokens)
    assert looks.read(batch_of(rows)) == (0.0, 0)  # nothing is expected without a budget
    assert draft_tokens(looks.propose(batch_of(rows), budget=10)) == [[], [1], []]


def test_what_a_proposal_was_expected_to_have_is_compared_with_what_it_had() -> None:
    """Each level counts if the one above it was right: two levels of the first row, one of the
    second, and none of a row without matches."""
    costs = ForwardCosts(CostCurve((1, 64), (1.0, 1.0)))
    looks = drafter(budget=DraftBudget(costs, nullcontext(), 6))
    rows = joined(looks, PROMPTS, [[6], [1], [9]])
    assert draft_tokens(looks.propose(batch_of(rows), budget=10)) == [[7, 8], [2, 3, 4], []]
    chances = [looks.rates.chance(agreement) for agreement in (1, 2)]
    for row, tokens in zip(rows, ([7, 30], [5, 6], [31, 32]), strict=True):
        row.tokens.extend(tokens)
    expected, matched = looks.read(batch_of(rows))
    assert matched == 1
    assert expected == pytest.approx(chances[0] + chances[1] + chances[0])


def test_rows_join_and_leave() -> None:
    looks = drafter()
    rows = joined(looks, PROMPTS[:1], [[6]])
    rows += joined(looks, PROMPTS[1:], [[1], [9]])
    assert draft_tokens(looks.propose(batch_of(rows), 10)) == [[7, 8], [2, 3, 4], []]
    looks.remove(0)
    rows = [rows[2], rows[1]]
    assert draft_tokens(looks.propose(batch_of(rows), 10)) == [[], [2, 3, 4]]
    go_on(looks, rows, [[7], [2, 3]])
    assert draft_tokens(looks.propose(batch_of(rows), 10)) == [[], [4, 1]]


def test_references_are_followed_from_their_beginning() -> None:
    looks = drafter(branches=1, length=1)
    references = References((((9, 1, 9, 2, 9, 3),), ((9, 50, 4),)))
    rows = joined(looks, PROMPTS[[0, 2]], [[9], [9]], references)
    assert draft_tokens(looks.propose(batch_of(rows), 10)) == [[1], []]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_ids_of_media_are_known_by_their_names(family: Any) -> None:
    """Placeholders at least; a configuration may name the marks around them, too."""
    backbone = Backbone.of(family.build())
    config = backbone.model.config
    names = ("image_token_id", "image_token_index", "video_token_id", "vision_start_token_id")
    named = {getattr(config, name) for name in names if getattr(config, name, None) is not None}
    assert named
    assert named <= backbone.pixel_ids


def test_what_the_method_plans() -> None:
    models = Models(Backbone.of(FAMILIES[0].build()))
    automatic: Any = from_dict({"method": "lookup"}).plan(models)
    assert automatic.drafter.budget is not None
    assert automatic.timed == (models.target,)
    assert automatic.drafter.max_nodes == 48
    fixed: Any = from_dict({"method": "lookup", "num_speculative_tokens": 6}).plan(models)
    assert fixed.drafter.budget is None
    assert fixed.timed == ()
    assert fixed.drafter.max_nodes == 24
    for plan in (automatic, fixed):
        assert not plan.uses_draft
        assert not plan.approximate


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window must be a whole number from 1 to 16, not 0"),
        ({"window": 17}, "window must be a whole number from 1 to 16, not 17"),
        ({"window": True}, "window must be a whole number from 1 to 16, not True"),
        ({"max_branches": 0}, "max_branches must be a whole number of at least 1, not 0"),
        (
            {"num_speculative_tokens": 2.5},
            "num_speculative_tokens must be a whole number of at least 1, not 2.5",
        ),
        ({"sampling_rule": "hope"}, "unknown sampling_rule 'hope'"),
        ({"schedule": "parallel"}, "is worth: its schedule is 'serial', not 'parallel'"),
        ({"prefill": "half"}, "unknown prefill 'half'"),
    ],
)
def test_senseless_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_dict({"method": "lookup", **options})
    assert message in str(error.value)


def test_rejection_has_a_length() -> None:
    """Otherwise the draft tokens would depend on measured times."""
    method: Any = from_dict({"method": "lookup", "sampling_rule": "rejection"})
    assert method.num_speculative_tokens == 5
