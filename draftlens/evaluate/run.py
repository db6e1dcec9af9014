"""The whole evaluation, section by section, each saved as soon as it is finished."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from draftlens.api import Engine
from draftlens.evaluate.accuracy import captions_right, questions_right
from draftlens.evaluate.agreement import agreement, prunings, ranks_of, visual_dependence
from draftlens.evaluate.asking import Answer, Asker, Done, side_of
from draftlens.evaluate.chance import SCENES, Guesses
from draftlens.evaluate.environment import environment, model_facts
from draftlens.evaluate.goals import goals
from draftlens.evaluate.samples import FAMILIES, asked, captions
from draftlens.models.load import Loaded

LONG = 5
"""Long input is measured on one clip in so many."""


@dataclass(frozen=True)
class Options:
    """What to measure on.

    Args:
        clips: held-out scenes of each kind, and questions of each family.
        frames: that clips are shown as. The first number is the usual one: questions, agreement and
            visual dependence use it. The others are long input, for captions of one clip in LONG.
        seed: other seeds take other held-out scenes.
        guesses: training scenes that blind guessing learns from.
    """

    clips: int = 100
    frames: tuple[int, ...] = (8, 64, 256)
    seed: int = 0
    guesses: int = SCENES


class Watcher(Protocol):
    """Who looks on."""

    def plan(self, work: float) -> None:
        """All the work to come, in units of one caption of a short clip."""

    def begin(self, section: str) -> None:
        """A section begins."""

    def done(self, work: float) -> None:
        """So much more is done."""

    def saved(self, report: Mapping[str, Any]) -> None:
        """A section is finished, and in the report."""


class Unwatched:
    """Nobody looks on."""

    def plan(self, work: float) -> None:
        """Nothing."""

    def begin(self, section: str) -> None:
        """Nothing."""

    def done(self, work: float) -> None:
        """Nothing."""

    def saved(self, report: Mapping[str, Any]) -> None:
        """Nothing."""


@dataclass
class Section:
    """A part of the report.

    Args:
        path: its keys there.
        make: measures it; told how to say that samples are done.
        samples: how many it says.
        cost: work of one, in units of one caption of a short clip.
    """

    path: tuple[str, ...]
    make: Callable[[Done], Any]
    samples: int
    cost: float


@dataclass
class Evaluation:
    """A target, perhaps with its draft, that is measured.

    Args:
        target, draft: loaded, and known to fit together.
        options: what to measure on.
    """

    target: Loaded
    draft: Loaded | None
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        side = side_of(self.target.processor)
        self.askers = {"target": Asker(Engine(self.target, self.draft), side)}
        if self.draft is not None:
            self.askers["draft"] = Asker(Engine(self.draft, None), side_of(self.draft.processor))
        self.frames, seed = self.options.frames[0], self.options.seed
        self.clips = captions("clip", self.options.clips, seed)
        self.pictures = captions("picture", self.options.clips, seed)
        self.families = {family: asked(family, self.options.clips, seed) for family in FAMILIES}
        self.guesses: Guesses | None = None
        self.told: list[
            Answer
        ] = []  # the target's captions of self.clips at the usual number of frames

    def run(self, watcher: Watcher | None = None) -> dict[str, Any]:
        """Measure everything; the report as JSON values, the same for the same arguments but for
        `seconds`."""
        watcher, sections = watcher or Unwatched(), self.sections()
        report = self._heading()
        watcher.plan(sum(section.samples * section.cost for section in sections))
        for section in sections:
            name, begun = " ".join(section.path), time.perf_counter()
            watcher.begin(name)
            _put(report, section.path, section.make(_weighed(watcher.done, section.cost)))
            report["goals"] = goals(report)
            report["seconds"][name] = round(time.perf_counter() - begun, 3)
            report["finished"] = section is sections[-1]
            watcher.saved(report)
        return report

    def sections(self) -> list[Section]:
        """What there is to measure, the most wanted first."""
        long = self.options.frames[1:]
        sections = self._accuracy("target", 1.0)
        if self.draft is not None:
            sections += [
                Section(("agreement",), self._agreement, len(self.clips), 0.2),
                Section(("visual",), self._visual, len(self.clips), 1.0),
                *self._accuracy("draft", 0.4),
            ]
        for who, cost in zip(self.askers, (1.0, 0.4), strict=False):
            sections += [self._captions(who, frames, cost * frames / 16) for frames in long]
        return sections

    def _accuracy(self, who: str, cost: float) -> list[Section]:
        number = sum(map(len, self.families.values()))
        return [
            self._captions(who, self.frames, cost),
            Section(
                ("accuracy", who, "pictures"),
                partial(self._pictures, who),
                len(self.pictures),
                cost / 2,
            ),
            Section(
                ("accuracy", who, "questions"), partial(self._questions, who), number, cost / 6
            ),
        ]

    def _captions(self, who: str, frames: int, cost: float) -> Section:
        clips = (
            self.clips if frames == self.frames else self.clips[: max(1, len(self.clips) // LONG)]
        )

        def make(done: Done) -> dict[str, Any]:
            answers = self.askers[who].answer(clips, frames, done)
            if who == "target" and frames == self.frames:
                self.told = answers
            tokens = self.askers[who].visual_tokens(clips[0], frames)
            return {"frames": frames, "visual_tokens": tokens, **captions_right(clips, answers)}

        return Section(("accuracy", who, "captions", str(frames)), make, len(clips), cost)

    def _pictures(self, who: str, done: Done) -> dict[str, Any]:
        answers = self.askers[who].answer(self.pictures, 1, done)
        tokens = self.askers[who].visual_tokens(self.pictures[0], 1)
        return {"visual_tokens": tokens, **captions_right(self.pictures, answers)}

    def _questions(self, who: str, done: Done) -> dict[str, Any]:
        self.guesses = self.guesses or Guesses(self.options.guesses)
        return questions_right(self.askers[who], self.families, self.frames, self.guesses, done)

    def _agreement(self, done: Done) -> dict[str, Any]:
        everything = [prunings()[0]]
        (ranks,) = ranks_of(
            self.askers["target"], self.clips, self.told, self.frames, everything, done
        )
        return agreement(self.clips, self.told, ranks, self._decode)

    def _visual(self, done: Done) -> dict[str, Any]:
        tried = prunings()
        ranks = ranks_of(self.askers["target"], self.clips, self.told, self.frames, tried, done)
        return visual_dependence(tried, ranks, self.options.seed)

    def _decode(self, ids: list[int]) -> str:
        text: str = self.target.processor.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def _heading(self) -> dict[str, Any]:
        models = {"target": self.target} | ({} if self.draft is None else {"draft": self.draft})
        return {
            "arguments": asdict(self.options) | {"frames": list(self.options.frames)},
            "environment": environment(self.target.backbone.device),
            "models": {role: model_facts(model) for role, model in models.items()},
            "seconds": {},
            "finished": False,
        }


def save(report: Mapping[str, Any], file: Path) -> None:
    """Write the report as JSON, whole or not at all."""
    part = file.with_name(file.name + ".part")
    part.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(part, file)


def _weighed(done: Callable[[float], None], cost: float) -> Done:
    return lambda count: done(count * cost)


def _put(report: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for key in path[:-1]:
        report = report.setdefault(key, {})
    report[path[-1]] = value
