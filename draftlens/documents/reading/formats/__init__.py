"""What a target writes: drafts must speak its language."""

from draftlens.documents.reading.formats.base import FORMATS, Canvas, DraftFormat, make_format

__all__ = ["FORMATS", "Canvas", "DraftFormat", "make_format"]
