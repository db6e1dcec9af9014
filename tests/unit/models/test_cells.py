"""Cells of visual tokens, against what each family's processor lays out."""

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

from draftlens.models import Backbone, Prompt
from draftlens.models.cells import NO_CELL, Layout, cells, read_layout

BY_NAME = {family.name: family for family in FAMILIES}
Cells = list[tuple[int, int, int]]


def prompt_of(family: Family, given: dict[str, Any]) -> Prompt:
    backbone = Backbone.of(target(family))
    return backbone.encode(backbone.prepare(given, max_new_tokens=1))


def found(prompt: Prompt, row: int) -> Cells:
    """Cells of one row's visual tokens, in order."""
    return [(t, h, w) for t, h, w in prompt.cells[row][prompt.visual[row]].tolist()]


def rasters(sizes: Sequence[tuple[int, int]]) -> Cells:
    """Frames of these heights and widths, one after the other."""
    return [
        (t, h, w) for t, (high, wide) in enumerate(sizes) for h in range(high) for w in range(wide)
    ]


@pytest.mark.parametrize(("family", "kind"), ALL_KINDS, ids=str)
def test_what_all_families_share(family: Family, kind: str) -> None:
    """Text and padding lie nowhere; time runs on from frame to frame, picture to picture, and
    begins in every row."""
    prompt = prompt_of(family, inputs(family, kind))
    assert prompt.cells.shape == (*prompt.visual.shape, 3)
    assert prompt.cells.dtype == torch.int64
    assert (prompt.cells[~prompt.visual] == NO_CELL).all()
    assert (prompt.cells[prompt.visual] >= 0).all()
    for row in range(3):
        times = [t for t, _, _ in found(prompt, row)]
        assert all(after - before in (0, 1) for before, after in pairwise(times))
        assert not times or times[0] == 0
        assert (prompt.cells[row, prompt.lengths[row] :] == NO_CELL).all()


def grids(family: Family, kind: str, seed: int = 0) -> list[list[tuple[int, int]]]:
    """Per row the frames' heights and widths, in tokens, as Qwen's processors tell them; videos
    come first."""
    given = inputs(family, kind, seed=seed)
    images, videos = (
        given.get(name, torch.empty(0, 3)).tolist() for name in ("image_grid_thw", "video_grid_thw")
    )
    rows = []
    for plan in PLANS[kind]:
        shown = [videos.pop(0) for _ in range(plan.videos)] + [
            images.pop(0) for _ in range(plan.images)
        ]
        rows.append([(h // 2, w // 2) for t, h, w in shown for _ in range(t)])
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
        assert found(prompt, row) == rasters(sizes)


@pytest.mark.parametrize("kind", ["image", "images", "text"])
def test_llava(kind: str) -> None:
    """Four by four for every picture, also where no text stands between two."""
    prompt = prompt_of(FAMILIES[0], inputs(FAMILIES[0], kind))
    for row, plan in enumerate(PLANS[kind]):
        assert found(prompt, row) == rasters([(4, 4)] * plan.images)


@pytest.mark.parametrize("seed", [0, 1])
def test_llava_onevision_video(seed: int) -> None:
    """Pooled to two by two a frame; one newline ends the video."""
    family = BY_NAME["llava_onevision"]
    prompt = prompt_of(family, inputs(family, "video", seed=seed))
    assert prompt.layout.num_frames == 4 + seed
    expected = rasters([(2, 2)] * (4 + seed))
    for row in range(3):
        assert found(prompt, row) == [*expected, expected[-1]]


@pytest.mark.parametrize("kind", ["image", "images", "video", "mixed", "text"])
def test_internvl(kind: str) -> None:
    """Two by two for every tile and every frame; all tiles of the batch are told in one tensor."""
    family = BY_NAME["internvl"]
    given = inputs(family, kind)
    prompt, tiles = prompt_of(family, given), 0
    for row, plan in enumerate(PLANS[kind]):
        times = len({t for t, _, _ in found(prompt, row)})
        assert found(prompt, row) == rasters([(2, 2)] * times)
        assert times == 4 or kind != "video"
        assert times >= plan.images + 4 * plan.videos
        tiles += times
    assert tiles == len(given.get("pixel_values", ()))


@pytest.mark.parametrize("kind", ["image", "images", "video", "text"])
def test_smolvlm(kind: str) -> None:
    """Two by two for every tile and every frame; rows are padded with empty tiles."""
    family = BY_NAME["smolvlm"]
    given = inputs(family, kind)
    prompt = prompt_of(family, given)
    for row in range(3):
        tiles = given["pixel_attention_mask"][row].flatten(1).any(1).sum() if kind != "text" else 0
        assert found(prompt, row) == rasters([(2, 2)] * int(tiles))


def flat(*runs: int, gap: int = 2) -> Tensor:
    """One row of runs of visual tokens with text around them, bool ``[1, L]``."""
    row: list[bool] = []
    for run in runs:
        row += [False] * gap + [True] * run
    return torch.tensor([[*row, False]])


def of(visual: Tensor, frames: int | None = None, tile: int | None = None) -> list[list[int]]:
    """Cells of the visual tokens of a row without M-RoPE; all are a video's if that has frames."""
    positions = torch.arange(visual.shape[1])[None]
    layout = Layout(visual[visual] if frames else None, frames, tile)
    return cells(visual, positions, layout)[visual].tolist()  # type: ignore[no-any-return]


def test_a_run_of_one_video() -> None:
    """The real LLaVA-OneVision: eight frames of fourteen by fourteen and a newline, whatever the
    tile."""
    expected = [list(cell) for cell in rasters([(14, 14)] * 8)]
    assert of(flat(8 * 196 + 1), frames=8, tile=729) == [*expected, expected[-1]]


def test_runs_follow_each_other_in_time() -> None:
    """Two videos with text between them, each cut into frames of its own."""
    times = [t for t, _, _ in of(flat(9, 17), frames=2)]
    assert times == [0] * 4 + [1] * 5 + [2] * 8 + [3] * 9


def test_what_is_no_square_is_filled_row_by_row() -> None:
    """As wide as the next square, the last row shorter."""
    assert of(flat(6)) == [[0, h, w] for h in range(2) for w in range(3)]
    assert of(flat(7)) == [
        [0, 0, 0],
        [0, 0, 1],
        [0, 0, 2],
        [0, 1, 0],
        [0, 1, 1],
        [0, 1, 2],
        [0, 2, 0],
    ]
    assert of(flat(2)) == [[0, 0, 0], [0, 0, 1]]
    assert of(flat(1)) == [[0, 0, 0]]


def test_neither_frames_nor_tiles_larger_than_the_run() -> None:
    """They belong to something else."""
    assert of(flat(4), frames=9, tile=16) == of(flat(4))
    assert of(flat(4), frames=9, tile=2) == [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]
    assert of(flat(4), frames=4) == [[t, 0, 0] for t in range(4)]


def with_newlines(*runs: str, layout: Layout) -> list[list[int]]:
    """Cells of a row of runs, where a dot is a token of a picture or video and a bar a newline."""
    visual = flat(*map(len, runs))
    newlines = torch.zeros_like(visual)
    newlines[visual] = torch.tensor([token == "|" for token in "".join(runs)])
    return cells(visual, torch.arange(visual.shape[1])[None], layout, newlines)[visual].tolist()  # type: ignore[no-any-return]


def test_details_end_their_rows_with_newlines() -> None:
    """Behind a tile that shows the picture whole; time runs on in the next run."""
    found = with_newlines(".......|...|", "....|", layout=Layout(tile_tokens=4))
    assert found[:4] == [[0, h, w] for h in range(2) for w in range(2)]
    assert found[4:12] == [[1, h, min(w, 2)] for h in range(2) for w in range(4)]
    assert found[12:] == [[2, 0, 0], [2, 0, 1], [2, 1, 0], [2, 1, 1], [2, 1, 1]]


def test_details_without_a_column() -> None:
    """Nothing is left of a picture that thin but the ends of its rows."""
    assert with_newlines("....|||", layout=Layout(tile_tokens=4)) == [
        [0, 0, 0],
        [0, 0, 1],
        [0, 1, 0],
        *[[0, 1, 1]] * 4,
    ]


def test_newlines_of_another_layout() -> None:
    """Of unknown tiles, or within the first: as if nothing were known of newlines."""
    for picture, tile in (("....|..|", None), ("..|..|....|", 4)):
        assert with_newlines(picture, layout=Layout(tile_tokens=tile)) == of(
            flat(len(picture)), tile=tile
        )


def test_a_video_keeps_its_frames_whatever_its_newlines_are() -> None:
    video = Layout(torch.ones(9, dtype=torch.bool), num_frames=2, tile_tokens=4)
    assert with_newlines("........|", layout=video)[3:6] == [[0, 1, 1], [1, 0, 0], [1, 0, 1]]


def test_pictures_and_videos_side_by_side() -> None:
    """Each begins where its tokens begin; sizes that do not add up are not believed."""
    kinds = torch.tensor([False] * 5 + [True] * 9 + [False] * 10)
    layout = Layout(kinds, 2, 4, picture_tokens=(5, 5, 5), video_tokens=(9,))
    row = "....|........|....|....|"
    assert [t for t, _, _ in with_newlines(row, layout=layout)] == [0] * 5 + [1] * 4 + [2] * 5 + [
        3
    ] * 5 + [4] * 5
    doubtful = with_newlines(row, layout=replace(layout, picture_tokens=(5, 4)))
    assert [t for t, _, _ in doubtful] == [0] * 5 + [1] * 4 + [2] * 5 + [3] * 4 + [3] + [4] * 5


def test_sizes_go_through_the_rows_of_a_batch() -> None:
    visual = torch.tensor([[1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]]).bool()
    layout = Layout(picture_tokens=(2, 2, 1, 4))
    assert cells(visual, torch.arange(6)[None].expand(2, -1), layout)[..., 0].tolist() == [
        [0, 0, 1, 1, -1, -1],
        [-1, 0, 1, 1, 1, 1],
    ]


def test_what_a_model_and_its_inputs_tell() -> None:
    """A video alone needs no id of its own; beside pictures it does. Pixels may be encoded or
    not."""
    model, nobody = SimpleNamespace(config=SimpleNamespace()), torch.zeros(1, 9, dtype=torch.bool)
    visual, pixels = flat(6), torch.zeros(2, 3, 3, 4, 4)
    alone = read_layout(model, {"pixel_values_videos": pixels}, visual, nobody)
    assert alone.is_video is not None
    assert alone.is_video.tolist() == [True] * 6
    assert alone.num_frames == 3
    features = SimpleNamespace(
        last_hidden_state=torch.zeros(6, 2, 4), pooler_output=torch.zeros(2, 3, 8)
    )
    encoded = read_layout(model, {"mm_encoder_outputs": {"video": features}}, visual, nobody)
    assert (encoded.num_frames, encoded.video_tokens, encoded.picture_tokens) == (3, (3, 3), ())
    for beside in ({"pixel_values": pixels}, {"mm_encoder_outputs": {"image": features}}):
        both = read_layout(model, {"pixel_values_videos": pixels, **beside}, visual, nobody)
        assert both.is_video is not None
        assert not both.is_video.any()


def test_newlines_that_are_not_at_hand() -> None:
    """A model without any, and one whose weights are elsewhere until a layer needs them."""
    nobody, there = torch.zeros(1, 1, dtype=torch.bool), torch.ones(4)
    for newline, known in ((None, None), (there.to("meta"), None), (there, there)):
        model = SimpleNamespace(
            config=SimpleNamespace(), base_model=SimpleNamespace(image_newline=newline)
        )
        assert read_layout(model, {}, nobody, nobody).newline is known


def test_m_rope_positions_with_gaps() -> None:
    """Qwen2.5-VL's seconds: frames stand apart in time, and are counted all the same; any number of
    leading axes."""
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
    """All axes agree there, as at text."""
    visual = flat(1, 1, gap=1)
    axes = torch.arange(visual.shape[1]).expand(3, 1, -1)
    assert cells(visual, axes)[visual].tolist() == [[0, 0, 0], [1, 0, 0]]


def test_rows_are_their_own() -> None:
    """Runs at the ends of rows do not join, and a row of text is empty."""
    visual = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 1]]).bool()
    positions = torch.arange(6).expand(3, -1)
    assert cells(visual, positions)[..., 0].tolist() == [
        [-1, -1, 0, 0, 0, 0],
        [-1] * 6,
        [0, 0, 0, 0, -1, 1],
    ]
