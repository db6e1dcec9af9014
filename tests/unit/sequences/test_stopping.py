"""Where answers end, though tokens arrive several at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from batches import sequences
from torch import Tensor
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StoppingCriteria,
)

from draftlens.sequences import History, Sequence, StoppingRules
from draftlens.sequences.stopping import Emission

PROMPT = 4
LIMIT = MaxLengthCriteria(PROMPT + 10)


def rows_of(*answers: list[int]) -> list[Sequence]:
    return sequences(torch.zeros(len(answers), PROMPT, dtype=torch.long), answers)


def histories_of(*answers: list[int]) -> list[History]:
    return [row.history for row in rows_of(*answers)]


def stopper(*criteria: Any) -> StoppingRules:
    return StoppingRules([LIMIT, *criteria], PROMPT)


class StopAt(StoppingCriteria):
    """Stops where the last two tokens are these; remembers what it was shown."""

    def __init__(self, *pair: int) -> None:
        self.pair, self.shown = list(pair), list[list[int]]()

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        self.shown.append(input_ids[0, PROMPT:].tolist())
        return (input_ids[:, -2:] == torch.tensor(self.pair)).all(-1)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3], (3, False)),
        ([9, 2, 3], (1, True)),
        ([1, 9, 3], (2, True)),
        ([1, 2, 9], (3, True)),
        ([1, 8, 9], (2, True)),
    ],
)
def test_the_first_of_several_eos_ends_the_answer(
    tokens: list[int], expected: tuple[int, bool]
) -> None:
    one = stopper(EosTokenCriteria([8, 9]))
    assert one.cut(histories_of([5], [5])[1], tokens) == Emission(*expected)
    assert stopper(EosTokenCriteria(8), EosTokenCriteria(9)).cut(
        histories_of([5], [5])[1], tokens
    ) == Emission(*expected)


@pytest.mark.parametrize(
    ("held", "expected"), [(6, (3, False)), (7, (3, True)), (8, (2, True)), (9, (1, True))]
)
def test_length_ends_the_answer_inside_an_accepted_run(
    held: int, expected: tuple[int, bool]
) -> None:
    assert stopper().cut(histories_of([1] * held)[0], [1, 2, 3]) == Emission(*expected)


def test_the_strictest_limit_counts_the_prompt_as_generate_does() -> None:
    assert stopper().max_new_tokens == 10
    assert stopper(MaxLengthCriteria(PROMPT + 3)).max_new_tokens == 3
    assert StoppingRules([MaxLengthCriteria(PROMPT)], PROMPT).max_new_tokens == 1


def test_other_criteria_are_asked_about_every_token() -> None:
    criterion = StopAt(2, 3)
    assert stopper(criterion).cut(histories_of([7])[0], [1, 2, 3, 4]) == Emission(3, True)
    assert criterion.shown == [[7, 1], [7, 1, 2], [7, 1, 2, 3]]
    criterion = StopAt(7, 1)  # a pair that begins in what was said before
    assert stopper(criterion).cut(histories_of([0], [7])[1], [1, 2]) == Emission(1, True)
    two = stopper(StopAt(4, 4), StopAt(2, 3))
    assert two.cut(histories_of([7])[0], [1, 2, 3]) == Emission(3, True)
    assert stopper(StopAt(4, 4)).cut(histories_of([7])[0], [1, 2, 3]) == Emission(3, False)


def test_criteria_are_not_asked_beyond_the_end() -> None:
    criterion = StopAt(2, 3)
    stopper(EosTokenCriteria(9), criterion).cut(histories_of([7])[0], [1, 9, 3])
    assert criterion.shown == [[7, 1]]


def test_room_is_that_of_the_shortest_running_row() -> None:
    rows = rows_of([1] * 3, [1] * 6, [1])
    for row in rows:
        row.stopping = stopper()
    assert [row.remaining for row in rows] == [7, 4, 9]
    assert max(row.remaining for row in rows) == 9
    rows[2].finished = True
    assert max(row.remaining for row in rows) == 7
    for row in rows:
        row.finished = True
    assert max(row.remaining for row in rows) == 0
