"""Results of parsing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from draftlens.core.stats import Stats
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.page import Region, RegionText

ENDINGS = ("end", "loop", "length", "timeout", "regions", "read", "blank", "failed")
"""How an answer ended: end-of-sequence token, loop, maximum length, timeout, or joined regions;
without a target `read`; `blank` and `failed` pages have none."""

MODEL = "model"
"""`ParsedPage.source` of pages that a target answered."""

NO_SOURCE = "none"
"""`ParsedPage.source` of pages without text, and of blank and failed ones."""


@dataclass(frozen=True)
class ParsedRegion:
    """A region of a page and its place in the answer.

    Args:
        region: its box, kind and texts by readers.
        span: start and end index in the page's Markdown; None where it was not found.
        answer: the target's answer for its crop, if there was one.
        picture: the name of its file, if it was cut out.
    """

    region: Region
    span: tuple[int, int] | None = None
    answer: str | None = None
    picture: str | None = None

    def to_dict(self) -> dict[str, Any]:
        region = self.region
        return {
            "order": region.order,
            "kind": region.kind,
            "level": region.level,
            "box": region.box.to_list(),
            "span": None if self.span is None else list(self.span),
            "texts": [_shown(text) for text in region.texts],
            "answer": self.answer,
            "picture": self.picture,
        }


def picture_name(page: int, number: int) -> str:
    """The name of the file of a page's picture; both numbers begin at 1."""
    return f"page-{page:04}-{number}.png"


def _shown(text: RegionText) -> dict[str, Any]:
    """A text as JSON values; `rows` only of tables."""
    values = {"source": text.source, "score": round(text.score, 4), "text": text.text}
    return values | ({"rows": [list(row) for row in text.rows]} if text.rows else {})


@dataclass(frozen=True)
class ParsedPage:
    """One page of a document, read by the target, or by the pipeline without a target.

    Args:
        file: the path of the document.
        number: of the page, from 1; 0 for a file that could not be opened.
        markdown: the answer, in the format of the target; empty if the page failed.
        tokens: its token ids, with the end-of-sequence id; empty without a target.
        ended: one of `ENDINGS`.
        source: `model`, or without a target `text layer`, `ocr`, or the name of another reader;
            `none` where nothing was read.
        stages: one of `documents.settings.STAGES`; None without a target.
        lossless: whether these are the tokens of stock `generate`; None without a target.
        approximate: names of what is not exact.
        box: the page, in points.
        regions: in reading order.
        pictures: those that were cut out, by the names of their files.
        shares: share of the answer's tokens by the draft that was accepted: names of readers,
            `regions` (answers for crops), `earlier pages` (their answers), `answer` (repeated from
            the prompt or the answer), and `target` for tokens that no draft proposed.
        stats: of the pass over the page.
        region_stats: of the crops; None if there were none. Like `stats`, these are the figures of
            all pages of a batch together.
        verification: the comparison with stock `generate`, if requested.
        doubt: why the answer is not the text of the page, as a clause: it repeats itself without
            end, or has nothing in common with the text layer or what was recognized.
        error: why the page could not be read, as a sentence.

    Example:

        >>> page = ParsedPage("paper.pdf", 1, markdown="# Title")
        >>> page.name, page.error
        ('paper.pdf, page 1', None)
    """

    file: str
    number: int
    markdown: str = ""
    tokens: tuple[int, ...] = ()
    ended: str = "end"
    source: str = NO_SOURCE
    stages: str | None = None
    lossless: bool | None = None
    approximate: tuple[str, ...] = ()
    box: Box | None = None
    regions: tuple[ParsedRegion, ...] = ()
    pictures: Mapping[str, Image.Image] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    stats: Stats = field(default_factory=Stats)
    region_stats: Stats | None = None
    verification: Mapping[str, Any] | None = None
    doubt: str | None = None
    error: str | None = None

    @property
    def name(self) -> str:
        """File and page, for messages."""
        return f"{self.file}, page {self.number}" if self.number else self.file

    @property
    def by_model(self) -> bool:
        return self.source == MODEL

    @property
    def differs(self) -> bool:
        """Whether the comparison with stock `generate` found another token."""
        return self.verification is not None and not self.verification["identical"]

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase. `render`, `layout` and `read` may overlap the page before, so the sum
        may exceed `stats.e2e`."""
        return {name: value for name, value in self.stats.phases.items() if value}

    def to_dict(self) -> dict[str, Any]:
        """JSON values; those of a target are null or empty without one."""
        stats = {"page": self.stats.to_dict()} if self.by_model else {}
        if self.region_stats is not None:
            stats["regions"] = self.region_stats.to_dict()
        return {
            "file": self.file,
            "page": self.number,
            "source": self.source,
            "doubt": self.doubt,
            "error": self.error,
            "size": None if self.box is None else [self.box.width, self.box.height],
            "markdown": self.markdown,
            "tokens": len(self.tokens) if self.by_model else None,
            "ended": self.ended,
            "stages": self.stages,
            "lossless": self.lossless,
            "approximate": list(self.approximate),
            "shares": {name: round(share, 4) for name, share in self.shares.items()},
            "regions": [region.to_dict() for region in self.regions],
            "seconds": {name: round(value, 4) for name, value in self.seconds.items()},
            "stats": stats,
            "verification": None if self.verification is None else dict(self.verification),
        }
