"""Layouts divide a page into regions."""

from draftlens.documents.reading.layouts.base import LAYOUTS, Layout, make_layout

__all__ = ["LAYOUTS", "Layout", "make_layout"]
