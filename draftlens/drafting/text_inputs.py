"""A prompt without its pictures and clips, from its token ids alone, for drafts that read words.

Only the model families listed here can be read in this way: what their processors write for a
picture or clip can be distinguished from the user's text. Others write words or markers for which
this is impossible, such as SmolVLM's rows and columns of tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from draftlens.models.support import media_ids

# Fields of a model's configuration that name the tokens that represent pixels.
PLACEHOLDERS = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")


@dataclass(frozen=True)
class TextSpan:
    """The tokens of a prompt from index `first` up to `end`, exclusive."""

    first: int
    end: int


# Finds the tokens of pictures and clips in a row of token ids, given the ids that represent pixels
# and the model's configuration. None if they cannot be distinguished from text.
Find = Callable[[Sequence[int], frozenset[int], Any], list[TextSpan] | None]


def text_inputs(config: Any, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """The words of any prompt, from a processor's output; `config` as for `text_ids`, whose tokens
    these are where it finds them. Elsewhere only tokens that the configuration names are left out,
    and other marks of pictures stay; a row without anything else keeps its last token."""
    ids, mask = inputs["input_ids"], inputs.get("attention_mask")
    text_only = text_ids(config, ids, mask)
    if text_only is not None:
        return text_only
    of_media = media_ids(config) | _placeholders(config)
    rows = [
        [token for token in row if token not in of_media] or row[-1:] for row in _rows(ids, mask)
    ]
    return _left_padded(rows, ids.device)


def text_ids(
    config: Any,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    line_break: int | None = None,
) -> dict[str, Tensor] | None:
    """The inputs of a draft without the pictures and clips of a prompt.

    Markers around pictures go with them. Pictures that follow each other immediately without
    markers, as in LLaVA's prompts, become one line break.

    Args:
        config: of the model with the processor that made the ids.
        input_ids: int64 ``[B, L]``, padded on either side.
        attention_mask: of the same shape, 0 for padding; None without padding.
        line_break: token in place of each picture and clip; None for nothing, since no
            configuration names it.

    Returns:
        `input_ids` and `attention_mask`, int64 ``[B, T]``, padded on the left, on the device of
        `input_ids`. None if the family's pictures and clips cannot be distinguished from text, or
        nothing would be left of a row.
    """
    placeholders = _placeholders(config)
    if not placeholders:
        return None
    find = FAMILIES.get(getattr(config, "model_type", ""), _find_nothing)
    rows = []
    for row in _rows(input_ids, attention_mask):
        spans = find(row, placeholders, config)
        if spans is None:
            return None
        text = _replaced(row, spans, line_break)
        if not text:
            return None
        rows.append(text)
    return _left_padded(rows, input_ids.device)


def _placeholders(config: Any) -> frozenset[int]:
    ids = {getattr(config, name, None) for name in PLACEHOLDERS} - {None}
    return frozenset(token for token in ids if token is not None)


def _rows(input_ids: Tensor, attention_mask: Tensor | None) -> list[list[int]]:
    if attention_mask is None:
        attention_mask = torch.ones_like(input_ids)
    pairs = zip(input_ids, attention_mask, strict=True)
    return [ids[mask != 0].tolist() for ids, mask in pairs]


def _replaced(row: Sequence[int], spans: Sequence[TextSpan], line_break: int | None) -> list[int]:
    text: list[int] = []
    position = 0
    for span in spans:
        text += row[position : span.first]
        if line_break is not None:
            text.append(line_break)
        position = span.end
    text += row[position:]
    return text


def _left_padded(rows: Sequence[Sequence[int]], device: torch.device) -> dict[str, Tensor]:
    length = max(map(len, rows))
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, length - len(row) :] = torch.tensor(row)
        mask[index, length - len(row) :] = 1
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def _runs(row: Sequence[int], placeholders: frozenset[int]) -> list[TextSpan]:
    spans = []
    position = 0
    for token, run in groupby(row):
        end = position + sum(1 for _ in run)
        if token in placeholders:
            spans.append(TextSpan(position, end))
        position = end
    return spans


def _find_nothing(
    row: Sequence[int], placeholders: frozenset[int], config: Any
) -> list[TextSpan] | None:
    """Other families: rows of text only."""
    return None if placeholders & set(row) else []


def _find_runs(row: Sequence[int], placeholders: frozenset[int], config: Any) -> list[TextSpan]:
    """LLaVA: only placeholders."""
    return _runs(row, placeholders)


def _find_marked(
    row: Sequence[int], placeholders: frozenset[int], config: Any
) -> list[TextSpan] | None:
    """Qwen2-VL and Qwen2.5-VL: placeholders between a start and an end."""
    spans = _regions(row, config.vision_start_token_id, config.vision_end_token_id)
    if spans is None or not _hold_all(spans, row, placeholders):
        return None
    return spans


def _find_marked_frames(
    row: Sequence[int], placeholders: frozenset[int], config: Any
) -> list[TextSpan] | None:
    """Qwen3-VL: each frame of a clip has its own start and end, after words with its time.

    transformers 5 writes all this between another start and end. Older processors do not, and then
    the words cannot be distinguished from the user's own.
    """
    spans = _find_marked(row, placeholders, config)
    for span in spans or []:
        inside = row[span.first + 1 : span.end - 1]
        if inside and inside[0] == config.video_token_id:
            return None
    return spans


def _find_surrounded(
    row: Sequence[int], placeholders: frozenset[int], config: Any
) -> list[TextSpan] | None:
    """InternVL: each run of placeholders between two tokens that its configuration does not name.

    The frames of a clip have words between them, and so may pictures. Only pictures with one token
    between them, or none, are taken for pictures. The words before a single frame stay.
    """
    runs = _runs(row, placeholders)
    if not runs:
        return []
    if runs[0].first == 0 or runs[-1].end == len(row):
        return None
    markers = {(row[run.first - 1], row[run.end]) for run in runs}
    if len(markers) > 1:
        return None
    spans = [TextSpan(run.first - 1, run.end + 1) for run in runs]
    for span, following in pairwise(spans):
        if not 0 <= following.first - span.end <= 1:
            return None
    return spans


def _regions(row: Sequence[int], start: int, end: int) -> list[TextSpan] | None:
    """Spans from a start to its end, both included; None if one lacks its counterpart."""
    spans = []
    open_at: list[int] = []
    for index, token in enumerate(row):
        if token == start:
            open_at.append(index)
        elif token == end:
            if not open_at:
                return None
            first = open_at.pop()
            if not open_at:
                spans.append(TextSpan(first, index + 1))
    return None if open_at else spans


def _hold_all(spans: Sequence[TextSpan], row: Sequence[int], placeholders: frozenset[int]) -> bool:
    inside = [[token in placeholders for token in row[span.first : span.end]] for span in spans]
    number = sum(token in placeholders for token in row)
    return all(map(any, inside)) and sum(map(sum, inside)) == number


# How the processors of model families write pictures and clips, by type of configuration.
FAMILIES: Mapping[str, Find] = MappingProxyType(
    {
        "llava": _find_runs,
        "llava_next": _find_runs,
        "llava_onevision": _find_runs,
        "qwen2_vl": _find_marked,
        "qwen2_5_vl": _find_marked,
        "qwen3_vl": _find_marked_frames,
        "internvl": _find_surrounded,
    }
)
