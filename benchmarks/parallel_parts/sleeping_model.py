"""Language models that sleep and say what a script says: real forwards with chosen times.

The other process builds a model from its class and its configuration (`lanes.shared_model`), so the
classes stand in a module that it can import. The script and the times are buffers: both processes
have them in common, and a new script needs no new process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Model

from .virtual import Seconds, Text

VOCABULARY = 32
"""Tokens, and channels of the hidden states: one for each token."""

SPECIAL = 4
"""Ids below are never said."""

LONGEST = 1024
"""Positions of a script."""

WIDEST = 64
"""Tokens of a forward up to which times are kept; wider ones take what the widest takes."""

PROMPT = (1, 2, 3, 1)
"""Ids of the only prompt. Position 0 of the answer is position 4 of the sequence."""

LOUD = 10.0
FAINT = 0.1
"""Factors on the scripted token and on the hidden states. The layer's share in the logits is large
enough for `models.support.check_direct_calls`, and too small to change the greedy token."""


class SleepingDecoder(Qwen2Model):  # type: ignore[misc]
    """One real layer with its cache, a script in place of its thoughts, and a time to take.

    Attributes:
        script: int64 ``[LONGEST]``, the token after each position of the sequence.
        seconds: float64 ``[WIDEST]``, what a forward takes by its tokens less one.
    """

    script: Tensor
    seconds: Tensor

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__(config)
        self.register_buffer("script", torch.full((LONGEST,), SPECIAL))
        self.register_buffer("seconds", torch.zeros(WIDEST, dtype=torch.float64))

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """The layer's forward, whose computing counts as a part of the time that it takes."""
        began = time.perf_counter()
        output = super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **options,
        )
        states = output.last_hidden_state
        width = states.shape[1]
        if position_ids is None:
            # Only `check_direct_calls` and stock forwards leave the positions out, without a cache.
            position_ids = torch.arange(width, device=states.device)[None]
        said = nn.functional.one_hot(self.script[position_ids], VOCABULARY)
        output.last_hidden_state = FAINT * states + LOUD * said
        until = began + float(self.seconds[min(width, WIDEST) - 1])
        time.sleep(max(0.0, until - time.perf_counter()))
        return output


class SleepingModel(Qwen2ForCausalLM):  # type: ignore[misc]
    """A `SleepingDecoder` whose output head is the identity."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__(config)
        self.model = SleepingDecoder(config)
        self.post_init()


def sleeping_model() -> SleepingModel:
    """A model that says one token everywhere and takes no longer than it computes."""
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=VOCABULARY,
        intermediate_size=VOCABULARY,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = SleepingModel(config)
    model.lm_head.weight.data.copy_(torch.eye(VOCABULARY))
    model.generation_config = GenerationConfig(pad_token_id=0)
    model.eval()
    return model


def set_seconds(model: SleepingModel, seconds: Seconds) -> None:
    """Let a model take these times, also in the process that shares its buffers.

    Args:
        model: any.
        seconds: by the tokens of a forward.
    """
    times = [seconds(width) for width in range(1, WIDEST + 1)]
    model.model.seconds.copy_(torch.tensor(times, dtype=torch.float64))


def set_script(model: SleepingModel, answer: Sequence[int]) -> None:
    """Let a model say this answer to `PROMPT`, whatever stands before a position.

    Args:
        model: any.
        answer: at most ``LONGEST - len(PROMPT)`` tokens.
    """
    start = len(PROMPT) - 1
    model.model.script[start : start + len(answer)] = torch.tensor(answer)


def scripted_answers(text: Text, seed: int) -> tuple[list[int], list[int]]:
    """What target and draft say: the draft is right where the text says so.

    Args:
        text: says of every position whether the draft's token is right.
        seed: of the target's tokens.

    Returns:
        the target's tokens and the draft's, which differ where the draft is wrong.
    """
    rng = random.Random(seed)
    truth = [rng.randrange(SPECIAL, VOCABULARY) for _ in text]
    drafted = []
    for token, draft_token in zip(truth, text, strict=True):
        is_right = draft_token.rank == 0
        drafted.append(token if is_right else _another(token))
    return truth, drafted


def _another(token: int) -> int:
    following = token + 1
    return following if following < VOCABULARY else SPECIAL


def inputs() -> dict[str, Tensor]:
    """The prompt as a processor would give it."""
    ids = torch.tensor([PROMPT])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
