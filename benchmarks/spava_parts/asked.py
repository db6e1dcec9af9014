"""Prompts of the world for `fidelity` and `selection`: families of questions, and how long the
texts stay on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftlens_lab.evaluate.parts import part_samples
from draftlens_lab.evaluate.samples import caption_samples, question_samples
from draftlens_lab.world import Scene, frame_times, read_facts
from draftlens_lab.world.samples import Sample
from draftlens_lab.world.scene import Text

FRAMES = {1025: 64, 4097: 256, 16001: 1000}
"""Frames by number of visual tokens."""


@dataclass(frozen=True)
class Cell:
    """Prompts of one kind.

    Args:
        family: of questions.
        visual: number of visual tokens.
        kept: frames that each text stays on the screen; 0 for as long as the world shows it.
        ways: the set of ways to read them, of `ways.SETS`.
        number: of prompts.
        rounds: in how many rounds they are read.
    """

    family: str
    visual: int
    kept: int
    ways: str
    number: int
    rounds: int = 20

    @property
    def name(self) -> str:
        """Unique among cells."""
        length = f", texts of {self.kept} frames" if self.kept else ""
        swept = f", {self.ways}" if self.ways in ("choices", "lengths", "ring") else ""
        return f"{self.family}, {self.visual:,} visual tokens{length}{swept}"

    @property
    def frames(self) -> int:
        """Number of frames of a clip."""
        return FRAMES[self.visual]

    def samples(self, number: int) -> list[Sample]:
        """The first held-out samples of the cell."""
        if not self.kept:
            return list(samples_of(self.family, number, self.frames))
        found: list[Sample] = []
        asked = number
        while len(found) < number:
            asked *= 2
            samples = [one for one in samples_of(self.family, asked, self.frames) if is_text(one)]
            found = samples[:number]
        return [with_short_texts(sample, self.frames, self.kept) for sample in found]


def samples_of(family: str, number: int, frames: int) -> Sequence[Sample]:
    """Held-out samples of a family."""
    if family == "caption":
        return caption_samples("clip", number, 0)
    if family == "needle":
        return part_samples("needle", number, 0, frames)
    return question_samples(family, number, 0)


def is_text(sample: Sample) -> bool:
    """Whether the question is about texts; of those about order some are about backgrounds."""
    return "background" not in sample.turns[-1].question


def with_short_texts(sample: Sample, frames: int, kept: int) -> Sample:
    """The sample with texts that are on the screen in at most `kept` frames, in the middle of their
    time."""
    scenes = [_cut(scene, frames, kept) for scene in sample.scenes]
    return replace(sample, scenes=tuple(scenes))


def _cut(scene: Scene, frames: int, kept: int) -> Scene:
    return replace(scene, texts=tuple(_cut_text(text, frames, kept) for text in scene.texts))


def _cut_text(text: Text, frames: int, kept: int) -> Text:
    seen = [
        frame for frame, time in enumerate(frame_times(frames)) if text.start <= time < text.end
    ]
    if len(seen) <= kept:
        return text
    first = seen[(len(seen) - kept) // 2]
    return replace(text, start=first / frames, end=(first + kept) / frames)


def right(sample: Sample, text: str) -> tuple[int, int]:
    """How many of how many are right: of a caption facts, else the answer word for word."""
    truth = sample.turns[-1].answer
    facts = read_facts(truth)
    if sample.turns[-1].family != "caption" or not facts:
        return int(" ".join(text.split()) == " ".join(truth.split())), 1
    said = read_facts(text)
    return sum(said.get(name) == value for name, value in facts.items()), len(facts)
