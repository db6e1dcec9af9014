"""The warning for drafts that are hardly ever right: when it comes."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import draftlens
from draftlens.drafting import model_drafter as disagreement
from draftlens.drafting.model_drafter import MIN_TRIALS, Disagreement


@pytest.fixture(autouse=True)
def _nobody_was_warned() -> None:
    disagreement._warn.cache_clear()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_there_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Of each draft, however many answers there are."""
    for _ in range(2):
        counted = Disagreement("Small")
        counted.count(0, MIN_TRIALS)
        counted.count(1, MIN_TRIALS)
    (line,) = warnings(caplog)
    assert "Hardly any token of the draft Small is accepted" in line


def test_few_trials_and_useful_drafts_give_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    for hits, misses in ((0, MIN_TRIALS - 1), (2, 30), (20, 80)):
        Disagreement("Small").count(hits, misses)
    assert not warnings(caplog)


@pytest.mark.parametrize(
    "method", [{"num_speculative_tokens": 3}, {"num_speculative_tokens": None}]
)
def test_the_embedded_pair_with_a_permuted_draft(
    method: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The tokens stay right, and one line says what is wrong."""
    engine = draftlens.load(device="cpu", calibrate=False)
    assert engine.draft is not None
    model = engine.draft.backbone.model
    inputs = engine.read("Tell a story about a red circle and a blue square.").target
    options = {"max_new_tokens": 60, "eos_token_id": [767]}
    expected = draftlens.generate(engine.target.backbone.model, inputs, **options).tokens
    caplog.clear()
    with torch.no_grad():
        order = torch.randperm(768, generator=torch.Generator().manual_seed(2))
        model.get_input_embeddings().weight.copy_(model.get_input_embeddings().weight[order])
        model.get_output_embeddings().weight.copy_(model.get_output_embeddings().weight[order])
    result = draftlens.generate(
        engine.target.backbone.model, inputs, draft=model, method=method, **options
    )
    assert result.tokens == expected
    assert result.stats.mean_acceptance_length < 1.2
    lines = warnings(caplog)
    assert len(lines) <= 1
    if method["num_speculative_tokens"]:
        assert result.stats.drafted > MIN_TRIALS
        assert "drafting gains nothing" in lines[0]
