"""Samples on their way into files: what is shown, what is said about it, and a record of what is
right.

Shapes: T frames, S pixels a side.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens.world.facts import Facts, facts, still_facts
from draftlens.world.files import Frames, write_clip
from draftlens.world.render import render, render_still
from draftlens.world.sample import HELD_OUT
from draftlens.world.samples import KINDS, Sample, draw

SPLITS = ("train", "test")

Seeds = Mapping[str, Iterable[int]]
Progress = Callable[[int, int], None]  # (samples written, samples to write)


@dataclass(frozen=True)
class Look:
    """Frames of a clip, frames a second, and pixels a side of frames and pictures.

    Raises:
        ConfigError: no clip can be made of these numbers.
    """

    frames: int
    rate: int
    side: int

    def __post_init__(self) -> None:
        if self.frames < 1 or self.rate < 1:
            raise ConfigError(
                f"{self.frames} frames at {self.rate} a second make no clip; both must be 1 or more"
            )
        if self.side < 16 or self.side % 2:
            raise ConfigError(
                f"a side of {self.side} pixels does not work: it must be even, and 16 or more"
            )


@dataclass(frozen=True)
class Entry:
    """One sample of which the clip is written already and the pictures ``[S, S, 3]`` are not.

    ``video`` is a path from the folder on.
    """

    seed: int
    sample: Sample
    video: str | None
    pictures: tuple[Frames, ...]

    @property
    def name(self) -> str:
        return f"{self.sample.kind}-{self.seed}"

    @property
    def split(self) -> str:
        return SPLITS[self.seed >= HELD_OUT]

    @property
    def conversations(self) -> list[dict[str, str]]:
        """LLaVA's turns; placeholders for what is shown stand before the first question."""
        shown = "<video>\n" if self.video else "<image>\n" * len(self.pictures)
        said = []
        for turn in self.sample.turns:
            said += [
                {"from": "human", "value": shown + turn.question},
                {"from": "gpt", "value": turn.answer},
            ]
            shown = ""
        return said

    @property
    def record(self) -> dict[str, Any]:
        """Where the entry comes from, the family of each question, and the facts of what is
        shown."""
        families = [turn.family for turn in self.sample.turns]
        known = {"families": families, "facts": _known(self.sample)}
        return {"kind": self.sample.kind, "seed": self.seed, "split": self.split, **known}


def seeds_of(
    counts: Mapping[str, int], split: str = "both", held_out: float = 0.1, start: int = 0
) -> dict[str, list[int]]:
    """Seeds for so many samples of each kind.

    Args:
        counts: samples by kind, of ``samples.KINDS``.
        split: ``train`` or ``test`` for one of them; ``both`` for so many of training and a share
            of them held out.
        held_out: that share.
        start: how many seeds of each split to leave out.

    Raises:
        ConfigError: the split is unknown.
    """
    if split not in (*SPLITS, "both"):
        raise ConfigError(f"the split must be train, test or both, not {split!r}")
    seeds = {}
    for kind, count in counts.items():
        train = 0 if split == "test" else count
        test = {"train": 0, "test": count, "both": ceil(count * held_out)}[split]
        seeds[kind] = [
            *range(start, start + train),
            *range(HELD_OUT + start, HELD_OUT + start + test),
        ]
    return seeds


def entries(folder: Path, seeds: Seeds, look: Look, on_sample: Progress | None) -> Iterator[Entry]:
    """Every sample, kind by kind, with its clip written under ``folder``.

    Raises:
        ConfigError: a kind is unknown; seeds are negative, come twice or are none at all; or
            matplotlib is missing.
    """
    wanted = _wanted(seeds)
    for done, (kind, seed) in enumerate(wanted, 1):
        sample, video = draw(kind, seed), None
        pictures: tuple[Frames, ...] = ()
        if kind == "clip":
            video = f"videos/{kind}-{seed}.mp4"
            (folder / "videos").mkdir(exist_ok=True)
            write_clip(folder / video, render(sample.scenes[0], look.frames, look.side), look.rate)
        else:
            pictures = tuple(render_still(scene, look.side) for scene in sample.scenes)
        yield Entry(seed, sample, video, pictures)
        if on_sample:
            on_sample(done, len(wanted))


def _wanted(seeds: Seeds) -> list[tuple[str, int]]:
    if find_spec("matplotlib") is None:
        raise ConfigError(
            'the words of the world need the fonts of matplotlib; pip install "draftlens[train]"'
        )
    unknown = sorted(set(seeds) - set(KINDS))
    if unknown:
        raise ConfigError(
            f"the world has no samples of kind {unknown[0]!r}; it has {', '.join(KINDS)}"
        )
    wanted = [(kind, seed) for kind in KINDS for seed in seeds.get(kind, ())]
    if not wanted:
        raise ConfigError("there is nothing to write: no kind of sample has a seed")
    if len(set(wanted)) < len(wanted) or any(seed < 0 for _, seed in wanted):
        raise ConfigError("the seeds of each kind must all differ, and none may be negative")
    return wanted


def _known(sample: Sample) -> Facts:
    """What is right to say of all that the sample shows; of two pictures, names begin with which of
    them it is."""
    if sample.kind == "clip":
        return facts(sample.scenes[0])
    prefixes = ("first ", "second ") if sample.kind == "pair" else ("",) * len(sample.scenes)
    told = zip(prefixes, sample.scenes, strict=True)
    return {
        prefix + name: value for prefix, scene in told for name, value in still_facts(scene).items()
    }
