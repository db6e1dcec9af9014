"""The whole evaluation, section by section."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from draftlens.core.files import write_json
from draftlens.engine import Engine
from draftlens.models.load import Loaded
from draftlens_lab.evaluate.accuracy import captions_right, questions_right
from draftlens_lab.evaluate.agreement import agreement, prunings, ranks_of, visual_dependence
from draftlens_lab.evaluate.answers import Answer, ModelAnswerer, OnAnswers, render_side
from draftlens_lab.evaluate.chance import SCENES, Guesses
from draftlens_lab.evaluate.parts import (
    LEAST_FRAMES,
    REEL_FAMILIES,
    evidence_prunings,
    oracle_gap,
    part_samples,
    parts_right,
)
from draftlens_lab.evaluate.samples import FAMILIES, caption_samples, question_samples
from draftlens_lab.measure.environment import environment, model_facts, models_by_role
from draftlens_lab.measure.options import options_to_json
from draftlens_lab.measure.progress import ProgressListener, SilentProgress

LONG_INPUT_EVERY = 5
"""Long input is measured on one clip out of this many."""

COST = {"target": 1.0, "draft": 0.4}
"""Work of one caption of a short clip by role, in units of the target's."""


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of an evaluation."""

    clips: int = 100
    frames: tuple[int, ...] = (8, 64, 256)
    seed: int = 0
    guesses: int = SCENES


class EvaluationListener(ProgressListener, Protocol):
    """Receives the progress of an evaluation, in units of one caption of a short clip, and its
    report."""

    def saved(self, report: Mapping[str, Any]) -> None:
        """Called after each section with the report so far."""


class SilentEvaluation(SilentProgress):
    """A listener that ignores every report."""

    def saved(self, report: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Section:
    """A section of the report.

    Args:
        cost: work per sample, in units of one caption of a short clip.
    """

    path: tuple[str, ...]
    measure: Callable[[OnAnswers], Any]
    samples: int
    cost: float

    @property
    def name(self) -> str:
        return " ".join(self.path)

    @property
    def work(self) -> float:
        return self.samples * self.cost


class Evaluation:
    """The evaluation of a target, alone or with its draft.

    Args:
        draft: a model that fits the target, or None.
    """

    def __init__(
        self, target: Loaded, draft: Loaded | None, options: EvaluationOptions | None = None
    ) -> None:
        self.target = target
        self.draft = draft
        self.options = options or EvaluationOptions()
        self.answerers = {
            "target": ModelAnswerer(Engine(target, draft), render_side(target.processor))
        }
        if draft is not None:
            self.answerers["draft"] = ModelAnswerer(
                Engine(draft, None), render_side(draft.processor)
            )
        number, seed = self.options.clips, self.options.seed
        self.frames = self.options.frames[0]
        self.clips = caption_samples("clip", number, seed)
        self.pictures = caption_samples("picture", number, seed)
        self.families = {family: question_samples(family, number, seed) for family in FAMILIES}
        self._guesses: Guesses | None = None
        self._target_captions: list[Answer] = []  # of `clips` at the usual number of frames
        self._target_focus: list[Answer] = []  # at the least number of frames of reels

    def run(self, listener: EvaluationListener | None = None) -> dict[str, Any]:
        """Measure all sections.

        Returns:
            The report as JSON values, which depends only on the models and options, apart from
            `seconds` and `environment`.
        """
        listener = listener or SilentEvaluation()
        sections = self.sections()
        report = self._heading()
        listener.plan(sum(section.work for section in sections))
        for section in sections:
            start = time.perf_counter()
            listener.begin(section.name)
            figures = section.measure(_weighted(listener.done, section.cost))
            _insert(report, section.path, figures)
            report["seconds"][section.name] = round(time.perf_counter() - start, 3)
            report["finished"] = section is sections[-1]
            listener.saved(report)
        return report

    def sections(self) -> list[Section]:
        """All sections, the most important ones first."""
        sections = self._accuracy_sections("target")
        if self.draft is not None:
            number = len(self.clips)
            sections.append(Section(("agreement",), self._agreement, number, 0.2))
            sections.append(Section(("visual",), self._visual_dependence, number, 1.0))
            sections.append(Section(("evidence", "focus"), self._evidence, number, 1.0))
            sections += self._accuracy_sections("draft")
        for role in self.answerers:
            for frames in self.options.frames[1:]:
                sections.append(self._caption_section(role, frames, COST[role] * frames / 16))
        for frames in self.reel_frames[1:]:
            sections += self._reel_sections("target", frames)
        return sections

    @property
    def reel_frames(self) -> tuple[int, ...]:
        """The numbers of frames of reels: those of the options, but not too few for a reel."""
        return tuple(dict.fromkeys(max(LEAST_FRAMES, frames) for frames in self.options.frames))

    def _accuracy_sections(self, role: str) -> list[Section]:
        cost = COST[role]
        pictures = partial(self._pictures, role)
        questions = partial(self._questions, role)
        number_of_questions = sum(len(samples) for samples in self.families.values())
        path = ("accuracy", role)
        return [
            self._caption_section(role, self.frames, cost),
            Section((*path, "pictures"), pictures, len(self.pictures), cost / 2),
            Section((*path, "questions"), questions, number_of_questions, cost / 6),
            *self._reel_sections(role, self.reel_frames[0]),
            self._part_section(role, "pairs", 2, len(self.clips)),
        ]

    def _reel_sections(self, role: str, frames: int) -> list[Section]:
        number = len(self.clips)
        if frames != self.reel_frames[0]:
            number = max(1, number // LONG_INPUT_EVERY)
        return [self._part_section(role, family, frames, number) for family in REEL_FAMILIES]

    def _part_section(self, role: str, family: str, frames: int, number: int) -> Section:
        path = ("accuracy", role, "parts", family, str(frames))
        measure = partial(self._parts, role, family, frames, number)
        return Section(path, measure, number, COST[role] * max(1, frames / 16))

    def _parts(
        self, role: str, family: str, frames: int, number: int, on_answers: OnAnswers
    ) -> dict[str, Any]:
        samples = part_samples(family, number, self.options.seed, frames)
        answers = self.answerers[role].answer(samples, frames, on_answers)
        if role == "target" and family == "focus" and frames == self.reel_frames[0]:
            self._target_focus = answers
        return parts_right(samples, answers)

    def _evidence(self, on_answers: OnAnswers) -> dict[str, Any]:
        frames = self.reel_frames[0]
        samples = part_samples("focus", len(self.clips), self.options.seed, frames)
        answers = self._target_focus
        ranks = ranks_of(
            self.answerers["target"], samples, answers, frames, evidence_prunings(), on_answers
        )
        return {"frames": frames, **oracle_gap(ranks, self.options.seed)}

    def _caption_section(self, role: str, frames: int, cost: float) -> Section:
        path = ("accuracy", role, "captions", str(frames))
        number = len(self.clips)
        if frames != self.frames:
            number = max(1, number // LONG_INPUT_EVERY)
        return Section(path, partial(self._captions, role, frames, number), number, cost)

    def _captions(
        self, role: str, frames: int, number: int, on_answers: OnAnswers
    ) -> dict[str, Any]:
        clips = self.clips[:number]
        answers = self.answerers[role].answer(clips, frames, on_answers)
        if role == "target" and frames == self.frames:
            self._target_captions = answers
        tokens = self.answerers[role].visual_tokens(clips[0], frames)
        return {"frames": frames, "visual_tokens": tokens, **captions_right(clips, answers)}

    def _pictures(self, role: str, on_answers: OnAnswers) -> dict[str, Any]:
        answers = self.answerers[role].answer(self.pictures, 1, on_answers)
        tokens = self.answerers[role].visual_tokens(self.pictures[0], 1)
        return {"visual_tokens": tokens, **captions_right(self.pictures, answers)}

    def _questions(self, role: str, on_answers: OnAnswers) -> dict[str, Any]:
        if self._guesses is None:
            self._guesses = Guesses(self.options.guesses)
        answerer = self.answerers[role]
        return questions_right(answerer, self.families, self.frames, self._guesses, on_answers)

    def _agreement(self, on_answers: OnAnswers) -> dict[str, Any]:
        captions = self._target_captions
        answerer = self.answerers["target"]
        unpruned = prunings()[:1]
        (ranks,) = ranks_of(answerer, self.clips, captions, self.frames, unpruned, on_answers)
        return agreement(self.clips, captions, ranks, self._decode)

    def _visual_dependence(self, on_answers: OnAnswers) -> dict[str, Any]:
        captions = self._target_captions
        answerer = self.answerers["target"]
        all_prunings = prunings()
        ranks = ranks_of(answerer, self.clips, captions, self.frames, all_prunings, on_answers)
        return visual_dependence(all_prunings, ranks, self.options.seed)

    def _decode(self, ids: list[int]) -> str:
        text: str = self.target.processor.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def _heading(self) -> dict[str, Any]:
        models = models_by_role(self.target, self.draft)
        return {
            "arguments": options_to_json(self.options),
            "environment": environment(self.target.backbone.device),
            "models": {role: model_facts(model) for role, model in models.items()},
            "seconds": {},
            "finished": False,
        }


def save_evaluation(report: Mapping[str, Any], file: Path) -> None:
    write_json(file, report)


def _weighted(done: Callable[[float], None], cost: float) -> OnAnswers:
    return lambda count: done(count * cost)


def _insert(report: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for key in path[:-1]:
        report = report.setdefault(key, {})
    report[path[-1]] = value
