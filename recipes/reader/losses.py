"""What the reader is trained on: telling, sight and pointing, all at the same time.

Telling is the prediction of the next token. Alone it is learned very slowly, because nothing
rewards a tower that sees letters before the language model uses them, nor a language model that
looks at the right place before the tower sees. Two further losses reward each of them:

- sight: a linear layer, discarded afterwards, names the characters whose middle lies in a cell;
- pointing: in some layers, one attention head looks at the cell of the first character of the next
  token, and another head at the cell of its last character.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb

from recipes.pair.data import IGNORED
from recipes.pair.loop import StepResult
from recipes.reader.data import CLASSES, NOTHING, SLOTS, Batch

SIGHT_WEIGHT = 1.0
POINTING_WEIGHT = 0.3
POINTER_HEADS = 2  # for the first and for the last character


class Trained(nn.Module):
    """The reader and the layer that names characters.

    Args:
        model: a ``Qwen2_5_VLForConditionalGeneration``.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        # The names of the attributes are part of the checkpoints.
        self.model = model
        self.width = model.config.text_config.hidden_size
        self.namer = nn.Linear(self.width, SLOTS * (len(CLASSES) + 1))

    def names(self, features: torch.Tensor) -> torch.Tensor:
        """Scores ``[..., SLOTS, classes]`` of the characters of cells, for visual tokens."""
        scores: torch.Tensor = self.namer(F.rms_norm(features, (self.width,)))
        return scores.view(*features.shape[:-1], SLOTS, -1)


class Pointer:
    """The attention of the first heads of some layers, from answers to all that precedes them.

    The attention of a pass is not available from kernels that never store it, so it is computed
    again, from the inputs of the layers.

    Args:
        layers: decoder layers of a Qwen2.5-VL model.
    """

    def __init__(self, layers: list[Any]) -> None:
        self.attentions = [layer.self_attn for layer in layers]
        self._inputs: list[tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Store the layers' inputs of the pass in this context."""

        def store(module: Any, args: Any, kwargs: Any) -> None:
            self._inputs.append((kwargs["hidden_states"], kwargs["position_embeddings"]))

        self._inputs.clear()
        handles = []
        for attention in self.attentions:
            handles.append(attention.register_forward_pre_hook(store, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def scores(self, start: int, end: int) -> torch.Tensor:
        """Attention before the softmax, float ``[layers, B, heads, A, start]``.

        Args:
            start: index of the first token of the answers; everything before is looked at.
            end: the tokens from ``start - 1`` to this one look: each predicts the next one.
        """
        found = []
        for attention, (states, (cos, sin)) in zip(self.attentions, self._inputs, strict=True):
            width = POINTER_HEADS * attention.head_dim
            queries = self._project(attention.q_proj, states[:, start - 1 : end], width)
            keys = self._project(attention.k_proj, states[:, :start], width)
            queries, _ = apply_rotary_pos_emb(
                queries, queries, cos[:, start - 1 : end], sin[:, start - 1 : end]
            )
            keys, _ = apply_rotary_pos_emb(keys, keys, cos[:, :start], sin[:, :start])
            found.append(queries @ keys.mT * attention.scaling)
        self._inputs.clear()
        return torch.stack(found)

    def _project(self, linear: Any, states: torch.Tensor, width: int) -> torch.Tensor:
        """The first heads of a projection, ``[B, heads, L, head_dim]``."""
        projected = F.linear(states, linear.weight[:width], linear.bias[:width])
        heads = projected.view(*states.shape[:2], POINTER_HEADS, -1)
        return heads.transpose(1, 2)


def reader_loss(trained: Trained, pointer: Pointer, batch: Batch) -> StepResult:
    """The sum of the three losses; the accuracy is that of telling.

    Args:
        trained: the model.
        pointer: of the layers that learn to point.
        batch: pictures and answers.
    """
    model = trained.model.model
    features = model.visual(batch.patches, grid_thw=batch.grid).pooler_output
    features = features.view(len(batch.ids), -1, features.shape[-1])  # [B, N, D]
    embedded = model.language_model.embed_tokens(batch.ids)
    end = batch.first + features.shape[1]
    embedded = torch.cat([embedded[:, : batch.first], features, embedded[:, end:]], dim=1)
    with pointer.watching():
        # The padding is behind the answers, so a causal mask hides it.
        hidden = model.language_model(
            inputs_embeds=embedded, position_ids=batch.positions, use_cache=False
        ).last_hidden_state
    is_told = batch.labels != IGNORED
    logits = trained.model.lm_head(hidden[:, batch.start - 1 : -1][is_told])
    tokens = batch.labels[is_told]
    telling = F.cross_entropy(logits, tokens)
    told = (logits.detach().argmax(-1) == tokens).float().mean()
    sight, seen = _sight(trained.names(features), batch.sight)
    pointing, pointed = _pointing(pointer, batch)
    loss = telling + SIGHT_WEIGHT * sight + POINTING_WEIGHT * pointing
    figures = {
        "telling": telling.item(),
        "sight": sight.item(),
        "pointing": pointing.item(),
        "seen": seen,
        "pointed": pointed,
    }
    return StepResult(loss, float(told), figures)


def _sight(scores: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The mean loss of naming, and the share of the characters that are named correctly."""
    loss = F.cross_entropy(scores.flatten(0, -2), labels.flatten(), ignore_index=IGNORED)
    is_character = labels > NOTHING
    correct = scores.detach().argmax(-1) == labels
    return loss, float(correct[is_character].float().mean())


def _pointing(pointer: Pointer, batch: Batch) -> tuple[torch.Tensor, float]:
    """The mean loss of pointing, and the share of correct cells in the last of the layers."""
    room = batch.labels.shape[1]
    scores = pointer.scores(batch.start, batch.start - 1 + room)  # [layers, B, heads, A, start]
    targets = batch.cells.transpose(1, 2)  # [B, heads, A]
    has_target = targets != IGNORED
    chosen = scores[:, has_target]  # [layers, K, start]
    targets = targets[has_target] + batch.first
    loss = F.cross_entropy(chosen.flatten(0, 1), targets.repeat(len(chosen)))
    correct = chosen[-1].detach().argmax(-1) == targets
    return loss, float(correct.float().mean())
