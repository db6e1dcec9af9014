"""Tier 1 of the exactness matrix: the rules themselves, against slow walks and enumerated
distributions.

A table stands in for the transformer (`tables.py`): its logits after any history are random but
fixed. So the distribution of an answer can be written down, and what the real loop emits (sessions,
drafter, cache and masks included) is compared with it. Wrong rules, made on purpose, must fail the
same comparison: the test has power.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from random_trees import random_tree
from scipy import stats
from tables import (
    DRAFTS,
    IMPOSSIBLE,
    LENGTH,
    LIKELY,
    PROMPT,
    ROWS,
    TARGET,
    VOCAB,
    WARPERS,
    answers,
    fit,
    p_value,
    speak,
)
from torch import Tensor

from draftlens.core import verify
from draftlens.core.references import References
from draftlens.core.sampling import SamplingRule, row_seeds
from draftlens.core.sequence import Batch, StoppingRules, sequences_of
from draftlens.core.tree import (
    EAGLE_PATHS,
    EMPTY,
    ROOT,
    DraftTree,
    NextProposal,
    Topology,
    Verdict,
    chain,
    from_paths,
)
from draftlens.core.verify import match, reject
from draftlens.decoding import plan as acceptance
from draftlens.decoding.plan import draw_children

TREE = from_paths([[0], [1], [2], [3], [0, 0], [0, 1], [0, 2], [1, 0], [1, 1]])


# --- greedy and coupled: the walk ----------------------------------------------------------------


def slow_walk(
    topology: Topology, choices: Sequence[int], tokens: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Path and emitted tokens; `choices` has the root's first."""
    path: list[int] = []
    emitted = [choices[0]]
    for node, (parent, token) in enumerate(zip(topology.parents, tokens, strict=True)):
        if parent == (path[-1] if path else ROOT) and token == emitted[-1]:
            path.append(node)
            emitted.append(choices[node + 1])
    return path, emitted


@pytest.mark.parametrize("kind", ["chain", "eagle", "random"])
def test_match_equals_the_slow_walk(kind: str) -> None:
    rng = random.Random(kind)
    torch.manual_seed(7)
    lengths = set()
    for _ in range(60):
        topology = {
            "chain": lambda: chain(rng.randint(0, 8)),
            "eagle": lambda: from_paths(EAGLE_PATHS),
            "random": lambda: random_tree(rng),
        }[kind]()
        ranking = torch.randn(4, len(topology) + 1, 3)
        tokens = torch.randint(0, 3, (4, len(topology)))
        verdict = match(DraftTree.uniform(topology, tokens), ranking)
        for row in range(4):
            path, emitted = slow_walk(
                topology, ranking[row].argmax(-1).tolist(), tokens[row].tolist()
            )
            assert torch.equal(torch.tensor(verdict.paths[row]), torch.tensor(path))
            assert torch.equal(torch.tensor(verdict.tokens[row]), torch.tensor(emitted))
            lengths.add(len(path))
    assert len(lengths) >= 4  # the comparison saw short and long paths


# --- one node, many rows: the rules' own claims --------------------------------------------------


def draw(q: Tensor, most: int, rule: SamplingRule, seed: int) -> DraftTree:
    """`most` siblings drawn from q ``[V]`` in each of ROWS rows."""
    scores = q.log().expand(ROWS, 1, -1)
    steps = torch.zeros(ROWS, 1, dtype=torch.long)
    tokens = draw_children(batch_of(rule, seed), scores, most, steps)
    return DraftTree.uniform(Topology((ROOT,) * most), tokens[:, 0], q.expand(ROWS, 1, -1))


def batch_of(rule: SamplingRule, seed: int) -> Batch:
    """ROWS rows that have said nothing."""
    stopping = StoppingRules([], PROMPT.shape[1], ROWS)
    rows = sequences_of(PROMPT, rule, stopping, row_seeds(seed, ROWS))
    return Batch(tuple(row.history for row in rows))


def judge(p: Tensor, tree: DraftTree, seed: int) -> Verdict:
    scores = p.log().expand(ROWS, tree.num_nodes + 1, -1)
    return reject(tree, scores, [torch.Generator().manual_seed(seed)] * ROWS)


DISTRIBUTIONS = {
    "equal": ([0.4, 0.3, 0.15, 0.1, 0.05, 0.0], [0.4, 0.3, 0.15, 0.1, 0.05, 0.0]),
    "far": ([0.4, 0.3, 0.15, 0.1, 0.05, 0.0], [0.02, 0.03, 0.1, 0.1, 0.25, 0.5]),
    "disjoint": ([0.5, 0.5, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.1, 0.2, 0.3, 0.4]),
    "narrow": ([0.3, 0.2, 0.2, 0.1, 0.1, 0.1], [0.0, 0.9, 0.0, 0.1, 0.0, 0.0]),
    "certain": ([0.3, 0.2, 0.2, 0.1, 0.1, 0.1], [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]),
    "smaller": ([0.3, 0.2, 0.2, 0.1, 0.1, 0.1], [0.1, 0.4, 0.4, 0.1]),
}
REJECTION = SamplingRule(do_sample=True, acceptance="rejection")


@pytest.mark.parametrize("most", [1, 2, 4])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_siblings_leave_the_target_distribution_as_it_is(name: str, most: int) -> None:
    p, q = (torch.tensor(values, dtype=torch.float64) for values in DISTRIBUTIONS[name])
    tree = draw(q, most, REJECTION, seed=1)
    verdict = judge(p, tree, seed=2)
    assert p_value(torch.tensor([tokens[0] for tokens in verdict.tokens]), p) > LIKELY
    if (
        most == 1
    ):  # Leviathan et al. 2023: a draft token is accepted with probability sum(min(p, q))
        accepted = sum(map(len, verdict.paths))
        chance = float(torch.minimum(p[: len(q)], q).sum())
        assert stats.binomtest(accepted, ROWS, min(1.0, chance)).pvalue > LIKELY


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_next_draft_token_leaves_the_target_distribution_as_it_is(name: str, depth: int) -> None:
    """After the root, and after a draft token that is always right."""
    p, q = (torch.tensor(values, dtype=torch.float64) for values in DISTRIBUTIONS[name])
    draft_tokens = draw(q, 1, REJECTION, seed=5).tokens[:, 0].tolist()
    sure = torch.eye(VOCAB, dtype=torch.float64)[0]
    scores = torch.stack([*[sure] * depth, p]).log().expand(ROWS, -1, -1)
    zeros = torch.zeros(ROWS, depth, dtype=torch.long)
    tree = DraftTree.uniform(chain(depth), zeros, sure.expand(ROWS, depth, -1))
    generators = [torch.Generator().manual_seed(6)] * ROWS
    verdict = reject(
        tree, scores, generators, [NextProposal(draft_token, q) for draft_token in draft_tokens]
    )
    assert all(path == tuple(range(depth)) for path in verdict.paths)
    tokens = [said[-1] for said in verdict.tokens]
    assert p_value(torch.tensor(tokens), p) > LIKELY
    # Leviathan et al. 2023: it is the token with probability sum(min(p, q)), and no other chance.
    same = sum(
        draft_token == token for draft_token, token in zip(draft_tokens, tokens, strict=True)
    )
    chance = float(torch.minimum(p[: len(q)], q).sum())
    assert stats.binomtest(same, ROWS, min(1.0, chance)).pvalue > LIKELY


def test_a_next_draft_token_is_not_judged_behind_a_wrong_one() -> None:
    p, q = (torch.tensor(values, dtype=torch.float64) for values in DISTRIBUTIONS["far"])
    tree = draw(q, 1, REJECTION, seed=8)
    scores = torch.stack([p, p]).log().expand(ROWS, -1, -1)
    draft_tokens = [
        NextProposal(token, q) for token in draw(q, 1, REJECTION, seed=7).tokens[:, 0].tolist()
    ]
    without, verdict = (
        reject(tree, scores, [torch.Generator().manual_seed(row) for row in range(ROWS)], given)
        for given in (None, draft_tokens)
    )
    is_wrong = [not path for path in without.paths]
    assert verdict.paths == without.paths
    assert 0 < sum(is_wrong) < ROWS
    for wrong, said, expected in zip(is_wrong, verdict.tokens, without.tokens, strict=True):
        assert not wrong or said == expected


def test_siblings_are_drawn_one_after_the_other_without_replacement() -> None:
    q = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05, 0.0], dtype=torch.float64)
    first, second, _ = draw(q, 3, REJECTION, seed=3).tokens.T
    after = q.expand(VOCAB, -1).clone().fill_diagonal_(0)
    pairs = q[:, None] * after / after.sum(-1, keepdim=True)
    assert p_value(first * VOCAB + second, pairs.flatten()) > LIKELY


@pytest.mark.parametrize("most", [1, 4])
def test_coupled_draft_with_the_target_distribution_drafts_what_the_target_takes(
    most: int,
) -> None:
    rule = SamplingRule(do_sample=True)
    p = torch.tensor(DISTRIBUTIONS["far"][0], dtype=torch.float64)
    tree = draw(p, most, rule, seed=4)
    steps = torch.zeros(ROWS, 1, dtype=torch.long)
    choice = batch_of(rule, seed=4).ranking(p.log().expand(ROWS, 1, -1), steps)
    assert torch.equal(tree.tokens[:, 0], choice.argmax(-1)[:, 0])


# --- the whole loop on tables --------------------------------------------------------------------


TOPOLOGIES = {"chain": chain(3), "tree": TREE}


@pytest.mark.pairwise
@pytest.mark.parametrize("processors", [(), WARPERS], ids=["plain", "warped"])
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("shape", TOPOLOGIES)
def test_rejection_keeps_the_target_distribution(shape: str, draft: str, processors: Any) -> None:
    session = speak(
        TOPOLOGIES[shape], DRAFTS[draft], SamplingRule(processors, True, "rejection"), seed=11
    )
    assert fit(session) > LIKELY
    assert session.stats.accepted > 0
    if draft == "equal":  # p = q: the first draft token at every node is accepted
        assert session.stats.accepted == ROWS * TOPOLOGIES[shape].depth


@pytest.mark.parametrize("processors", [(), WARPERS], ids=["plain", "warped"])
def test_coupled_is_token_identical_to_plain_decoding_and_keeps_the_distribution(
    processors: Any,
) -> None:
    rule = SamplingRule(processors, True, "coupled")
    plain = speak(Topology(()), TARGET, rule, seed=12)
    assert fit(plain) > LIKELY
    for topology in TOPOLOGIES.values():
        for draft in DRAFTS.values():
            session = speak(topology, draft, rule, seed=12)
            assert answers(session) == answers(plain)
            assert session.stats.target_forwards <= plain.stats.target_forwards
            assert session.stats.accepted > 0


def test_greedy_is_token_identical_to_plain_decoding() -> None:
    plain = speak(Topology(()), TARGET, SamplingRule(), rows=3)
    for topology in TOPOLOGIES.values():
        for draft in DRAFTS.values():
            assert answers(speak(topology, draft, SamplingRule(), rows=3)) == answers(plain)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63, 2**64 - 1, 2**100])
def test_any_seed_works_and_repeats(rule: str, seed: int) -> None:
    twice = [
        answers(speak(TREE, DRAFTS["near"], SamplingRule((), True, rule), seed, rows=20))
        for _ in range(2)
    ]
    other = answers(speak(TREE, DRAFTS["near"], SamplingRule((), True, rule), seed ^ 1, rows=20))
    assert twice[0] == twice[1] != other


def texts(seed: int, length: int = 40) -> References:
    """A random text for each row, none of them the same."""
    rng = random.Random(seed)
    return References(tuple((tuple(rng.choices(range(VOCAB), k=length)),) for _ in range(ROWS)))


def test_rejection_of_draft_tokens_without_probabilities_keeps_the_distribution() -> None:
    """Each emitted token is one draw, so even the tokens are those without any draft token."""
    rule = SamplingRule(WARPERS, True, "rejection")
    session = speak(EMPTY, TARGET, rule, seed=14, references=texts(1))
    assert fit(session) > LIKELY
    assert session.stats.accepted > ROWS / 2
    assert session.stats.target_forwards <= LENGTH - 1
    assert answers(session) == answers(speak(EMPTY, TARGET, rule, seed=14))


@pytest.mark.parametrize("draft_tokens", [[3], [0, 5], [2, 1, 4]])
def test_draft_tokens_without_probabilities_are_right_as_often_as_the_target_says_them(
    draft_tokens: list[int],
) -> None:
    p = torch.tensor([0.3, 0.2, 0.2, 0.15, 0.1, 0.05], dtype=torch.float64)
    tokens = torch.tensor(draft_tokens).expand(ROWS, -1)
    verdict = judge(p, DraftTree.uniform(Topology((ROOT,) * len(draft_tokens)), tokens), seed=5)
    assert p_value(torch.tensor([row[0] for row in verdict.tokens]), p) > LIKELY
    accepted = sum(map(len, verdict.paths))
    assert stats.binomtest(accepted, ROWS, float(p[draft_tokens].sum())).pvalue > LIKELY


@pytest.mark.parametrize("name", ["coupled", "rejection"])
def test_lookup_needs_fewer_passes_for_the_same_tokens(name: str) -> None:
    rule = SamplingRule((), True, name)
    plain = speak(EMPTY, TARGET, rule, seed=15, rows=50)
    session = speak(EMPTY, TARGET, rule, seed=15, rows=50, references=texts(2))
    assert answers(session) == answers(plain)
    assert session.stats.passes < plain.stats.passes


# --- power: rules that are wrong on purpose ------------------------------------------------------


def accept_always(p: Tensor, q: Tensor, children: list[tuple[int, int]], _: torch.Generator) -> Any:
    return children[0][0], p


def without_repair(
    p: Tensor, q: Tensor, children: list[tuple[int, int]], generator: torch.Generator
) -> Any:
    for child, token in children:
        if q[token] > 0 and torch.rand((), generator=generator) < p[token] / q[token]:
            return child, p
    return None, p


def without_removal(
    p: Tensor, q: Tensor, children: list[tuple[int, int]], generator: torch.Generator
) -> Any:
    """Siblings as if they had been drawn with replacement."""
    for child, token in children:
        if q[token] > 0 and torch.rand((), generator=generator) < p[token] / q[token]:
            return child, p
        p = (p - q).clamp_min(0)
        p = p / p.sum()
    return None, p


@pytest.mark.parametrize("wrong", [accept_always, without_repair, without_removal])
def test_the_fit_notices_wrong_rejection(
    wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_try_children", wrong)
    assert (
        fit(speak(TREE, DRAFTS["far"], SamplingRule((), True, "rejection"), seed=11)) < IMPOSSIBLE
    )


def test_the_fit_notices_a_draft_that_does_not_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    def best(*args: Any) -> Tensor:
        return args[1].topk(args[2]).indices

    monkeypatch.setattr("draftlens.drafting.model_drafter.draw_children", best)
    assert (
        fit(speak(TREE, DRAFTS["near"], SamplingRule((), True, "rejection"), seed=11)) < IMPOSSIBLE
    )


def test_the_fit_notices_noise_that_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    right = SamplingRule.ranking
    monkeypatch.setattr(
        SamplingRule, "ranking", lambda self, s, rows, steps: right(self, s, rows, steps * 0)
    )
    assert fit(speak(TREE, DRAFTS["far"], SamplingRule((), True, "coupled"), seed=12)) < IMPOSSIBLE


def test_the_fit_notices_draft_tokens_that_are_taken_unseen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first_child(tree: DraftTree, ranking: Tensor) -> Verdict:
        rows = match(tree, ranking)
        if not tree.num_nodes:
            return rows
        tokens = [
            (int(draft_token), *row[1:2])
            for draft_token, row in zip(tree.tokens[:, 0], rows.tokens, strict=True)
        ]
        return Verdict(tuple((0,)[: len(row) - 1] for row in tokens), tuple(tokens))

    monkeypatch.setattr(acceptance, "match", first_child)
    assert (
        fit(speak(chain(1), DRAFTS["far"], SamplingRule((), True, "coupled"), seed=12)) < IMPOSSIBLE
    )


def test_the_fit_notices_draft_tokens_without_probabilities_that_are_always_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = verify._draw_row

    def first_child(
        topology: Topology, tokens: list[int], scores: Tensor, generator: torch.Generator
    ) -> Any:
        row = right(topology, tokens, scores, generator)
        if not topology or row.path:
            return row
        return verify.RowVerdict((0,), (tokens[0], *row.tokens[:1]))

    monkeypatch.setattr(verify, "_draw_row", first_child)
    rule = SamplingRule((), True, "rejection")
    assert fit(speak(EMPTY, TARGET, rule, seed=14, references=texts(1))) < IMPOSSIBLE
