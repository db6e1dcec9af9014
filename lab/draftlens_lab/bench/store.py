"""The folder of a run: every measurement is on disk as soon as it is made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens.core.files import LineWriter, cut_incomplete_line, read_lines, write_json
from draftlens.core.runs import ABSENT, Difference, differences, read_description
from draftlens.methods.base import METHODS

RUN = "run.json"
MEASUREMENTS = "measurements.jsonl"
SUMMARY = "summary.json"
SPEC_BENCH = "spec_bench"
PAGE = "report.md"
PLOTS = ("speedup", "breakdown", "draft_step_by_context")

LISTED_DIFFERENCES = 4
"""Largest number of differences between two runs that an error message lists."""


@dataclass(frozen=True)
class Measurement:
    """One answer of one method to one clip.

    Args:
        peak_bytes: highest memory during the call, in bytes.
        start_bytes: memory before the call, in bytes.
        accepted: number of the answer's tokens that the full target accepts (`Way.accepted`); None
            for a lossless method.
        accept_lengths: tokens that each verification pass emitted; empty if unknown.
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
    accepted: int | None = None
    views: dict[str, dict[str, float]] = field(default_factory=dict)
    accept_lengths: list[int] = field(default_factory=list)

    @property
    def is_lossy(self) -> bool:
        """Whether the method may give other answers than the target."""
        return self.accepted is not None

    @property
    def decode(self) -> float:
        """Seconds from the first token to the last."""
        return self.e2e - self.ttft


@dataclass(frozen=True)
class BatchMeasurement:
    """The answers of one method to several prompts together.

    Args:
        size: number of prompts.
        tokens: of each answer.
        seconds: from before the clips are read to the last token.
    """

    size: int
    method: str
    repeat: int
    tokens: list[list[int]]
    seconds: float


@dataclass(frozen=True)
class Failure:
    """A clip on which a method failed; it is left out of all figures.

    Args:
        method: the method that failed; empty if the clip could not be read.
    """

    clip: str
    method: str
    repeat: int
    error: str


@dataclass(frozen=True)
class Refusal:
    """A method that does not run on these models."""

    method: str
    error: str


Record = Measurement | BatchMeasurement | Failure | Refusal

KINDS: Mapping[str, type[Record]] = {
    "measured": Measurement,
    "batch": BatchMeasurement,
    "failed": Failure,
    "refused": Refusal,
}
"""Name of each kind of record in the file of measurements."""


class Store:
    """A folder with the description of a run and a line for each record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: list[Record] = []

    def check(self, resume: bool | None) -> None:
        """Check that a run may begin in the folder, before the models are loaded.

        Args:
            resume: whether to continue the run in the folder (True) or to replace it (False); None
                if the user chose neither.
        """
        exists = (self.folder / RUN).exists()
        if exists and resume is None:
            raise ConfigError(
                f"{self.folder} holds a run: --resume goes on with it, --restart throws it away"
            )
        if resume and not exists:
            raise ConfigError(f"there is no run in {self.folder} to resume")

    def begin(self, description: Mapping[str, Any], resume: bool | None) -> None:
        """Begin a run, or continue the same one."""
        self.check(resume)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if resume:
                self._check_same(description)
                self.records = self._read()
                return
            self._remove_products()
            (self.folder / MEASUREMENTS).write_text("")
            write_json(self.folder / RUN, description)
        except OSError as error:
            raise ConfigError(
                f"cannot write to the folder {self.folder}: {error.strerror or error}"
            ) from error

    def append(self, record: Record) -> None:
        """Store a record; it is on disk when this returns."""
        kind = next(name for name, record_type in KINDS.items() if isinstance(record, record_type))
        with LineWriter(self.folder / MEASUREMENTS) as lines:
            lines.write({"kind": kind, **asdict(record)})
        self.records.append(record)

    def of(self, kind: type[Record]) -> list[Any]:
        """The records of a kind, in the order in which they were stored."""
        return [record for record in self.records if isinstance(record, kind)]

    def _remove_products(self) -> None:
        """Remove what was made of the run in the folder, which would otherwise remain beside the
        new run."""
        if (self.folder / RUN).exists():
            for name in products():
                (self.folder / name).unlink(missing_ok=True)
            shutil.rmtree(self.folder / SPEC_BENCH, ignore_errors=True)

    def _check_same(self, description: Mapping[str, Any]) -> None:
        before = read_description(self.folder / RUN)
        now = json.loads(json.dumps(description))
        phrases = [_phrase(difference) for difference in differences(before, now)]
        if phrases:
            listed = "; ".join(phrases[:LISTED_DIFFERENCES])
            if len(phrases) > LISTED_DIFFERENCES:
                listed += f", and {len(phrases) - LISTED_DIFFERENCES} more"
            raise ConfigError(f"{self.folder} holds another run: {listed}. --restart begins again")

    def _read(self) -> list[Record]:
        path = self.folder / MEASUREMENTS
        lines = read_lines(path, "kind")
        records = [self._record(number, values) for number, values in enumerate(lines, start=1)]
        cut_incomplete_line(path)
        return records

    def _record(self, number: int, values: Any) -> Record:
        try:
            return KINDS[values.pop("kind")](**values)
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"line {number} of {self.folder / MEASUREMENTS} is damaged: {error!r}"
            ) from error


def products() -> list[str]:
    """Names of all files that are made from measurements: summary, page and plots."""
    names = {field.name for method in METHODS for field in fields(METHODS[method])}
    plots = [*PLOTS, *(f"acceptance_by_{name}" for name in sorted(names))]
    return [SUMMARY, PAGE, *(f"{plot}.png" for plot in plots)]


def _phrase(difference: Difference) -> str:
    before = _abbreviated(difference.before)
    return f"{difference.path} was {before} and is {_abbreviated(difference.now)}"


def _abbreviated(value: Any) -> str:
    """A JSON value in at most 60 characters."""
    if value is ABSENT:
        return "not there"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
