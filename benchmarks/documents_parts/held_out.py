"""Held-out pages of the reader's generator as files: born digital, scanned, with lying text."""

from __future__ import annotations

import io
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from recipes.reader.data import Bucket
from recipes.reader.evaluate import Exam, held_out_pages
from recipes.reader.page import NOT_SAID, Glyph, Page, render
from recipes.reader.scan import Scan

KINDS: Mapping[str, Exam] = {
    "crop": Exam("crop", Bucket(352, 128, 1), 1),
    "paragraph": Exam("paragraph", Bucket(320, 272, 1, columns=1, invented=0.4), 1, 150, 75),
    "page": Exam("page", Bucket(384, 400, 1, columns=1, invented=0.4), 1, 300, 150),
    "long page": Exam("long page", Bucket(448, 576, 1, columns=1, invented=0.4), 1, 600, 300),
    "two columns": Exam("two columns", Bucket(448, 400, 1, columns=2, invented=0.4), 1, 600, 150),
}
"""What is drawn; `Exam.count` is replaced by the number of pages that are wanted."""

SCANNED_AT = 2.0
"""Pixels of a scan for each point of its page."""

INVISIBLE = 3
"""The text rendering mode of PDF in which nothing is drawn."""

SCANS: Mapping[str, Scan] = {
    "good scan": Scan(0.3, 0.3, paper=245, ink=20, noise=3, quality=90, seed=1),
    "fair scan": Scan(0.7, 0.8, paper=230, ink=60, noise=10, quality=60, seed=2),
    "poor scan": Scan(1.2, 1.4, paper=215, ink=90, noise=20, quality=35, seed=3),
}
"""From hardly touched to what tesseract reads badly."""


@dataclass(frozen=True)
class HeldOut:
    """A page in a file, and what it says.

    Args:
        kind: one of `KINDS`.
        file: of one page.
        markdown: what a perfect reader would say.
    """

    kind: str
    file: Path
    markdown: str


Maker = Callable[[Page, Path], Path]
"""Writes a page as a file, whose name gets a suffix, and returns the file."""


def drawn(kind: str, count: int, tokenizer: Any) -> list[Page]:
    """Pages with words and sizes of type that training never shows; the same in every run.

    Args:
        kind: one of `KINDS`.
        count: number of pages.
        tokenizer: of the reader.
    """
    return held_out_pages(replace(KINDS[kind], count=count), tokenizer)


def written(kind: str, pages: Sequence[Page], make: Maker, folder: Path) -> list[HeldOut]:
    """Pages as files of one origin."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number, page in enumerate(pages):
        file = make(page, folder / f"{kind.replace(' ', '-')}-{number}")
        files.append(HeldOut(kind, file, page.markdown))
    return files


def born_digital(page: Page, path: Path) -> Path:
    """The PDF itself, whose text layer is right."""
    file = path.with_suffix(".pdf")
    file.write_bytes(page.pdf)
    return file


def scanned(scan: Scan, page: Page, path: Path) -> Path:
    """A picture without any text layer."""
    file = path.with_suffix(".png")
    _picture(scan, page).save(file, dpi=(72 * SCANNED_AT, 72 * SCANNED_AT))
    return file


def lying(share: float, page: Page, path: Path) -> Path:
    """A clean picture over invisible text, of which a share of the words is another one.

    Args:
        share: of the words; with 1 the text layer is as long as the page and says nothing of it.
        page: the page.
        path: without a suffix.
    """
    from reportlab.lib.utils import ImageReader
    from reportlab.pdfgen.canvas import Canvas

    file = path.with_suffix(".pdf")
    canvas = Canvas(str(file), pagesize=(page.width, page.height), invariant=1)
    picture = Image.fromarray(render(page, SCANNED_AT))
    canvas.drawImage(ImageReader(_jpeg(picture)), 0, 0, page.width, page.height)
    rng = np.random.default_rng(len(page.glyphs))
    for word in words_of(page.glyphs):
        text = "".join(glyph.character for glyph in word)
        if rng.random() < share:
            text = "".join(rng.choice(list(string.ascii_lowercase), len(text)))
        _write_invisibly(canvas, text, word, page.height)
    canvas.save()
    return file


def words_of(glyphs: Sequence[Glyph]) -> list[list[Glyph]]:
    """Printed words: neighbours on one line whose places in the Markdown are neighbours, too."""
    words: list[list[Glyph]] = []
    for glyph in glyphs:
        if not words or not _goes_on(words[-1][-1], glyph):
            words.append([])
        words[-1].append(glyph)
    return words


def _goes_on(before: Glyph, glyph: Glyph) -> bool:
    if before.y != glyph.y:
        return False
    if glyph.place == NOT_SAID:
        return before.place == NOT_SAID and 0 < glyph.x - before.x < 13
    return glyph.place == before.place + 1


def _write_invisibly(canvas: Any, text: str, word: Sequence[Glyph], height: int) -> None:
    """Text of the width of a printed word, in its place."""
    from reportlab.pdfbase.pdfmetrics import stringWidth

    size = 12
    left = word[0].x - 2.5
    width = word[-1].x - word[0].x + 5
    line = canvas.beginText(left, height - word[0].y - size / 4)
    line.setTextRenderMode(INVISIBLE)
    line.setFont("Helvetica", size)
    text = text.replace("\u2022", "-")
    line.setHorizScale(100 * width / stringWidth(text, "Helvetica", size))
    line.textOut(text)
    canvas.drawText(line)


def _picture(scan: Scan, page: Page) -> Image.Image:
    return Image.fromarray(scan.apply(render(page, SCANNED_AT)))


def _jpeg(picture: Image.Image) -> io.BytesIO:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=95)
    file.seek(0)
    return file


ORIGINS: Mapping[str, Maker] = {
    "born digital": born_digital,
    **{name: partial(scanned, scan) for name, scan in SCANS.items()},
    "text layer: 10% of words wrong": partial(lying, 0.1),
    "text layer: 50% of words wrong": partial(lying, 0.5),
    "text layer: garbage": partial(lying, 1.0),
}
"""How pages come to be files."""
