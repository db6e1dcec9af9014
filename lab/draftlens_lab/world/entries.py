"""Samples as entries of an export: media, dialogue, and a record of the facts.

Shapes: S is the side of frames and pictures, in pixels.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens_lab.world.captions import marked_part
from draftlens_lab.world.fact_reader import Facts, facts, read_facts, still_facts
from draftlens_lab.world.files import Frames, write_clip
from draftlens_lab.world.focus import FocusTurn
from draftlens_lab.world.regions import evidence
from draftlens_lab.world.renderer import render, render_still
from draftlens_lab.world.sample import HELD_OUT
from draftlens_lab.world.samples import KINDS, REEL_KINDS, Sample, draw
from draftlens_lab.world.scene import Scene
from draftlens_lab.world.wording import unmark

SPLITS = ("train", "test")

Seeds = Mapping[str, Iterable[int]]
Progress = Callable[[int, int], None]  # (samples written, samples to write)


@dataclass(frozen=True)
class MediaFormat:
    """The format of exported media.

    Attributes:
        frames: number of frames of a clip.
        rate: frames per second.
        side: width and height of frames and pictures, in pixels.
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
class WorldEntry:
    """One sample in an export.

    Attributes:
        seed: the seed of the sample.
        sample: scenes and dialogue.
        video: path of the clip, which is already written, relative to the folder; None without a
            clip.
        pictures: uint8 ``[S, S, 3]`` each, not yet written.
    """

    seed: int
    sample: Sample
    video: str | None
    pictures: tuple[Frames, ...]

    @property
    def name(self) -> str:
        """A name that is unique in the export."""
        return f"{self.sample.kind}-{self.seed}"

    @property
    def split(self) -> str:
        """The split of the seed, of `SPLITS`."""
        return "test" if self.seed >= HELD_OUT else "train"

    @property
    def conversations(self) -> list[dict[str, str]]:
        """The turns in LLaVA's format; placeholders for media precede the first question."""
        placeholders = "<video>\n" if self.video else "<image>\n" * len(self.pictures)
        messages = []
        for turn in self.sample.turns:
            messages.append({"from": "human", "value": turn.question})
            messages.append({"from": "gpt", "value": turn.answer})
        messages[0]["value"] = placeholders + messages[0]["value"]
        return messages

    @property
    def record(self) -> dict[str, Any]:
        """The origin of the sample, the family of each question, and the facts of the scenes.

        If the questions are about parts, `evidence` has the frames of each answer and their cells;
        the frames of a pair of pictures are 0 and 1.
        """
        record: dict[str, Any] = {
            "kind": self.sample.kind,
            "seed": self.seed,
            "split": self.split,
            "families": [turn.family for turn in self.sample.turns],
            "facts": _sample_facts(self.sample),
        }
        parts = [turn for turn in self.sample.turns if isinstance(turn, FocusTurn)]
        if parts:
            record["evidence"] = [_evidence_json(turn, self.sample) for turn in parts]
        return record


def seeds_of(
    counts: Mapping[str, int], split: str = "both", held_out: float = 0.1, start: int = 0
) -> dict[str, list[int]]:
    """Seeds for a number of samples of each kind.

    Args:
        counts: number of samples by kind, of ``samples.KINDS``.
        split: ``train`` or ``test`` for samples of this split; ``both`` for this number of training
            samples, and test samples in proportion.
        held_out: with ``both``, the number of test samples for each training sample.
    """
    if split not in (*SPLITS, "both"):
        raise ConfigError(f"the split must be train, test or both, not {split!r}")
    seeds = {}
    for kind, count in counts.items():
        num_train = 0 if split == "test" else count
        num_test = 0
        if split == "test":
            num_test = count
        elif split == "both":
            num_test = ceil(count * held_out)
        train = range(start, start + num_train)
        test = range(HELD_OUT + start, HELD_OUT + start + num_test)
        seeds[kind] = [*train, *test]
    return seeds


def entries(
    folder: Path, seeds: Seeds, media_format: MediaFormat, on_sample: Progress | None
) -> Iterator[WorldEntry]:
    """Every sample, kind by kind; each clip is written under ``folder``."""
    check_fonts()
    keys = _sample_keys(seeds)
    for done, (kind, seed) in enumerate(keys, 1):
        yield _entry(folder, kind, seed, media_format)
        if on_sample:
            on_sample(done, len(keys))


def _entry(folder: Path, kind: str, seed: int, media_format: MediaFormat) -> WorldEntry:
    sample = draw(kind, seed, media_format.frames)
    if sample.media != "video":
        pictures = tuple(render_still(scene, media_format.side) for scene in sample.scenes)
        return WorldEntry(seed, sample, None, pictures)
    video = f"videos/{kind}-{seed}.mp4"
    (folder / "videos").mkdir(exist_ok=True)
    frames = render(sample.scenes[0], media_format.frames, media_format.side)
    write_clip(folder / video, frames, media_format.rate)
    return WorldEntry(seed, sample, video, ())


def check_fonts() -> None:
    if find_spec("matplotlib") is None:
        raise ConfigError(
            "the words of the world need the fonts of matplotlib: pip install matplotlib"
        )


def _sample_keys(seeds: Seeds) -> list[tuple[str, int]]:
    unknown = sorted(set(seeds) - set(KINDS))
    if unknown:
        raise ConfigError(
            f"the world has no samples of kind {unknown[0]!r}; it has {', '.join(KINDS)}"
        )
    keys = [(kind, seed) for kind in KINDS for seed in seeds.get(kind, ())]
    if not keys:
        raise ConfigError("there is nothing to write: no kind of sample has a seed")
    if len(set(keys)) < len(keys) or any(seed < 0 for _, seed in keys):
        raise ConfigError("the seeds of each kind must all differ, and none may be negative")
    return keys


def _sample_facts(sample: Sample) -> Facts:
    """The facts of all scenes. For a pair, each name begins with "first" or "second"."""
    if sample.kind == "clip":
        return facts(sample.scenes[0])
    if sample.kind in REEL_KINDS:
        return _reel_facts(sample.scenes[0])
    if sample.kind == "picture":
        return still_facts(sample.scenes[0])
    result: Facts = {}
    for prefix, scene in zip(("first", "second"), sample.scenes, strict=False):
        for name, value in still_facts(scene).items():
            result[f"{prefix} {name}"] = value
    return result


def _reel_facts(reel: Scene) -> Facts:
    """The facts of all shots; each name begins with "shot" and the shot's number, from 1."""
    texts = [text for text in reel.texts if text.kind != "secret"]
    result: Facts = {}
    for number, (shot, text) in enumerate(zip(reel.shots, texts, strict=True), 1):
        for name, value in read_facts(unmark(marked_part(shot, text))).items():
            result[f"shot {number} {name.removeprefix('shot ').removeprefix('first ')}"] = value
    return result


def _evidence_json(turn: FocusTurn, sample: Sample) -> dict[str, Any]:
    shown = evidence(turn.regions, sample.frames or len(sample.scenes))
    return {"frames": list(shown.frames), "cells": [list(cells) for cells in shown.cells]}
