"""Workloads by name: lists of clips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftlens.bench.clips import FILMS, PICTURES, Clip, ImageFiles, VideoFile, WorldScene, spread
from draftlens.bench.options import Options
from draftlens.core.errors import ConfigError
from draftlens.core.registry import Registry

WORLD_CLIPS, WORLD_LENGTHS = 4, "8,64"
"""Scenes at each length, and lengths in frames, where the user names none."""

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
        out: folder of the run, whose own pictures are no clips.
    """

    where: str
    options: Options
    processor: Any
    out: Path | None = None


Workload = Callable[[Wanted], list[Clip]]


def clips_of(options: Options, processor: Any, out: Path | None = None) -> list[Clip]:
    """The clips of a run: those of its workload, then those of the world for `Options.context`.

    Args:
        options: of the run.
        processor, out: see `Wanted`.

    Raises:
        ConfigError: there is no such workload, or nothing in it.
    """
    name, where = named(options.workload)
    load: Workload = WORKLOADS[name]
    clips = load(Wanted(where, options, processor, out))
    if options.context:
        lengths = ",".join(map(str, options.context))
        known = {clip.name for clip in clips}
        clips = clips + [
            c for c in world(Wanted(lengths, options, processor)) if c.name not in known
        ]
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


def check(options: Options, out: Path, frames: int | None) -> None:
    """Refuse what would else be noticed after minutes of loading, or never.

    Args:
        options: of the run.
        out: folder of the run.
        frames: as many as the user named, if any.

    Raises:
        ConfigError: there is no such workload, or it would not heed an option, or `out` is the
            folder of the clips.
    """
    name, where = named(options.workload)
    if name == "world" and frames is not None and lengths_of(where or WORLD_LENGTHS) != (frames,):
        raise ConfigError(
            f"--frames is for files; the world's clips are told their lengths by name: "
            f"world:{frames}"
        )
    if name in ("world", "folder") and options.media is not None:
        raise ConfigError(
            f"--media says where a dataset's videos are, and {options.workload} is no dataset"
        )
    if name == "folder":
        _own(Path(where), out)


def world(wanted: Wanted) -> list[Clip]:
    """Held-out scenes of the procedural world, the same ones at each length.

    Raises:
        ConfigError: the lengths are no numbers of frames, or matplotlib, whose fonts it writes in,
            is missing.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError(
            'the world draws its letters with matplotlib: pip install "draftlens[bench]"'
        )
    from draftlens.evaluate.asking import side_of
    from draftlens.evaluate.samples import captions

    options = wanted.options
    lengths, side = lengths_of(wanted.where or WORLD_LENGTHS), side_of(wanted.processor)
    clips = []
    for sample in captions("clip", options.clips or WORLD_CLIPS, options.seed):
        turn = sample.turns[0]
        asked = replace(sample, turns=(replace(turn, question=options.prompt or turn.question),))
        scene = WorldScene(asked, side)
        for frames in lengths:
            name = f"world {sample.scenes[0].seed}, {frames} frames"
            clips.append(
                Clip(name, asked.turns[0].question, scene, frames, f"world, {frames} frames")
            )
    return sorted(clips, key=lambda clip: clip.frames)


def lengths_of(given: str) -> tuple[int, ...]:
    """Numbers of frames such as ``8,64``.

    Raises:
        ConfigError: they are no different whole numbers of at least 1 with commas between.
    """
    words = [word.strip() for word in given.split(",")]
    numbers = tuple(int(word) for word in words if word.isascii() and word.isdigit())
    if len(numbers) != len(words) or min(numbers) < 1 or len(set(numbers)) != len(numbers):
        raise ConfigError(
            f"numbers of frames are different whole numbers such as 8,64, not {given!r}"
        )
    return numbers


def folder(wanted: Wanted) -> list[Clip]:
    """A user's own videos and images: each file under a folder is one clip, known by its suffix.

    Raises:
        ConfigError: there is none, or the folder is the run's own.
    """
    root, options = Path(wanted.where), wanted.options
    clips = []
    for file in _files(root, wanted.out) if root.is_dir() else [root]:
        kind = file.suffix.lower()
        if kind not in FILMS | PICTURES or not file.is_file():
            continue
        name = file.relative_to(root).as_posix() if root.is_dir() else file.name
        if kind in FILMS:
            clips.append(_clip(name, "Describe the video.", VideoFile(file), "videos", options))
        else:
            clips.append(_clip(name, "Describe the image.", ImageFiles((file,)), "images", options))
    if not clips:
        raise ConfigError(
            f"{root} holds no videos or images (known by suffixes such as .mp4 and .png)"
        )
    return spread(clips, options.clips)


def _files(root: Path, out: Path | None) -> list[Path]:
    """All files under a folder but the run's own: its plots are no clips."""
    own = None if out is None else _own(root, out)
    return sorted(file for file in root.rglob("*") if own is None or not file.is_relative_to(own))


def _own(root: Path, out: Path) -> Path | None:
    """The run's folder as a part of the clips' folder; None if it lies elsewhere.

    Raises:
        ConfigError: they are the same.
    """
    if out.resolve() == root.resolve():
        raise ConfigError(
            f"{root} holds the clips, and plots would be taken for such: name another folder "
            f"with --out"
        )
    inside = out.resolve().is_relative_to(root.resolve())
    return root / out.resolve().relative_to(root.resolve()) if inside else None


def _clip(
    name: str, prompt: str, media: VideoFile | ImageFiles, group: str, options: Options
) -> Clip:
    return Clip(name, options.prompt or prompt, media, options.frames, group)
