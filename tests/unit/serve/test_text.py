"""The text of a row: whole characters, cut before stop texts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftlens.serve.text import RowText, num_repeated


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


@pytest.mark.parametrize(
    ("text", "answer", "count"),
    [
        ("", "abc", 0),
        ("abcdef", "", 0),
        ("abcdef", "abcdefgh", 6),
        ("abcdefgh", "abcd", 4),
        ("abcdef", "xyabcdef", 6),  # more at the beginning
        ("abcdef", "abcXdef", 6),  # something between
        ("abcdefg", "abcXefg", 6),  # something else
        ("abcdXYefg", "abcdefg", 7),  # something left out
        ("abcdef", "defabc", 3),  # in the order of the text
        ("abcabc", "abcXabcYabc", 6),  # each place once
        ("abcdef", "XaYbZcdX", 0),  # too short
        ("ab", "Xab", 0),
    ],
)
def test_how_much_of_a_text_an_answer_repeats(text: str, answer: str, count: int) -> None:
    assert num_repeated([*map(ord, text)], [*map(ord, answer)]) == count


@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), max_size=30))
def test_repeated_tokens_are_a_part_of_both_texts(text: list[int], answer: list[int]) -> None:
    """Never more than their longest common subsequence."""
    longest = [0] * (len(text) + 1)
    for token in answer:
        before = 0
        for place, other in enumerate(text, 1):
            same = before + 1 if token == other else 0
            before = longest[place]
            longest[place] = max(longest[place], longest[place - 1], same)
    assert 0 <= num_repeated(text, answer) <= longest[-1]
    assert num_repeated(text, [*text, *answer]) == len(text)
