"""Training of the middle layers to find the shot that a question is about.

An answer about a reel needs two steps: from what the question names to the number of a shot, and
from there to what the shot shows. The loss of the answer alone teaches both only together. A head
on the middle layers therefore classifies, from the first tokens of an answer, the number of its
shot. Later tokens could tell it from what was said before. The head is discarded afterwards.

The classifier learned ordinals but no texts: a query must match the text in the question with the
same text in the visual tokens, and nothing rewards a partial match. Two attention heads below the
classifier are therefore also trained to attend, from the end of the question on, to the shot.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

from draftlens.world.dialogue import Turn
from draftlens.world.focus import FocusTurn
from draftlens.world.samples import Sample
from draftlens.world.scene import Scene
from recipes.pair.data import IGNORED, encode

ASKED_LOSS_WEIGHT = 0.3
POINTER_LOSS_WEIGHT = 0.3
POINTER_HEADS = 2
FIRST_TOKENS = 8  # of an answer
LAST_TOKENS = 8  # before an answer: the end of the question
# Forms of questions about one shot, which is that of the last region.
ONE_SHOT = ("word", "after", "ordinal", "after this", "of them", "place")


def asked_labels(
    tokenizer: Any, samples: Sequence[Sample], num_frames: int, before: int = 0
) -> torch.Tensor:
    """The number of the shot that the next token is about, int64 ``[B, L]``; `IGNORED` where the
    next token is not among the first ones of an answer about one shot.

    Args:
        tokenizer: the pair's tokenizer.
        samples: samples about reels.
        num_frames: frames of each clip.
        before: number of further positions before each answer that have its label.
    """
    rows = [_row(tokenizer, sample, num_frames, before) for sample in samples]
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [IGNORED] * (longest - len(row)) for row in rows])


def asked_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy; 0 without labels.

    Args:
        scores: float ``[B, L, C]``.
        labels: int64 ``[B, L]``, or `IGNORED`.
    """
    total = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")
    return total / (labels != IGNORED).sum().clamp(min=1)


def pointer_loss(shares: torch.Tensor, shots: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean negative logarithm of the attention that the shot asked about receives; 0 without
    labels.

    Args:
        shares: float ``[B, L, T]``, the share of each frame in the attention of each token.
        shots: int64 ``[B, T]``, the shot of each frame.
        labels: int64 ``[B, L]``, the shot that each token should attend to, or `IGNORED`.
    """
    is_asked = shots[:, None] == labels[:, :, None]  # [B, L, T]
    losses = -(shares * is_asked).sum(-1).clamp(min=1e-6).log()
    has_label = labels != IGNORED
    return (losses * has_label).sum() / has_label.sum().clamp(min=1)


class Pointer:
    """The attention of the first heads of one layer to the frames of a video.

    The attention of a pass is not available from kernels that never store it, so it is computed
    again for the video's keys, from the input of the layer's attention.

    Args:
        attention: the attention module of a Qwen2 layer.
        first: position of the first visual token.
        frames: number of frames of ``cells`` tokens each.
        cells: visual tokens of a frame.
    """

    def __init__(self, attention: Any, first: int, frames: int, cells: int) -> None:
        self.attention = attention
        self.video = slice(first, first + frames * cells)
        self.cells = cells
        self._inputs: list[tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Store the attention's inputs of the passes in this context."""

        def store(module: Any, args: Any, kwargs: Any) -> None:
            self._inputs.append((kwargs["hidden_states"], kwargs["position_embeddings"]))

        handle = self.attention.register_forward_pre_hook(store, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def shares(self) -> torch.Tensor:
        """The share of each frame in the attention to the video, float ``[B, L, T]``, mean of the
        heads; meaningless for tokens before the end of the video."""
        states, (cos, sin) = self._inputs[-1]
        heads = (*states.shape[:2], -1, self.attention.head_dim)
        queries = self.attention.q_proj(states).view(heads)[:, :, :POINTER_HEADS].transpose(1, 2)
        keys = self.attention.k_proj(states).view(heads)[:, :, :POINTER_HEADS].transpose(1, 2)
        queries, keys = apply_rotary_pos_emb(queries, keys, cos, sin)
        scores = queries @ keys[:, :, self.video].mT * self.attention.scaling
        shares: torch.Tensor = scores.softmax(-1).unflatten(-1, (-1, self.cells)).sum(-1).mean(1)
        return shares


def _row(tokenizer: Any, sample: Sample, num_frames: int, before: int) -> list[int]:
    shots = [_shot_of(turn, sample.scenes[0]) for turn in sample.turns]
    turns = encode(tokenizer, sample, num_frames).turns
    here = [IGNORED] * len(turns)
    for index, turn in enumerate(turns):
        if turn == IGNORED or turns[index - 1] == turn:
            continue
        end = index + turns[index : index + FIRST_TOKENS].count(turn)
        for place in range(index - before, end):
            here[place] = shots[turn]
    return [*here[1:], IGNORED]


def _shot_of(turn: Turn, reel: Scene) -> int:
    """The index of the shot that a question is about; `IGNORED` if it is about none or several."""
    if not isinstance(turn, FocusTurn) or turn.form not in ONE_SHOT:
        return IGNORED
    starts = [shot.start for shot in reel.shots]
    return starts.index(turn.regions[-1].start)
