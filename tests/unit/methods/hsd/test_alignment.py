"""Where an answer goes on in a text that it has left, against a full table of edit distances."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from draftlens.methods.hsd.matcher import BAND, Alignment, difference

repeatable = settings(derandomize=True, deadline=None, database=None, max_examples=60)
words = st.text(alphabet="ab .", max_size=BAND - 4)


def slow_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """The edit distance, recursion by recursion made into a table."""
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for row in range(len(one) + 1):
        for column in range(len(other) + 1):
            if not row or not column:
                table[row][column] = row + column
                continue
            table[row][column] = min(
                table[row - 1][column] + 1,
                table[row][column - 1] + 1,
                table[row - 1][column - 1] + difference(one[row - 1], other[column - 1]),
            )
    return table[-1][-1]


@repeatable
@given(words, words, st.integers(0, 5))
def test_distances_equal_the_slow_twin(text: str, said: str, start: int) -> None:
    start = min(start, len(text))
    alignment = Alignment(text, start)
    alignment.extend(said)
    assert alignment.num_symbols == len(said)
    expected = {
        place: slow_distance(text[start:place], said) for place in range(start, len(text) + 1)
    }
    found = {place: distance for distance, place in alignment.places()}
    assert found == expected
    assert alignment.least == min(expected.values())


def test_what_may_have_happened_to_a_token() -> None:
    """Token ids: substituted, inserted, or tokens are missing."""
    alignment = Alignment([1, 2, 3, 4, 5, 6], 1)
    alignment.extend([9])
    places = alignment.places()
    assert places[:2] == [(1, 2), (1, 1)]
    alignment = Alignment([1, 2, 3, 4, 5, 6], 1)
    alignment.extend([4])
    assert (2, 4) in alignment.places()  # two are missing


def test_a_word_is_not_put_in_place_of_a_space() -> None:
    assert difference("a", "b") == 1
    assert difference("a", " ") == difference("-", "x") == 2
    assert difference(5, 6) == 1
    assert difference("a", "a") == difference(7, 7) == 0


def test_work_for_each_symbol_does_not_grow() -> None:
    alignment = Alignment("ab" * 500, 0)
    alignment.extend("ab" * 200)
    assert len(alignment._distances) <= 2 * BAND + 1
    assert (0, 400) in alignment.places()
    alignment.extend("x" * 2000)  # far beyond the end
    assert alignment.places()
