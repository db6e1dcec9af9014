"""Pages of documents, and pipelines that read them for drafts."""

from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.open import Document, PageNumbers, find_files, open_document
from draftlens.documents.reading.page import Page, Piece, Reading, Region, RegionText, TextLayer
from draftlens.documents.reading.pipeline import LayoutPipeline, StandardPipeline
from draftlens.documents.reading.readers import READERS

__all__ = [
    "READERS",
    "Box",
    "Document",
    "LayoutPipeline",
    "Page",
    "PageNumbers",
    "Piece",
    "Reading",
    "Region",
    "RegionText",
    "StandardPipeline",
    "TextLayer",
    "find_files",
    "open_document",
]
