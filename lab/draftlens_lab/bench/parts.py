"""Workloads of questions about a part of what is seen, from the procedural world."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from draftlens.core.errors import ConfigError
from draftlens_lab.bench.clips import Clip, Reader
from draftlens_lab.bench.options import BenchOptions
from draftlens_lab.evaluate.answers import dialogue, render_side
from draftlens_lab.evaluate.parts import part_samples
from draftlens_lab.measure.options import frame_counts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from draftlens_lab.world.samples import Sample

PART_WORKLOADS = ("focus", "needle", "chat", "pairs")

LENGTHS = {"focus": "16,64", "needle": "64", "chat": "16,64", "pairs": "2"}
"""Default numbers of frames."""

CLIPS = 5
"""Default number of scenes at each length: one for each form of focus questions."""


class Request(Protocol):
    """The arguments of a workload, see `draftlens_lab.bench.workloads.WorkloadRequest`."""

    source: str
    options: BenchOptions
    processor: Any


@dataclass(frozen=True)
class PartScene:
    """A scene with a dialogue: the model answers the last question; earlier answers are given.

    Args:
        side: pixels a side of frames and pictures.
    """

    sample: Sample
    side: int

    def prepare(self, prompt: str, frames: int) -> Reader:
        """See `Media.prepare`. The sample already holds the prompt."""
        chat = dialogue(self.sample, frames, self.side)
        return lambda: chat

    def files(self) -> Sequence[Path]:
        return []


def focus(request: Request) -> list[Clip]:
    """Held-out reels with a question about a part; see `part_clips`."""
    return part_clips("focus", request)


def needle(request: Request) -> list[Clip]:
    """Held-out reels with a needle in one frame; see `part_clips`."""
    return part_clips("needle", request)


def chat(request: Request) -> list[Clip]:
    """Held-out reels with a second question about the first answer; see `part_clips`."""
    return part_clips("chat", request)


def pairs(request: Request) -> list[Clip]:
    return part_clips("pairs", request)


def part_clips(family: str, request: Request) -> list[Clip]:
    """Held-out scenes with a question of one family, at each length."""
    if find_spec("matplotlib") is None:
        raise ConfigError("the world draws its letters with matplotlib: pip install matplotlib")

    options = request.options
    side = render_side(request.processor)
    clips = []
    for frames in part_lengths(family, request.source):
        group = f"{family}, {frames} frames" if family != "pairs" else family
        for sample in part_samples(family, options.clips or CLIPS, options.seed, frames):
            last = sample.turns[-1]
            prompt = options.prompt or last.question
            turns = (*sample.turns[:-1], replace(last, question=prompt))
            scene = PartScene(replace(sample, turns=turns), side)
            name = f"{family} {sample.scenes[0].seed}, {frames} frames"
            clips.append(Clip(name, prompt, scene, frames, group))
    return clips


def part_lengths(family: str, source: str) -> tuple[int, ...]:
    """The numbers of frames of a workload."""
    if family == "pairs" and source:
        raise ConfigError(f"pairs of pictures have no number of frames: pairs, not pairs:{source}")
    return frame_counts(source or LENGTHS[family])
