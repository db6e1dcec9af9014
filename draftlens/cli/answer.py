"""`draftlens caption` and `draftlens ask`: one answer on the terminal, or a file with many."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftlens.batch.map import MapOptions
from draftlens.cli.folders import FolderRun, find_media, run_folder
from draftlens.cli.loading import engine_of, read_source
from draftlens.cli.logs import is_quiet
from draftlens.cli.model_options import Loading
from draftlens.cli.option_groups import Decoding, FolderOptions
from draftlens.cli.show import print_json, result_json, show_stats, show_stream
from draftlens.core.errors import InputError
from draftlens.core.stats import Clock, Stats
from draftlens.engine import Engine
from draftlens.media import Limits
from draftlens.media.limits import is_url


@dataclass(frozen=True)
class Question:
    """A prompt about files."""

    names: list[str]
    kind: str
    prompt: str
    frames: int
    limits: Limits


@dataclass(frozen=True)
class Answering:
    """A call of `caption` or `ask`.

    Args:
        quiet: whether nothing but the result is printed, as JSON.
    """

    question: Question
    decoding: Decoding
    generation: dict[str, Any]
    loading: Loading
    calibrate: bool
    quiet: bool

    def load(self) -> Engine:
        return engine_of(self.decoding, self.loading, self.quiet, self.calibrate)


def answer(answering: Answering, folder: FolderOptions) -> None:
    """Answer on the terminal, or in a file with one line for each clip or image."""
    if folder.out is None:
        answer_one(answering)
    else:
        answer_each(answering, folder.out, folder)


def answer_one(answering: Answering) -> None:
    """Answer one prompt and print the answer."""
    question = answering.question
    media = _media_of(question)
    began = time.perf_counter()
    chat = read_source(answering.quiet, question.limits, question.prompt, question.frames, **media)
    reading_seconds = time.perf_counter() - began
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


def _media_of(question: Question) -> dict[str, Any]:
    names = question.names
    if any(_is_folder(name) for name in names):
        raise InputError("a folder needs a file for its answers: name one with --out FILE.jsonl")
    if question.kind == "image":
        return {"images": names}
    if len(names) > 1:
        raise InputError(
            "several clips need a file for their answers: name one with --out FILE.jsonl"
        )
    return {"video": names[0]}


def _is_folder(name: str) -> bool:
    return not is_url(name) and Path(name).is_dir()


def answer_each(answering: Answering, out: Path, folder: FolderOptions) -> None:
    """Answer the prompt about every clip or image, and write a line for each to a file."""
    question = answering.question
    names = find_media(question.names, question.kind, out)
    generation = dict(answering.generation)
    options = MapOptions(
        kind=question.kind,
        num_frames=question.frames,
        limits=question.limits,
        batch=folder.batch,
        clip_seconds=folder.clip_seconds,
        seed=generation.pop("seed"),
    )
    run = FolderRun(names, question.prompt, options, generation, answering.quiet or is_quiet())
    run_folder(run, out, folder.resume, answering.load)
