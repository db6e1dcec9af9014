"""Logits processors: every node of a draft tree is asked about with its own history."""

from __future__ import annotations

from typing import Any

import pytest
from families import FAMILIES, Family, inputs
from stock import LONG, METHODS, NEW, NoEcho, draft, noisy, reference, stock, target
from transformers import GenerationConfig

import draftlens

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
MOST = 19
"""New tokens where rows end; others have `NEW`."""


def options(name: str, rows: list[list[int]]) -> dict[str, Any]:
    """Options of `generate` that change what these rows would be."""
    row = rows[0]
    return {
        "repetition_penalty": {"repetition_penalty": 1.4},
        "no_repeat_ngram_size": {"no_repeat_ngram_size": 1},
        "bad_words_ids": {"bad_words_ids": [[row[5]], row[8:10], rows[1][6:9]]},
        "suppress_tokens": {"suppress_tokens": [row[3], rows[1][7]]},
        "begin_suppress_tokens": {"begin_suppress_tokens": [rows[0][0], rows[2][0]]},
        "min_new_tokens": {"min_new_tokens": 12, "eos_token_id": [row[4], rows[1][9], rows[2][15]]},
        "exponential_decay_length_penalty": {
            "exponential_decay_length_penalty": (4, 1.5),
            "eos_token_id": [row[2] + 1, rows[2][1] + 1],
        },
        "sequence_bias": {"sequence_bias": {(row[2], 17): 30.0, (33,): -4.0, (row[7],): -30.0}},
        "forced_eos_token_id": {"forced_eos_token_id": [55], "eos_token_id": 55},
        "prefix_allowed_tokens_fn": {
            "prefix_allowed_tokens_fn": lambda row, ids: range(
                40 * row + len(ids) % 3, 40 * row + 90
            )
        },
        "custom": {"logits_processor": [NoEcho()]},
        "several": {
            "logits_processor": [NoEcho()],
            "repetition_penalty": 1.2,
            "suppress_tokens": [row[3]],
        },
        "generation_config": {
            "generation_config": GenerationConfig(
                repetition_penalty=1.3, max_new_tokens=MOST, pad_token_id=195
            )
        },
    }[name]


NAMES = [
    *(
        "repetition_penalty",
        "no_repeat_ngram_size",
        "bad_words_ids",
        "suppress_tokens",
        "begin_suppress_tokens",
    ),
    *("min_new_tokens", "exponential_decay_length_penalty", "sequence_bias", "forced_eos_token_id"),
    *("prefix_allowed_tokens_fn", "custom", "several", "generation_config"),
]


@every_family
@pytest.mark.parametrize("name", NAMES)
def test_same_tokens(family: Family, name: str) -> None:
    """As stock `generate` with the same option; the option matters."""
    rows, given = reference(family, family.richest, LONG), inputs(family, family.richest)
    chosen = options(name, rows)
    most = MOST if "eos_token_id" in chosen or name == "generation_config" else NEW
    limit = {} if name == "generation_config" else {"max_new_tokens": most}
    expected = stock(target(family), given, **limit, **options(name, rows))
    assert expected != [row[:most] for row in rows]
    # Neighbours in the table take turns: no processor meets one kind of tree only.
    method = METHODS["eagle" if (FAMILIES.index(family) + NAMES.index(name)) % 2 else "chain5"]
    result = draftlens.generate(
        target(family), given, draft=draft(family), method=method, **limit, **chosen
    )
    assert result.tokens == expected
    assert result.stats.accepted > 0


@every_family
def test_a_penalty_in_the_models_own_config(family: Family) -> None:
    """Nobody asks for it in the call."""
    model, given = family.build(), inputs(family, family.richest)
    model.generation_config.repetition_penalty = 1.5
    expected = stock(model, given, max_new_tokens=MOST)
    assert expected != [row[:MOST] for row in reference(family, family.richest, LONG)]
    result = draftlens.generate(
        model, given, draft=noisy(model), method=METHODS["odd"], max_new_tokens=MOST
    )
    assert result.tokens == expected


@every_family
def test_a_right_padded_batch_has_the_history_of_a_left_padded_one(family: Family) -> None:
    """Padding comes before the prompt in what processors read: nothing stands between prompt and
    answer."""
    options = {"max_new_tokens": MOST, "logits_processor": [NoEcho()], "no_repeat_ngram_size": 2}
    expected = stock(target(family), inputs(family, family.richest), **options)
    right = inputs(family, family.richest, side="right")
    assert (
        draftlens.generate(target(family), right, draft=draft(family), **options).tokens == expected
    )
