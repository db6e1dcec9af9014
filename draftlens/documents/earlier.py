"""Answers of earlier pages of a document, which later pages may repeat in part."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from draftlens.documents.results import ParsedPage

MOST_PAGES = 2
"""The last pages that are remembered: running heads may alternate."""

MOST_TOKENS = 4096
"""Bound on the tokens of all of them together."""

_WHOLE = ("end", "length")
"""How answers end that are remembered; a loop, for one, would only repeat itself."""


class EarlierPages:
    """Token ids of the last answers of one document.

    Running heads and feet, the head of a table that goes on and its repeated cells are proposed
    from them. They are drafts: no answer depends on them.

    Args:
        most_pages: that are remembered; 0 for none.
        most_tokens: of these pages together; of a longer page its first tokens.
    """

    def __init__(self, most_pages: int = MOST_PAGES, most_tokens: int = MOST_TOKENS) -> None:
        self.most_tokens = most_tokens
        self._answers: deque[tuple[int, ...]] = deque(maxlen=most_pages)
        self._file = ""

    def add(self, page: ParsedPage, eos: Collection[int]) -> None:
        """Remember a finished page; that of another document replaces all others."""
        if page.file != self._file:
            self._answers.clear()
            self._file = page.file
        tokens = tuple(token for token in page.tokens if token not in eos)
        if tokens and page.ended in _WHOLE:
            self._answers.appendleft(tokens)

    def of(self, file: str) -> list[tuple[int, ...]]:
        """The answers of a document so far, the last page first."""
        if file != self._file:
            return []
        found: list[tuple[int, ...]] = []
        room = self.most_tokens
        for answer in self._answers:
            found.append(answer[:room])
            room -= len(answer)
            if room <= 0:
                break
        return found
