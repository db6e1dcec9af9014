"""Documents from paths: PDF files, images, and folders of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from draftlens.core.errors import ConfigError
from draftlens.core.options import shown, wrong
from draftlens.documents.reading.pdf import PdfDocument
from draftlens.documents.reading.pictures import PictureDocument
from draftlens.media.files import check_file
from draftlens.media.limits import Limits, refusal
from draftlens.media.reader import MediaReader

SUFFIXES = (".pdf", ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".jp2", ".pnm")
"""Suffixes that a folder is searched for; a named file may have any suffix."""

_MARK = b"%PDF-"
_MARK_WITHIN = 1024
"""A PDF begins with its mark, but readers accept it within the first kilobyte."""

Document = PdfDocument | PictureDocument


@dataclass(frozen=True)
class PageNumbers:
    """Which pages are wanted.

    `ranges` are first and last numbers, from 1, None for the end of the file; empty for all pages.

    Example:

        >>> PageNumbers.parse("1-3,7").of(5)
        [1, 2, 3]
    """

    ranges: tuple[tuple[int, int | None], ...] = ()

    @classmethod
    def parse(cls, text: str | None) -> PageNumbers:
        """From text such as `1-3,7` or `5-`; None for all pages. Raises ConfigError."""
        if text is None:
            return cls()
        if not isinstance(text, str):
            raise wrong("pages", text, "numbers from 1 and ranges such as '1-3,7', or None")
        return cls(tuple(_range(part.strip(), text) for part in text.split(",")))

    def of(self, num_pages: int) -> list[int]:
        """The wanted numbers of a file, ascending, each once."""
        if not self.ranges:
            return list(range(1, num_pages + 1))
        numbers: set[int] = set()
        for first, last in self.ranges:
            end = num_pages if last is None else min(last, num_pages)
            numbers.update(range(first, end + 1))
        return sorted(numbers)

    def beyond(self, num_pages: int) -> list[int]:
        """First numbers of ranges that begin after the end of a file."""
        return [first for first, _ in self.ranges if first > num_pages]


def _range(part: str, text: str) -> tuple[int, int | None]:
    first, dash, last = part.partition("-")
    is_number = first.strip().isdigit() and (not last.strip() or last.strip().isdigit())
    if is_number:
        begin = int(first)
        end = begin
        if dash:
            end = int(last) if last.strip() else begin
        if begin >= 1 and end >= begin:
            is_open = bool(dash) and not last.strip()
            return begin, None if is_open else end
    raise ConfigError(f"pages are numbers from 1 and ranges such as 1-3,7, not {shown(text)}")


def find_files(inputs: Iterable[str | Path]) -> list[Path]:
    """Files, and folders searched recursively; raises MediaError for one without documents."""
    files: list[Path] = []
    for entry in inputs:
        if not isinstance(entry, str | Path):
            raise wrong("inputs", entry, "a file, a folder, or a list of them")
        path = Path(entry)
        if not path.is_dir():
            files.append(path)
            continue
        documents = sorted(
            file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file()
        )
        if not documents:
            suffixes = ", ".join(SUFFIXES)
            raise refusal(str(path), f"the folder holds no document ({suffixes})")
        files += documents
    return files


def open_document(
    path: str | Path,
    password: str | None = None,
    limits: Limits | None = None,
    reader: MediaReader | None = None,
) -> Document:
    """Open a PDF file or an image.

    Args:
        path: the file.
        password: of an encrypted PDF.
        limits: bounds on the size of files and pages, and on the time and memory for a page.
        reader: the reading process, closed by the caller; None for one of the document's own.

    Raises:
        MediaError: the file cannot be read; the message names it and the cause.
        ConfigError: a library that reads PDF files is not installed.
    """
    limits = limits or Limits()
    name = check_file(path, limits)
    if is_pdf(name):
        return PdfDocument(name, password, limits, reader)
    return PictureDocument(name, limits, reader)


def is_pdf(path: str | Path) -> bool:
    """Whether a file is a PDF, by its first bytes, or else by its name."""
    with open(path, "rb") as file:
        head = file.read(_MARK_WITHIN)
    return _MARK in head or Path(path).suffix.lower() == ".pdf"
