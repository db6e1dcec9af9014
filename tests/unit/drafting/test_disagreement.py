"""The warning for drafts that are hardly ever right: when it comes, and the cause that it names."""

from __future__ import annotations

import logging
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import draftlens
from draftlens.drafting import disagreement
from draftlens.drafting.disagreement import MIN_TRIALS, Disagreement, embedding_likeness


class Model:
    """A transformers model, as far as it is a key."""


class Sketch:
    """A backbone of which only name and embeddings matter."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.name = "Small"
        self.model = Model()
        self.embed = nn.Embedding.from_pretrained(weight)


def related(count: int = 600) -> tuple[Any, Any]:
    """Two models in which the same tokens are common."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.rand(count, 1, generator=generator) + 0.2
    return tuple(
        Sketch(sizes * torch.randn(count, width, generator=generator)) for width in (64, 32)
    )  # type: ignore[return-value]


def permuted(sketch: Any) -> Any:
    order = torch.randperm(len(sketch.embed.weight), generator=torch.Generator().manual_seed(1))
    return Sketch(sketch.embed.weight[order])


@pytest.fixture(autouse=True)
def _nobody_was_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disagreement, "_WARNED", weakref.WeakKeyDictionary())


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_one_line_names_a_permuted_vocabulary(caplog: pytest.LogCaptureFixture) -> None:
    target, draft = related()
    counted = Disagreement(target, permuted(draft))
    for _ in range(3):
        counted.count(0, MIN_TRIALS)
        counted.warn()
    (line,) = warnings(caplog)
    assert f"right about 0 of {MIN_TRIALS} tokens" in line
    assert "its token ids probably mean other tokens" in line


def test_a_draft_of_the_same_vocabulary_has_another_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target, draft = related()
    Disagreement(target, draft).warn()
    for is_blind, cause in ((False, "language or the task"), (True, "none of the visual tokens")):
        counted = Disagreement(target, Sketch(draft.embed.weight), is_blind)  # type: ignore[arg-type]
        counted.count(1, MIN_TRIALS)
        counted.warn()
        assert cause in warnings(caplog)[-1]
    assert len(warnings(caplog)) == 2


def test_few_trials_and_useful_drafts_give_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    target, draft = related()
    for hits, misses in ((0, MIN_TRIALS - 1), (2, 20), (20, 80)):
        counted = Disagreement(target, draft)
        counted.count(hits, misses)
        counted.warn()
    assert not warnings(caplog)


def test_the_norms_of_one_tokenizer_are_alike() -> None:
    target, draft = related()
    likeness = embedding_likeness(target, draft)
    assert likeness is not None
    assert likeness > 0.5
    other = embedding_likeness(target, permuted(draft))
    assert other is not None
    assert abs(other) < 0.1
    assert embedding_likeness(*related(100)) is None  # too few ids to tell


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
    likeness = embedding_likeness(engine.target.backbone, engine.draft.backbone)
    assert likeness is not None
    assert likeness > 0.5
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
        assert "its token ids probably mean other tokens" in lines[0]
