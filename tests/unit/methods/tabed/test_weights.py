"""Rules that weigh views, by hand and against what they promise."""

from __future__ import annotations

from math import exp, inf, log, nan
from typing import Any

import pytest
import torch

from draftlens.core.errors import ConfigError
from draftlens.methods.tabed.weights import WEIGHTS, Seen, Tally, log_mixture, make_weighting

VOCAB = 7
NAMES = ("M", "T", "P")


def random_likelihoods(generator: torch.Generator, views: int) -> list[float]:
    """Those of a token by distributions some of whose tokens have no chance."""
    logits = 2 * torch.randn(views + 1, VOCAB, generator=generator)
    hopeless = torch.rand(views + 1, VOCAB, generator=generator) < 0.2
    hopeless[:, 0] = False
    log_probs = logits.masked_fill(hopeless, -inf).log_softmax(-1)
    token = int(torch.multinomial(log_probs[0].exp(), 1, generator=generator))
    values: list[float] = log_probs[1:, token].tolist()
    return values


def weights_of(tally: Tally) -> list[float]:
    return [exp(value) for value in tally.log_weights]


def test_mixtures_by_hand() -> None:
    q = torch.tensor([[0.25, 0.25, 0.5], [0.5, 0.0, 0.5]]).log()
    weights = torch.tensor([0.4, 0.6]).log()[None, :, None]
    assert log_mixture(q[None, :, None], weights).exp()[0, 0].tolist() == pytest.approx(
        [0.4, 0.1, 0.5]
    )
    alone = torch.tensor([0.0, -inf])[None, :, None]
    assert torch.equal(log_mixture(q[None, :, None], alone)[0, 0], q[0])


# --- Bayes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("views", [2, 4])
def test_bayes_log_loss_is_within_ln_m_of_the_best_view(views: int) -> None:
    tally = make_weighting({"name": "bayes", "forget": 0.0}).tally(list(map(str, range(views))))
    generator = torch.Generator().manual_seed(views)
    lost = 0.0
    totals = [0.0] * views
    for _ in range(300):
        values = random_likelihoods(generator, views)
        values = [max(value, log(1e-4)) for value in values]
        lost -= log(sum(w * exp(v) for w, v in zip(weights_of(tally), values, strict=True)))
        totals = [total - value for total, value in zip(totals, values, strict=True)]
        tally.observe(Seen(0, values))
        assert min(totals) - 1e-6 <= lost + log(views)
        assert lost <= min(totals) + log(views) + 1e-6


def test_bayes_follows_a_view_that_becomes_better() -> None:
    """With forgetting, within the bound of fixed share for one change."""
    rounds = 200
    lost = {0.0: 0.0, 0.02: 0.0}
    for forget in lost:
        tally = make_weighting({"name": "bayes", "forget": forget}).tally("MT")
        for place in range(2 * rounds):
            values = [log(0.9), log(0.1)] if place < rounds else [log(0.1), log(0.9)]
            weights = weights_of(tally)
            lost[forget] -= log(sum(w * exp(v) for w, v in zip(weights, values, strict=True)))
            tally.observe(Seen(0, values))
    best = -2 * rounds * log(0.9)
    assert lost[0.02] <= best + 2 * log(2) + log(2 * rounds / 0.02) / 2 + 2 * rounds * 0.02
    assert lost[0.0] > lost[0.02] + 100


def test_a_view_that_was_not_asked_is_taken_to_say_what_the_mixture_says() -> None:
    tally = make_weighting({"name": "bayes", "forget": 0.0}).tally(NAMES)
    tally.observe(Seen(0, [log(0.5), log(0.25), log(0.25)]))
    assert weights_of(tally) == pytest.approx([0.5, 0.25, 0.25])
    tally.observe(Seen(0, [log(0.1), nan, log(0.9)]))
    assert weights_of(tally)[1] == pytest.approx(0.25)
    first, _, third = weights_of(tally)
    assert third / first == pytest.approx(4.5)
    before = weights_of(tally)
    tally.observe(Seen(0, [nan, nan, nan]))
    assert weights_of(tally) == before


def test_no_token_makes_a_view_impossible() -> None:
    """Top-k may have left it no chance."""
    tally = make_weighting({"name": "bayes", "forget": 0.0, "floor": 0.01}).tally("MT")
    tally.observe(Seen(0, [-inf, 0.0]))
    assert weights_of(tally) == pytest.approx([1 / 101, 100 / 101])
    tally.observe(Seen(0, [-inf, -inf]))
    assert weights_of(tally) == pytest.approx([1 / 101, 100 / 101])


# --- fixed weights and options --------------------------------------------------------------------


def test_fixed_weights_do_not_change() -> None:
    for choice, expected in (([3, 1], [0.75, 0.25]), ("uniform", [0.5, 0.5]), ([1, 0], [1, 0])):
        tally = make_weighting(choice).tally("MT")
        tally.observe(Seen(0, [-1.0, -2.0]))
        assert weights_of(tally) == expected


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ("best", "unknown weighting 'best'; known: .*bayes"),
        ([], "numbers from 0 on"),
        ([0, 0], "not all 0"),
        ([1, -1], "numbers from 0 on"),
        ([1, True], "numbers from 0 on"),
        ([1, nan], "numbers from 0 on"),
        ([1, inf], "numbers from 0 on"),
        ({"name": "fixed", "values": 3}, "numbers from 0 on"),
        ({"name": "fixed", "values": "13"}, "numbers from 0 on"),
        ({"name": "bayes", "forget": 1}, "forget is a share"),
        ({"name": "bayes", "forget": nan}, "forget is a share"),
        ({"name": "bayes", "floor": 0}, "floor is a probability"),
    ],
)
def test_values_that_make_no_sense_are_refused(choice: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_weighting(choice)


def test_one_weight_for_each_view() -> None:
    with pytest.raises(ConfigError, match="2 weights are given for 3 views"):
        make_weighting([1, 2]).tally(NAMES)


def test_what_rules_need() -> None:
    """Views rest only where a negligible weight can be judged without asking."""
    needs = {name: make_weighting(name) for name in WEIGHTS if name != "fixed"}
    assert {name for name, rule in needs.items() if rule.needs_target_scores} == {
        "grid",
        "kld",
        "tvd",
    }
    assert {name for name, rule in needs.items() if rule.can_rest} == {"bayes"}
    assert {name for name, rule in needs.items() if rule.follows_path} == {"bayes"}


@pytest.mark.parametrize("name", ["grid", "kld", "tvd"])
def test_rules_of_the_lab_are_refused_without_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WEIGHTS.__dict__, "_points", {})
    with pytest.raises(
        ConfigError, match=f"weighting '{name}' is part of the package draftlens-lab"
    ):
        make_weighting(name)
