"""Cells of visual tokens are those of the layout that each family's processor makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import FAMILIES, PLANS, Family, inputs
from stock import ALL_KINDS, target
from torch import Tensor

from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prompt
from draftlens.models.visual_grid import NO_CELL, GridLayout, cells, read_layout

BY_NAME = {family.name: family for family in FAMILIES}
Cells = list[tuple[int, int, int]]


def prompt_of(family: Family, batch: dict[str, Any]) -> Prompt:
    backbone = Backbone.of(target(family))
    return backbone.encode(backbone.prepare(batch, max_new_tokens=1))


def visual_cells(prompt: Prompt, row: int) -> Cells:
    """Cells of one row's visual tokens, in order."""
    return [(t, h, w) for t, h, w in prompt.cells[row][prompt.visual[row]].tolist()]


def rasters(sizes: Sequence[tuple[int, int]]) -> Cells:
    """Frames of these heights and widths, one after the other."""
    return [
        (t, h, w) for t, (high, wide) in enumerate(sizes) for h in range(high) for w in range(wide)
    ]


@pytest.mark.parametrize(("family", "kind"), ALL_KINDS, ids=str)
def test_what_all_families_share(family: Family, kind: str) -> None:
    """Text and padding have no cell; time rises from frame to frame and from picture to picture,
    and starts at 0 in every row."""
    prompt = prompt_of(family, inputs(family, kind))
    assert prompt.cells.shape == (*prompt.visual.shape, 3)
    assert prompt.cells.dtype == torch.int64
    assert (prompt.cells[~prompt.visual] == NO_CELL).all()
    assert (prompt.cells[prompt.visual] >= 0).all()
    for row in range(3):
        times = [t for t, _, _ in visual_cells(prompt, row)]
        assert all(after - before in (0, 1) for before, after in pairwise(times))
        assert not times or times[0] == 0
        assert (prompt.cells[row, prompt.lengths[row] :] == NO_CELL).all()


def grids(family: Family, kind: str, seed: int = 0) -> list[list[tuple[int, int]]]:
    """Height and width of each frame and picture of each row, in tokens, as Qwen's processors
    return them; videos come first."""
    batch = inputs(family, kind, seed=seed)
    images, videos = (
        batch.get(name, torch.empty(0, 3)).tolist() for name in ("image_grid_thw", "video_grid_thw")
    )
    rows = []
    for plan in PLANS[kind]:
        sizes = [videos.pop(0) for _ in range(plan.videos)] + [
            images.pop(0) for _ in range(plan.images)
        ]
        rows.append([(h // 2, w // 2) for t, h, w in sizes for _ in range(t)])
    assert not images
    assert not videos
    return rows


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("kind", ["image", "images", "video", "mixed", "text"])
@pytest.mark.parametrize("seed", [0, 1])
def test_qwen(name: str, kind: str, seed: int) -> None:
    """Every frame of every video and every picture has its own raster, rectangular or not."""
    family = BY_NAME[name]
    prompt = prompt_of(family, inputs(family, kind, seed=seed))
    for row, sizes in enumerate(grids(family, kind, seed)):
        assert visual_cells(prompt, row) == rasters(sizes)


@pytest.mark.parametrize("kind", ["image", "images", "text"])
def test_llava(kind: str) -> None:
    """Each picture is four by four, also where there is no text between two."""
    prompt = prompt_of(FAMILIES[0], inputs(FAMILIES[0], kind))
    for row, plan in enumerate(PLANS[kind]):
        assert visual_cells(prompt, row) == rasters([(4, 4)] * plan.images)


@pytest.mark.parametrize("seed", [0, 1])
def test_llava_onevision_video(seed: int) -> None:
    """Each frame is pooled to two by two; one newline ends the video."""
    family = BY_NAME["llava_onevision"]
    prompt = prompt_of(family, inputs(family, "video", seed=seed))
    assert prompt.layout.num_frames == 4 + seed
    expected = rasters([(2, 2)] * (4 + seed))
    for row in range(3):
        assert visual_cells(prompt, row) == [*expected, expected[-1]]


@pytest.mark.parametrize("kind", ["image", "images", "video", "mixed", "text"])
def test_internvl(kind: str) -> None:
    """Each tile and each frame is two by two; all tiles of the batch are in one tensor."""
    family = BY_NAME["internvl"]
    batch = inputs(family, kind)
    prompt, tiles = prompt_of(family, batch), 0
    for row, plan in enumerate(PLANS[kind]):
        times = len({t for t, _, _ in visual_cells(prompt, row)})
        assert visual_cells(prompt, row) == rasters([(2, 2)] * times)
        assert times == 4 or kind != "video"
        assert times >= plan.images + 4 * plan.videos
        tiles += times
    assert tiles == len(batch.get("pixel_values", ()))


@pytest.mark.parametrize("kind", ["image", "images", "video", "text"])
def test_smolvlm(kind: str) -> None:
    """Each tile and each frame is two by two; rows are padded with empty tiles."""
    family = BY_NAME["smolvlm"]
    batch = inputs(family, kind)
    prompt = prompt_of(family, batch)
    for row in range(3):
        tiles = batch["pixel_attention_mask"][row].flatten(1).any(1).sum() if kind != "text" else 0
        assert visual_cells(prompt, row) == rasters([(2, 2)] * int(tiles))


def flat(*runs: int, gap: int = 2) -> Tensor:
    """One row of runs of visual tokens with text around them, bool ``[1, L]``."""
    row: list[bool] = []
    for run in runs:
        row += [False] * gap + [True] * run
    return torch.tensor([[*row, False]])


def row_cells(
    visual: Tensor, frames: int | None = None, tile: int | None = None
) -> list[list[int]]:
    """Cells of the visual tokens of a row without M-RoPE; with `frames` they are a video."""
    positions = torch.arange(visual.shape[1])[None]
    layout = GridLayout(visual[visual] if frames else None, frames, tile)
    return cells(visual, positions, layout)[visual].tolist()  # type: ignore[no-any-return]


def test_a_run_of_one_video() -> None:
    """The real LLaVA-OneVision has eight frames of fourteen by fourteen and a newline; the tile
    size does not matter."""
    expected = [list(cell) for cell in rasters([(14, 14)] * 8)]
    assert row_cells(flat(8 * 196 + 1), frames=8, tile=729) == [*expected, expected[-1]]


def test_runs_follow_each_other_in_time() -> None:
    """Two videos with text between them are divided into frames separately."""
    times = [t for t, _, _ in row_cells(flat(9, 17), frames=2)]
    assert times == [0] * 4 + [1] * 5 + [2] * 8 + [3] * 9


def test_a_run_that_is_not_square_is_filled_row_by_row() -> None:
    """It is as wide as the next larger square, and its last row may be shorter."""
    assert row_cells(flat(6)) == [[0, h, w] for h in range(2) for w in range(3)]
    assert row_cells(flat(7)) == [
        [0, 0, 0],
        [0, 0, 1],
        [0, 0, 2],
        [0, 1, 0],
        [0, 1, 1],
        [0, 1, 2],
        [0, 2, 0],
    ]
    assert row_cells(flat(2)) == [[0, 0, 0], [0, 0, 1]]
    assert row_cells(flat(1)) == [[0, 0, 0]]


def test_neither_frames_nor_tiles_larger_than_the_run() -> None:
    """They are ignored."""
    assert row_cells(flat(4), frames=9, tile=16) == row_cells(flat(4))
    assert row_cells(flat(4), frames=9, tile=2) == [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]
    assert row_cells(flat(4), frames=4) == [[t, 0, 0] for t in range(4)]


def with_newlines(*runs: str, layout: GridLayout) -> list[list[int]]:
    """Cells of a row of runs: a dot is a token of a picture or video, a bar is a newline."""
    visual = flat(*map(len, runs))
    newlines = torch.zeros_like(visual)
    newlines[visual] = torch.tensor([token == "|" for token in "".join(runs)])
    return cells(visual, torch.arange(visual.shape[1])[None], layout, newlines)[visual].tolist()  # type: ignore[no-any-return]


def test_details_end_their_rows_with_newlines() -> None:
    """They follow a tile with the whole picture; time continues in the next run."""
    found_cells = with_newlines(".......|...|", "....|", layout=GridLayout(tile_tokens=4))
    assert found_cells[:4] == [[0, h, w] for h in range(2) for w in range(2)]
    assert found_cells[4:12] == [[1, h, min(w, 2)] for h in range(2) for w in range(4)]
    assert found_cells[12:] == [[2, 0, 0], [2, 0, 1], [2, 1, 0], [2, 1, 1], [2, 1, 1]]


def test_details_without_a_column() -> None:
    """A very thin picture has no tokens in its rows except the newlines."""
    assert with_newlines("....|||", layout=GridLayout(tile_tokens=4)) == [
        [0, 0, 0],
        [0, 0, 1],
        [0, 1, 0],
        *[[0, 1, 1]] * 4,
    ]


def test_newlines_of_another_layout() -> None:
    """With an unknown tile size, or with newlines in the first tile, newlines are ignored."""
    for picture, tile in (("....|..|", None), ("..|..|....|", 4)):
        assert with_newlines(picture, layout=GridLayout(tile_tokens=tile)) == row_cells(
            flat(len(picture)), tile=tile
        )


def test_a_video_has_its_frames_also_with_newlines() -> None:
    video = GridLayout(torch.ones(9, dtype=torch.bool), num_frames=2, tile_tokens=4)
    assert with_newlines("........|", layout=video)[3:6] == [[0, 1, 1], [1, 0, 0], [1, 0, 1]]


def test_pictures_and_videos_side_by_side() -> None:
    """Each begins where its tokens begin; sizes that do not add up are ignored."""
    kinds = torch.tensor([False] * 5 + [True] * 9 + [False] * 10)
    layout = GridLayout(kinds, 2, 4, picture_tokens=(5, 5, 5), video_tokens=(9,))
    row = "....|........|....|....|"
    assert [t for t, _, _ in with_newlines(row, layout=layout)] == [0] * 5 + [1] * 4 + [2] * 5 + [
        3
    ] * 5 + [4] * 5
    doubtful = with_newlines(row, layout=replace(layout, picture_tokens=(5, 4)))
    assert [t for t, _, _ in doubtful] == [0] * 5 + [1] * 4 + [2] * 5 + [3] * 4 + [3] + [4] * 5


def test_sizes_go_through_the_rows_of_a_batch() -> None:
    visual = torch.tensor([[1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]]).bool()
    layout = GridLayout(picture_tokens=(2, 2, 1, 4))
    assert cells(visual, torch.arange(6)[None].expand(2, -1), layout)[..., 0].tolist() == [
        [0, 0, 1, 1, -1, -1],
        [-1, 0, 1, 1, 1, 1],
    ]


def test_the_layout_is_read_from_the_model_and_its_inputs() -> None:
    """Without pictures a video needs no token id of its own; with pictures it does. Pixels may be
    encoded already or not."""
    model = SimpleNamespace(config=SimpleNamespace())
    no_tokens = torch.zeros(1, 9, dtype=torch.bool)
    visual, pixels = flat(6), torch.zeros(2, 3, 3, 4, 4)
    alone = read_layout(model, {"pixel_values_videos": pixels}, visual, no_tokens)
    assert alone.is_video is not None
    assert alone.is_video.tolist() == [True] * 6 + [False] * (visual.numel() - 6)
    assert alone.num_frames == 3
    features = SimpleNamespace(
        last_hidden_state=torch.zeros(6, 2, 4), pooler_output=torch.zeros(2, 3, 8)
    )
    encoded = read_layout(model, {"mm_encoder_outputs": {"video": features}}, visual, no_tokens)
    assert (encoded.num_frames, encoded.video_tokens, encoded.picture_tokens) == (3, (3, 3), ())
    for beside in ({"pixel_values": pixels}, {"mm_encoder_outputs": {"image": features}}):
        both = read_layout(model, {"pixel_values_videos": pixels, **beside}, visual, no_tokens)
        assert both.is_video is not None
        assert not both.is_video.any()


def test_newlines_that_are_not_available() -> None:
    """A model has none, or its weights are offloaded until a layer needs them."""
    no_tokens, embedding = torch.zeros(1, 1, dtype=torch.bool), torch.ones(4)
    for newline, expected in (
        (None, None),
        (embedding.to("meta"), None),
        (embedding, embedding),
    ):
        model = SimpleNamespace(
            config=SimpleNamespace(), base_model=SimpleNamespace(image_newline=newline)
        )
        assert read_layout(model, {}, no_tokens, no_tokens).newline is expected


def test_m_rope_positions_with_gaps() -> None:
    """Qwen2.5-VL's positions count seconds, so frames have gaps in time; cells have none. There may
    be any number of leading axes."""
    visual = flat(6, 2)
    axes = torch.zeros(3, 1, visual.shape[1], dtype=torch.long)
    axes[:, 0, 2:8] = torch.tensor([[2, 2, 4, 4, 6, 6], [2] * 6, [2, 3] * 3])
    axes[:, 0, 10:12] = torch.tensor([[9, 9], [9, 10], [9, 9]])
    expected = [
        [0, 0, 0],
        [0, 0, 1],
        [1, 0, 0],
        [1, 0, 1],
        [2, 0, 0],
        [2, 0, 1],
        [3, 0, 0],
        [3, 1, 0],
    ]
    assert cells(visual, axes)[visual].tolist() == expected
    with_text_axis = torch.cat([torch.arange(visual.shape[1])[None, None], axes])
    assert cells(visual, with_text_axis)[visual].tolist() == expected


def test_m_rope_of_a_single_token() -> None:
    """All axes are the same there, as at text."""
    visual = flat(1, 1, gap=1)
    axes = torch.arange(visual.shape[1]).expand(3, 1, -1)
    assert cells(visual, axes)[visual].tolist() == [[0, 0, 0], [1, 0, 0]]


def test_rows_are_independent() -> None:
    """Runs at the ends of rows are not joined, and a row of text has no cells."""
    visual = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 1]]).bool()
    positions = torch.arange(6).expand(3, -1)
    assert cells(visual, positions)[..., 0].tolist() == [
        [-1, -1, 0, 0, 0, 0],
        [-1] * 6,
        [0, 0, 0, 0, -1, 1],
    ]
