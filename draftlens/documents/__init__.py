"""Pages of documents, and cheap pipelines that read them for drafts."""

from draftlens.documents.geometry import Box
from draftlens.documents.open import PageNumbers, find_files, open_document
from draftlens.documents.page import Document, Page, TextLayer
from draftlens.documents.pipeline import LayoutPipeline, StandardPipeline
from draftlens.documents.readers import READERS
from draftlens.documents.values import Piece, Reading, Region, RegionText

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
