"""Views: the ways in which a draft of an ensemble reads a prompt."""

from draftlens.methods.tabed.views.base import (
    VIEWS,
    Source,
    View,
    ViewError,
    make_view,
    make_views,
)

__all__ = [
    "VIEWS",
    "Source",
    "View",
    "ViewError",
    "make_view",
    "make_views",
]
