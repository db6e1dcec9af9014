"""Several views in one cache are what several models would be, each with a view of its own."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from batches import batch_of, sequences
from families import FAMILIES, PLANS, Family, inputs
from stock import target
from torch import Tensor

from draftlens.core.sequence import Batch, Sequence, replace_by_last
from draftlens.core.tree import EMPTY, Topology, Verdict, chain, from_paths
from draftlens.drafting.draft_prompt import DraftPrompt, prefilled
from draftlens.drafting.draft_rows import DraftRows, levels
from draftlens.methods.tabed.view_rows import ViewRows
from draftlens.methods.tabed.views import pool
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt

BY_NAME = {family.name: family for family in FAMILIES}
TREE = from_paths([[0], [1], [0, 0], [0, 1], [1, 0], [0, 1, 0]])
TREES = (chain(1), chain(3), TREE, EMPTY)
NUM_VIEWS = 3
ROOM = 80
CPU = torch.device("cpu")


def read_into(twin: DraftRows, draft: DraftPrompt, batch: Batch) -> Tensor:
    """Let rows join a model of one view; the logits of its prefill."""
    logits = twin.join(draft, batch, ROOM)
    assert logits is not None
    return logits


class Party:
    """Rows that join, draft and leave a packed model, and one twin for each view.

    Args:
        name: of a family.
        kind: of input.
        seed: of the script.
    """

    def __init__(self, name: str, kind: str, seed: int) -> None:
        self.family: Family = BY_NAME[name]
        self.kind = kind
        self.rng = random.Random(seed)
        self.backbone = Backbone.of(target(self.family))
        vocab = self.backbone.vocab_size
        self.packed = ViewRows(self.backbone, vocab)
        self.twins = [DraftRows(self.backbone, vocab) for _ in range(NUM_VIEWS)]
        self.rows: list[Sequence] = []
        self.plan: list[int] = []

    def prompts(self, plan: list[int]) -> list[Prompt]:
        """Everything, means of it, and other words."""
        whole = self.encoded(self.kind, plan)
        return [whole, pool(whole), self.encoded("text", plan)]

    def encoded(self, kind: str, plan: list[int]) -> Prompt:
        given = inputs(self.family, kind, rows=plan)
        return self.backbone.encode(self.backbone.prepare_prompt(given))

    def join(self, *plan: int, finished: bool = False, lacks: int = 0) -> None:
        """Rows join; the first of them lacks the view `lacks` unless that is 0."""
        prompts = self.prompts([*plan])
        answers = [[self.token() for _ in range(self.rng.randint(1, 2))] for _ in plan]
        rows = sequences(torch.zeros(len(plan), 4, dtype=torch.long), answers)
        rows[-1].finished = finished
        batch = batch_of(rows)
        drafts = [prefilled(self.backbone, prompt) for prompt in prompts]
        present = [[True] * NUM_VIEWS for _ in plan]
        present[0][lacks] = lacks == 0
        all_logits = self.packed.join_views(drafts, [tuple(row) for row in present], batch, ROOM)
        for view, twin in enumerate(self.twins):
            alone = read_into(twin, drafts[view], batch)
            logits = all_logits[view]
            if logits is None:
                assert not any(row[view] for row in present)
            else:
                assert torch.allclose(logits, alone, atol=1e-4)
        self.rows += rows
        self.plan += plan
        had = {view for row in self.packed.present for view in range(NUM_VIEWS) if row[view]}
        assert self.packed.awake == tuple(sorted(had))

    def token(self) -> int:
        return self.rng.randrange(3, 90)

    def leave(self, row: int) -> None:
        for model in (self.packed, *self.twins):
            model.remove(row)
        replace_by_last(self.rows, row)
        replace_by_last(self.plan, row)

    def round(self, topology: Topology, ends: bool = False) -> None:
        """Draft a tree of random tokens, accept a random path of each row's, and end a row."""
        pending = [list(tokens) for tokens in self.packed.pending]
        forwards = self.packed.forwards
        for model in (self.packed, *self.twins):
            model.begin_round()
        tokens = torch.randint(3, 90, (len(self.rows), len(topology)))
        if topology:
            self.catch_up(pending)
            self.grow(topology, tokens)
        depths_expanded = [level for level in levels(topology) if level.expanded]
        assert self.packed.forwards == forwards + (len(depths_expanded) + 1 if topology else 0)
        verdict = self.verdict(topology, tokens)
        for row, emitted in zip(self.rows, verdict.tokens, strict=True):
            if not row.finished:
                row.tokens.extend(emitted)
        if ends:
            self.rng.choice(self.rows).finished = True
        for model in (self.packed, *self.twins):
            model.keep(verdict, batch_of(self.rows))
        for view in self.packed.awake:
            assert self.packed.pending == self.twins[view].pending

    def catch_up(self, pending: list[list[int]]) -> None:
        steps = batch_of(self.rows).steps(CPU)
        logits = self.packed.catch_up(steps)
        last = torch.tensor([len(tokens) - 1 for tokens in pending])
        for slot, view in enumerate(self.packed.awake):
            twin = self.twins[view]
            expected = twin.last(twin.catch_up(steps))
            found = logits[torch.arange(len(last)), slot, last][:, None]
            self.compare(view, found, expected)
        assert self.packed.widths == [logits.shape[2] * len(self.rows) * len(self.packed.awake)]
        for view in set(range(NUM_VIEWS)) - set(self.packed.awake):
            self.twins[view].catch_up(steps)

    def grow(self, topology: Topology, tokens: torch.Tensor) -> None:
        steps = batch_of(self.rows).steps(CPU)
        for depth, level in enumerate(levels(topology)):
            if level.expanded:
                nodes = [level.nodes.start + node for node in level.expanded]
                draft_tokens = tokens[:, nodes]
                logits = self.packed.expand(draft_tokens, steps + depth, level)
                expected = [twin.expand(draft_tokens, steps + depth, level) for twin in self.twins]
                for slot, view in enumerate(self.packed.awake):
                    self.compare(view, logits[:, slot], expected[view])

    def compare(self, view: int, logits: torch.Tensor, expected: torch.Tensor) -> None:
        for row, has_view in enumerate(self.packed.present):
            if has_view[view]:
                assert torch.allclose(logits[row], expected[row], atol=1e-4)

    def verdict(self, topology: Topology, tokens: torch.Tensor) -> Verdict:
        """A random path of each row's; of one that has ended, nothing is kept."""
        paths = []
        emitted = []
        for row in range(len(self.rows)):
            path: list[int] = []
            children = topology.children.get(-1, ())
            while children and self.rng.random() < 0.7:
                path.append(self.rng.choice(children))
                children = topology.children.get(path[-1], ())
            paths.append(tuple(path))
            emitted.append((*tokens[row, path].tolist(), self.token()))
        return Verdict(tuple(paths), tuple(emitted))

    def drop(self) -> None:
        view = self.rng.choice(self.packed.awake)
        others = [other for other in self.packed.awake if other != view]
        if all(any(has[other] for other in others) for has in self.packed.present):
            self.packed.drop(view)

    def check(self) -> None:
        """Every view holds the keys and values that its twin holds, and nothing else."""
        assert self.packed.cache is not None
        owners = self.packed._owners
        assert len(owners) == len(self.rows) == len(self.packed.lengths)
        for row, length in enumerate(self.packed.lengths):
            named = owners[row, :length]
            assert set(named.tolist()) <= set(self.packed.awake)
            assert bool((owners[row, length:] == -1).all())
            for view in self.packed.awake:
                if self.packed.present[row][view]:
                    slots = (named == view).nonzero()[:, 0]
                    self.check_slots(view, row, self.packed.cache, slots)
        assert self.packed.nbytes <= 1.1 * sum(twin.nbytes for twin in self.twins)

    def check_slots(self, view: int, row: int, cache: KVCache, slots: torch.Tensor) -> None:
        twin = self.twins[view].cache
        assert twin is not None
        assert len(slots) == twin.lengths[row]
        for ours, theirs in zip(cache.layers, twin.layers, strict=True):
            for name in ("keys", "values"):
                held = getattr(ours, name)[row][:, slots]
                expected = getattr(theirs, name)[row, :, : len(slots)]
                assert torch.allclose(held, expected, atol=1e-4)


@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "qwen3_vl"])
def test_every_view_is_a_model_of_its_own(name: str) -> None:
    """Plain positions, positions on three axes, and features that enter deeper layers."""
    party = Party(name, BY_NAME[name].richest, seed=1)
    party.join(0, 1)
    party.check()
    for topology in (chain(3), TREE, EMPTY):
        party.round(topology)
        party.check()
    party.join(2, lacks=1)
    party.round(TREE)
    party.packed.drop(2)
    party.check()
    party.round(TREE)
    party.check()
    party.leave(0)
    party.round(chain(2))
    party.join(0)
    party.check()
    party.round(TREE)
    party.check()


@pytest.mark.parametrize("seed", range(6))
def test_any_order(seed: int) -> None:
    party = Party(["llava", "qwen2_vl"][seed % 2], "image", seed)
    party.join(0)
    for _ in range(14):
        event = party.rng.random()
        if event < 0.15 and len(party.rows) < 4:
            rows = party.rng.sample(range(len(PLANS["image"])), party.rng.randint(1, 2))
            party.join(*rows, finished=party.rng.random() < 0.1, lacks=party.rng.choice([0, 1, 2]))
        elif event < 0.25 and len(party.rows) > 1:
            party.leave(party.rng.randrange(len(party.rows)))
        elif event < 0.4 and len(party.packed.awake) > 1:
            party.drop()
        else:
            party.round(party.rng.choice(TREES), ends=party.rng.random() < 0.1)
        party.check()
    party.round(TREE)
    party.check()


def test_rows_join_after_all_have_left() -> None:
    """After a view was dropped."""
    party = Party("llava", "image", 0)
    party.join(0, 1)
    party.round(TREE)
    party.packed.drop(1)
    party.round(TREE)
    party.leave(0)
    party.leave(0)
    party.join(2, 0)
    party.check()
    party.round(TREE)
    party.check()


def test_a_row_may_lack_the_first_view() -> None:
    """As rows do that join when a view can no longer be read."""
    party = Party("llava", "image", 3)
    party.join(0)
    prompts = party.prompts([1])
    rows = sequences(torch.zeros(1, 4, dtype=torch.long), [[5]])
    drafts = [prefilled(party.backbone, prompt) for prompt in prompts]
    drafts[0] = drafts[1]  # which stands in for the view that is not there
    party.packed.join_views(drafts, [(False, True, True)], batch_of(rows), ROOM)
    for twin, draft in zip(party.twins, drafts, strict=True):
        twin.join(draft, batch_of(rows), ROOM)
    party.rows += rows
    party.plan.append(1)
    party.check()
    held = sum(draft.prompt.lengths[0] for draft in drafts[1:])
    assert party.packed.lengths[1] == held
    for _ in range(3):
        party.round(TREE)
        party.check()


def test_a_view_that_the_model_does_not_compute_has_no_logits() -> None:
    party = Party("llava", "image", 3)
    prompts = party.prompts([0])
    rows = sequences(torch.zeros(1, 4, dtype=torch.long), [[5]])

    def fill(cache: KVCache) -> Any:
        party.backbone.prefill(prompts[0], cache)

    drafts = [DraftPrompt(prompts[0], fill), *(prefilled(party.backbone, p) for p in prompts[1:])]
    logits = party.packed.join_views(drafts, [(True,) * NUM_VIEWS], batch_of(rows), ROOM)
    assert [values is None for values in logits] == [True, False, False]


@pytest.mark.parametrize("drops", [False, True])
def test_memory_is_that_of_the_views_one_by_one(drops: bool) -> None:
    party = Party("llava", "images", 5)
    party.join(0, 1, 2)
    party.round(TREE)
    if drops:
        party.packed.drop(0)
        party.check()
        party.round(TREE)
        party.packed.drop(1)
    party.check()
    for _ in range(12):
        party.round(chain(3))
        party.check()
