"""Workloads of one kind of turn each, from the procedural world: captions of a picture, stories of
five pictures, questions about order and number, second turns, and talk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from draftlens.core.errors import ConfigError
from draftlens.media.conversation import Conversation
from draftlens_lab.bench.clips import Clip, Reader
from draftlens_lab.bench.parts import PartScene, Request
from draftlens_lab.evaluate.answers import render_side
from draftlens_lab.evaluate.samples import caption_samples, question_samples
from draftlens_lab.evaluate.turns import second_turns, stories, talks
from draftlens_lab.measure.options import frame_counts
from draftlens_lab.world import render_still

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftlens_lab.world import Story
    from draftlens_lab.world.samples import Sample

LENGTHS = {
    "picture": "",
    "story": "",
    "ordering": "16,64",
    "counting": "16,64",
    "second": "",
    "recall": "",
    "aside": "",
    "talk": "",
}
"""Default numbers of frames; empty for pictures and talk."""

TURN_WORKLOADS = tuple(LENGTHS)

WITHOUT_FRAMES = {"picture": 1, "story": 5, "talk": 0}
"""Workloads that are never about a clip, and the number of their pictures."""

SAMPLES = 5
"""Default number of samples at each length."""


@dataclass(frozen=True)
class StoryScene:
    """A story: each picture but the last before its caption, then the last and the question.

    Args:
        side: pixels a side of the pictures.
    """

    story: Story
    side: int

    def prepare(self, prompt: str, frames: int) -> Reader:
        """See `Media.prepare`. The number of frames is not used."""
        content: list[dict[str, Any]] = []
        for caption in self.story.captions:
            content += [{"type": "image"}, {"type": "text", "text": f"{caption}\n"}]
        content += [{"type": "image"}, {"type": "text", "text": prompt}]
        images = [Image.fromarray(render_still(scene, self.side)) for scene in self.story.scenes]
        chat = Conversation([{"role": "user", "content": content}], images)
        return lambda: chat

    def files(self) -> Sequence[Path]:
        return []


def picture(request: Request) -> list[Clip]:
    """Held-out pictures with a request for the caption; see `turn_clips`."""
    return turn_clips(
        "picture", request, lambda count, _, seed: caption_samples("picture", count, seed)
    )


def story_clips(request: Request) -> list[Clip]:
    """Held-out stories: five pictures, four captions, and a request for the fifth."""
    _check_fonts()
    turn_lengths("story", request.source)

    options = request.options
    side = render_side(request.processor)
    clips = []
    for told in stories(options.clips or SAMPLES, options.seed):
        prompt = options.prompt or told.turn.question
        name = f"story {told.scenes[0].seed}"
        clips.append(Clip(name, prompt, StoryScene(told, side), len(told.scenes), "story"))
    return clips


def ordering(request: Request) -> list[Clip]:
    """Held-out clips with a question about the order of what is seen; see `turn_clips`."""
    return turn_clips(
        "ordering", request, lambda count, _, seed: question_samples("ordering", count, seed)
    )


def counting(request: Request) -> list[Clip]:
    """Held-out clips with a question about a number of things; see `turn_clips`."""
    return turn_clips(
        "counting", request, lambda count, _, seed: question_samples("counting", count, seed)
    )


def second(request: Request) -> list[Clip]:
    """A question about one thing, then a request for the caption; see `turn_clips`."""
    return _second_turns("second", request)


def recall(request: Request) -> list[Clip]:
    """The caption, then a question that it answers; see `turn_clips`."""
    return _second_turns("recall", request)


def aside(request: Request) -> list[Clip]:
    """The caption, then a question that has nothing to do with it; see `turn_clips`."""
    return _second_turns("aside", request)


def talk(request: Request) -> list[Clip]:
    """Talk without media; see `turn_clips`."""
    return turn_clips("talk", request, lambda count, _, seed: talks(count, seed))


MakeSamples = Callable[[int, bool, int], "Iterable[Sample]"]
"""Makes a number of samples, about clips or not, for a seed."""


def turn_clips(kind: str, request: Request, make: MakeSamples) -> list[Clip]:
    """The samples of a kind at each length. The last question is asked; the questions before it
    have their right answers."""
    _check_fonts()

    options = request.options
    side = render_side(request.processor)
    clips = []
    for frames in turn_lengths(kind, request.source):
        about_clip = is_about_clip(kind, request.source)
        group = f"{kind}, {frames} frames" if about_clip else kind
        samples = make(options.clips or SAMPLES, about_clip, options.seed)
        for number, sample in enumerate(samples, 1):
            last = sample.turns[-1]
            prompt = options.prompt or last.question
            turns = (*sample.turns[:-1], replace(last, question=prompt))
            scene = PartScene(replace(sample, turns=turns), side)
            clips.append(Clip(f"{group} {number}", prompt, scene, frames, group))
    return clips


def turn_lengths(kind: str, source: str) -> tuple[int, ...]:
    """The numbers of frames of a workload; the number of pictures if it is about pictures.

    Args:
        source: numbers of frames, or empty for the default.
    """
    if kind in WITHOUT_FRAMES:
        if source:
            raise ConfigError(f"{kind} has no number of frames: {kind}, not {kind}:{source}")
        return (WITHOUT_FRAMES[kind],)
    if not is_about_clip(kind, source):
        return (1,)
    return frame_counts(source or LENGTHS[kind])


def is_about_clip(kind: str, source: str) -> bool:
    """Whether a workload shows clips; otherwise pictures or nothing."""
    return bool(source or LENGTHS[kind])


def _second_turns(kind: str, request: Request) -> list[Clip]:
    def make(count: int, about_clip: bool, seed: int) -> list[Sample]:
        return second_turns(kind, "clip" if about_clip else "picture", count, seed)

    return turn_clips(kind, request, make)


def _check_fonts() -> None:
    if find_spec("matplotlib") is None:
        raise ConfigError("the world draws its letters with matplotlib: pip install matplotlib")
