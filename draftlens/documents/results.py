"""Results of parsing, places of regions in an answer, and sources of its tokens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from draftlens.core.stats import Stats
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.page import Region, RegionText
from draftlens.documents.reading.variants import variants

ENDINGS = ("end", "loop", "length", "timeout", "regions", "read", "blank", "failed")
"""How an answer ended: end-of-sequence token, loop, maximum length, timeout, or joined regions;
without a target `read`; `blank` and `failed` pages have none."""

MODEL = "model"
"""`ParsedPage.source` of pages that a target answered."""


@dataclass(frozen=True)
class ParsedRegion:
    """A region of a page and its place in the answer.

    Args:
        region: its box, kind and texts by readers.
        span: start and end index in the page's Markdown; None where it was not found.
        answer: the target's answer for its crop, if there was one.
    """

    region: Region
    span: tuple[int, int] | None = None
    answer: str | None = None

    def to_dict(self) -> dict[str, Any]:
        region = self.region
        return {
            "order": region.order,
            "kind": region.kind,
            "box": region.box.to_list(),
            "span": None if self.span is None else list(self.span),
            "texts": [_shown(text) for text in region.texts],
            "answer": self.answer,
        }


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
        source: `model`, or without a target `text layer`, `ocr`, or the name of another reader.
            None for blank and failed pages.
        stages: one of `documents.settings.STAGES`; None without a target.
        lossless: whether these are the tokens of stock `generate`; None without a target.
        approximate: names of what is not exact.
        box: the page, in points.
        regions: in reading order.
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
    source: str | None = None
    stages: str | None = None
    lossless: bool | None = None
    approximate: tuple[str, ...] = ()
    box: Box | None = None
    regions: tuple[ParsedRegion, ...] = ()
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


_WORD = re.compile(r"\w+|[^\w\s]")

_LEAST_FOUND = 0.5
"""Share of a region's words that an answer must hold, in order and near each other."""

TARGET = "target"
ANSWER = "answer"
"""Source of tokens repeated from the prompt or the answer; `TARGET` if no draft has the token."""

EARLIER = "earlier pages"
"""Source of tokens repeated from answers of earlier pages."""

Span = tuple[int, int]


def spans_of(regions: Sequence[Region], answer: str) -> list[Span | None]:
    """Start and end index of each region in an answer, no overlaps; None where not found."""
    matches = list(_WORD.finditer(answer))
    words = [match.group().casefold() for match in matches]
    free = [True] * len(words)
    spans: list[Span | None] = []
    for region in regions:
        place = _place_of(_words_of(region), words, free)
        if place is None:
            spans.append(None)
            continue
        first, last = place
        free[first : last + 1] = [False] * (last + 1 - first)
        spans.append((matches[first].start(), matches[last].end()))
    return spans


def _words_of(region: Region) -> list[str]:
    if not region.texts:
        return []
    written = variants(region.texts[0].lines)
    return _WORD.findall(written[0].casefold()) if written else []


def _place_of(wanted: list[str], words: list[str], free: Sequence[bool]) -> Span | None:
    """First and last word of the part of an answer that holds a region."""
    if not wanted:
        return None
    # Words that belong to another region match nothing.
    remaining = [word if is_free else "" for word, is_free in zip(words, free, strict=True)]
    matcher = SequenceMatcher(None, wanted, remaining, autojunk=False)
    core = matcher.find_longest_match()
    if not core.size:
        return None
    # Search around the longest common part, no further than the region's own length.
    reach = len(wanted)
    begin = max(core.b - reach, 0)
    window = remaining[begin : core.b + core.size + reach]
    blocks = SequenceMatcher(None, wanted, window, autojunk=False).get_matching_blocks()
    matches = [block for block in blocks if block.size]
    if sum(block.size for block in matches) < _LEAST_FOUND * len(wanted):
        return None
    first = begin + matches[0].b
    last = begin + matches[-1].b + matches[-1].size - 1
    return _within_free(first, last, free)


def _within_free(first: int, last: int, free: Sequence[bool]) -> Span | None:
    """The part after the last word that belongs to another region."""
    for place in range(last, first - 1, -1):
        if not free[place]:
            first = place + 1
            break
    return (first, last) if first <= last else None


def shares_of(
    num_tokens: int, accepted: Mapping[int, int], sources: Sequence[str]
) -> dict[str, float]:
    """Shares of an answer's tokens by source, which sum to 1; empty for an empty answer.

    `accepted` holds accepted draft tokens by reference, -1 for the prompt and the answer
    (`Stats.accepted_by_reference`); `sources` are those of the references.

    Example:

        >>> shares_of(10, {0: 4, 1: 2, -1: 1}, ["text-layer", "tesseract"])
        {'answer': 0.1, 'target': 0.3, 'tesseract': 0.2, 'text-layer': 0.4}
    """
    if not num_tokens:
        return {}
    counts = Counter({TARGET: num_tokens - sum(accepted.values())})
    for reference, count in accepted.items():
        counts[ANSWER if reference < 0 else sources[reference]] += count
    return {name: counts[name] / num_tokens for name in sorted(counts) if counts[name]}
