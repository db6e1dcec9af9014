"""The sheet's pixels: kept cells are lit where they are, heat rises with scores, bars with shares."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from draftlens.explain import paint, sheet
from draftlens.explain.layout import MARGIN, WIDTH, fit
from draftlens.explain.sheet import HEAD, MOST, chosen, inside, notes_of, top_of
from draftlens.explain.views import View
from tests.unit.explain.traces import GREY, brightness, shown, trace_of


def middles(image: Image.Image, rows: int, columns: int) -> np.ndarray:
    """Brightness in the middle of each cell ``[rows, columns]``."""
    values = brightness(image)
    ys = [int((row + 0.5) * image.height / rows) for row in range(rows)]
    return values[ys][:, [int((column + 0.5) * image.width / columns) for column in range(columns)]]


@pytest.mark.parametrize("size", [(120, 90), (163, 91), (37, 29)])
@pytest.mark.parametrize("image", [GREY, None])
def test_kept_cells_are_lit_and_all_others_dark(size: tuple[int, int], image: Image.Image | None) -> None:
    for view in shown(image=image, kept=(0, 1, 17, 30)).views:
        values = middles(paint.lit(view, size), 3, 4)
        assert (values[view.kept] > 150).all()
        assert (values[~view.kept] < 80).all()


def test_a_line_stands_on_every_edge_between_kept_and_other_cells_and_on_no_other() -> None:
    view = shown(kept=(5, 6)).views[0]  # row 1, columns 1 and 2
    pixels = np.asarray(paint.lit(view, (120, 90)), np.float32)
    is_line = (np.abs(pixels - paint.rgb(paint.KEPT)) < 2).all(-1)
    assert is_line[45, 30]
    assert is_line[45, 89]
    assert is_line[30, 60]
    assert is_line[59, 45]
    assert not is_line[32:58, 32:88].any()
    assert not is_line[:30].any()
    assert not is_line[60:].any()


def test_heat_rises_with_the_score_on_one_scale() -> None:
    views = shown().views
    scale = paint.Scale.of(views)
    assert scale is not None
    values = np.concatenate([middles(paint.heat(view, (120, 90), scale), 3, 4).ravel() for view in views])
    assert (np.diff(values) >= -1).all()
    assert values[-1] - values[0] > 150


def test_the_scale_is_logarithmic_and_never_too_narrow() -> None:
    scale = paint.Scale(0.25, 4.0)
    assert scale.place(np.array([0.1, 0.25, 1, 4, 9], np.float32)).tolist() == pytest.approx([0, 0, 0.5, 1, 1])
    flat = [View("", "", None, np.ones((2, 2), np.float32), *np.ones((2, 2, 2), bool))]
    assert paint.Scale.of(flat) == paint.Scale(0.67, 1.5)
    unknown = [View("", "", None, np.full((2, 2), np.nan, np.float32), *np.ones((2, 2, 2), bool))]
    assert paint.Scale.of(unknown) is None
    assert paint.ramp(np.array([np.nan], np.float32)).tolist() == [paint.rgb(paint.NOTHING).tolist()]


@pytest.mark.parametrize("frames", [1, 4, 8, 16, 64])
def test_cards_stand_where_the_layout_says(frames: int) -> None:
    found = shown(frames, kept=(0, 7, 12 * frames - 1))
    drawn, layout = sheet(trace_of(found)), fit([view.aspect for view in found.views])
    assert drawn.width == WIDTH
    assert drawn.height < 2000
    for index in (0, frames - 1):
        left, top = layout.corner(index)
        size = inside(4 / 3, layout.size)
        box = (MARGIN + left, HEAD + top + 30, MARGIN + left + size[0], HEAD + top + 30 + size[1])
        card = paint.lit(found.views[index], size)
        assert np.array_equal(np.asarray(drawn.crop(box)), np.asarray(card))
        assert box[2] <= WIDTH - MARGIN + 1


def test_more_frames_than_have_room_are_thinned_out_evenly_and_it_is_said() -> None:
    found = shown(200)
    names = [view.name for view in chosen(found.views)]
    assert len(names) == MOST
    assert (names[0], names[-1]) == ("frame 1", "frame 200")
    assert notes_of(trace_of(found))[0].startswith("64 of 200 views are shown")
    assert notes_of(trace_of(shown(64))) == []
    assert sheet(trace_of(found)).height < 2000


def test_bars_are_as_high_as_shares() -> None:
    found = shown(2, kept=(*range(6), 12, 13, 14))  # 6 and 3 of 12
    drawn = np.asarray(sheet(trace_of(found)), np.float32)
    below = HEAD + fit([4 / 3] * 2).height + 80  # under the legend, which has a line of the same colour
    full = (np.abs(drawn - paint.rgb(paint.KEPT)) < 2).all(-1)[below:]
    tall = [int(full[:, MARGIN + 20 + index * 184].sum()) for index in range(2)]
    assert tall[0] == pytest.approx(2 * tall[1], abs=4)
    assert top_of([0.5, 0.25]) == 0.5
    assert top_of([0.51]) == 0.55
    assert top_of([0.02]) == 0.02
    assert top_of([0.0]) == 0.01


def test_pictures_of_other_aspects_keep_theirs() -> None:
    assert inside(2.0, (100, 100)) == (100, 50)
    assert inside(0.5, (100, 100)) == (50, 100)
    assert inside(1.0, (200, 100)) == (100, 100)


def test_any_title_can_be_drawn() -> None:
    assert paint.fitting("日本.mp4", 20, 500) == "??.mp4"
    cut = paint.fitting("w" * 300, 20, 200)
    assert cut.endswith("…")
    assert 185 <= paint.font(20).getlength(cut) <= 200
    notes = ("a note " * 60,)
    assert sheet(trace_of(shown(when=False), title="long name " * 40, notes=notes)).width == WIDTH
