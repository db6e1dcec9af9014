"""Fields of a request about which tokens an answer has and where it ends, as options of `generate`.

They are those of OpenAI's and vLLM's clients that transformers has an option for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from draftlens.serve.errors import ApiError

if TYPE_CHECKING:
    from draftlens.engine import Engine

MOST_BIASES = 1024
MOST_WORDS = 128
MOST_DIGITS = 9
"""Of a token id that is written as a text."""

Token = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
TokenText = Annotated[str, Field(pattern=rf"^[0-9]{{1,{MOST_DIGITS}}}$")]
Bias = Annotated[float, Field(strict=True, ge=-100, le=100, allow_inf_nan=False)]
Penalty = Annotated[float, Field(strict=True, ge=-2, le=2, allow_inf_nan=False)]
Word = Annotated[str, Field(min_length=1, max_length=64)]


class Steering(BaseModel):
    """The part of a request that `steering_options` reads.

    Attributes:
        logit_bias: numbers that are added to the scores of single tokens.
        bad_words: texts that the answer does not contain, where their tokens are those of the text
            alone or after a space.
        stop_token_ids: tokens that end the answer, beside those of the model.
        presence_penalty, frequency_penalty: see `CountPenalties`.
        min_tokens: tokens before one that ends the answer.
        ignore_eos: whether the model's own tokens do not end the answer.
    """

    logit_bias: dict[TokenText, Bias] | None = Field(None, max_length=MOST_BIASES)
    bad_words: list[Word] | None = Field(None, max_length=MOST_WORDS, fail_fast=True)
    stop_token_ids: list[Token] | None = Field(None, max_length=MOST_WORDS, fail_fast=True)
    no_repeat_ngram_size: int | None = Field(None, strict=True, ge=0, lt=2**31)
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    min_tokens: int | None = Field(None, strict=True, ge=0, lt=2**31)
    ignore_eos: bool | None = Field(None, strict=True)


STEERING = frozenset(Steering.model_fields)


class CountPenalties:
    """Lowers the scores of tokens that the answer has already, as OpenAI's API defines it: by
    ``frequency`` for each time and by ``presence`` once.

    Args:
        prompt_length: in tokens; the prompt does not count.

    Example:

        >>> penalties = CountPenalties(presence=1.0, frequency=0.5, prompt_length=1)
        >>> penalties(torch.tensor([[3, 0, 0, 2]]), torch.zeros(1, 4))
        tensor([[-2.0000,  0.0000, -1.5000,  0.0000]])
    """

    def __init__(self, presence: float, frequency: float, prompt_length: int) -> None:
        self.presence = presence
        self.frequency = frequency
        self.prompt_length = prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        answer = input_ids[:, self.prompt_length :]
        ones = torch.ones_like(answer, dtype=scores.dtype)
        counts = torch.zeros_like(scores).scatter_add(1, answer, ones)
        return scores - self.frequency * counts - self.presence * (counts > 0)


def steering_options(
    body: Steering, engine: Engine, prompt_length: int, max_new_tokens: int
) -> dict[str, Any]:
    """The options of `generate`. Raises `ApiError` for tokens that the model does not have."""
    vocab_size = engine.target.backbone.vocab_size
    options: dict[str, Any] = {}
    if body.logit_bias:
        biases = {(int(token),): bias for token, bias in body.logit_bias.items()}
        if max(biases)[0] >= vocab_size:
            cause = f"token {max(biases)[0]} is not one of the model's {vocab_size}"
            raise ApiError(400, f"logit_bias: {cause}", "logit_bias", "invalid_value")
        options["sequence_bias"] = biases
    if words := _ids_of_words(body.bad_words or [], engine):
        options["bad_words_ids"] = words
    if body.no_repeat_ngram_size:
        options["no_repeat_ngram_size"] = body.no_repeat_ngram_size
    if body.presence_penalty or body.frequency_penalty:
        presence, frequency = body.presence_penalty or 0.0, body.frequency_penalty or 0.0
        options["logits_processor"] = [CountPenalties(presence, frequency, prompt_length)]
    if body.min_tokens:
        options["min_new_tokens"] = min(body.min_tokens, max_new_tokens)
    if body.ignore_eos or body.stop_token_ids:
        options |= _ends(body, engine, vocab_size)
    return options


def _ids_of_words(words: list[str], engine: Engine) -> list[list[int]]:
    """The tokens of each word at the beginning of a text and after a space."""
    tokenizer = engine.target.processor.tokenizer
    ids = [
        tokenizer.encode(text, add_special_tokens=False)
        for word in words
        for text in (word, f" {word.lstrip()}")
    ]
    return [list(each) for each in dict.fromkeys(map(tuple, ids)) if each]


def _ends(body: Steering, engine: Engine, vocab_size: int) -> dict[str, Any]:
    config = engine.target.backbone.model.generation_config
    own = config.eos_token_id
    ends = own if isinstance(own, (list, tuple)) else [] if own is None else [own]
    kept = [] if body.ignore_eos else ends
    padding = next((each for each in (config.pad_token_id, *ends) if each is not None), 0)
    # Of two values that mean no end, transformers takes None for the model's own, and reports -1.
    return {
        "eos_token_id": [*kept, *(body.stop_token_ids or ())] or [vocab_size],
        "pad_token_id": padding,
    }
