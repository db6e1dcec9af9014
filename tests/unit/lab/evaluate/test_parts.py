"""Questions about parts in `draftlens evaluate`: samples, shares, and what a draft is shown."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from draftlens_lab.evaluate import parts
from draftlens_lab.evaluate.answers import Answer
from draftlens_lab.evaluate.parts import (
    PART_FAMILIES,
    SHOWN,
    EvidencePruning,
    oracle_gap,
    part_samples,
    parts_right,
)
from draftlens_lab.evaluate.samples import FAMILIES, question_samples
from draftlens_lab.world import HELD_OUT, evidence, novelties, read_facts
from draftlens_lab.world.samples import Sample

FRAMES = 64


@pytest.mark.parametrize("family", PART_FAMILIES)
def test_samples_are_held_out_and_the_same_every_time(family: str) -> None:
    samples = part_samples(family, 20, 0, FRAMES)
    assert samples[:5] == part_samples(family, 5, 0, FRAMES)
    assert samples[:5] != part_samples(family, 5, 1, FRAMES)
    seeds = {scene.seed for sample in samples for scene in sample.scenes}
    assert len(seeds) == 20
    assert min(seeds) > HELD_OUT + 1_000_000
    others = {
        s.scenes[0].seed for f in FAMILIES if f != "text only" for s in question_samples(f, 20, 0)
    }
    assert not seeds & others
    for sample in samples:
        assert all(novelties(scene) for scene in sample.scenes)
        assert sample.turns[-1].family == family
        assert len(sample.turns) == (2 if family == "chat" else 1)


def test_forms_and_needles_take_turns() -> None:
    forms = [sample.turns[-1].form for sample in part_samples("focus", 10, 0, FRAMES)]  # type: ignore[attr-defined]
    assert forms == ["word", "after", "hero", "ordinal", "compare"] * 2
    forms = [sample.turns[-1].form for sample in part_samples("needle", 9, 0, 256)]  # type: ignore[attr-defined]
    assert forms == ["secret strip", "secret card", "picture"] * 3


def test_right_answers_are_all_right_and_one_wrong_fact_is_one() -> None:
    samples = part_samples("focus", 10, 0, FRAMES)
    answers = [sample.turns[-1].answer for sample in samples]
    number = sum(len(read_facts(answer)) for answer in answers)
    figures = parts_right(samples, [Answer(text) for text in answers])
    assert (figures["facts"]["right"], figures["facts"]["total"]) == (number, number)
    assert figures["exact"]["right"] == figures["asked"] == 10
    assert sorted(figures["forms"]) == ["after", "compare", "hero", "ordinal", "word"]
    answers[0] = re.sub("(pink|white|green|yellow) letters", "blue letters", answers[0])
    answers[0] = answers[0].replace("blue letters", "pink letters")
    if answers[0] == samples[0].turns[-1].answer:
        answers[0] = answers[0].replace("pink letters", "green letters")
    figures = parts_right(samples, [Answer(text) for text in answers])
    assert (figures["facts"]["right"], figures["facts"]["total"]) == (number - 1, number)
    assert figures["forms"]["word"]["exact"]["right"] == 1
    assert figures["forms"]["hero"]["facts"]["share"] == 1


def test_a_secret_word_is_one_fact() -> None:
    samples = part_samples("needle", 2, 0, FRAMES)
    answers = [Answer(samples[0].turns[0].answer), Answer("The secret word is NOTHING.")]
    figures = parts_right(samples, answers)
    assert (figures["facts"]["right"], figures["facts"]["total"]) == (1, 2)


def prompt_of(sample: Sample, newlines: int = 1) -> Any:
    """The cells of a prompt: 3 words, 16 tokens a frame, a newline with the last cell, 2 words."""
    frames, rows, columns = np.meshgrid(range(sample.frames), range(4), range(4), indexing="ij")
    cells = np.stack([frames.ravel(), rows.ravel(), columns.ravel()], 1)
    cells = np.concatenate([cells, np.repeat(cells[-1:], newlines, 0)])
    words = np.full((5, 3), -1)
    table = torch.from_numpy(np.concatenate([words[:3], cells, words[3:]]))
    return SimpleNamespace(cells=table[None], visual=(table[:, 0] >= 0)[None], lengths=[len(table)])


@pytest.mark.parametrize("family", ["focus", "needle"])
def test_a_draft_is_shown_the_evidence_or_the_rest(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "gather", lambda prompt, rows: rows[0].tolist())
    for sample in part_samples(family, 6, 0, FRAMES):
        prompt = prompt_of(sample)
        seen = evidence(sample.turns[-1].regions, FRAMES)  # type: ignore[attr-defined]
        kept = {
            shown: EvidencePruning(shown)(prompt, [sample])
            for shown in ("evidence", "frames", "others")
        }
        words = {0, 1, 2, 3 + 16 * FRAMES + 1, 3 + 16 * FRAMES + 2}
        last = {3 + 16 * FRAMES}  # the newline, which counts as part of the last cell
        expected = {
            3 + 16 * frame + cell
            for frame, cells in zip(seen.frames, seen.cells, strict=True)
            for cell in cells
        }
        assert set(kept["evidence"]) - last == words | expected
        frames = {3 + 16 * frame + cell for frame in seen.frames for cell in range(16)}
        assert set(kept["frames"]) - last == words | frames
        everything = set(range(3 + 16 * FRAMES + 3))
        assert set(kept["others"]) - last == (everything - last) - frames
        tenth = EvidencePruning("tenth")(prompt, [sample])
        assert len(tenth) == 5 + (16 * FRAMES + 1) // 10
        assert EvidencePruning("all")(prompt, [sample]) is prompt


def test_the_gap_compares_with_everything() -> None:
    right, wrong = [1] * 10, [2] * 10
    shown = {"all": right, "frames": right, "evidence": right, "others": wrong, "tenth": wrong}
    figures = oracle_gap([[shown[name]] * 4 for name in SHOWN], 0)
    assert figures["asked"] == 4
    assert list(figures["shown"]) == list(SHOWN)
    assert figures["shown"]["evidence"]["fall"] == 0
    assert figures["shown"]["others"]["acceptance_length"] == 1
    assert figures["shown"]["others"]["fall"] > 0.7
