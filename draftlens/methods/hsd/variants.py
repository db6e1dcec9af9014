"""The variants in which an answer may repeat a printed text."""

from __future__ import annotations

import re

SOFT_HYPHEN = "\u00ad"
WORD_BREAK = "\u0002"
"""pdfium's mark of a word that is broken at the end of a line."""

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

UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef"
"""Kana, CJK characters and their wide punctuation; their lines are joined without a space."""

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
