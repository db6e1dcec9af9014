"""Image files as documents: scans and photographs, one page for each frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from draftlens.documents.geometry import POINTS_PER_INCH, Box
from draftlens.media import Limits, load_image
from draftlens.media.files import check_file
from draftlens.media.limits import refusal

A4_HEIGHT = 842.0
"""Points of the long side of a picture that does not state its resolution."""

_LEAST_DPI = 50.0
_MOST_DPI = 2400.0
"""Resolutions that scanners have; others are taken for not stated, such as the 1 of many files."""

_PAGED_FORMATS = ("TIFF",)
"""Formats whose frames are pages; those of other formats are moments of an animation."""


class PictureDocument:
    """An image file; see `documents.page.Document`.

    Args:
        path: the file.
        limits: bounds on its size.

    Raises:
        MediaError: the file cannot be read.
    """

    def __init__(self, path: str | Path, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.source = check_file(path, self.limits)
        self._first: Image.Image | None = load_image(self.source, limits=self.limits)
        self.num_pages = self._count()

    def _count(self) -> int:
        with Image.open(self.source) as image:
            if image.format not in _PAGED_FORMATS:
                return 1
            return int(getattr(image, "n_frames", 1))

    def page(self, number: int) -> PicturePage:
        """See `Document.page`."""
        name = f"{self.source}, page {number}"
        if not 1 <= number <= self.num_pages:
            raise refusal(name, f"the file has {self.num_pages} pages")
        with Image.open(self.source) as image:
            if number > 1:
                self._seek(image, number, name)
            dpi = stated_dpi(image.info.get("dpi"))
            if number == 1 and self._first is not None:
                picture = self._first
            else:
                picture = load_image(image, limits=self.limits)
        self._first = None
        return PicturePage(self.source, number, picture, dpi)

    def _seek(self, image: Image.Image, number: int, name: str) -> None:
        try:
            image.seek(number - 1)
        except (EOFError, OSError, ValueError, SyntaxError) as error:
            raise refusal(name, f"this frame is missing or damaged ({error})") from error

    def close(self) -> None:
        """See `Document.close`."""
        self._first = None


class PicturePage:
    """One picture; see `documents.page.Page`.

    Args:
        source: its file, or a word for it.
        number: of the page, from 1.
        image: upright, RGB.
        dpi: pixels an inch; None if they are not known, and then its long side counts as that of
            an A4 page.
    """

    def __init__(
        self, source: str, number: int, image: Image.Image, dpi: float | None = None
    ) -> None:
        self.source = source
        self.number = number
        self._image = image
        self._dpi = dpi or max(image.size) * POINTS_PER_INCH / A4_HEIGHT
        scale = POINTS_PER_INCH / self._dpi
        self.box = Box(0.0, 0.0, image.width * scale, image.height * scale)

    def picture(self, dpi: float) -> Image.Image:
        """See `Page.picture`."""
        factor = min(dpi / self._dpi, 1.0)
        width = max(round(self._image.width * factor), 1)
        height = max(round(self._image.height * factor), 1)
        if (width, height) == self._image.size:
            return self._image
        return self._image.resize((width, height), Image.Resampling.LANCZOS)

    def text_layer(self) -> None:
        """See `Page.text_layer`: a picture has none."""


def stated_dpi(stated: Any) -> float | None:
    """The horizontal resolution that an image states, in pixels an inch; None for none that a
    scanner has."""
    try:
        dpi = float(stated[0])
    except (TypeError, ValueError, IndexError, ZeroDivisionError):
        return None
    return dpi if _LEAST_DPI <= dpi <= _MOST_DPI else None
