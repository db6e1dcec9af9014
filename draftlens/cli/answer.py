"""`draftlens caption` and `draftlens ask`: one answer on the terminal, or one a clip in a file."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftlens.api import Engine
from draftlens.cli.folders import FolderRun, find_media, run_folder
from draftlens.cli.loading import load_engine, note_strangers, read_source
from draftlens.cli.model_options import Loading
from draftlens.cli.show import print_json, result_json, show_stats, show_stream
from draftlens.core.errors import InputError
from draftlens.core.stats import Clock, Stats
from draftlens.mapping import MapOptions
from draftlens.media import Limits


@dataclass(frozen=True)
class Answering:
    """What `caption` and `ask` are asked to do.

    Args:
        names: files, folders and addresses.
        kind: `video` or `image`.
        prompt: about each clip, or about all images.
        frames: to sample from a clip.
        target, draft, method, loading: as for `cli.loading.load_engine`.
        calibrate: whether to measure what forwards cost.
        prefill, hosts, compile: as for `draftlens.load`.
        generation: options of `Engine.answer`, with the seed.
        limits: bounds on media.
        quiet: whether nothing but the result is printed, as JSON.
    """

    names: list[str]
    kind: str
    prompt: str
    frames: int
    target: str
    draft: str
    method: Any
    loading: Loading
    calibrate: bool
    generation: dict[str, Any]
    limits: Limits
    quiet: bool
    prefill: Any = None
    hosts: int | None = None
    compile: Any = False

    def load(self) -> Engine:
        """The engine."""
        return load_engine(
            self.target,
            self.draft,
            self.method,
            self.loading,
            self.quiet,
            self.calibrate,
            self.prefill,
            self.hosts,
            self.compile,
        )


def answer_one(answering: Answering) -> None:
    """Answer one prompt and print the answer.

    Raises:
        InputError: there are several clips, or a folder.
        MediaError: a file cannot be read.
    """
    names = answering.names
    if any(Path(name).is_dir() for name in names):
        raise InputError("a folder needs a file for its answers: name one with --out FILE.jsonl")
    if answering.kind == "video":
        if len(names) > 1:
            raise InputError(
                "several clips need a file for their answers: name one with --out FILE.jsonl"
            )
        media: dict[str, Any] = {"video": names[0]}
    else:
        media = {"images": names}
    began = time.perf_counter()
    chat = read_source(
        answering.quiet, answering.limits, answering.prompt, answering.frames, **media
    )
    reading_seconds = time.perf_counter() - began
    note_strangers(answering.target, names)
    engine = answering.load()
    # The first token takes as long as in Python: with the frames, without the loading.
    clock = Clock(Stats())
    clock.begin_earlier("frames", reading_seconds)
    with clock.phase("frames"):
        inputs = engine.process([chat])
    stream = engine.answer(inputs, clock=clock, **answering.generation)
    if answering.quiet:
        print_json(result_json(stream.run()))
    else:
        show_stats(show_stream(stream, engine.pieces), engine.notice)


def answer_each(
    answering: Answering, out: Path, resume: bool | None, batch: int, clip_seconds: float
) -> None:
    """Answer the prompt about every clip or image, and write a line for each to a file.

    Raises:
        ConfigError: the file holds another run, or cannot be written.
        InputError: there is nothing to answer about.
    """
    found = find_media(answering.names, answering.kind, out)
    generation = dict(answering.generation)
    options = MapOptions(
        kind=answering.kind,
        num_frames=answering.frames,
        limits=answering.limits,
        batch=batch,
        clip_seconds=clip_seconds,
        seed=generation.pop("seed"),
    )
    run = FolderRun(found, answering.prompt, options, generation, answering.quiet)
    run_folder(run, out, resume, answering.load)
