"""The variants in which an answer may repeat a printed text."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from itertools import accumulate, islice

from draftlens.core.references import Text
from draftlens.methods.lookup.ngram_index import (
    MOST_MATCHES,
    Continuation,
    TokenSource,
    Vocabulary,
    sources_in_order,
)
from draftlens.methods.lookup.text import (
    BREAK,
    WALL,
    AnswerTail,
    NormalizedText,
    TextCodec,
    joined_text,
    normalize_character,
    occurrences,
)

SOFT_HYPHEN = "\u00ad"
WORD_BREAK = "\u0002"  # pdfium's mark of a word that is broken at the end of a line.
LIGATURES = str.maketrans(
    {
        "\ufb00": "ff",
        "\ufb01": "fi",
        "\ufb02": "fl",
        "\ufb03": "ffi",
        "\ufb04": "ffl",
        "\ufb05": "st",
        "\ufb06": "st",
    }
)

# Kana, CJK characters and their wide punctuation; their lines are joined without a space.
UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef"

_HYPHEN_AT_LINE_END = re.compile(r"(?<=\w)[-\u2010]\n(?=\w)")
_LINE_END = re.compile(r"(?<!\n)\n(?!\n)")
_UNSPACED_LINE_END = re.compile(f"(?<=[{UNSPACED}])\n(?=[{UNSPACED}])")


def variants_of(text: str) -> list[str]:
    """The variants of a text, each once.

    Lines joined and hyphenated words closed; lines joined and hyphens kept; lines as printed. The
    first two spell ligatures out.

    Example:

        >>> variants_of("a well-\\nknown exam-\\nple")
        ['a wellknown example', 'a well-known exam-ple', 'a well-\\nknown exam-\\nple']
    """
    printed = as_printed(text)
    spelled = printed.translate(LIGATURES)
    closed = _joined(_HYPHEN_AT_LINE_END.sub("", spelled))
    hyphenated = _joined(_HYPHEN_AT_LINE_END.sub("-", spelled))
    return list(dict.fromkeys([closed, hyphenated, printed]))


def as_printed(text: str) -> str:
    """The text with one kind of line end and visible hyphens at line ends."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub(f"{WORD_BREAK}\n?|{SOFT_HYPHEN}\n", "-\n", text)
    return text.replace(SOFT_HYPHEN, "")


def _joined(text: str) -> str:
    return _LINE_END.sub(" ", _UNSPACED_LINE_END.sub("", text))


LONGEST_BEGINNING = 48  # Letters and digits of a text that are compared with the end of an answer.
WORD = "a"  # Precedes what is tokenized as the continuation of a word.
MOST_REDONE = 4  # Tokens of a word that are tokenized again, at most.


class ReferenceDocument:
    """A text and its tokens."""

    def __init__(self, ids: Sequence[int], codec: TextCodec, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.with_breaks(ids)  # with `BREAK` for ids that may not be proposed
        decoder = codec.decoder()
        pieces = [WALL if token == BREAK else decoder(token) for token in self.tokens]
        self.text = joined_text(pieces)  # with `WALL` for these
        self.normalized = NormalizedText(self.text)
        ends = list(accumulate(map(len, pieces)))
        self._starts = [0, *ends[:-1]]

    @classmethod
    def of(cls, text: Text, codec: TextCodec, vocabulary: Vocabulary) -> ReferenceDocument:
        """The document of a reference. Special tokens that a text spells out are never proposed."""
        if not isinstance(text, str):
            return cls(text, codec, vocabulary)
        return cls(codec.encode(text), codec, vocabulary.without(codec.special_ids))

    def token_at(self, place: int) -> int | None:
        """The first token that begins at a character; None inside a token."""
        token = bisect_left(self._starts, place)
        if token < len(self._starts) and self._starts[token] == place:
            return token
        return None if place < len(self.text) else len(self.tokens)

    def word_end(self, place: int) -> int:
        """End of the word around a character, a token boundary `MOST_REDONE` tokens on at most."""
        token = bisect_left(self._starts, place)
        last = min(token + MOST_REDONE, len(self._starts))
        for following in range(token, last):
            start = self._starts[following]
            if start == len(self.text) or not normalize_character(self.text[start]):
                return start
        return self._starts[last] if last < len(self._starts) else len(self.text)


class TextReference(TokenSource):
    """A text that an answer may repeat with other spaces, punctuation, markup and tokens.

    Its places are indices of characters. The letters and digits of the last tokens are searched in
    those of the text; tokens without any, such as `|---|`, as they are. Rows may share a document.
    """

    def __init__(
        self, document: ReferenceDocument, codec: TextCodec, cursor: int | None = 0
    ) -> None:
        self.document = document
        self.codec = codec
        self.cursor = cursor
        self._openings: dict[str, list[int]] = {}

    def matches(self, tail: AnswerTail, length: int) -> list[tuple[int, int]]:
        if tail.has_break(length):
            return []
        window = tail.normalized(length)
        if not window:
            return self._raw_matches(tail.text(length), length)
        return self._normalized_matches(window, tail)

    def _raw_matches(self, window: str, length: int) -> list[tuple[int, int]]:
        if not window:
            return []
        places = list(occurrences(self.document.text, window))
        return [
            (length, place) for place in islice(sources_in_order(places, self.cursor), MOST_MATCHES)
        ]

    def _normalized_matches(self, window: str, tail: AnswerTail) -> list[tuple[int, int]]:
        normalized = self.document.normalized
        ends: dict[int, int] = {}
        for end in normalized.ends(window):
            in_text = normalized.end_in_text(end)
            if in_text is not None:
                ends[in_text] = end
        matches = []
        marks = tail.trailing_marks
        for in_text in islice(sources_in_order(list(ends), self.cursor), MOST_MATCHES):
            agreement = self._agreement(ends[in_text], tail)
            matches.append((agreement, self._after(in_text, marks)))
        return matches

    def _agreement(self, end: int, tail: AnswerTail) -> int:
        """How many last tokens with letters or digits precede `end` in the normalized text."""
        normal = self.document.normalized.text
        count = 0
        for part in tail.normalized_tokens():
            if not normal.startswith(part, max(end - len(part), 0), end):
                break
            end -= len(part)
            count += bool(part)
        return count

    def _after(self, end: int, marks: str) -> int:
        """The place after the answer, which has `marks` after its last letter or digit at `end`."""
        text = self.document.text
        following = end
        while following < len(text) and not normalize_character(text[following]):
            following += 1
        between = text[end:following]
        if between.startswith(marks):
            return end + len(marks)
        # The answer has other spaces and punctuation there, which replace those of the text.
        if marks[-1:].isspace():
            return following
        return end + len(between.rstrip())

    def continuation(self, place: int, length: int, tail: AnswerTail) -> Continuation:
        document = self.document
        first = document.token_at(place)
        redone: list[int] = []
        if first is None:
            end = document.word_end(place)
            redone = self.codec.continuation(tail.word, document.text[place:end])
            first = document.token_at(end)
            assert first is not None
        tokens = [*redone, *document.tokens[first : first + length]]
        tokens = without_beginning(tokens, tail.pending)
        tokens = up_to_break(tokens)[:length]
        reaches_end = len(redone) + len(document.tokens) - first - len(tail.pending) == len(tokens)
        return Continuation(tuple(tokens), reaches_end)

    def head(self, separator: str, length: int, tail: AnswerTail) -> Continuation:
        if not separator or not self.document.text:
            return self.continuation(0, length, tail)
        end = self.document.word_end(1)
        opening = self._opening(separator, end)
        first = self.document.token_at(end)
        assert first is not None
        tokens = up_to_break([*opening, *self.document.tokens[first:]])
        reaches_end = len(opening) + len(self.document.tokens) - first == len(tokens) <= length
        return Continuation(tuple(tokens[:length]), reaches_end)

    def _opening(self, separator: str, end: int) -> list[int]:
        """Tokens of a separator and the text up to a place, after a word."""
        if separator not in self._openings:
            text = separator + self.document.text[:end]
            self._openings[separator] = self.codec.continuation(WORD, text)
        return self._openings[separator]

    def set_cursor(self, place: int | None) -> None:
        self.cursor = place

    def place_after(self, place: int, tokens: Sequence[int], text: str) -> int:
        return min(place + len(text), len(self.document.text))

    def prefix_end(self, tail: AnswerTail, num_tokens: int) -> int:
        normalized = self.document.normalized
        text = tail.normalized(num_tokens)
        for length in range(min(len(text), len(normalized.text), LONGEST_BEGINNING), 0, -1):
            end = normalized.end_in_text(length)
            if end is not None and text.endswith(normalized.text[:length]):
                return self._after(end, tail.trailing_marks)
        return 0

    @property
    def symbols(self) -> Sequence[Hashable]:
        return self.document.text

    def to_symbols(self, tokens: Sequence[int], text: str) -> Sequence[Hashable]:
        return text

    def is_token_start(self, place: int) -> bool:
        return self.document.token_at(place) is not None

    def is_finished(self, place: int) -> bool:
        return self.document.normalized.is_rest_empty(place)


def without_beginning(tokens: list[int], beginning: Sequence[int]) -> list[int]:
    """The tokens after `beginning`; none if they do not start with it."""
    if tokens[: len(beginning)] != list(beginning):
        return []
    return tokens[len(beginning) :]


def up_to_break(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(BREAK)] if BREAK in tokens else tokens
