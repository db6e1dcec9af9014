"""Layouts divide a page into regions."""

from draftlens.documents.layouts.base import LAYOUTS, Layout, make_layout

__all__ = ["LAYOUTS", "Layout", "make_layout"]
