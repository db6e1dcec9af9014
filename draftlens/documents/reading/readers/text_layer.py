"""The text layer of a PDF."""

from __future__ import annotations

from dataclasses import dataclass

from draftlens.documents.reading.page import Page
from draftlens.documents.reading.values import Reading

SOURCE = "text-layer"

_MOST_UNREADABLE = 0.1
"""Share of unreadable characters above which the text layer is not trusted."""


@dataclass(frozen=True)
class TextLayerReader:
    """The text layer of a PDF page, read in some milliseconds. Pictures have none."""

    def missing(self) -> str | None:
        """See `Reader.missing`: a page that has a text layer can read it."""
        return None

    def read(self, page: Page) -> Reading:
        layer = page.text_layer()
        if layer is None:
            return Reading(SOURCE, (), "the file is a picture")
        if not layer.num_characters:
            return Reading(SOURCE, (), "the page has no characters")
        fault = None
        share = layer.num_unreadable / layer.num_characters
        if share > _MOST_UNREADABLE:
            fault = f"{share:.0%} of its characters stand for nothing that is printed"
        return Reading(SOURCE, layer.pieces, fault)
