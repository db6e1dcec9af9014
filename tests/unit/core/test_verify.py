"""Verdicts on trees that differ by row are those of each row by itself."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from draftlens.core.tree import EMPTY, ROOT, DraftTree, Topology, Verdict, chain, from_paths
from draftlens.core.verify import _try_children, match, reject, tolerant

VOCAB = 3
TREE = from_paths([[0], [1], [0, 0], [0, 1], [1, 0], [0, 1, 0]])


def random_topologies(seed: int) -> tuple[Topology, ...]:
    """Four trees with different numbers of nodes, the empty one among them."""
    rng = random.Random(seed)
    made = [EMPTY, TREE, chain(rng.randint(1, 4))]
    parents: list[int] = []
    for node in range(rng.randint(1, 8)):
        parents.append(rng.randint(parents[-1] if parents else ROOT, node - 1))
    made.append(Topology(tuple(parents)))
    rng.shuffle(made)
    return tuple(made)


def ragged(seed: int) -> tuple[DraftTree, Tensor]:
    """Trees of different rows with tokens and draft probabilities, and the target's scores."""
    torch.manual_seed(seed)
    topologies = random_topologies(seed)
    num_nodes = max(map(len, topologies))
    num_inner = max(len(topology.inner) for topology in topologies)
    tokens = torch.randint(0, VOCAB, (4, num_nodes))
    probs = torch.rand(4, num_inner, VOCAB).softmax(-1)
    return DraftTree(topologies, tokens, probs), torch.randn(4, num_nodes + 1, VOCAB)


def row_of(tree: DraftTree, row: int) -> DraftTree:
    """One row without fillers."""
    topology = tree.topologies[row]
    assert tree.probs is not None
    return DraftTree(
        (topology,),
        tree.tokens[row : row + 1, : len(topology)],
        tree.probs[row : row + 1, : len(topology.inner)],
    )


def check_rows(verdict: Verdict, rows: list[Verdict]) -> None:
    assert verdict.paths == tuple(row.paths[0] for row in rows)
    assert verdict.tokens == tuple(row.tokens[0] for row in rows)


def test_a_uniform_tree_has_the_same_topology_in_every_row() -> None:
    tree = DraftTree.uniform(TREE, torch.zeros(3, len(TREE), dtype=torch.long))
    assert tree.topologies == (TREE,) * 3
    assert tree.num_nodes == len(TREE)
    assert tree.probs is None


@pytest.mark.parametrize("seed", range(40))
def test_match_row_by_row(seed: int) -> None:
    tree, ranking = ragged(seed)
    rows = [
        match(row_of(tree, row), ranking[row : row + 1, : len(topology) + 1])
        for row, topology in enumerate(tree.topologies)
    ]
    check_rows(match(tree, ranking), rows)
    for topology, path, tokens in zip(
        tree.topologies, match(tree, ranking).paths, match(tree, ranking).tokens, strict=True
    ):
        assert len(tokens) == len(path) + 1
        assert all(node < len(topology) for node in path)


@pytest.mark.parametrize("seed", range(40))
def test_reject_row_by_row(seed: int) -> None:
    """With the same noise."""
    tree, scores = ragged(seed)

    def generator(row: int) -> torch.Generator:
        return torch.Generator().manual_seed(100 * seed + row)

    rows = [
        reject(row_of(tree, row), scores[row : row + 1, : len(topology) + 1], [generator(row)])
        for row, topology in enumerate(tree.topologies)
    ]
    check_rows(reject(tree, scores, [generator(row) for row in range(4)]), rows)


@pytest.mark.parametrize("seed", range(40))
def test_a_target_that_is_certain_leaves_nothing_to_chance(seed: int) -> None:
    """At every node p is all at one token, so `reject` must walk as `match` does."""
    tree, scores = ragged(seed)
    certain = torch.full_like(scores, -torch.inf)
    certain.scatter_(-1, scores.argmax(-1, keepdim=True), 0.0)
    generators = [torch.Generator().manual_seed(seed) for _ in tree.topologies]
    assert reject(tree, certain, generators) == match(tree, certain)


def test_without_draft_tokens_a_token_is_drawn() -> None:
    tree = DraftTree.uniform(EMPTY, torch.empty(2, 0, dtype=torch.long))
    scores = torch.full((2, 1, VOCAB), -torch.inf)
    scores[0, 0, 1] = scores[1, 0, 2] = 0
    for verdict in (
        match(tree, scores),
        reject(tree, scores, [torch.Generator().manual_seed(0) for _ in range(2)]),
    ):
        assert (verdict.paths, verdict.tokens) == (((), ()), ((1,), (2,)))


def test_a_row_without_a_generator_is_not_judged() -> None:
    tree = DraftTree.uniform(EMPTY, torch.empty(2, 0, dtype=torch.long))
    scores = torch.full((2, 1, VOCAB), -torch.inf)
    scores[1, 0, 2] = 0
    verdict = reject(tree, scores, [None, torch.Generator().manual_seed(0)])
    assert (verdict.paths, verdict.tokens) == (((), ()), ((), (2,)))


@pytest.mark.parametrize("has_probs", [True, False])
def test_behind_the_end_of_an_answer_every_token_may_be_banned(has_probs: bool) -> None:
    """The draft tokens below are neither accepted nor an error: the end was accepted before
    them."""
    tokens = torch.tensor([[2, 1]])
    probs = torch.full((1, 2, VOCAB), 1 / VOCAB) if has_probs else None
    scores = torch.full((1, 3, VOCAB), -torch.inf)
    scores[0, 0, 2] = 0
    tree = DraftTree((chain(2),), tokens, probs)
    verdict = reject(tree, scores, [torch.Generator().manual_seed(0)])
    assert (verdict.paths, verdict.tokens) == (((0,),), ((2, 0),))
    assert verdict == match(tree, scores)


REJECTED = [
    # p, q, the siblings that are rejected, and the distribution that is left.
    ([0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0], [0.0, 0.5, 0.5]),
    ([0.0, 0.5, 0.5], [0.8, 0.2, 0.0], [0], [0.0, 0.375, 0.625]),
    # After token 0 is rejected: p = [0, 0, 2/3, 1/3] and q = [0, 1/3, 1/3, 1/3].
    ([0.0, 0.0, 0.6, 0.4], [0.4, 0.2, 0.2, 0.2], [0, 1], [0.0, 0.0, 1.0, 0.0]),
    # After token 0 is rejected: p = [0, 0, 1/2, 1/2] and q = [0, 2/5, 2/5, 1/5].
    ([0.0, 0.0, 0.55, 0.45], [0.5, 0.2, 0.2, 0.1], [0, 1], [0.0, 0.0, 0.25, 0.75]),
]


@pytest.mark.parametrize(("p", "q", "tokens", "expected"), REJECTED)
def test_what_is_left_when_siblings_are_rejected(
    p: list[float], q: list[float], tokens: list[int], expected: list[float]
) -> None:
    """Each rejection takes q off p, and then the rejected token out of q (Jeon et al. 2024)."""
    children = list(enumerate(tokens))
    accepted, rest = _try_children(
        torch.tensor(p).double(),
        torch.tensor(q).double(),
        children,
        torch.Generator().manual_seed(0),
    )
    assert accepted is None  # p gives these tokens no chance
    assert rest.tolist() == pytest.approx(expected)


def test_a_draft_token_that_the_target_likes_better_is_always_accepted() -> None:
    for seed in range(20):
        p, q = torch.tensor([0.6, 0.4]).double(), torch.tensor([0.5, 0.5]).double()
        generator = torch.Generator().manual_seed(seed)
        assert _try_children(p, q, [(3, 0)], generator)[0] == 3


def test_a_draft_token_that_the_draft_likes_better_is_accepted_by_chance() -> None:
    """With probability p/q = 0.25, each drawn with noise of its own."""
    p, q = torch.tensor([0.2, 0.8]).double(), torch.tensor([0.8, 0.2]).double()
    generator = torch.Generator().manual_seed(0)
    accepted = sum(_try_children(p, q, [(0, 0)], generator)[0] == 0 for _ in range(2000))
    assert 400 < accepted < 600


# --- tolerance -----------------------------------------------------------------------------------


def likely(*probabilities: float) -> Tensor:
    """Scores whose softmax are these probabilities, ``[V]``."""
    return torch.tensor(probabilities).log()


def walked(
    scores: list[Tensor], topology: Topology, tokens: list[int], tolerance: float, eos: int = -1
) -> tuple[list[int], list[int], list[bool]]:
    """Path, emitted tokens and what was tolerated in one row."""
    tree = DraftTree.uniform(topology, torch.tensor([tokens]))
    verdict = tolerant(tree, torch.stack(scores)[None], tolerance, [{eos}])
    return list(verdict.paths[0]), list(verdict.tokens[0]), list(verdict.tolerated[0])


def test_a_draft_token_that_is_nearly_as_likely_passes() -> None:
    """0.25 against 0.5: log 0.5 / log 0.25 = 0.5."""
    scores = [likely(0.5, 0.25, 0.25), likely(0.1, 0.8, 0.1)]
    assert walked(scores, chain(1), [1], 0.5) == ([0], [1, 1], [True])
    assert walked(scores, chain(1), [1], 0.51) == ([], [0], [])
    assert walked(scores, chain(1), [0], 0.51) == ([0], [0, 1], [False])


def test_of_the_children_only_the_likeliest_is_asked() -> None:
    scores = [likely(0.4, 0.35, 0.25)] + [likely(0.1, 0.1, 0.8)] * 2
    siblings = Topology((ROOT, ROOT))
    assert walked(scores, siblings, [2, 1], 0.75) == ([1], [1, 2], [True])
    assert walked(scores, siblings, [2, 2], 0.75) == ([], [0], [])  # 0.66 < 0.75
    assert walked(scores, siblings, [1, 0], 0.75) == ([1], [0, 2], [False])  # its own comes first


def test_a_target_that_is_certain_accepts_its_own_token_alone() -> None:
    """The ratio is 0/0 there."""
    certain = torch.tensor([0.0, -torch.inf, -torch.inf])
    assert walked([certain, certain], chain(1), [0], 0.75) == ([0], [0, 0], [False])
    assert walked([certain, certain], chain(1), [1], 0.01) == ([], [0], [])
    nearly = torch.tensor([100.0, 0.0, 0.0])
    assert walked([nearly, nearly], chain(1), [0], 0.75) == ([0], [0, 0], [False])


def test_an_end_is_neither_passed_over_nor_put_in() -> None:
    scores = [likely(0.4, 0.35, 0.25)] * 2
    assert walked(scores, chain(1), [1], 0.75) == ([0], [1, 0], [True])
    assert walked(scores, chain(1), [1], 0.75, eos=0) == ([], [0], [])
    assert walked(scores, chain(1), [1], 0.75, eos=1) == ([], [0], [])
    assert walked(scores, chain(1), [0], 0.75, eos=0) == ([0], [0, 0], [False])


def slow_tolerant(
    topology: Topology, tokens: list[int], scores: Tensor, tolerance: float, eos: set[int]
) -> tuple[list[int], list[int]]:
    """Equations 8 to 11, ratio by ratio in float64."""
    path: list[int] = []
    emitted: list[int] = []
    node = ROOT
    while True:
        log_p = torch.log_softmax(scores[node + 1].double(), -1)
        best = int(scores[node + 1].argmax())
        children = topology.children.get(node, ())
        chosen = None
        if children:
            chosen = max(children, key=lambda child: (float(log_p[tokens[child]]), -child))
            same = tokens[chosen] == best
            ends = best in eos or tokens[chosen] in eos
            ratio = float(log_p[best] / log_p[tokens[chosen]])
            if not same and (ends or tolerance == 1 or ratio < tolerance):
                chosen = None
        if chosen is None:
            return path, [*emitted, best]
        path.append(chosen)
        emitted.append(tokens[chosen])
        node = chosen


@pytest.mark.parametrize("seed", range(30))
def test_tolerance_equals_the_slow_twin(seed: int) -> None:
    """Ragged rows; with a tolerance of 1 the rule is that of greedy decoding."""
    tree, scores = ragged(seed)
    eos = [{seed % 5} for _ in tree.topologies]
    for tolerance in (0.3, 0.6, 0.9):
        verdict = tolerant(tree, scores, tolerance, eos)
        for row, topology in enumerate(tree.topologies):
            tokens = tree.tokens[row].tolist()
            path, emitted = slow_tolerant(topology, tokens, scores[row], tolerance, eos[row])
            assert list(verdict.paths[row]) == path
            assert list(verdict.tokens[row]) == emitted
            choices = [int(scores[row, node + 1].argmax()) for node in (ROOT, *path)]
            differs = [own != said for own, said in zip(choices, emitted[:-1], strict=False)]
            assert list(verdict.tolerated[row]) == differs
    exact = tolerant(tree, scores, 1.0, eos)
    greedy = match(tree, scores)
    assert (exact.paths, exact.tokens) == (greedy.paths, greedy.tokens)
