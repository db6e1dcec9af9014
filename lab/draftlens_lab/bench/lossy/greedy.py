"""The greedy choice of stock `generate`, with its own logits processors."""

from __future__ import annotations

import torch
from torch import Tensor

from draftlens.models.prompt import Prepared


def greedy_choice(prepared: Prepared, history: Tensor, logits: Tensor) -> int:
    """The next token.

    Args:
        history: prompt and answer so far, int64 ``[1, L]``.
        logits: ``[1, V]``.
    """
    scores = logits.to(torch.float32, copy=True)
    for processor in prepared.processors:
        scores = processor(history, scores)
    return int(scores.argmax(-1))


def has_ended(prepared: Prepared, history: Tensor, scores: Tensor) -> bool:
    """Whether the answer ends with its last token.

    Args:
        history: prompt and answer, int64 ``[1, L]``.
        scores: logits ``[1, V]`` that the last token was chosen by.
    """
    return any(bool(torch.as_tensor(rule(history, scores)).all()) for rule in prepared.criteria)
