"""Drafts with another tokenizer than the target's: other ids, and other pieces of text."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import transformers as hf
from families import SPECIAL, VOCAB, Family, tokenizer
from language_models import language_part
from stock import noisy, target
from tokenizers import Tokenizer

from draftlens.drafting.text_inputs import text_inputs
from draftlens.models.adapter import Backbone
from draftlens.models.retokenizer import Retokenizer

NUM_WORDS = VOCAB - len(SPECIAL)
KINDS = ("shuffled", "letters")
"""The target's tokens with other ids, and single letters alone."""


@cache
def order() -> list[int]:
    """The other id of each id; special tokens keep theirs."""
    ids = list(range(NUM_WORDS))
    random.Random(0).shuffle(ids)
    return [*ids, *range(NUM_WORDS, VOCAB)]


@cache
def other_tokenizer(kind: str) -> Any:
    content = json.loads(tokenizer().backend_tokenizer.to_str())
    model = content["model"]
    model["vocab"] = {token: order()[index] for token, index in model["vocab"].items()}
    if kind == "letters":
        model["merges"] = []
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        pad_token="<pad>",
        eos_token="</s>",
    )


@cache
def retokenized(family: Family, kind: str, noise: float = 0.02) -> Backbone:
    """The target's language model, with some noise and its ids in the other order."""
    part = language_part(noisy(target(family), noise) if noise else target(family))
    with torch.no_grad():
        for weight in (part.lm_head.weight, part.get_input_embeddings().weight):
            weight[order()] = weight.clone()
    backbone = Backbone(part)
    backbone.retokenizer = Retokenizer(tokenizer(), other_tokenizer(kind))
    return backbone


def other_inputs(family: Family, given: Mapping[str, Any]) -> dict[str, Any]:
    """The words of a processor's output with the other ids."""
    words = text_inputs(target(family).config, given)
    return {**words, "input_ids": torch.tensor(order())[words["input_ids"]]}
