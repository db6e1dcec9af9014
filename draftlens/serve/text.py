"""The text of one row while it grows."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from draftlens.core.text import TextDecoder

SHORTEST_STRETCH = 3
"""Tokens after a difference from which on an answer counts as repeating a text again: single ones
are the same by chance."""


class RowText:
    """Text from token ids, cut before the first stop text; what may be the beginning of a stop text
    is held back.

    Attributes:
        text: the text so far, as far as it was handed out.
        stopped: whether a stop text came.
        calls: of tools, which this class does not look for.
    """

    calls: Sequence[Any] = ()

    def __init__(self, decode_ids: Callable[[list[int]], str], stops: Sequence[str] = ()) -> None:
        self.text = ""
        self.stopped = False
        self._decoder = TextDecoder(decode_ids)
        self._stops = tuple(stops)
        self._held: list[tuple[str, bool]] = []

    def add(self, ids: Sequence[int], from_draft: Sequence[bool]) -> list[tuple[str, bool]]:
        """Stretches of text that these tokens complete, and whether the draft supplied each."""
        for token, drafted in zip(ids, from_draft, strict=True):
            piece = self._decoder.add([token])
            if piece:
                self._held.append((piece, drafted))
        return self._hand_out(final=False)

    def flush(self) -> list[tuple[str, bool]]:
        """What was held back, at the end of the row."""
        rest = self._decoder.flush()
        if rest:
            self._held.append((rest, False))
        return self._hand_out(final=True)

    def take_calls(self) -> Sequence[Any]:
        return self.calls

    def _hand_out(self, final: bool) -> list[tuple[str, bool]]:
        if self.stopped:
            self._held = []
            return []
        pending = "".join(piece for piece, _ in self._held)
        places = [place for stop in self._stops if (place := pending.find(stop)) >= 0]
        if places:
            self.stopped = True
            end = min(places)
        else:
            end = len(pending) if final else len(pending) - self._longest_beginning(pending)
        pieces, self._held = _cut(self._held, end)
        self.text += "".join(piece for piece, _ in pieces)
        return pieces

    def _longest_beginning(self, text: str) -> int:
        """Characters at the end of a text that may begin a stop text."""
        longest = max(map(len, self._stops), default=0) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


def _cut(
    pieces: list[tuple[str, bool]], end: int
) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """The first `end` characters and the rest; neighbours of one kind are joined."""
    before: list[tuple[str, bool]] = []
    after: list[tuple[str, bool]] = []
    for text, drafted in pieces:
        for part, into in ((text[:end], before), (text[end:], after)):
            if part and into and into[-1][1] == drafted:
                into[-1] = (into[-1][0] + part, drafted)
            elif part:
                into.append((part, drafted))
        end = max(0, end - len(text))
    return before, after


def decoded_with_special_tokens(tokenizer: Any, skipped: frozenset[int], ids: Sequence[int]) -> str:
    """The text of ids but for those that are skipped."""
    kept = [token for token in ids if token not in skipped]
    text: str = tokenizer.decode(kept, skip_special_tokens=False)
    return text


def num_repeated(text: Sequence[int], answer: Sequence[int]) -> int:
    """How many tokens of a text an answer repeats in their order: from the beginning, and after a
    difference in stretches of at least `SHORTEST_STRETCH` tokens.

    Example:

        >>> num_repeated([1, 2, 3, 4, 5, 6, 7], [1, 2, 9, 4, 5, 6, 7])
        6
    """
    ends: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for end in range(SHORTEST_STRETCH, len(text) + 1):
        ends[tuple(text[end - SHORTEST_STRETCH : end])].append(end)
    repeated = place = num_matched = 0
    follows = True
    for index, token in enumerate(answer, 1):
        if follows and place < len(text) and text[place] == token:
            place, num_matched = place + 1, index
            repeated += 1
            continue
        follows = False
        stretch = tuple(answer[max(index - SHORTEST_STRETCH, 0) : index])
        # Tokens of the stretch may have been counted before the difference.
        new = min(SHORTEST_STRETCH, index - num_matched)
        found = ends.get(stretch, [])
        nearest = bisect_left(found, place + new)
        if nearest < len(found):
            place, num_matched = found[nearest], index
            repeated += new
            follows = True
    return repeated
