"""`tree="auto"`: whichever trees the clock makes it choose, and however often, the tokens are stock
`generate`'s.

The tuner is told the times of a made-up machine on which drafting and checking are cheap at times
and dear at others, so trees of many sizes get chosen, and now and then none at all.
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
"""A draft model that reads all or a half, or the target itself by any way to its keys and
values."""

STEP = (0.01, 0.2, 0.001, 0.05, 0.01, 0.2, 0.001, 50.0, 0.05)
"""Seconds of a draft step, round by round and again: they are dear when the tuner first chooses,
after eight rounds."""

NODE = (0.001, 0.05, 0.005, 0.02, 0.1)
"""Seconds for each guess that is checked, beside one for the check itself."""

ANSWERS = 3
"""Of each pair, one after the other: the tuner goes on with what it knows."""

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
every_guesser = pytest.mark.parametrize("guesser", GUESSERS)


class Heard:
    """The trees of a test, round by round: what the tuner chose, and what the target checked."""

    def __init__(self) -> None:
        self.chosen: list[Topology] = []
        self.checked: list[Topology] = []

    def assert_varied(self) -> None:
        """Every choice was checked, as far as there was room for it; they differ and none was one
        of them."""
        assert self.checked == [
            cut(tree, at.depth) for tree, at in zip(self.chosen, self.checked, strict=True)
        ]
        assert EMPTY in self.chosen
        assert len(set(self.chosen)) >= 8
        changes = [one != other for one, other in zip(self.chosen, self.chosen[1:], strict=False)]
        assert sum(changes) >= 10


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """Tuners that know nothing yet, soon change their minds and are told made-up times."""
    trees, choose, drafted, judged = Heard(), TreeTuner.tree, TreeTuner.drafted, TreeTuner.judged
    check = Session.check

    def chosen(self: TreeTuner) -> Topology:
        trees.chosen.append(choose(self))
        return trees.chosen[-1]

    def grown(self: TreeTuner, topology: Topology, seconds: float) -> None:
        drafted(self, topology, STEP[(len(trees.chosen) - 1) % len(STEP)] * topology.depth)

    def told(
        self: TreeTuner, topology: Topology, paths: Sequence[Sequence[int]], seconds: float
    ) -> None:
        judged(self, topology, paths, 1 + NODE[self.rounds % len(NODE)] * len(topology))

    def checked(self: Session, tree: DraftTree) -> Verdict:
        trees.checked.append(tree.topology)
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
    for name, method in {"tree": chosen, "drafted": grown, "judged": told}.items():
        monkeypatch.setattr(TreeTuner, name, method)
    monkeypatch.setattr(Session, "check", checked)
    return trees


def open_stream(
    family: Family, guesser: str, more: Mapping[str, Any] | None = None, **given: Any
) -> draftlens.Stream:
    """A call of the library for a ragged batch: further fields of the method, and options of
    `generate`."""
    small = draft(family) if guesser in ("speculative", "specvlm") else None
    chosen = {**GUESSERS[guesser], "tree": "auto", **(more or {})}
    options = {"max_new_tokens": NEW, **given}
    return draftlens.stream(
        target(family), inputs(family, family.richest), draft=small, method=chosen, **options
    )


@every_family
@every_guesser
def test_greedy(family: Family, guesser: str, heard: Heard) -> None:
    """Answer after answer."""
    for _ in range(ANSWERS):
        result = open_stream(family, guesser).run()
        assert result.tokens == reference(family, family.richest)
        assert result.lossless
        assert 0 < result.stats.accepted < result.stats.drafted
    heard.assert_varied()


@every_family
def test_coupled_sampling(family: Family, heard: Heard) -> None:
    """The tokens of plain sampling with the same seed; the guessers take turns."""
    options = {
        "do_sample": True,
        "seed": 17,
        "top_k": 40,
        "repetition_penalty": 1.1,
        "max_new_tokens": NEW,
    }
    plain = draftlens.generate(target(family), inputs(family, family.richest), **options)
    assert len({tuple(row) for row in plain.tokens}) == len(plain.tokens)
    heard.checked.clear()
    guesser = list(GUESSERS)[FAMILIES.index(family) % len(GUESSERS)]
    for _ in range(ANSWERS):
        result = open_stream(family, guesser, **options).run()
        assert result.tokens == plain.tokens
        assert 0 < result.stats.accepted < result.stats.drafted
    heard.assert_varied()


@every_family
def test_a_model_that_drafts_for_itself_and_sees_all_is_always_right(
    family: Family, heard: Heard
) -> None:
    """Every level of every tree is accepted, also after rounds in which nothing was drafted."""
    guesser = ("prefill", "gather", "sparse")[FAMILIES.index(family) % 3]
    for _ in range(ANSWERS):
        result = open_stream(family, guesser, {"prune_ratio": 0}).run()
        assert result.tokens == reference(family, family.richest)
        rows = result.stats.first
        assert result.stats.accepted == rows * sum(tree.depth for tree in heard.checked)
        heard.checked.clear()
    off = heard.chosen.index(EMPTY)
    assert any(heard.chosen[off:])


@pytest.mark.parametrize("name", ["llava_onevision", "qwen3_vl", "internvl"])
@pytest.mark.parametrize("guesser", ["speculative", "prefill"])
def test_rows_end_at_different_times(name: str, guesser: str, heard: Heard) -> None:
    """One row ends early, one late, one never; a draft that waits has nothing to catch up on for
    those that ended."""
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
                waiting = zip(drafter.pending, stream.session.rows.finished, strict=True)
                assert all(len(tokens) == 1 for tokens, ended in waiting if ended)
        assert stream.result.tokens == expected
    heard.assert_varied()
