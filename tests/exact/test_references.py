"""References through every entry point."""

from __future__ import annotations

from typing import Any

import pytest
from families import FAMILIES, inputs, tokenizer
from stock import LONG, reference, target

import draftlens

FAMILY = FAMILIES[3]
METHODS: dict[str, dict[str, Any]] = {
    "lookup": {"method": "lookup", "num_speculative_tokens": 6},
    "hsd": {"method": "hsd", "num_speculative_tokens": 6},
    "hsd, tokens": {"method": "hsd", "num_speculative_tokens": 6, "matching": "tokens"},
}


def texts(rows: list[list[int]]) -> list[list[str]]:
    """Each row's answer as a text."""
    return [[tokenizer().decode(row)] for row in rows]


@pytest.mark.parametrize("as_texts", [False, True], ids=["ids", "texts"])
@pytest.mark.parametrize("entry", ["generate", "stream", "custom_generate"])
@pytest.mark.parametrize("name", METHODS)
def test_references_reach_the_drafter(name: str, entry: str, as_texts: bool) -> None:
    given = inputs(FAMILY, FAMILY.richest)
    rows = reference(FAMILY, FAMILY.richest, LONG)
    references: Any = texts(rows) if as_texts else [[row] for row in rows]
    call: dict[str, Any] = {"method": METHODS[name], "references": references}
    if as_texts:
        call["tokenizer"] = tokenizer()
    model = target(FAMILY)
    if entry == "generate":
        result = draftlens.generate(model, given, max_new_tokens=LONG, **call)
    elif entry == "stream":
        result = draftlens.stream(model, given, max_new_tokens=LONG, **call).run()
    else:
        custom = draftlens.SpeculativeGenerate(None, given, **call)
        model.generate(**given, max_new_tokens=LONG, custom_generate=custom)
        assert custom.last is not None
        result = custom.last
    assert result.tokens == rows
    assert result.stats.mean_acceptance_length > 3


def test_methods_that_do_not_draft_from_references_refuse_them() -> None:
    given = inputs(FAMILY, "text", (0,))
    options: dict[str, Any] = {"method": "plain", "max_new_tokens": 2}
    with pytest.raises(draftlens.ConfigError, match="'auto', 'hsd', 'lookup', 'mixed'"):
        draftlens.generate(target(FAMILY), given, references=[[1, 2]], **options)
    nothing = draftlens.generate(target(FAMILY), given, references=[], **options)
    assert len(nothing.tokens[0]) == 2


def test_references_that_do_not_go_with_the_rows() -> None:
    given = inputs(FAMILY, "text", (0, 1))
    call: dict[str, Any] = {"method": "lookup", "max_new_tokens": 2}
    with pytest.raises(draftlens.InputError, match="1 lists of references are given for 2 rows"):
        draftlens.generate(target(FAMILY), given, references=[[[1]]], **call)
    with pytest.raises(draftlens.InputError, match="need the target's tokenizer"):
        draftlens.generate(target(FAMILY), given, references=[["a"], ["b"]], **call)
