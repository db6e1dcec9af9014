"""The text of a row: whole characters, cut before stop texts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from draftlens.serve.text import RowText


def decode(ids: list[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


def fed(text: str, stops: Sequence[str], size: int) -> tuple[str, bool, list[str]]:
    """What a row hands out when its bytes come `size` at a time."""
    row = RowText(decode, stops)
    ids = list(text.encode())
    given = []
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        given.append("".join(piece for piece, _ in row.add(part, [False] * len(part))))
    given.append("".join(piece for piece, _ in row.flush()))
    assert row.text == "".join(given)
    return row.text, row.stopped, given


@pytest.mark.parametrize("size", [1, 2, 3, 50])
@pytest.mark.parametrize(
    ("text", "stops", "shown"),
    [
        ("a word", [], "a word"),
        ("abcabd", ["abd"], "abc"),
        ("abcab", ["abd"], "abcab"),
        ("aaab", ["aab"], "a"),
        ("one two three", ["three", "two"], "one "),
        ("über€uro", ["€u"], "über"),
        ("stop", ["stop"], ""),
        ("xstopx", ["stopper", "stop"], "x"),
    ],
)
def test_stop_texts(text: str, stops: list[str], shown: str, size: int) -> None:
    assert fed(text, stops, size)[:2] == (shown, shown != text)


def test_what_cannot_begin_a_stop_text_is_handed_out_at_once() -> None:
    assert fed("abxcd", ["xy"], 1)[2] == ["a", "b", "", "xc", "d", ""]


def test_pieces_know_who_wrote_them() -> None:
    row = RowText(decode, ["!!"])
    assert row.add(list(b"abc!"), [True, True, False, True]) == [("ab", True), ("c", False)]
    assert row.add(list(b"d"), [False]) == [("!", True), ("d", False)]
    assert row.flush() == []
