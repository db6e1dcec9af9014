"""Variants in which a target may write several printed lines."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from draftlens.documents.reading.page import BROKEN_WORD

SOFT_HYPHEN = "\N{SOFT HYPHEN}"

_LIGATURES = str.maketrans(
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
"""Ligatures, which targets write as letters."""

_WITHOUT_SPACES = (
    ("\u3000", "\u30ff"),
    ("\u3400", "\u4dbf"),
    ("\u4e00", "\u9fff"),
    ("\uf900", "\ufaff"),
    ("\uff00", "\uffef"),
)
"""Punctuation, kana, Chinese characters and wide forms: first and last of each range."""

_HYPHENS = (BROKEN_WORD, SOFT_HYPHEN, "-", "\N{HYPHEN}")


def variants(lines: Sequence[str]) -> list[str]:
    """The ways of writing a paragraph, the likeliest first, each once.

    1. Joined, with words put together that a line's end breaks: `exam-` and `ple` are `example`.
    2. Joined, with their hyphens: `exam-ple`.
    3. Lines as they are printed.

    Example:

        >>> variants(["An exam-", "ple here"])
        ['An example here', 'An exam-ple here', 'An exam-\\nple here']
        >>> variants(["The Barnes-", "Jewish Hospital"])
        ['The Barnes-Jewish Hospital', 'The Barnes-\\nJewish Hospital']
    """
    written = [clean(line) for line in lines if line.strip()]
    ways = [closed(written), joined(written), printed(lines)]
    return list(dict.fromkeys(way for way in ways if way))


def printed(lines: Sequence[str]) -> str:
    """Lines as they are printed, with visible hyphens at their ends."""
    return "\n".join(visible(clean(line)) for line in lines if line.strip())


def clean(line: str) -> str:
    """A printed line with letters for ligatures and without soft hyphens inside it."""
    text = line.strip().translate(_LIGATURES)
    body = text[:-1].replace(SOFT_HYPHEN, "").replace(BROKEN_WORD, "-")
    return unicodedata.normalize("NFC", body + text[-1:])


def closed(lines: Sequence[str]) -> str:
    """Lines joined by spaces; broken words lose their hyphen."""
    text = ""
    for line in lines:
        if _breaks_word(text, line):
            text = text[:-1] + line
        elif text.endswith(_HYPHENS) and text[-2:-1].isalnum():
            text = visible(text) + line
        elif text:
            text = visible(text) + _space_between(text, line) + line
        else:
            text = line
    return visible(text)


def joined(lines: Sequence[str]) -> str:
    """Lines joined by spaces; broken words keep their hyphen."""
    text = ""
    for line in lines:
        if text.endswith(_HYPHENS):
            text = visible(text) + line
        elif text:
            text += _space_between(text, line) + line
        else:
            text = line
    return visible(text)


def visible(text: str) -> str:
    """The text with a printed hyphen in place of pdfium's mark or a soft one at its end."""
    if text.endswith((BROKEN_WORD, SOFT_HYPHEN)):
        return text[:-1] + "-"
    return text


def _breaks_word(text: str, line: str) -> bool:
    """Whether a hyphen at the end of a line breaks a word rather than joining two."""
    if not text.endswith(_HYPHENS):
        return False
    if text.endswith((BROKEN_WORD, SOFT_HYPHEN)):
        is_name = text[-2:-1].islower() and line[:1].isupper()
        return not is_name and not line[:1].isdigit()
    return text[-2:-1].isalpha() and line[:1].islower()


def _space_between(text: str, line: str) -> str:
    """What joins two lines: nothing between characters of a script without spaces."""
    without = _has_no_spaces(text[-1:]) and _has_no_spaces(line[:1])
    return "" if without else " "


def _has_no_spaces(character: str) -> bool:
    return any(first <= character <= last for first, last in _WITHOUT_SPACES)
