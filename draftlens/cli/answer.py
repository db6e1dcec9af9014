"""`draftlens caption` and `draftlens ask`: one answer on the terminal, or a file with many."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftlens.batch.map import MapOptions
from draftlens.cli.folders import FolderRun, find_media, run_folder
from draftlens.cli.loading import engine_of, read_media
from draftlens.cli.options import FolderOptions, Loading
from draftlens.cli.show import is_quiet, print_json, result_json, show_stats, show_stream
from draftlens.core.errors import InputError
from draftlens.core.names import AUTO
from draftlens.core.stats import Clock, Stats
from draftlens.engine import Engine
from draftlens.media import Limits
from draftlens.media.limits import is_url

FEW_TOKENS = 64
"""Most tokens of a single answer that saves less time than the start of passes takes."""


@dataclass(frozen=True)
class Answering:
    """A call of `caption` or `ask`: a prompt about files of one kind.

    Args:
        decoding: arguments of `draftlens.load`.
        quiet: whether nothing but the result is printed, as JSON.
    """

    names: list[str]
    kind: str
    prompt: str
    frames: int
    limits: Limits
    decoding: dict[str, Any]
    generation: dict[str, Any]
    loading: Loading
    quiet: bool

    def run(self, folder: FolderOptions) -> None:
        """Answer on the terminal, or in a file with one line for each clip or image."""
        if folder.out is None:
            self._answer_one()
        else:
            self._answer_each(folder.out, folder)

    def _load(self) -> Engine:
        return engine_of(self.decoding, self.loading, self.quiet)

    def _load_for_one(self) -> Engine:
        """By the modules if preparing passes would take longer than they save."""
        is_short = self.generation["max_new_tokens"] <= FEW_TOKENS
        if is_short and self.decoding["compile"] == AUTO:
            return engine_of({**self.decoding, "compile": False}, self.loading, self.quiet)
        return self._load()

    def _answer_one(self) -> None:
        media = self._media()
        began = time.perf_counter()
        chat = read_media(self.quiet, self.limits, self.prompt, self.frames, **media)
        reading_seconds = time.perf_counter() - began
        engine = self._load_for_one()
        # The first token takes as long as in Python: with the frames, without the loading.
        clock = Clock(Stats())
        clock.begin_earlier("frames", reading_seconds)
        with clock.phase("frames"):
            inputs = engine.process([chat])
        stream = engine.answer(inputs, clock=clock, **self.generation)
        if self.quiet:
            print_json(result_json(stream.run()))
        else:
            show_stats(show_stream(stream, engine.pieces), engine.notice)

    def _answer_each(self, out: Path, folder: FolderOptions) -> None:
        names = find_media(self.names, self.kind, out)
        generation = dict(self.generation)
        options = MapOptions(
            kind=self.kind,
            num_frames=self.frames,
            limits=self.limits,
            batch=folder.batch,
            clip_seconds=folder.clip_seconds,
            seed=generation.pop("seed"),
        )
        run = FolderRun(names, self.prompt, options, generation, self.quiet or is_quiet())
        run_folder(run, out, folder.resume, self._load)

    def _media(self) -> dict[str, Any]:
        if any(not is_url(name) and Path(name).is_dir() for name in self.names):
            raise InputError(
                "a folder needs a file for its answers: name one with --out FILE.jsonl"
            )
        if self.kind == "image":
            return {"images": self.names}
        if len(self.names) > 1:
            raise InputError(
                "several clips need a file for their answers: name one with --out FILE.jsonl"
            )
        return {"video": self.names[0]}
