"""With `tree="auto"` the tokens are those of stock `generate`, whatever trees the timings choose.

The tuner receives the timings of a simulated machine, on which drafting and verifying are sometimes
cheap and sometimes expensive. So it chooses trees of many sizes, and sometimes the empty tree.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from families import FAMILIES, Family, inputs
from stock import NEW, draft, reference, staggered, stock, target

import draftlens
from draftlens.core.proposal import DraftTree, Verdict
from draftlens.core.tree import EMPTY, Topology, cut
from draftlens.decode.session import Session
from draftlens.draft import tuner
from draftlens.draft.tuner import TreeTuner

HALF = {"method": "specvlm", "prune_ratio": 0.5}
GUESSERS: dict[str, dict[str, Any]] = {
    "speculative": {"method": "speculative"},
    "specvlm": {**HALF, "draft": "model"},
    **{kv: {**HALF, "draft": "self", "kv": kv} for kv in ("prefill", "gather", "sparse")},
}
"""A draft model that reads all tokens or half of them, or the target itself with each source of
keys and values."""

STEP = (0.01, 0.2, 0.001, 0.05, 0.01, 0.2, 0.001, 50.0, 0.05)
"""Seconds of a draft step, one for each round in turn. Drafting is expensive when the tuner first
chooses, after eight rounds."""

NODE = (0.001, 0.05, 0.005, 0.02, 0.1)
"""Seconds for each verified draft token, in addition to one for each verification."""

ANSWERS = 3
"""Answers of each pair, one after the other; the tuner keeps its measurements."""

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
every_guesser = pytest.mark.parametrize("guesser", GUESSERS)


class RecordedTrees:
    """The trees of a test by round: those that the tuner chose and those that were checked."""

    def __init__(self) -> None:
        self.chosen: list[Topology] = []
        self.checked: list[Topology] = []

    def assert_varied(self) -> None:
        """Every chosen tree was checked, cut to the room for it; the trees differ and one of them
        is empty."""
        assert self.checked == [
            cut(tree, at.depth) for tree, at in zip(self.chosen, self.checked, strict=True)
        ]
        assert EMPTY in self.chosen
        assert len(set(self.chosen)) >= 8
        changes = [one != other for one, other in zip(self.chosen, self.chosen[1:], strict=False)]
        assert sum(changes) >= 10


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> RecordedTrees:
    """Tuners without measurements, with short intervals and simulated timings."""
    trees = RecordedTrees()
    choose, drafted, judged = TreeTuner.tree, TreeTuner.drafted, TreeTuner.judged
    check = Session.check

    def choose_tree(self: TreeTuner) -> Topology:
        trees.chosen.append(choose(self))
        return trees.chosen[-1]

    def record_draft(self: TreeTuner, topology: Topology, seconds: float) -> None:
        drafted(self, topology, STEP[(len(trees.chosen) - 1) % len(STEP)] * topology.depth)

    def record_check(
        self: TreeTuner, topology: Topology, paths: Sequence[Sequence[int]], seconds: float
    ) -> None:
        judged(self, topology, paths, 1 + NODE[self.rounds % len(NODE)] * len(topology))

    def check_tree(self: Session, tree: DraftTree) -> Verdict:
        trees.checked.append(tree.topologies[0])
        return check(self, tree)

    monkeypatch.setattr(tuner, "_RECORDS", weakref.WeakKeyDictionary())
    constants = {
        "TIMING_WINDOW": 1,
        "REPLAN_EVERY": 2,
        "EXPLORE_EVERY": 2,
        "MAX_BACKOFF": 5,
        "MIN_GAIN": 0,
    }
    for name, value in constants.items():
        monkeypatch.setattr(tuner, name, value)
    for name, method in {
        "tree": choose_tree,
        "drafted": record_draft,
        "judged": record_check,
    }.items():
        monkeypatch.setattr(TreeTuner, name, method)
    monkeypatch.setattr(Session, "check", check_tree)
    return trees


def open_stream(
    family: Family, guesser: str, more: Mapping[str, Any] | None = None, **options: Any
) -> draftlens.Stream:
    """A call of the library for a ragged batch.

    Args:
        more: further fields of the method.
        options: options of `generate`.
    """
    small = draft(family) if guesser in ("speculative", "specvlm") else None
    method = {**GUESSERS[guesser], "tree": "auto", **(more or {})}
    options = {"max_new_tokens": NEW, **options}
    return draftlens.stream(
        target(family), inputs(family, family.richest), draft=small, method=method, **options
    )


@every_family
@every_guesser
def test_greedy(family: Family, guesser: str, recorded: RecordedTrees) -> None:
    """All answers, one after the other, are exact."""
    for _ in range(ANSWERS):
        result = open_stream(family, guesser).run()
        assert result.tokens == reference(family, family.richest)
        assert result.lossless
        assert 0 < result.stats.accepted < result.stats.drafted
    recorded.assert_varied()


@every_family
def test_coupled_sampling(family: Family, recorded: RecordedTrees) -> None:
    """The tokens are those of plain sampling with the same seed; guessers alternate."""
    options = {
        "do_sample": True,
        "seed": 17,
        "top_k": 40,
        "repetition_penalty": 1.1,
        "max_new_tokens": NEW,
    }
    plain = draftlens.generate(target(family), inputs(family, family.richest), **options)
    assert len({tuple(row) for row in plain.tokens}) == len(plain.tokens)
    recorded.checked.clear()
    guesser = list(GUESSERS)[FAMILIES.index(family) % len(GUESSERS)]
    for _ in range(ANSWERS):
        result = open_stream(family, guesser, **options).run()
        assert result.tokens == plain.tokens
        assert 0 < result.stats.accepted < result.stats.drafted
    recorded.assert_varied()


@every_family
def test_a_model_that_drafts_for_itself_from_all_tokens_is_always_right(
    family: Family, recorded: RecordedTrees
) -> None:
    """Every level of every tree is accepted, also after rounds without a draft."""
    guesser = ("prefill", "gather", "sparse")[FAMILIES.index(family) % 3]
    for _ in range(ANSWERS):
        result = open_stream(family, guesser, {"prune_ratio": 0}).run()
        assert result.tokens == reference(family, family.richest)
        rows = result.stats.first
        assert result.stats.accepted == rows * sum(tree.depth for tree in recorded.checked)
        recorded.checked.clear()
    off = recorded.chosen.index(EMPTY)
    assert any(recorded.chosen[off:])


@pytest.mark.parametrize("name", ["llava_onevision", "qwen3_vl", "internvl"])
@pytest.mark.parametrize("guesser", ["speculative", "prefill"])
def test_rows_end_at_different_times(name: str, guesser: str, recorded: RecordedTrees) -> None:
    """One row ends early, one late and one never. A paused draft has no pending tokens for rows
    that have ended."""
    family = next(family for family in FAMILIES if family.name == name)
    eos = staggered(reference(family, family.richest))
    expected = stock(
        target(family), inputs(family, family.richest), max_new_tokens=NEW, eos_token_id=eos
    )
    for _ in range(ANSWERS):
        stream = open_stream(family, guesser, eos_token_id=eos)
        drafter: Any = stream.session.drafter
        for _ in stream:
            if stream.session.stats.passes and not stream.session.done:
                rows = zip(drafter.model.pending, stream.session.sequences, strict=True)
                assert all(len(tokens) == 1 for tokens, row in rows if row.finished)
        assert stream.result.tokens == expected
    recorded.assert_varied()
