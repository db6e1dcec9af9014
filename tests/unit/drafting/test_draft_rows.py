"""Rows join and leave a model with a cache: it ends up as one that only ever had the rest."""

from __future__ import annotations

import random

import pytest
import torch
from batches import batch_of, sequences
from families import FAMILIES, PLANS, Family, inputs
from stock import target

from draftlens.core.sequence import Sequence, replace_by_last, without_row
from draftlens.core.tree import EMPTY, Topology, Verdict, chain, from_paths
from draftlens.drafting.draft_prompt import DraftPrompt, DraftPromptBuilder, prefilled
from draftlens.drafting.draft_rows import DraftRows
from draftlens.drafting.model_drafter import ModelDrafter
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prompt

BY_NAME = {family.name: family for family in FAMILIES}
TREE = from_paths([[0], [1], [0, 0], [0, 1], [1, 0], [0, 1, 0]])
ROOM = 8
CPU = torch.device("cpu")


class Party:
    """Rows of a family's batch that join, draft and leave.

    Args:
        family: names the model.
        kind: of input.
        seed: of the random verdicts.
    """

    def __init__(self, family: Family, kind: str, seed: int) -> None:
        self.family = family
        self.kind = kind
        self.rng = random.Random(seed)
        self.backbone = Backbone.of(target(family))
        vocab = self.backbone.vocab_size
        self.drafter = ModelDrafter(DraftPromptBuilder(self.backbone), EMPTY, vocab)
        self.model = self.drafter.rows
        self.rows: list[Sequence] = []
        self.plan: list[int] = []
        """For each row its index in the family's plan."""

    def prompt(self, plan: list[int]) -> Prompt:
        given = inputs(self.family, self.kind, rows=plan)
        return self.backbone.encode(self.backbone.prepare_prompt(given))

    def join(self, *plan: int) -> None:
        prompt = self.prompt([*plan])
        answers = [[self.rng.randrange(3, 90)] for _ in plan]
        rows = sequences(torch.zeros(len(plan), 4, dtype=torch.long), answers)
        self.model.join(self.filled(prompt), batch_of(rows), ROOM)
        self.rows += rows
        self.plan += plan

    def filled(self, prompt: Prompt) -> DraftPrompt:
        return prefilled(self.backbone, prompt)

    def leave(self, row: int) -> None:
        self.model.remove(row)
        replace_by_last(self.rows, row)
        replace_by_last(self.plan, row)

    def round(self, topology: Topology) -> None:
        """Draft a tree and accept a random path of each row's."""
        batch = batch_of(self.rows)
        self.model.begin_round()
        paths, tokens = [], []
        tree = None
        if topology:
            tree = self.drafter._grow(topology, batch, self.drafter._catch_up(batch))
        for row in range(len(self.rows)):
            path: list[int] = []
            children = topology.children.get(-1, ())
            while children and self.rng.random() < 0.7:
                path.append(self.rng.choice(children))
                children = topology.children.get(path[-1], ())
            draft_tokens = [] if tree is None else tree.tokens[row, path].tolist()
            paths.append(tuple(path))
            tokens.append((*draft_tokens, self.rng.randrange(3, 90)))
            self.rows[row].tokens.extend(tokens[-1])
        self.model.keep(Verdict(tuple(paths), tuple(tokens)), batch_of(self.rows))

    def check(self) -> None:
        """Compare with a new model that reads these rows and their answers at once."""
        prompt, batch = self.prompt(self.plan), batch_of(self.rows)
        twin = DraftRows(self.backbone, self.backbone.vocab_size)
        longest = max(len(row.tokens) for row in self.rows)
        twin.join(self.filled(prompt), batch, longest + ROOM)
        assert self.model.prompt_lengths == twin.prompt_lengths == prompt.lengths
        for row, pending in zip(self.rows, self.model.pending, strict=True):
            assert pending == row.tokens[-len(pending) :]
        logits = []
        for model in (self.model, twin):
            pending = [list(tokens) for tokens in model.pending]
            model.begin_round()
            logits.append(model.last(model.catch_up(batch.steps(CPU))))
            assert model.cache is not None
            # As if the round had not been: what was forwarded is pending again.
            model.pending = pending
        assert torch.allclose(*logits, atol=1e-4)
        assert self.model.cache is not None
        assert twin.cache is not None
        assert self.model.cache.lengths == twin.cache.lengths
        for ours, theirs in zip(self.model.cache.layers, twin.cache.layers, strict=True):
            for row, length in enumerate(twin.cache.lengths):
                for name in ("keys", "values"):
                    states = getattr(ours, name)[row, :, :length]
                    assert torch.allclose(states, getattr(theirs, name)[row, :, :length], atol=1e-4)
        before = [
            length - len(tokens)
            for length, tokens in zip(self.model.cache.lengths, self.model.pending, strict=True)
        ]
        self.model.cache.truncate(before)


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl"])
@pytest.mark.parametrize("topology", [chain(3), TREE, EMPTY], ids=["chain", "tree", "empty"])
def test_rows_that_join_and_leave(name: str, topology: Topology) -> None:
    """Ragged prompts, positions on one axis and on three."""
    family = BY_NAME[name]
    party = Party(family, family.richest, seed=len(topology))
    party.join(0, 1)
    party.check()
    party.round(topology)
    party.check()
    party.join(2)  # longer or shorter than those before
    party.check()
    party.round(topology)
    party.check()
    party.leave(0)  # the last row takes its place
    assert party.plan == [2, 1]
    party.check()
    party.round(topology)
    party.join(1, 0)
    party.round(topology)
    party.check()
    party.leave(3)  # the last row itself
    party.leave(1)
    assert party.plan == [2, 1]
    party.round(topology)
    party.check()


@pytest.mark.parametrize("seed", range(4))
def test_any_order(seed: int) -> None:
    family = BY_NAME["llava"]
    party = Party(family, "text", seed)
    party.join(0)
    for _ in range(10):
        event = party.rng.random()
        if event < 0.3 and len(party.rows) < 5:
            party.join(*party.rng.sample(range(len(PLANS["text"])), party.rng.randint(1, 2)))
        elif event < 0.55 and len(party.rows) > 1:
            party.leave(party.rng.randrange(len(party.rows)))
        else:
            party.round(party.rng.choice([chain(2), TREE, EMPTY]))
        party.check()


def test_rows_join_after_all_have_left() -> None:
    party = Party(BY_NAME["llava"], "text", 0)
    party.join(0, 1)
    party.round(TREE)
    party.leave(0)
    party.leave(0)
    assert party.rows == []
    party.join(2)
    party.check()
    party.round(TREE)
    party.check()


@pytest.mark.parametrize("axes", [(), (3,)])
@pytest.mark.parametrize("row", [0, 1, 2])
def test_the_last_row_takes_the_place_of_one_that_leaves(axes: tuple[int, ...], row: int) -> None:
    table = torch.arange(3).expand(*axes, 3)[..., None]
    entries = [0, 1, 2]
    replace_by_last(entries, row)
    assert without_row(table, row).shape == (*axes, 2, 1)
    expected = torch.tensor(entries).expand(*axes, 2)[..., None]
    assert torch.equal(without_row(table, row), expected)
    assert table.flatten()[:3].tolist() == [0, 1, 2]


def test_a_row_that_has_ended_when_it_joins_widens_no_pass() -> None:
    """It is forwarded beside the others with its last token alone."""
    party = Party(BY_NAME["llava"], "images", seed=0)
    prompt = party.prompt([0, 1])
    rows = sequences(torch.zeros(2, 4, dtype=torch.long), [[5, 91], [7, 92]])
    rows[0].finished = True
    party.model.join(party.filled(prompt), batch_of(rows), ROOM)
    assert party.model.pending == [[91], [7, 92]]
