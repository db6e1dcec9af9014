"""The program `tesseract`."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from draftlens.core.errors import ConfigError, MediaError
from draftlens.documents.reading.geometry import POINTS_PER_INCH, Box
from draftlens.documents.reading.page import Page
from draftlens.documents.reading.readers.base import READING_DPI, reading_picture
from draftlens.documents.reading.values import Piece, Reading

SOURCE = "tesseract"
PROGRAM = "tesseract"

_WORD = "5"
"""Level of words in tesseract's table; other rows are pages, blocks, paragraphs and lines."""


@dataclass(frozen=True)
class TesseractReader:
    """The program `tesseract`, in one thread.

    Args:
        languages: names of tesseract's data, joined by `+`.
        seconds: timeout of a page.
        dpi: of its picture.

    Raises:
        ConfigError: a number is not positive, or no language is named.
    """

    languages: str = "eng"
    seconds: float = 120.0
    dpi: float = READING_DPI

    def __post_init__(self) -> None:
        if not self.languages:
            raise ConfigError("tesseract needs a language, such as eng or eng+deu")
        if not (self.seconds > 0 and self.dpi > 0):
            raise ConfigError("the seconds and the dpi of tesseract must be positive")

    def missing(self) -> str | None:
        if shutil.which(PROGRAM):
            return None
        return "the program tesseract (Debian: apt install tesseract-ocr)"

    def read(self, page: Page) -> Reading:
        needed = self.missing()
        if needed:
            raise ConfigError(f"reader 'tesseract' needs {needed}")
        picture = reading_picture(page, self.dpi)
        pixels = io.BytesIO()
        picture.save(pixels, "PPM")
        dpi = picture.width * POINTS_PER_INCH / page.box.width
        table = self._run(pixels.getvalue(), round(dpi), f"{page.source}, page {page.number}")
        return Reading(SOURCE, tuple(words_of_tesseract(table, POINTS_PER_INCH / dpi)))

    def _run(self, pixels: bytes, dpi: int, name: str) -> str:
        command = [PROGRAM, "stdin", "stdout", "-l", self.languages, "--dpi", str(max(dpi, 70))]
        environment = {**os.environ, "OMP_THREAD_LIMIT": "1"}
        try:
            outcome = subprocess.run(
                [*command, "tsv"],
                input=pixels,
                capture_output=True,
                env=environment,
                timeout=self.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MediaError(
                f"tesseract did not read {name} within {self.seconds:g} seconds"
            ) from error
        except OSError as error:
            raise ConfigError(f"tesseract cannot be started: {error}") from error
        if outcome.returncode:
            message = outcome.stderr.decode("utf-8", "replace").strip().splitlines()
            cause = message[0] if message else f"exit status {outcome.returncode}"
            raise MediaError(f"tesseract cannot read {name}: {cause}")
        return outcome.stdout.decode("utf-8", "replace")


def words_of_tesseract(table: str, scale: float) -> Iterator[Piece]:
    """The words of tesseract's TSV table; `scale` is points per pixel."""
    rows = csv.DictReader(io.StringIO(table), delimiter="\t", quoting=csv.QUOTE_NONE)
    lines: dict[tuple[str, ...], int] = {}
    for row in rows:
        text = (row.get("text") or "").strip()
        if row.get("level") != _WORD or not text:
            continue
        left = float(row["left"])
        top = float(row["top"])
        box = Box(left, top, left + float(row["width"]), top + float(row["height"]))
        key = (row["block_num"], row["par_num"], row["line_num"])
        line = lines.setdefault(key, len(lines))
        score = max(float(row["conf"]), 0.0) / 100
        # A block of tesseract is a column; its paragraphs are what other readers call blocks.
        block = int(row["block_num"]) * 1000 + int(row["par_num"])
        yield Piece(text, box.scaled(scale), line, block, score)
