"""Training of the middle layers to find the frames that a question is about.

An answer about a reel needs two steps: from what the question names to the number of a shot, and
from there to what the shot shows. The loss of the answer alone teaches both only together. A head
on the middle layers therefore classifies, from the first tokens of an answer, the number of its
shot. Later tokens could tell it from what was said before. The head is discarded afterwards.

The classifier learned ordinals but no texts: a query must match the text in the question with the
same text in the visual tokens, and nothing rewards a partial match. Two attention heads below the
classifier are therefore also trained to attend, from the end of the question on, to the shot; for
needles, to their frame; where one quarter or the strip carries the answer or the sentence, to its
cells only. Heads of further layers can be trained to do the same.

For "after SHIP" these heads found nothing in 600 steps, although the tokens of each frame told the
text of the shot before: the text of the question must be compared with that text, and not with the
frame's own. So the classifier that reads from the tokens of a frame what can name their shot (see
video.py) also reads from the end of the question what it looks for, in the same terms.

An answer about several shots, one after the other, has labels for each of its parts.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from draftlens_lab.world import evidence, seen_spans
from draftlens_lab.world.focus import FocusTurn
from draftlens_lab.world.regions import ALL_CELLS, PLACE_CELLS, STRIP_CELLS, Region
from draftlens_lab.world.samples import Sample
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

from recipes.pair.data import IGNORED, encode

ASKED_LOSS_WEIGHT = 0.3
POINTER_LOSS_WEIGHT = 0.3
POINTER_HEADS = 2
FIRST_TOKENS = 8  # of an answer or of a part of it
LAST_TOKENS = 8  # before an answer: the end of the question
LEADING_TOKENS = 1  # before a further part of an answer
NO_CELLS = (IGNORED, IGNORED, IGNORED)
# Forms of questions about one shot, which is that of the last region.
ONE_SHOT = ("word", "after", "ordinal", "after this", "of them", "place", "next")
# Forms whose answers go through the regions, a sentence or an item of a list each.
BY_SENTENCE = ("hero", "compare")
BY_ITEM = ("list", "hero texts")


@dataclass(frozen=True)
class Part:
    """A part of an answer that one region shows.

    Args:
        start: index of its first character in the answer without brackets.
        end: index of the character behind its last.
        region: the region.
    """

    start: int
    end: int
    region: Region


def answer_parts(turn: FocusTurn) -> list[Part]:
    """The parts of an answer in order; none if the answer is about no region of a reel."""
    if turn.form in ONE_SHOT:
        return [Part(0, len(turn.answer), turn.regions[-1])]
    if turn.family == "needle":
        return [Part(0, len(turn.answer), turn.regions[0])]
    starts: list[int] = []
    if turn.form in BY_SENTENCE:
        starts = [match.start() for match in re.finditer(r"(?<!\S)[A-Z]", turn.answer)]
    elif turn.form in BY_ITEM:
        starts = [start for start, _ in seen_spans(turn.marked_answer)]
    ends = [*starts[1:], len(turn.answer)]
    # The sentences of a comparison behind the first two are about both shots.
    return [Part(*values) for values in zip(starts, ends, turn.regions, strict=False)]


def asked_labels(tokenizer: Any, samples: Sequence[Sample], num_frames: int) -> torch.Tensor:
    """The number of the shot that the next token is about, int64 ``[B, L]``; `IGNORED` where the
    next token is not among the first ones of a part of an answer about a shot.

    Args:
        tokenizer: the pair's tokenizer.
        samples: samples about reels.
        num_frames: frames of each clip.
    """
    rows = []
    for sample in samples:
        starts = [shot.start for shot in sample.scenes[0].shots]
        row = [IGNORED] * len(encode(tokenizer, sample, num_frames).ids)
        for place in places(tokenizer, sample, num_frames):
            if place.turn.family == "needle":
                continue
            shot = starts.index(place.part.region.start)
            for position in range(place.first, min(place.first + FIRST_TOKENS, place.end)):
                row[position] = shot
        rows.append(row)
    return padded_rows(rows, IGNORED)


def pointed_labels(tokenizer: Any, samples: Sequence[Sample], num_frames: int) -> torch.Tensor:
    """What each token should attend to, int64 ``[B, L, 3]``: the first frame, the one behind the
    last, and the cells of these frames, bit by bit; `IGNORED` where there is no label.

    Labelled are the positions that predict an answer, and those shortly before.

    Args:
        tokenizer: the pair's tokenizer.
        samples: samples about reels.
        num_frames: frames of each clip.
    """
    rows = []
    for sample in samples:
        row = [NO_CELLS] * len(encode(tokenizer, sample, num_frames).ids)
        for place in places(tokenizer, sample, num_frames):
            frames = evidence([place.part.region], num_frames).frames
            characters = [place.part.start] * place.lead + place.characters
            for position, character in enumerate(characters, place.first - place.lead):
                cells = told_cells(place.turn.answer, character, place.part.region)
                row[position] = frames[0], frames[-1] + 1, sum(1 << cell for cell in cells)
        rows.append(row)
    return padded_rows(rows, NO_CELLS)


def told_cells(answer: str, character: int, region: Region) -> tuple[int, ...]:
    """The cells of a region that the sentence around a character tells of.

    A sentence about a thing tells of its quarter, one about a text of the strip. Which thing or
    text it is follows from the whole region, so the first word has all cells.

    Args:
        answer: an answer without brackets.
        character: index of the first character of a token.
        region: what shows this part of the answer.
    """
    sentences = re.finditer(r"\s*([^.]+\.)", answer)
    sentence = next(match for match in sentences if character < match.end())
    if region.cells != ALL_CELLS or character <= sentence.start(1):
        return region.cells
    for place, cells in PLACE_CELLS.items():
        if f"at the {place}" in sentence[1].lower():
            return cells
    return STRIP_CELLS if sentence[1].endswith("letters.") else region.cells


def asked_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy; 0 without labels.

    Args:
        scores: float ``[B, L, C]``.
        labels: int64 ``[B, L]``, or `IGNORED`.
    """
    total = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")
    return total / (labels != IGNORED).sum().clamp(min=1)


def pointer_loss(shares: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean negative logarithm of the attention that the labelled cells receive; 0 without labels.

    Args:
        shares: see `labelled_shares`.
        labels: see `labelled_shares`.
    """
    losses = -labelled_shares(shares, labels).clamp(min=1e-6).log()
    total: torch.Tensor = losses.sum() / max(1, len(labels))
    return total


def labelled_shares(shares: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The attention that the labelled cells receive, float ``[N]``.

    Args:
        shares: float ``[N, T, C]``, the share of each cell of each frame in the attention of each
            token with a label.
        labels: int64 ``[N, 3]``, see `pointed_labels`.
    """
    first, end, bits = labels[:, None].unbind(-1)  # [N, 1] each
    frames = torch.arange(shares.shape[-2], device=shares.device)
    cells = torch.arange(shares.shape[-1], device=shares.device)
    is_frame = (frames >= first) & (frames < end)  # [N, T]
    is_cell = (bits >> cells) & 1  # [N, C]
    is_asked = is_frame[:, :, None] & is_cell[:, None].bool()
    return (shares * is_asked).sum((-2, -1))


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
        self.frames = frames
        self.cells = cells
        positions = torch.arange(first, first + frames * cells)
        self._video_positions = positions.to(attention.q_proj.weight.device)
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

    def shares(self, chosen: torch.Tensor, start: int) -> torch.Tensor:
        """The share of each cell in the attention to the video, mean of the heads: float
        ``[N, T, cells]`` for the N chosen tokens, row by row.

        Args:
            chosen: bool ``[B, L']``, which of the tokens from position ``start`` on.
            start: that of the video or the one behind it.
        """
        rows = []
        for row, is_chosen in enumerate(chosen):
            positions = is_chosen.nonzero()[:, 0] + start
            queries = self._heads(self.attention.q_proj, row, positions)
            keys = self._heads(self.attention.k_proj, row, self._video_positions)
            scores = queries @ keys.mT * self.attention.scaling  # [H, N, T * cells]
            is_later = self._video_positions > positions[:, None]
            rows.append(scores.masked_fill(is_later, -torch.inf).softmax(-1).mean(0))
        shares = torch.cat(rows)
        return shares.view(len(shares), self.frames, self.cells)

    def _heads(self, projection: Any, row: int, positions: torch.Tensor) -> torch.Tensor:
        """The rotated queries or keys of the pointer's heads, ``[H, N, head_dim]``.

        Those of other heads and tokens are not needed.

        Args:
            projection: the linear layer of queries or keys.
            row: a row of the batch.
            positions: int64 ``[N]``.
        """
        states, (cos, sin) = self._inputs[-1]
        size = self.attention.head_dim
        width = POINTER_HEADS * size
        chosen = states[row, positions]
        values = F.linear(chosen, projection.weight[:width], projection.bias[:width])
        heads = values.view(1, -1, POINTER_HEADS, size).transpose(1, 2)
        cos, sin = (table[min(row, len(table) - 1), positions][None] for table in (cos, sin))
        rotated, _ = apply_rotary_pos_emb(heads, heads, cos, sin)
        result: torch.Tensor = rotated[0]
        return result


@dataclass(frozen=True)
class Place:
    """Where a dialogue predicts a part of an answer.

    Args:
        turn: the question and its answer.
        part: the part.
        first: the position that predicts its first token.
        characters: index in the answer of the first character of each of its tokens.
    """

    turn: FocusTurn
    part: Part
    first: int
    characters: list[int]

    @property
    def end(self) -> int:
        """The position that predicts the first token behind the part."""
        return self.first + len(self.characters)

    @property
    def lead(self) -> int:
        """Number of positions before the first that can already look for what the part needs."""
        return LEADING_TOKENS if self.part.start else LAST_TOKENS


def places(tokenizer: Any, sample: Sample, num_frames: int) -> Iterator[Place]:
    """The places of the parts of all answers of a dialogue, in order."""
    owners = encode(tokenizer, sample, num_frames).turns
    for index, turn in enumerate(sample.turns):
        if not isinstance(turn, FocusTurn):
            continue
        first = owners.index(index) - 1
        offsets = tokenizer(turn.answer, return_offsets_mapping=True)["offset_mapping"]
        for part in answer_parts(turn):
            before = sum(stop <= part.start for _, stop in offsets)
            starts = [start for start, _ in offsets if start < part.end - 1]
            yield Place(turn, part, first + before, starts[before:])


def padded_rows(rows: list[list[Any]], value: Any) -> torch.Tensor:
    """One tensor of rows of different lengths, with ``value`` behind the shorter ones."""
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])
