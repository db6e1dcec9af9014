"""Workloads by name: lists of clips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens.core.options import Registry
from draftlens_lab.bench.clips import (
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    Clip,
    ImageFiles,
    VideoFile,
    WorldScene,
    select_clips,
)
from draftlens_lab.bench.options import BenchOptions
from draftlens_lab.bench.parts import PART_WORKLOADS, part_lengths
from draftlens_lab.bench.turns import TURN_WORKLOADS, WITHOUT_FRAMES
from draftlens_lab.bench.turns import turn_lengths as turn_lengths_of
from draftlens_lab.evaluate.answers import render_side
from draftlens_lab.evaluate.samples import caption_samples
from draftlens_lab.measure.options import frame_counts

WORLD_CLIPS = 4
"""Default number of the world's scenes at each length."""

WORLD_LENGTHS = "8,64"
"""Default lengths of the world's clips in frames."""

WORKLOADS = Registry(
    "workload",
    {
        "world": "draftlens_lab.bench.workloads:world_clips",
        "focus": "draftlens_lab.bench.parts:focus",
        "needle": "draftlens_lab.bench.parts:needle",
        "chat": "draftlens_lab.bench.parts:chat",
        "pairs": "draftlens_lab.bench.parts:pairs",
        "picture": "draftlens_lab.bench.turns:picture",
        "story": "draftlens_lab.bench.turns:story_clips",
        "ordering": "draftlens_lab.bench.turns:ordering",
        "counting": "draftlens_lab.bench.turns:counting",
        "second": "draftlens_lab.bench.turns:second",
        "recall": "draftlens_lab.bench.turns:recall",
        "aside": "draftlens_lab.bench.turns:aside",
        "talk": "draftlens_lab.bench.turns:talk",
        "folder": "draftlens_lab.bench.workloads:folder_clips",
        "videodetailcaption": "draftlens_lab.bench.datasets:video_detail_caption",
        "mvbench": "draftlens_lab.bench.datasets:mvbench",
        "mlvu": "draftlens_lab.bench.datasets:mlvu",
        "longvideobench": "draftlens_lab.bench.datasets:long_video_bench",
        "videomme": "draftlens_lab.bench.datasets:video_mme",
        "llavaw": "draftlens_lab.bench.picture_sets:llava_w",
        "docvqa": "draftlens_lab.bench.picture_sets:doc_vqa",
        "pope": "draftlens_lab.bench.picture_sets:pope",
        "mmvet": "draftlens_lab.bench.picture_sets:mm_vet",
        "iedit": "draftlens_lab.bench.picture_sets:i_edit",
        "magicbrush": "draftlens_lab.bench.picture_sets:magic_brush",
        "spot": "draftlens_lab.bench.picture_sets:spot_the_difference",
        "pororosv": "draftlens_lab.bench.picture_sets:pororo",
        "vist": "draftlens_lab.bench.picture_sets:vist",
        "convbench": "draftlens_lab.bench.picture_sets:conv_bench",
        "nq": "draftlens_lab.bench.picture_sets:natural_questions",
        "gsm8k": "draftlens_lab.bench.picture_sets:gsm8k",
    },
)


@dataclass(frozen=True)
class WorkloadRequest:
    """Arguments of a workload.

    Args:
        out: folder of the run; its files are not used as clips.
    """

    source: str
    options: BenchOptions
    processor: Any
    out: Path | None = None


Workload = Callable[[WorkloadRequest], list[Clip]]


def clips_of(options: BenchOptions, processor: Any, out: Path | None = None) -> list[Clip]:
    """The clips of a run: of its workload, then of the world for `BenchOptions.context`."""
    name, source = parse_workload(options.workload)
    load: Workload = WORKLOADS[name]
    clips = list(load(WorkloadRequest(source, options, processor, out)))
    if options.context:
        names = {clip.name for clip in clips}
        lengths = ",".join(str(length) for length in options.context)
        context_clips = world_clips(WorkloadRequest(lengths, options, processor))
        clips += [clip for clip in context_clips if clip.name not in names]
    return clips


def parse_workload(text: str) -> tuple[str, str]:
    """Name of a workload and the part after it; the workload of an existing path is `folder`."""
    if Path(text).exists():
        return "folder", text
    name, _, source = text.partition(":")
    if name not in WORKLOADS:
        names = ", ".join(WORKLOADS)
        raise ConfigError(f"there is no workload and no file {text!r}; known workloads: {names}")
    return name, source


def check_workload(options: BenchOptions, out: Path, frames: int | None) -> None:
    """Refuse options that do not go together before the models are loaded."""
    name, source = parse_workload(options.workload)
    lengths = _world_lengths(name, source)
    if name == "pairs" and frames is not None:
        part_lengths(name, str(frames))
    if name in WITHOUT_FRAMES and frames is not None:
        turn_lengths_of(name, str(frames))
    if lengths and frames is not None and lengths != (frames,):
        raise ConfigError(
            f"--frames is for files; the lengths of the world's clips are part of the workload's "
            f"name: {name}:{frames}"
        )
    if (lengths or name == "folder") and options.media is not None:
        raise ConfigError(
            f"--media names the folder of a dataset's videos, and {options.workload} is no dataset"
        )
    if name == "folder":
        _run_folder_inside(Path(source), out)


def _world_lengths(name: str, source: str) -> tuple[int, ...]:
    if name == "world":
        return frame_counts(source or WORLD_LENGTHS)
    if name in PART_WORKLOADS:
        return part_lengths(name, source)
    if name in TURN_WORKLOADS:
        return turn_lengths_of(name, source)
    return ()


def world_clips(request: WorkloadRequest) -> list[Clip]:
    """Held-out scenes of the procedural world, the same ones at each length."""
    if find_spec("matplotlib") is None:
        raise ConfigError("the world draws its letters with matplotlib: pip install matplotlib")

    options = request.options
    lengths = frame_counts(request.source or WORLD_LENGTHS)
    side = render_side(request.processor)
    clips = []
    for sample in caption_samples("clip", options.clips or WORLD_CLIPS, options.seed):
        prompt = options.prompt or sample.turns[0].question
        turn = replace(sample.turns[0], question=prompt)
        scene = WorldScene(replace(sample, turns=(turn,)), side)
        for frames in lengths:
            name = f"world {sample.scenes[0].seed}, {frames} frames"
            clips.append(Clip(name, prompt, scene, frames, f"world, {frames} frames"))
    return sorted(clips, key=lambda clip: clip.frames)


def folder_clips(request: WorkloadRequest) -> list[Clip]:
    """A user's own videos and images, recognized by their suffixes: each file in a folder is one
    clip."""
    root = Path(request.source)
    options = request.options
    is_folder = root.is_dir()
    clips = []
    for file in _files(root, request.out) if is_folder else [root]:
        name = file.relative_to(root).as_posix() if is_folder else file.name
        clip = _file_clip(name, file, options)
        if clip is not None:
            clips.append(clip)
    if not clips:
        raise ConfigError(
            f"{root} holds no videos or images (known by suffixes such as .mp4 and .png)"
        )
    return select_clips(clips, options.clips)


def _file_clip(name: str, file: Path, options: BenchOptions) -> Clip | None:
    """The clip of a file; None if the file is neither a video nor an image."""
    suffix = file.suffix.lower()
    if not file.is_file():
        return None
    if suffix in VIDEO_SUFFIXES:
        prompt = options.prompt or "Describe the video."
        return Clip(name, prompt, VideoFile(file), options.frames, "videos")
    if suffix in IMAGE_SUFFIXES:
        prompt = options.prompt or "Describe the image."
        return Clip(name, prompt, ImageFiles((file,)), options.frames, "images")
    return None


def _files(root: Path, out: Path | None) -> list[Path]:
    """All files in a folder except those of the run, such as plots."""
    files = sorted(root.rglob("*"))
    run_folder = None if out is None else _run_folder_inside(root, out)
    if run_folder is None:
        return files
    return [file for file in files if not file.is_relative_to(run_folder)]


def _run_folder_inside(root: Path, out: Path) -> Path | None:
    """The run's folder as a path below the clips' folder; None if it lies elsewhere."""
    resolved_root = root.resolve()
    resolved_out = out.resolve()
    if resolved_out == resolved_root:
        raise ConfigError(
            f"{root} holds the clips, and the run's plots would become clips: name another folder "
            f"with --out"
        )
    if not resolved_out.is_relative_to(resolved_root):
        return None
    return root / resolved_out.relative_to(resolved_root)
