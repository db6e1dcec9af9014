"""The steps between a question and its answer are measured against the labels of the reels."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from recipes.pair import reading
from recipes.pair.data import IGNORED
from recipes.pair.events import LOOK_CLASSES, NAME_CLASSES, SOUGHT_NAMES
from recipes.pair.models import DRAFT, FRAME_TOKENS, build_model
from recipes.pair.second import TARGET_SECOND
from recipes.pair.video import FilmBatch, FilmLabels, FilmModel, Observation, by_quarter

FRAMES = 16
STAGE = replace(
    TARGET_SECOND.stages[-1][1], film_depth=1, asked_depth=2, pointing=(2,), linking=(1,)
)
COUNTS = NAME_CLASSES | LOOK_CLASSES


@pytest.fixture(scope="module")
def figures(fresh_processor: Any) -> reading.Figures:
    return readings(fresh_processor)


def readings(processor: Any) -> reading.Figures:
    model = build_model(DRAFT, processor.tokenizer, 0).eval()
    heads = FilmModel(model).heads()
    return reading.readings(model, heads, STAGE, processor.tokenizer, FRAMES, 3)


def test_every_step_has_figures(figures: reading.Figures) -> None:
    assert {f"seen {name}" for name in COUNTS} <= figures.keys()
    assert {f"sought {name}" for name in SOUGHT_NAMES} <= figures.keys()
    assert {"pointed after 2", "pointed hero 2", "linked 1", "linked to itself 1"} <= figures.keys()
    for mean in figures.values():
        assert mean.count == 0 or 0 <= mean.value <= 1
    # Of 16 numbers of shots, fresh heads know none.
    assert figures["seen number"].count == 3 * FRAMES * FRAME_TOKENS
    assert figures["seen number"].value < 0.6


def test_the_mean_of_nothing_is_not_a_number() -> None:
    mean = reading.Mean()
    assert math.isnan(mean.value)
    mean.add(torch.tensor([True, False, True, True]))
    assert (mean.value, mean.count) == (0.75, 4)


def test_a_model_that_knows_the_labels_is_always_right(
    fresh_processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def observe(module: Any, stage: Any, item: FilmBatch, run: Any, video_id: int) -> Any:
        assert item.labels is not None
        return None, knowing(item.labels, item.batch["input_ids"].shape[1])

    monkeypatch.setattr(reading, "observe", observe)
    figures = readings(fresh_processor)
    assert all(mean.value == 1 for mean in figures.values() if mean.count)
    assert figures["linked 1"].count > 0
    assert figures["pointed hero 2"].count > 3


def knowing(labels: FilmLabels, length: int) -> Observation:
    """What is read from a model that tells, seeks and attends to what it should.

    The question begins right after the video, which begins with the sequence.
    """
    names = {
        name: scores(labels.film.names[..., index], COUNTS[name])[:, :, None].expand(
            -1, -1, FRAME_TOKENS, -1
        )
        for index, name in enumerate(NAME_CLASSES)
    }
    looks = {
        name: by_cell(scores(labels.film.looks[..., index], COUNTS[name]))
        for index, name in enumerate(LOOK_CLASSES)
    }
    end = int((labels.pointed[0, :, 0] != IGNORED).nonzero()[0])
    sought = {
        name: scores(labels.sought[:, end:, index], COUNTS[name])[:, :, None]
        for index, name in enumerate(SOUGHT_NAMES)
    }
    pointed, linked = labels.pointed[0, end:], labels.linked[0]
    return Observation(
        names | looks,
        sought,
        torch.zeros(1, length, 16),
        [shares(pointed[pointed[:, 0] != IGNORED])],
        [shares(linked[linked[:, 0] != IGNORED])],
        0,
        end,
    )


def scores(labels: torch.Tensor, count: int) -> torch.Tensor:
    """Scores whose largest one is that of each label."""
    return F.one_hot(labels.clamp(min=0), count).float()


def by_cell(quarters: torch.Tensor) -> torch.Tensor:
    """Scores ``[1, T, 4, C]`` of quarters as those of their cells ``[1, T, 16, C]``."""
    order = by_quarter(torch.arange(FRAME_TOKENS).view(1, FRAME_TOKENS, 1)).view(4, 4)
    cells = torch.zeros(*quarters.shape[:2], FRAME_TOKENS, quarters.shape[-1])
    for quarter, members in enumerate(order):
        cells[:, :, members] = quarters[:, :, quarter, None]
    return cells


def shares(labels: torch.Tensor) -> torch.Tensor:
    """Attention ``[N, T, 16]`` to one labelled cell of one labelled frame."""
    result = torch.zeros(len(labels), FRAMES, FRAME_TOKENS)
    for row, (first, _, bits) in enumerate(labels.tolist()):
        result[row, first, (bits & -bits).bit_length() - 1] = 1.0
    return result
