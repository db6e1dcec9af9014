"""Cells of pictures with an overview and details are the places where the model puts their
features.

LLaVA-NeXT and LLaVA-OneVision join the tiles of a picture, cut off the padding, may shrink the
rest, and end its rows with newlines. The features of these tests encode where they come from, and
are read back from the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from families import FAMILIES, SIDE, Family
from torch import Tensor
from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape
from transformers.video_utils import VideoMetadata

from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prompt

BY_NAME = {family.name: family for family in FAMILIES}
Cells = list[tuple[int, int, int]]
Size = tuple[int, int]
NEWLINE, FRAMES = -100, 13
GRIDS = [
    [SIDE * high, SIDE * wide] for high in range(1, 9) for wide in range(1, 9) if high * wide <= 9
]
"""All tilings of a picture by up to nine tiles."""


def tiled(name: str, grids: list[list[int]] = GRIDS, **config: Any) -> Family:
    """A family with other tilings of pictures to choose from."""

    def processor() -> Any:
        instance = BY_NAME[name].processor()
        instance.image_processor.image_grid_pinpoints = grids
        instance.vision_aspect_ratio = config.get("vision_aspect_ratio", "anyres_max_9")
        return instance

    config = {**BY_NAME[name].config, "image_grid_pinpoints": grids, **config}
    return replace(BY_NAME[name], config=config, processor=processor)


def ask(
    family: Family, rows: Sequence[Sequence[Size]], videos: int, between: str, order: int
) -> dict[str, Any]:
    """A batch with pictures of these heights and widths in each row, after `videos` videos.

    Args:
        between: text between two pictures.
        order: -1 puts the videos last.
    """
    media = [
        ((family.video or "") * videos, between.join([family.image] * len(row))) for row in rows
    ]
    texts = ["User: " + "".join(shown[::order]) + "?" * len(shown) for shown in media]
    shown: dict[str, Any] = {
        "images": [[np.zeros((*size, 3), np.uint8) for size in row] for row in rows]
    }
    if videos:
        clips = [np.zeros((FRAMES, SIDE, SIDE, 3), np.uint8)] * (videos * len(rows))
        times = list(range(FRAMES))
        metadata = [VideoMetadata(total_num_frames=FRAMES, fps=2.0, frames_indices=times)] * len(
            clips
        )
        shown |= {"videos": clips, "video_metadata": metadata, "do_sample_frames": False}
    return dict(
        family.tools(text=texts, padding=True, padding_side="left", return_tensors="pt", **shown)
    )


def sign(owner: int, part: int, top: float = 0, left: float = 0) -> Tensor:
    """Features of a tile or frame, ``[16, 4]``: number of the picture or video, number of the part,
    row and column.

    Pictures count from 0 and their details are part 1; videos count down from -1 and their parts
    are frames.
    """
    height, width = torch.meshgrid(torch.arange(4) + top, torch.arange(4) + left, indexing="ij")
    return torch.stack(
        [torch.full((4, 4), owner), torch.full((4, 4), part), height, width], -1
    ).flatten(0, 1)


def signs(family: Family, rows: Sequence[Sequence[Size]]) -> Tensor:
    """The signs of all tiles of a batch's pictures ``[tiles, 16, 4]``."""
    tiles = []
    for number, (size, together) in enumerate((size, len(row)) for row in rows for size in row):
        tiles.append(sign(number, 0))
        if (
            family.name == "llava_next" or together == 1
        ):  # the other shows several pictures without details
            high, wide = get_anyres_image_grid_shape(
                size, family.config["image_grid_pinpoints"], SIDE
            )
            tiles += [
                sign(number, 1, 4 * above, 4 * beside)
                for above in range(high)
                for beside in range(wide)
            ]
    return torch.stack(tiles)


def signed_prompt(
    family: Family,
    rows: Sequence[Sequence[Size]],
    videos: int = 0,
    between: str = "",
    order: int = 1,
) -> Prompt:
    """A prompt whose features encode their places; the model itself joins, unpads, shrinks and
    packs them."""
    model, pictures = family.build(), signs(family, rows)
    clips = [
        sign(-1 - number, frame) for number in range(videos * len(rows)) for frame in range(FRAMES)
    ]

    def put(module: Any, args: Any, made: Tensor) -> Tensor:
        marks = pictures if len(made) == len(pictures) else torch.stack(clips)
        return torch.cat([marks.to(made), torch.zeros_like(made[..., 4:])], -1)

    model.model.multi_modal_projector.register_forward_hook(put)
    with torch.no_grad():
        model.model.image_newline.fill_(NEWLINE)
    backbone = Backbone.of(model)
    return backbone.encode(
        backbone.prepare(ask(family, rows, videos, between, order), max_new_tokens=1)
    )


def signed_cells(prompt: Prompt, row: int) -> Cells:
    """The cells that the tokens of one row encode; a newline has the cell of the token before."""
    marks = [
        tuple(round(x, 2) for x in mark)
        for mark in prompt.embeds[row, prompt.visual[row], :4].tolist()
    ]
    views = list(dict.fromkeys(mark[:2] for mark in marks if mark[0] != NEWLINE))
    cells: Cells = []
    for mark in marks:
        if mark[0] == NEWLINE:
            cells.append(cells[-1])
            continue
        height, width = (
            sorted({other[axis] for other in marks if other[:2] == mark[:2]}) for axis in (2, 3)
        )
        cells.append((views.index(mark[:2]), height.index(mark[2]), width.index(mark[3])))
    return cells


def visual_cells(prompt: Prompt, row: int) -> Cells:
    """Cells of one row's visual tokens, in order."""
    return [(t, h, w) for t, h, w in prompt.cells[row][prompt.visual[row]].tolist()]


SIZES: dict[str, list[list[Size]]] = {
    "square": [[(16, 16)]],
    "wide": [[(9, 40)]],
    "tall": [[(70, 20)]],
    "not a multiple": [[(37, 23)]],
    "one row of tiles": [[(8, 128)]],
    "a line": [[(2, 120)]],
    "a column": [[(120, 2)]],
    "all rows": [[(128, 16)]],
    "many tiles": [[(200, 190)]],
    "ragged": [[(20, 64)], [(64, 20)], [(48, 48)]],
    "several": [[(20, 64), (64, 20)], [(30, 47)], [(9, 40), (16, 16), (70, 20)]],
}


@pytest.mark.parametrize("name", ["llava_next", "llava_onevision"])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("between", ["", " and "])
def test_any_resolution(name: str, sizes: str, between: str) -> None:
    """Every token has the cell where the model put it: an overview, then the details as one grid
    with newlines at the ends of its rows."""
    family = tiled(name)
    prompt = signed_prompt(family, SIZES[sizes], between=between)
    for row in range(len(SIZES[sizes])):
        assert visual_cells(prompt, row) == signed_cells(prompt, row)


@pytest.mark.parametrize("max_tiles", [1, 2, 4, 9])
@pytest.mark.parametrize("sizes", ["wide", "tall", "not a multiple", "many tiles", "several"])
def test_details_that_are_shrunk(max_tiles: int, sizes: str) -> None:
    """LLaVA-OneVision interpolates details of more than `max_tiles` tiles."""
    prompt, whole = (
        signed_prompt(
            tiled("llava_onevision", vision_aspect_ratio=f"anyres_max_{limit}"), SIZES[sizes]
        )
        for limit in (max_tiles, 9)
    )
    assert max_tiles > 1 or sum(prompt.lengths) < sum(whole.lengths)
    for row in range(len(SIZES[sizes])):
        assert visual_cells(prompt, row) == signed_cells(prompt, row)


@pytest.mark.parametrize("sizes", ["wide", "ragged", "several"])
@pytest.mark.parametrize("videos", [1, 2])
@pytest.mark.parametrize("order", [1, -1])
def test_pictures_beside_videos(sizes: str, videos: int, order: int) -> None:
    """Videos and pictures are divided correctly with no text between them."""
    prompt = signed_prompt(tiled("llava_onevision"), SIZES[sizes], videos, order=order)
    for row in range(len(SIZES[sizes])):
        times = [t for t, _, _ in visual_cells(prompt, row)]
        assert max(times) + 1 >= FRAMES * videos + len(SIZES[sizes][row])
        assert visual_cells(prompt, row) == signed_cells(prompt, row)
