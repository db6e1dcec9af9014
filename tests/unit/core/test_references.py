"""The forms in which callers give references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from draftlens.core.errors import InputError
from draftlens.core.references import NO_REFERENCES, References, references_of

TOKENIZER = object()


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ([], ((),)),
        ([[]], ((),)),
        (["one", "two"], (("one", "two"),)),
        ([["one", "two"]], (("one", "two"),)),
        ([[1, 2]], (((1, 2),),)),
        ([[[1, 2]]], (((1, 2),),)),
        ([[1, 2], "two"], (((1, 2), "two"),)),
        ([torch.tensor([1, 2])], (((1, 2),),)),
        ([np.array([1, 2]), [3]], (((1, 2), (3,)),)),
        (torch.tensor([[1, 2], [3, 4]]), (((1, 2), (3, 4)),)),
        (("",), (("",),)),
    ],
)
def test_a_single_row(given: Any, rows: Any) -> None:
    assert references_of(given, 1, TOKENIZER) == References(rows, TOKENIZER)


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ([], ((), ())),
        ([[], []], ((), ())),
        ([["one"], [[1, 2], "two"]], (("one",), ((1, 2), "two"))),
        ([[[1, 2]], []], (((1, 2),), ())),
    ],
)
def test_several_rows(given: Any, rows: Any) -> None:
    assert references_of(given, 2, TOKENIZER).rows == rows


def test_what_there_is() -> None:
    assert not NO_REFERENCES
    assert not References(((), ()))
    assert NO_REFERENCES.of_row(3) == ()
    assert References(((), ("one",)))
    assert References(((), ("one",))).of_row(1) == ("one",)


def test_a_processor_serves_as_tokenizer() -> None:
    class Processor:
        tokenizer = TOKENIZER

    assert references_of(["one"], 1, Processor()).tokenizer is TOKENIZER


@pytest.mark.parametrize(
    ("given", "num_rows", "message"),
    [
        ("one", 1, "references are one list for each row"),
        (b"one", 1, "references are one list for each row"),
        (5, 1, "references are one list for each row"),
        ([5], 1, "references are one list for each row"),
        ([[1, "one"]], 1, "references are one list for each row"),
        ([[1.5]], 1, "references are one list for each row"),
        (["one", "two"], 2, "texts without such lists are given for 2 rows"),
        ([["one"]], 2, "1 lists of references are given for 2 rows"),
        ([["one"], [], []], 2, "3 lists of references are given for 2 rows"),
    ],
)
def test_other_forms_are_refused(given: Any, num_rows: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        references_of(given, num_rows, TOKENIZER)


def test_texts_need_a_tokenizer() -> None:
    with pytest.raises(InputError, match="need the target's tokenizer"):
        references_of([[1, 2], "two"], 1)
    assert references_of([[1, 2]], 1).rows == (((1, 2),),)
