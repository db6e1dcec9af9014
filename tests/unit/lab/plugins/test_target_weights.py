"""Rules that weigh views by the target's distributions, against slow twins and by hand."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log
from typing import Any

import pytest
import torch
from draftlens_lab.plugins.target_weights import kl_divergence, total_variation, weight_grid
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.methods.tabed.weights import Seen, Tally, make_weighting

VOCAB = 7
NAMES = ("M", "T", "P")


def random_seen(generator: torch.Generator, rejects: bool = False, noisy: bool = False) -> Seen:
    """A position with distributions some of whose tokens have no chance."""
    logits = 2 * torch.randn(len(NAMES) + 1, VOCAB, generator=generator)
    hopeless = torch.rand(len(NAMES) + 1, VOCAB, generator=generator) < 0.2
    hopeless[:, 0] = False
    log_probs = logits.masked_fill(hopeless, -inf).log_softmax(-1)
    token = int(torch.multinomial(log_probs[0].exp(), 1, generator=generator))
    noise = torch.randn(VOCAB, generator=generator) if noisy else None
    return Seen(
        token, log_probs[1:, token].tolist(), log_probs[1:], log_probs[0], noise, rejects=rejects
    )


def weights_of(tally: Tally) -> list[float]:
    return [exp(value) for value in tally.log_weights]


def test_divergences_of_distributions_by_hand() -> None:
    p = torch.tensor([0.5, 0.5, 0.0]).log()
    q = torch.tensor([[0.25, 0.25, 0.5], [0.5, 0.0, 0.5]]).log()
    assert kl_divergence(p, q).tolist() == pytest.approx([log(2), inf])
    assert total_variation(p, q).tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(("views", "steps", "points"), [(1, 10, 1), (2, 10, 11), (3, 4, 15)])
def test_the_grid_has_all_points_once(views: int, steps: int, points: int) -> None:
    grid = weight_grid(views, steps)
    assert len({tuple(point) for point in grid.tolist()}) == len(grid) == points
    assert torch.allclose(grid.sum(-1), torch.ones(points, dtype=torch.float64))
    if views == 2:
        assert grid.tolist() == [[(10 - j) / 10, j / 10] for j in range(11)]


def slow_grid(
    seen: Sequence[Seen], grid: Tensor, criterion: str, window: int | None
) -> list[float]:
    """The best point so far, from every distribution of the answer."""
    if not seen:
        return [1 / grid.shape[1]] * grid.shape[1]
    best: tuple[float, float] | None = None
    chosen: list[float] = []
    for point in grid.tolist():
        matches = 0.0
        divergence = 0.0
        for position in seen[-window:] if window else seen:
            assert position.log_probs is not None
            assert position.log_target is not None
            mixed = torch.zeros(VOCAB, dtype=torch.float64)
            for weight, log_q in zip(point, position.log_probs, strict=True):
                if weight:
                    mixed += weight * log_q.double().exp()
            p = position.log_target.double().exp()
            if position.rejects:
                matches += float(torch.minimum(p, mixed).sum())
            else:
                noise = 0.0 if position.noise is None else position.noise.double()
                matches += float(int((mixed.log() + noise).argmax()) == position.token)
            for chance, own in zip(p.tolist(), mixed.tolist(), strict=True):
                if criterion == "tvd":
                    divergence += abs(chance - own) / 2
                elif chance:
                    divergence += chance * log(chance / own) if own else inf
        key = (-matches if criterion == "matches" else 0.0, divergence)
        if best is None or key < (best[0] - 1e-6, -inf) or _is_nearer(key, best):
            best = key
            chosen = point
    return chosen


def _is_nearer(key: tuple[float, float], best: tuple[float, float]) -> bool:
    """As many matches and a smaller divergence."""
    return abs(key[0] - best[0]) <= 1e-6 and key[1] < best[1] - 1e-5


@pytest.mark.parametrize("criterion", ["matches", "kl", "tvd"])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("kind", ["greedy", "coupled", "rejection"])
def test_the_grid_equals_a_twin_that_stores_every_distribution(
    criterion: str, window: int | None, kind: str
) -> None:
    rule = make_weighting({"name": "grid", "criterion": criterion, "window": window, "steps": 5})
    tally: Any = rule.tally(NAMES)
    grid = weight_grid(3, 5)
    generator = torch.Generator().manual_seed(3)
    seen: list[Seen] = []
    points = set()
    for _ in range(9):
        assert weights_of(tally) == pytest.approx(slow_grid(seen, grid, criterion, window))
        seen.append(random_seen(generator, kind == "rejection", kind == "coupled"))
        tally.observe(seen[-1])
        points.add(tuple(tally.log_weights))
    assert len(points) > 1
    assert tally.sums.total.shape == (2 * len(grid),)  # and no distribution


def test_matches_decide_before_divergences() -> None:
    """The second view is right with less confidence."""
    target = torch.tensor([0.6, 0.4, 0.0]).log()
    q = torch.tensor([[0.49, 0.51, 0.0], [0.5, 0.1, 0.4]]).log()
    seen = Seen(0, q[:, 0].tolist(), q, target)
    by_matches = make_weighting({"name": "grid", "steps": 1}).tally(("M", "T"))
    by_matches.observe(seen)
    assert weights_of(by_matches) == [0, 1]
    by_divergence = make_weighting({"name": "grid", "steps": 1, "criterion": "kl"}).tally("MT")
    by_divergence.observe(seen)
    assert weights_of(by_divergence) == [1, 0]


def pair(first: Sequence[float], second: Sequence[float], target: Sequence[float]) -> Seen:
    """A position of two views."""
    q = torch.tensor([first, second], dtype=torch.float64).log()
    p = torch.tensor(target, dtype=torch.float64).log()
    return Seen(0, q[:, 0].tolist(), q, p)


HALVES = pair([0.5, 0.5], [0.75, 0.25], [1.0, 0.0])
CLOSE = pair([0.9, 0.1], [0.5, 0.5], [0.9, 0.1])


@pytest.mark.parametrize("form", ["softmax", "inverse"])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("window", [None, 1])
def test_divergences_by_hand(form: str, temperature: float, window: int | None) -> None:
    options = {"form": form, "temperature": temperature, "window": window}
    close_kl = 0.9 * log(0.9 / 0.5) + 0.1 * log(0.1 / 0.5)
    errors = {
        "kld": [[log(2), log(4 / 3)], [0.0, close_kl]],
        "tvd": [[0.5, 0.25], [0.0, 0.4]],
    }
    for name, (first, second) in errors.items():
        tally = make_weighting({"name": name, **options}).tally(("M", "T"))
        assert weights_of(tally) == pytest.approx([0.5, 0.5])
        sums = [0.0, 0.0]
        for seen, losses in ((HALVES, first), (CLOSE, second)):
            tally.observe(seen)
            sums = losses if window else [a + b for a, b in zip(sums, losses, strict=True)]
            inverse = [1 / max(loss, 1e-6) for loss in sums]
            if form == "softmax":
                largest = max(inverse)
                inverse = [exp((value - largest) / temperature) for value in inverse]
            expected = [value / sum(inverse) for value in inverse]
            assert weights_of(tally) == pytest.approx(expected, abs=1e-6)


def test_infinite_divergences() -> None:
    """Where top-k left a view no chance, KL is infinite: it loses, and if all do, none does."""
    tally = make_weighting({"name": "kld", "form": "inverse"}).tally(("M", "T"))
    tally.observe(pair([0.0, 1.0], [0.5, 0.5], [0.5, 0.5]))
    assert weights_of(tally) == [0, 1]
    tally.observe(pair([0.5, 0.5], [0.0, 1.0], [0.5, 0.5]))
    assert weights_of(tally) == [0.5, 0.5]


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ({"name": "grid", "steps": 0}, "steps is a whole number"),
        ({"name": "grid", "window": 0}, "window is a number of positions"),
        ({"name": "grid", "criterion": "best"}, "known: matches, kl, tvd"),
        ({"name": "kld", "form": "log"}, "known: softmax, inverse"),
        ({"name": "tvd", "temperature": 0}, "temperature is a number above 0"),
        ({"name": "tvd", "window": 1.5}, "window is a number of positions"),
    ],
)
def test_values_that_make_no_sense_are_refused(choice: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_weighting(choice)
