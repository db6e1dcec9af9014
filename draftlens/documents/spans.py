"""Places of regions in an answer, and sources of its tokens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

from draftlens.documents.reading.values import Region
from draftlens.documents.reading.variants import variants

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
