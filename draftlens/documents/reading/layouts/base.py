"""The protocol of layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from draftlens.core.options import Registry, make
from draftlens.documents.reading.page import Page
from draftlens.documents.reading.values import Piece, Region

LAYOUTS = Registry(
    "layout",
    {
        "rapid-layout": "draftlens.documents.reading.layouts.rapid:RapidLayout",
        "blocks": "draftlens.documents.reading.layouts.plain:BlockLayout",
        "page": "draftlens.documents.reading.layouts.plain:WholePage",
    },
    group="draftlens.layouts",
)


class Layout(Protocol):
    """Finds the regions of a page.

    Its class has no required arguments; the fields of a dataclass are its options.
    """

    sees: bool
    """Whether it uses the picture of the page, which can show that a text layer is incomplete."""

    def missing(self) -> str | None:
        """What has to be installed first, as words for the user, or None."""
        ...

    def find(self, page: Page, pieces: Sequence[Piece]) -> list[Region]:
        """The regions of a page, without texts and in any order.

        Args:
            page: any.
            pieces: what a reader has found on it; empty if none has read it yet.

        Raises:
            MediaError: the page cannot be rendered.
            ConfigError: something has to be installed first.
        """
        ...


def make_layout(choice: Any) -> Layout:
    """A layout from its name, from a mapping of its name and options, or from itself.

    Raises:
        ConfigError: the name or an option is unknown, or a value makes no sense.
    """
    layout: Layout = make(LAYOUTS, choice, "find")
    return layout
