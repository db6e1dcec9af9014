"""Formats of targets' answers, in which drafts are written."""

from draftlens.documents.reading.formats.base import (
    FORMATS,
    Canvas,
    DraftFormat,
    FormatWithSpecialTokens,
    LearningFormat,
    make_format,
)

__all__ = [
    "FORMATS",
    "Canvas",
    "DraftFormat",
    "FormatWithSpecialTokens",
    "LearningFormat",
    "make_format",
]
