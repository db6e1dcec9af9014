"""What parsing a page gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from draftlens.core.stats import Stats
from draftlens.documents.geometry import Box
from draftlens.documents.values import Region

ENDINGS = ("end", "loop", "length", "timeout", "blank", "regions", "failed")
"""Why a page's answer ended: by the target's own end-of-sequence token, by a loop, at the greatest
length, at the page's timeout; or the page was blank, or only its regions were read, or it could not
be read."""


@dataclass(frozen=True)
class ParsedRegion:
    """A region of a page and where it is in the answer.

    Args:
        region: its box, kind and texts by readers.
        span: first character and the one behind the last in the page's Markdown; None where it was
            not found.
        answer: the target's answer for its crop; None if it was not read by itself.
    """

    region: Region
    span: tuple[int, int] | None = None
    answer: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        region = self.region
        texts = [
            {"source": text.source, "score": round(text.score, 4), "text": text.text}
            for text in region.texts
        ]
        return {
            "order": region.order,
            "kind": region.kind,
            "box": region.box.to_list(),
            "span": None if self.span is None else list(self.span),
            "texts": texts,
            "answer": self.answer,
        }


@dataclass(frozen=True)
class ParsedPage:
    """One page of a document as the target reads it.

    Args:
        source: the file.
        number: of the page, from 1.
        markdown: the answer, in the format of the target; empty if the page failed.
        tokens: its token ids, with the end-of-sequence id.
        ended: one of `ENDINGS`.
        stages: one of `parsing.settings.STAGES`, but for `auto`.
        lossless: whether these are the tokens of stock `generate`, by construction.
        approximate: names of what is not exact.
        box: the page, in points.
        regions: in the order of reading.
        shares: share of the answer's tokens by the draft that was right: `target` for tokens that
            were not guessed, names of readers, `regions` (answers for crops), and `answer`
            (repeated from the prompt or the answer itself).
        stats: of the pass over the page.
        region_stats: of the crops; None if there were none. With several pages at once these are
            the figures of all of them together, as are those of `stats`.
        verification: the comparison with stock `generate`; None if there was none.
        error: why the page could not be read, as a sentence; None if it was.

    Example:

        >>> page = ParsedPage("paper.pdf", 1, markdown="# Title")
        >>> page.name, page.error
        ('paper.pdf, page 1', None)
    """

    source: str
    number: int
    markdown: str = ""
    tokens: tuple[int, ...] = ()
    ended: str = "end"
    stages: str = "page"
    lossless: bool = True
    approximate: tuple[str, ...] = ()
    box: Box | None = None
    regions: tuple[ParsedRegion, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    stats: Stats = field(default_factory=Stats)
    region_stats: Stats | None = None
    verification: Mapping[str, Any] | None = None
    error: str | None = None

    @property
    def name(self) -> str:
        """File and page, as messages name them."""
        return f"{self.source}, page {self.number}" if self.number else self.source

    @property
    def differs(self) -> bool:
        """Whether the comparison with stock `generate` has found another token."""
        return self.verification is not None and not self.verification["identical"]

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase. The phases of the pipeline, `render`, `layout` and `read`, may have
        passed while the page before was answered, so that all together may exceed `stats.e2e`."""
        return {name: value for name, value in self.stats.phases.items() if value}

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        stages = {"page": self.stats.to_dict()}
        if self.region_stats is not None:
            stages["regions"] = self.region_stats.to_dict()
        return {
            "source": self.source,
            "page": self.number,
            "error": self.error,
            "size": None if self.box is None else [self.box.width, self.box.height],
            "markdown": self.markdown,
            "tokens": len(self.tokens),
            "ended": self.ended,
            "stages": self.stages,
            "lossless": self.lossless,
            "approximate": list(self.approximate),
            "shares": {name: round(share, 4) for name, share in self.shares.items()},
            "regions": [region.to_dict() for region in self.regions],
            "seconds": {name: round(value, 4) for name, value in self.seconds.items()},
            "stats": stages,
            "verification": None if self.verification is None else dict(self.verification),
        }
