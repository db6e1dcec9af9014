"""The losses of draft training, over the answer tokens of a batch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from draftlens_lab.train.labels import IGNORE


def answer_logits(model: Any, forward: Any, inputs: Mapping[str, Any], labels: Tensor) -> Tensor:
    """The logits that predict each answer token.

    Args:
        forward: the callable to run: the model, or a wrapper around it.
        labels: int64 ``[B, L]``.

    Returns:
        float32 ``[N, V]``, one row for each label that is not `IGNORE`, in the order of
        `answer_labels`.
    """
    is_answer = labels[:, 1:] != IGNORE
    columns = is_answer.any(0).nonzero().flatten()
    options = {}
    if "logits_to_keep" in inspect.signature(type(model).forward).parameters:
        options["logits_to_keep"] = columns
    logits: Tensor = forward(**inputs, use_cache=False, **options).logits
    if logits.shape[1] != len(columns):  # the model computed all of them
        logits = logits[:, columns]
    return logits[is_answer[:, columns]].float()


def answer_labels(labels: Tensor) -> Tensor:
    """The answer tokens int64 ``[N]`` in labels int64 ``[B, L]``: row by row, in order."""
    shifted = labels[:, 1:]
    return shifted[shifted != IGNORE]


def distillation(draft: Tensor, target: Tensor, temperature: float) -> Tensor:
    """Forward KL divergence from the target to the draft, summed over tokens (Hinton et al. 2015).

    With logits z and temperature τ::

        p = softmax(z_target / τ),  q = softmax(z_draft / τ)
        L = τ² Σ_tokens Σ_v p(v) (log p(v) − log q(v))

    The factor τ² makes the size of the gradients independent of τ. Models of one tokenizer pad
    their vocabularies differently, so v runs over the ids that both models have.

    Args:
        draft: float ``[N, V]``.
        target: float ``[N, V']``, without gradient.
        temperature: τ.

    Returns:
        float, a scalar.
    """
    shared = min(draft.shape[-1], target.shape[-1])
    log_q = F.log_softmax(draft[:, :shared] / temperature, -1)
    log_p = F.log_softmax(target[:, :shared] / temperature, -1)
    return temperature**2 * F.kl_div(log_q, log_p, reduction="sum", log_target=True)


def answer_loss(
    draft: Tensor, tokens: Tensor, target: Tensor | None, weight: float, temperature: float
) -> Tensor:
    """The loss of a batch, summed over its answer tokens.

    It is ``(1 − w) CE(draft, tokens) + w L``, with the cross entropy CE and the `distillation` L;
    without a target it is CE alone.

    Args:
        draft: float ``[N, V]``.
        tokens: int64 ``[N]``.
        target: float ``[N, V']``, or None.
        temperature: τ.

    Returns:
        float, a scalar.
    """
    entropy = F.cross_entropy(draft, tokens, reduction="sum")
    if target is None:
        return entropy
    return (1 - weight) * entropy + weight * distillation(draft, target, temperature)
