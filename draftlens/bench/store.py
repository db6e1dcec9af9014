"""What has been measured, on disk: each measurement is safe as soon as it is made."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens.methods import METHODS

RUN, MEASUREMENTS = "run.json", "measurements.jsonl"
SUMMARY, PAGE = "summary.json", "report.md"
PLOTS = ("speedup", "breakdown", "draft_step_by_context")
NONE = object()


@dataclass(frozen=True)
class Measurement:
    """One answer of one method to one clip.

    Args:
        clip, group, method, repeat: which.
        tokens, e2e, ttft, phases, prompt_tokens, counters, cache_bytes: see `contestants.Answer`.
        peak_bytes, start_bytes: highest memory while it ran, and memory before.
    """

    clip: str
    group: str
    method: str
    repeat: int
    tokens: list[int]
    e2e: float
    ttft: float
    phases: dict[str, float]
    prompt_tokens: int
    counters: dict[str, int]
    cache_bytes: int | None
    peak_bytes: int
    start_bytes: int

    @property
    def decode(self) -> float:
        """Seconds from the first token to the last."""
        return self.e2e - self.ttft


@dataclass(frozen=True)
class Failure:
    """A clip that could not be measured, and is therefore left out by all methods.

    Args:
        clip, repeat: which.
        method: that failed on it; empty if it could not even be read.
        error: a sentence.
    """

    clip: str
    method: str
    repeat: int
    error: str


@dataclass(frozen=True)
class Refusal:
    """A method that does not run on these models at all."""

    method: str
    error: str


Record = Measurement | Failure | Refusal
KINDS: Mapping[str, type[Record]] = {"measured": Measurement, "failed": Failure, "refused": Refusal}


class Store:
    """A folder with what describes a run, and a line for each thing that happened in it.

    Args:
        folder: created when the run begins.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: list[Record] = []

    def check(self, resume: bool | None) -> None:
        """Refuse a folder that must not be written to, before minutes of loading.

        Args:
            resume: whether to go on with the run that is there or to begin again; None if nothing
                was said.

        Raises:
            ConfigError: there is a run and nothing was said, or it is to be gone on with and there
                is none.
        """
        there = (self.folder / RUN).exists()
        if there and resume is None:
            raise ConfigError(
                f"{self.folder} holds a run: --resume goes on with it, --restart throws it away"
            )
        if resume and not there:
            raise ConfigError(f"there is no run in {self.folder} to resume")

    def begin(self, description: Mapping[str, Any], resume: bool | None) -> None:
        """Begin a run, or go on with the same one.

        Args:
            description: everything that measurements depend on, as JSON values.
            resume: see `check`.

        Raises:
            ConfigError: as `check`, or the run that is there was another one (names what differs),
                or the folder cannot be written to.
        """
        self.check(resume)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if resume:
                self._check_same(description)
                self.records = self._read()
                return
            self._throw_away()
            (self.folder / MEASUREMENTS).write_text("")
            _write_whole(
                self.folder / RUN, json.dumps(description, indent=1, ensure_ascii=False) + "\n"
            )
        except OSError as error:
            raise ConfigError(
                f"cannot write to the folder {self.folder}: {error.strerror or error}"
            ) from error

    def _throw_away(self) -> None:
        """Remove what was made from the run that is there, if any: it would lie beside the new
        one's figures."""
        if (self.folder / RUN).exists():
            for name in products():
                (self.folder / name).unlink(missing_ok=True)

    def append(self, record: Record) -> None:
        """Keep a record; it is on the disk when this returns."""
        kind = next(name for name, of in KINDS.items() if isinstance(record, of))
        with (self.folder / MEASUREMENTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, **asdict(record)}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.records.append(record)

    def of(self, kind: type[Record]) -> list[Any]:
        """The records of a kind, in the order in which they came."""
        return [record for record in self.records if isinstance(record, kind)]

    def _check_same(self, description: Mapping[str, Any]) -> None:
        try:
            before = json.loads((self.folder / RUN).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(
                f"{self.folder / RUN} is damaged ({error}): --restart begins again"
            ) from error
        now = json.loads(json.dumps(description))
        found = list(differences(before, now))
        if found:
            more = f", and {len(found) - 4} more" if len(found) > 4 else ""
            raise ConfigError(
                f"{self.folder} holds another run: {'; '.join(found[:4])}{more}. --restart "
                f"begins again"
            )

    def _read(self) -> list[Record]:
        """The records; half a last line, from an interruption, is cut off the file."""
        file = self.folder / MEASUREMENTS
        data = file.read_bytes() if file.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(file, len(whole))
        return [
            self._record(number, line) for number, line in enumerate(whole.splitlines(), start=1)
        ]

    def _record(self, number: int, line: bytes) -> Record:
        try:
            values = json.loads(line)
            return KINDS[values.pop("kind")](**values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"line {number} of {self.folder / MEASUREMENTS} is damaged: {error!r}"
            ) from error


def products() -> list[str]:
    """Names of all files that are made from measurements: summary, page and plots."""
    known = {field.name for name in METHODS for field in fields(METHODS[name])}
    plots = [*PLOTS, *(f"acceptance_by_{name}" for name in sorted(known))]
    return [SUMMARY, PAGE, *(f"{plot}.png" for plot in plots)]


def differences(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """Where two JSON values differ, a phrase each."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(key for key in now if key not in before)]:
            yield from differences(
                before.get(key, NONE), now.get(key, NONE), f"{path}.{key}" if path else key
            )
    elif before != now:
        yield f"{path} {_told('was', before)} and {_told('is', now)}"


def _told(verb: str, value: Any) -> str:
    if value is NONE:
        return f"{verb} not there"
    text = json.dumps(value, ensure_ascii=False)
    return f"{verb} {text if len(text) <= 60 else text[:57] + '...'}"


def _write_whole(file: Path, text: str) -> None:
    part = file.with_name(file.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, file)
