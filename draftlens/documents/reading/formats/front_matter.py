"""Markdown below YAML front matter, as olmOCR writes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftlens.documents.reading.formats.markdown import MarkdownWithHtmlTables
from draftlens.documents.reading.formats.notation import WITH_HTML_AND_BRACKETS, Notations
from draftlens.documents.reading.page import Region

_FRONT_MATTER = re.compile(r"---\n.*?\n---\n", re.DOTALL)

_MOSTLY = 0.5
"""Share of a page's letters in tables from which it is called a table."""


@dataclass(frozen=True)
class WithFrontMatter(MarkdownWithHtmlTables):
    """Answers begin with front matter.

    Args:
        opening: that of the last answer; empty for the fields that olmOCR is trained to write.
    """

    notations: Notations = WITH_HTML_AND_BRACKETS
    opening: str = ""

    def openings(self, regions: Sequence[Region]) -> list[str]:
        """The last front matter, and what a page upright in English has."""
        lengths = [(region.kind, len(text.text)) for region in regions for text in region.texts[:1]]
        in_tables = sum(length for kind, length in lengths if kind == "table")
        is_table = in_tables > _MOSTLY * sum(length for _, length in lengths)
        return [*[self.opening] * bool(self.opening), front_matter(is_table)]

    def after(self, answer: str) -> WithFrontMatter:
        found = _FRONT_MATTER.match(answer)
        opening = self.opening if found is None else found.group()
        return replace(self, notations=self.notations.after(answer), opening=opening)


def front_matter(is_table: bool) -> str:
    """The fields of olmOCR's training data for an upright page in English."""
    return (
        "---\nprimary_language: en\nis_rotation_valid: True\nrotation_correction: 0\n"
        f"is_table: {is_table}\nis_diagram: False\n---\n"
    )
