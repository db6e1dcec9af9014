"""Answers about many files: one JSON line for each, in a file that a later run goes on with."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from json import dumps, loads
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from draftlens.batch.map import ClipAnswer, MapOptions
from draftlens.cli.progress import is_hidden, progress_bars
from draftlens.cli.show import say
from draftlens.core.errors import ConfigError, InputError
from draftlens.core.files import (
    LineWriter,
    begins_with,
    cut_incomplete_line,
    name_fields,
    name_in,
    only_writer,
    read_lines,
)
from draftlens.core.text import printable
from draftlens.engine import Engine
from draftlens.media.files import SUFFIXES, is_url
from draftlens.methods.base import name_of, to_dict

FIRST_KEY = "file"
"""Key that each line of answers begins with."""

LOG_SECONDS = 30.0
"""Time between two lines about the progress where there is no terminal."""


@dataclass(frozen=True)
class FolderRun:
    """A prompt about files."""

    names: Sequence[str]
    prompt: str
    options: MapOptions
    generation: Mapping[str, Any]
    quiet: bool = False


def find_media(names: Sequence[str], kind: str, out: Path) -> list[str]:
    """The files to answer about, each once: those that are named, and those in folders, sorted.

    Args:
        out: the file of the answers, which is none of them.
    """
    files: list[str] = []
    for name in names:
        folder = Path(name)
        if is_url(name) or not folder.is_dir():
            files.append(name)
            continue
        for path in sorted(folder.rglob("*")):
            if path.suffix.lower() in SUFFIXES[kind] and path.is_file():
                files.append(str(path))
    files = [name for name in dict.fromkeys(files) if Path(name) != out]
    if not files:
        raise InputError(
            f"there are no files of kind {kind} in {', '.join(names)} ({', '.join(SUFFIXES[kind])})"
        )
    return files


def run_folder(run: FolderRun, out: Path, resume: bool | None, load: Callable[[], Engine]) -> None:
    """Answer about every file that has no line yet.

    Args:
        resume: whether to go on with the run in the file (True) or to replace it (False); None if
            the user chose neither.
        load: loads the engine; called only if there is something left to answer.
    """
    _check_place(out)
    with only_writer(out):
        written = _begin(out, resume)
        done = {name_in(line) for line in written}
        names = [name for name in run.names if name not in done]
        requested = set(run.names)
        failed = sum("error" in line for line in written if name_in(line) in requested)
        progress = _Progress(len(run.names), len(run.names) - len(names), failed)
        try:
            if names:
                engine = load()
                identity = _identity(engine, run)
                _check_same(out, written, identity)
                cut_incomplete_line(out)
                _answer_all(engine, run, names, identity, out, progress)
        except KeyboardInterrupt:
            if not run.quiet:
                say(f"\n{out}: {progress.standing()}; go on with: {_resuming(sys.argv[1:])}")
            raise
        if not run.quiet:
            say(f"{out}: {progress.summary()}")


def _check_place(out: Path) -> None:
    if out.is_dir():
        raise ConfigError(f"--out needs a file, and {out} is a folder: name one in it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(out, error) from error


def _begin(out: Path, resume: bool | None) -> list[dict[str, Any]]:
    try:
        if resume:
            return read_lines(out, FIRST_KEY)
        if out.is_file() and out.stat().st_size:
            if not begins_with(out, FIRST_KEY):
                raise ConfigError(
                    f"{out} holds no answers and is left as it is: name another file with --out"
                )
            if resume is None:
                raise ConfigError(
                    f"{out} holds answers: --resume continues them, --restart discards them"
                )
        out.write_bytes(b"")
        return []
    except OSError as error:
        raise _unwritable(out, error) from error


def _unwritable(out: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write to {out}: {error.strerror or error}")


def _resuming(words: Sequence[str]) -> str:
    rest = [word for word in words if word not in ("--resume", "--restart")]
    return shlex.join(["draftlens", *rest, "--resume"])


def _answer_all(
    engine: Engine,
    run: FolderRun,
    names: Sequence[str],
    identity: Mapping[str, Any],
    out: Path,
    progress: _Progress,
) -> None:
    answers = engine.map(names, run.prompt, options=run.options, **run.generation)  # type: ignore[misc]
    with closing(answers), _shown(progress, run.quiet) as show, LineWriter(out) as lines:
        for answer in answers:
            lines.write(line_of(answer, identity, has_form="form" in run.generation))
            progress.count(answer)
            show()


def line_of(
    answer: ClipAnswer, identity: Mapping[str, Any], has_form: bool = False
) -> dict[str, Any]:
    """The line of a clip; answers of a form have their JSON values as `fields`, too."""
    line: dict[str, Any] = {**name_fields(str(answer.source)), **identity}
    if answer.error is not None:
        return {**line, "error": printable(answer.error)}
    return {
        **line,
        "text": answer.text,
        **({"fields": fields_of(answer.text)} if has_form else {}),
        "stats": {
            "tokens": len(answer.tokens),
            "from_draft": sum(answer.from_draft),
            "seconds": round(answer.seconds, 4),
            "batch": answer.rows,
            "mean_acceptance_length": round(answer.mean_acceptance_length, 3),
            "lossless": answer.lossless,
        },
    }


def fields_of(text: str) -> Any:
    """The value of an answer in JSON; None for another one, such as one that is cut."""
    try:
        return loads(text)
    except ValueError:
        return None


def _identity(engine: Engine, run: FolderRun) -> dict[str, Any]:
    options = asdict(run.options)
    depends = {
        "method": to_dict(engine.method),
        "generation": dict(run.generation),
        **{name: options[name] for name in ("kind", "num_frames", "limits")},
    }
    digest = sha256(dumps(depends, sort_keys=True, default=str).encode()).hexdigest()
    return {
        "prompt": run.prompt,
        "target": engine.target.name,
        "draft": None if engine.draft is None else engine.draft.name,
        "method": name_of(engine.method),
        "seed": run.options.seed,
        "run": digest[:8],
    }


def _check_same(out: Path, written: Sequence[Mapping[str, Any]], now: Mapping[str, Any]) -> None:
    for line in written:
        for name, value in now.items():
            if line.get(name) == value:
                continue
            difference = f"{name} {line.get(name)!r}, not {value!r}"
            if name == "run":
                difference = "other options of the method, of sampling or of reading"
            raise ConfigError(f"{out} holds answers with {difference}: --restart discards them")


class _Progress:
    def __init__(self, total: int, done: int, failed: int) -> None:
        self.total = total
        self.done = done
        self.failed = failed
        self._before = done
        self._began = self._printed = time.monotonic()

    def count(self, answer: ClipAnswer) -> None:
        self.done += 1
        self.failed += answer.error is not None

    def line(self) -> str:
        """How far the run is, for a log."""
        minutes = (time.monotonic() - self._began) / 60
        speed = (self.done - self._before) / minutes if minutes else 0.0
        line = f"{self.done} of {self.total}, {self.failed} failed, {speed:.1f} a minute"
        if speed:
            line += f", about {(self.total - self.done) / speed:.0f} minutes left"
        return line

    def log(self) -> None:
        """Print the line, at most every `LOG_SECONDS`."""
        now = time.monotonic()
        if now - self._printed >= LOG_SECONDS:
            self._printed = now
            say(self.line())

    def standing(self) -> str:
        """How far an interrupted run has come."""
        return f"{self.done} of {self.total} done, {self.failed} of them failed"

    def summary(self) -> str:
        return f"{self.done - self.failed} answered, {self.failed} failed"


@contextmanager
def _shown(progress: _Progress, quiet: bool) -> Iterator[Callable[[], None]]:
    if quiet:
        yield lambda: None
        return
    if is_hidden(quiet):
        yield progress.log
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed, remaining:"),
        TimeRemainingColumn(),
    )
    # Clips take very different times: estimate from many of them.
    with progress_bars(quiet, *columns, speed_estimate_period=600) as bars:
        task = bars.add_task(
            "", total=progress.total, completed=progress.done, failed=progress.failed
        )
        yield lambda: bars.update(task, completed=progress.done, failed=progress.failed)
