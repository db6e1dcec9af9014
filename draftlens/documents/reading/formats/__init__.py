"""Formats of targets' answers, in which drafts are written."""

from draftlens.documents.reading.formats.base import (
    FORMATS,
    Canvas,
    DraftFormat,
    LearningFormat,
    make_format,
)

__all__ = ["FORMATS", "Canvas", "DraftFormat", "LearningFormat", "make_format"]
