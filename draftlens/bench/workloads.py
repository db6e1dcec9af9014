"""Workloads by name: lists of clips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftlens.bench.clips import FILMS, PICTURES, Clip, ImageFiles, VideoFile, WorldScene, spread
from draftlens.bench.options import Options
from draftlens.errors import ConfigError
from draftlens.registry import Registry

WORLD_CLIPS = 4
"""Scenes at each length, where the user names no number."""

WORKLOADS = Registry(
    "workload",
    {
        "world": "draftlens.bench.workloads:world",
        "folder": "draftlens.bench.workloads:folder",
        "videodetailcaption": "draftlens.bench.datasets:video_detail_caption",
        "mvbench": "draftlens.bench.datasets:mvbench",
        "mlvu": "draftlens.bench.datasets:mlvu",
        "longvideobench": "draftlens.bench.datasets:long_video_bench",
        "videomme": "draftlens.bench.datasets:video_mme",
    },
)


@dataclass(frozen=True)
class Wanted:
    """What a workload is asked for.

    Args:
        where: what stands behind its name: numbers of frames, a path, a dataset's name.
        options: of the run.
        processor: the target's: the world is rendered at the size that it shows its model.
    """

    where: str
    options: Options
    processor: Any


Workload = Callable[[Wanted], list[Clip]]


def clips_of(options: Options, processor: Any) -> list[Clip]:
    """The clips of a run: those of its workload, then those of the world for `Options.context`.

    Raises:
        ConfigError: there is no such workload, or nothing in it.
    """
    name, where = named(options.workload)
    load: Workload = WORKLOADS[name]
    clips = load(Wanted(where, options, processor))
    if options.context:
        lengths = ",".join(map(str, options.context))
        known = {clip.name for clip in clips}
        clips = clips + [c for c in world(Wanted(lengths, options, processor)) if c.name not in known]
    return clips


def named(spec: str) -> tuple[str, str]:
    """A workload's name and what stands behind it; anything that exists on disk is a `folder`.

    Raises:
        ConfigError: there is neither such a workload nor such a file.
    """
    if Path(spec).exists():
        return "folder", spec
    name, _, where = spec.partition(":")
    if name not in WORKLOADS:
        known = ", ".join(WORKLOADS)
        raise ConfigError(f"there is no workload and no file {spec!r}; known workloads: {known}")
    return name, where


def world(wanted: Wanted) -> list[Clip]:
    """Held-out scenes of the procedural world, the same ones at each length.

    Raises:
        ConfigError: the lengths are no numbers of frames, or matplotlib, whose fonts it writes in, is missing.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError('the world draws its letters with matplotlib: pip install "draftlens[bench]"')
    from draftlens.train.evaluate.asking import side_of
    from draftlens.train.evaluate.samples import captions

    options = wanted.options
    lengths, side = lengths_of(wanted.where or "8,64"), side_of(wanted.processor)
    clips = []
    for sample in captions("clip", options.clips or WORLD_CLIPS, options.seed):
        turn = sample.turns[0]
        asked = replace(sample, turns=(replace(turn, question=options.prompt or turn.question),))
        scene = WorldScene(asked, side)
        for frames in lengths:
            name = f"world {sample.scenes[0].seed}, {frames} frames"
            clips.append(Clip(name, asked.turns[0].question, scene, frames, f"world, {frames} frames"))
    return sorted(clips, key=lambda clip: clip.frames)


def lengths_of(given: str) -> tuple[int, ...]:
    """Numbers of frames such as ``8,64``.

    Raises:
        ConfigError: they are no different whole numbers of at least 1 with commas between.
    """
    words = [word.strip() for word in given.split(",")]
    numbers = tuple(int(word) for word in words if word.isascii() and word.isdigit())
    if len(numbers) != len(words) or min(numbers) < 1 or len(set(numbers)) != len(numbers):
        raise ConfigError(f"numbers of frames are different whole numbers such as 8,64, not {given!r}")
    return numbers


def folder(wanted: Wanted) -> list[Clip]:
    """A user's own videos and images: each file under a folder is one clip, known by its suffix.

    Raises:
        ConfigError: there is none.
    """
    root, options = Path(wanted.where), wanted.options
    files = sorted(root.rglob("*")) if root.is_dir() else [root]
    clips = []
    for file in files:
        kind = file.suffix.lower()
        if kind not in FILMS | PICTURES or not file.is_file():
            continue
        name = file.relative_to(root).as_posix() if root.is_dir() else file.name
        if kind in FILMS:
            clips.append(_clip(name, "Describe the video.", VideoFile(file), "videos", options))
        else:
            clips.append(_clip(name, "Describe the image.", ImageFiles((file,)), "images", options))
    if not clips:
        raise ConfigError(f"{root} holds no videos or images (known by suffixes such as .mp4 and .png)")
    return spread(clips, options.clips)


def _clip(name: str, prompt: str, media: VideoFile | ImageFiles, group: str, options: Options) -> Clip:
    return Clip(name, options.prompt or prompt, media, options.frames, group)
