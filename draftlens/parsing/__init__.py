"""Documents to Markdown with a document model, in two stages."""

from draftlens.parsing.results import ParsedPage, ParsedRegion
from draftlens.parsing.run import DocumentParser, parse
from draftlens.parsing.settings import ParseSettings

__all__ = ["DocumentParser", "ParseSettings", "ParsedPage", "ParsedRegion", "parse"]
