"""Documents to Markdown: by a cheap pipeline alone, or with a document model."""

from typing import TYPE_CHECKING, Any

from draftlens.parsing.entry import parse
from draftlens.parsing.reading import PipelineParser
from draftlens.parsing.results import ParsedPage, ParsedRegion
from draftlens.parsing.settings import ParseSettings

if TYPE_CHECKING:
    from draftlens.parsing.run import DocumentParser

__all__ = [
    "DocumentParser",
    "ParseSettings",
    "ParsedPage",
    "ParsedRegion",
    "PipelineParser",
    "parse",
]


def __getattr__(name: str) -> Any:
    # What needs torch, which takes seconds, is imported on first use.
    if name == "DocumentParser":
        from draftlens.parsing.run import DocumentParser

        return DocumentParser
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
