"""The program tesseract as a reader of pictures, in the languages of a page's script."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from draftlens.core.errors import ConfigError, MediaError
from draftlens.documents.reading.geometry import POINTS_PER_INCH, Box
from draftlens.documents.reading.page import Page, Piece, Reading
from draftlens.documents.reading.readers import READING_DPI, TESSERACT, reading_picture

ENGLISH = "eng"

LANGUAGES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Latin": (
            *(ENGLISH, "deu", "fra", "spa", "ita", "por", "nld", "pol", "ces"),
            *("swe", "dan", "nor", "fin", "hun", "ron", "tur", "vie"),
        ),
        "Cyrillic": ("rus", "ukr", "bul", "srp", "bel", "mkd"),
        "Greek": ("ell",),
        "Han": ("chi_sim", "chi_tra"),
        "Japanese": ("jpn",),
        "Korean": ("kor",),
        "Hangul": ("kor",),
        "Arabic": ("ara", "fas", "urd"),
        "Hebrew": ("heb", "yid"),
        "Devanagari": ("hin", "mar", "nep"),
        "Bengali": ("ben",),
        "Tamil": ("tam",),
        "Telugu": ("tel",),
        "Thai": ("tha",),
        "Georgian": ("kat",),
        "Armenian": ("hye",),
    }
)
"""Names of tesseract's data by the names of scripts that it detects, in the order of their use."""

_MOST_LANGUAGES = 3
"""Languages that a page is read with unless they are named: each takes its time."""

_SCRIPT = re.compile(r"^Script: (\w+)\s+Script confidence: ([\d.]+)", re.MULTILINE)

_SURE = 2.0
"""Confidence of a detected script from which it counts."""

PROGRAM = "tesseract"

_WORD = "5"
"""Level of words in tesseract's table; other rows are pages, blocks, paragraphs and lines."""


@dataclass(frozen=True)
class TesseractReader:
    """The program `tesseract`, in one thread.

    Args:
        languages: names of tesseract's data, joined by `+`; None for those that are installed of
            the script of a file's first page.
        seconds: timeout of a page.
        dpi: of its picture.

    Raises:
        ConfigError: a number is not positive, or `languages` is empty.
    """

    languages: str | None = None
    seconds: float = 120.0
    dpi: float = READING_DPI
    _found: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.languages == "":
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
        buffer = io.BytesIO()
        picture.save(buffer, "PPM")
        pixels = buffer.getvalue()
        dpi = picture.width * POINTS_PER_INCH / page.box.width
        name = f"{page.source}, page {page.number}"
        languages = self.languages or self._found.get(page.source)
        if languages is None:
            languages = self._languages_of(pixels, name)
            self._found.clear()  # the pages of a file are read one after the other
            self._found[page.source] = languages
        table = self._run([*_options(dpi), "-l", languages, "tsv"], pixels, name)
        return Reading(TESSERACT, tuple(words_of_tesseract(table, POINTS_PER_INCH / dpi)))

    def _languages_of(self, pixels: bytes, name: str) -> str:
        """The installed languages of a page's script; raises MediaError if there are none."""
        listed = self._run(["--list-langs"], b"", name, reads=False).splitlines()
        installed = {line.strip() for line in listed}
        if "osd" not in installed:
            return ENGLISH
        try:
            found = _SCRIPT.search(self._run(["--psm", "0", "-l", "osd"], pixels, name))
        except MediaError:  # of a page with too few characters
            return ENGLISH
        if found is None or float(found[2]) < _SURE or found[1] not in LANGUAGES:
            return ENGLISH
        script = found[1]
        languages = [each for each in LANGUAGES[script] if each in installed]
        if not languages:
            package = LANGUAGES[script][0].replace("_", "-")
            raise MediaError(
                f"{name} is in {script} script, of which tesseract has no data here (Debian: "
                f"apt install tesseract-ocr-{package})"
            )
        return "+".join(languages[:_MOST_LANGUAGES])

    def _run(self, options: list[str], pixels: bytes, name: str, reads: bool = True) -> str:
        """What the program prints about a picture; without `reads` it is given none."""
        command = [PROGRAM, *(("stdin", "stdout") if reads else ()), *options]
        environment = {**os.environ, "OMP_THREAD_LIMIT": "1"}
        try:
            outcome = subprocess.run(
                command,
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


def _options(dpi: float) -> list[str]:
    return ["--dpi", str(max(round(dpi), 70))]


def words_of_tesseract(table: str, scale: float) -> Iterator[Piece]:
    """The words of tesseract's TSV table; `scale` is points per pixel."""
    rows = csv.DictReader(io.StringIO(table), delimiter="\t", quoting=csv.QUOTE_NONE)
    lines: dict[tuple[str, ...], int] = {}
    for row in rows:
        text = (row.get("text") or "").strip()
        if row.get("level") != _WORD or not text:
            continue
        left, top, width, height = (float(row[n]) for n in ("left", "top", "width", "height"))
        box = Box(left, top, left + width, top + height)
        line = lines.setdefault((row["block_num"], row["par_num"], row["line_num"]), len(lines))
        score = max(float(row["conf"]), 0.0) / 100
        # A block of tesseract is a column; its paragraphs are what other readers call blocks.
        block = int(row["block_num"]) * 1000 + int(row["par_num"])
        yield Piece(text, box.scaled(scale), line, block, score)
