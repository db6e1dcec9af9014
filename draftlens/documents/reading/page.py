"""The pages of documents, between files and pipelines."""

from __future__ import annotations

from typing import Protocol

from PIL import Image

from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.values import Piece


class TextLayer:
    """The characters that a PDF states for a page.

    Args:
        pieces: words with their boxes, in the order of the file.
        num_characters: characters without spaces.
        num_unreadable: those without a mapping to Unicode, in a private area, control characters,
            or the replacement character.
    """

    def __init__(self, pieces: tuple[Piece, ...], num_characters: int, num_unreadable: int) -> None:
        self.pieces = pieces
        self.num_characters = num_characters
        self.num_unreadable = num_unreadable


class Page(Protocol):
    """One page of a document; read on demand."""

    source: str
    """The file, for messages and results."""

    number: int
    """The page's number in its file, from 1."""

    box: Box
    """The whole page as it is shown, in points; its left and top are 0."""

    def picture(self, dpi: float) -> Image.Image:
        """The page as an RGB image of about `dpi` pixels an inch, fewer for scans, which are not
        enlarged; divide its width by that of `box` for its scale.

        Raises:
            MediaError: the page cannot be rendered, or it would have too many pixels.
        """
        ...

    def text_layer(self) -> TextLayer | None:
        """The characters that the file states; None for pictures, which state none."""
        ...
