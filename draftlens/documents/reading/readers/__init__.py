"""Readers of printed text: the text layer of a PDF, or optical character recognition."""

from draftlens.documents.reading.readers.base import READERS, Reader, make_reader

__all__ = ["READERS", "Reader", "make_reader"]
