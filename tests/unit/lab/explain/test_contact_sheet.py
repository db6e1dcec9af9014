"""The pixels of the contact sheet: kept cells are bright, heatmaps and bars show values."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from draftlens_lab.explain import contact_sheet, paint, sheet
from draftlens_lab.explain.contact_sheet import (
    FOOT_HEIGHT,
    HEAD_HEIGHT,
    MAX_VIEWS,
    footnotes,
    select_views,
)
from draftlens_lab.explain.layout import (
    MARGIN,
    MAX_HEIGHT,
    WIDTH,
    Layout,
    axis_top,
    fit,
    fit_inside,
)
from draftlens_lab.explain.views import Counts, View, VisualTokens
from PIL import Image

from tests.unit.lab.explain.traces import GREY, brightness, trace_of, visual_tokens


def middles(image: Image.Image, rows: int, columns: int) -> np.ndarray:
    """Brightness in the middle of each cell ``[rows, columns]``."""
    values = brightness(image)
    ys = [int((row + 0.5) * image.height / rows) for row in range(rows)]
    return values[ys][:, [int((column + 0.5) * image.width / columns) for column in range(columns)]]


@pytest.mark.parametrize("size", [(120, 90), (163, 91), (37, 29)])
@pytest.mark.parametrize("image", [GREY, None])
def test_kept_cells_are_bright_and_all_others_dark(
    size: tuple[int, int], image: Image.Image | None
) -> None:
    for view in visual_tokens(image=image, kept=(0, 1, 17, 30)).views:
        values = middles(paint.kept_image(view, size), 3, 4)
        assert (values[view.kept] > 150).all()
        assert (values[~view.kept] < 80).all()


def test_a_line_is_drawn_on_every_edge_between_kept_and_pruned_cells_and_on_no_other() -> None:
    view = visual_tokens(kept=(5, 6)).views[0]  # row 1, columns 1 and 2
    pixels = np.asarray(paint.kept_image(view, (120, 90)), np.float32)
    is_line = (np.abs(pixels - paint.rgb(paint.KEPT)) < 2).all(-1)
    assert is_line[45, 30]
    assert is_line[45, 89]
    assert is_line[30, 60]
    assert is_line[59, 45]
    assert not is_line[32:58, 32:88].any()
    assert not is_line[:30].any()
    assert not is_line[60:].any()


def test_heat_rises_with_the_score_on_one_scale() -> None:
    views = visual_tokens().views
    scale = paint.Scale.of(views)
    assert scale is not None
    values = np.concatenate(
        [middles(paint.heatmap(view, (120, 90), scale), 3, 4).ravel() for view in views]
    )
    assert (np.diff(values) >= -1).all()
    assert values[-1] - values[0] > 150


def test_the_scale_is_logarithmic_and_never_too_narrow() -> None:
    scale = paint.Scale(0.25, 4.0)
    assert scale.place(np.array([0.1, 0.25, 1, 4, 9], np.float32)).tolist() == pytest.approx(
        [0, 0, 0.5, 1, 1]
    )
    flat = [View("", "", None, np.ones((2, 2), np.float32), *np.ones((2, 2, 2), bool))]
    assert paint.Scale.of(flat) == paint.Scale(0.67, 1.5)
    unknown = [View("", "", None, np.full((2, 2), np.nan, np.float32), *np.ones((2, 2, 2), bool))]
    assert paint.Scale.of(unknown) is None
    assert paint.ramp(np.array([np.nan], np.float32)).tolist() == [
        paint.rgb(paint.NO_SCORE).tolist()
    ]


@pytest.mark.parametrize("frames", [1, 4, 8, 16, 64])
def test_cards_are_at_the_places_of_the_layout(frames: int) -> None:
    visual = visual_tokens(frames, kept=(0, 7, 12 * frames - 1))
    drawn, layout = sheet(trace_of(visual)), fit([view.aspect for view in visual.views])
    assert drawn.width == WIDTH
    assert drawn.height < 2000
    for index in (0, frames - 1):
        left, top = layout.corner(index)
        size = fit_inside(4 / 3, layout.size)
        box = (
            MARGIN + left,
            HEAD_HEIGHT + top + 30,
            MARGIN + left + size[0],
            HEAD_HEIGHT + top + 30 + size[1],
        )
        card = paint.kept_image(visual.views[index], size)
        assert np.array_equal(np.asarray(drawn.crop(box)), np.asarray(card))
        assert box[2] <= WIDTH - MARGIN + 1


def test_more_frames_than_have_room_are_thinned_out_evenly_with_a_note() -> None:
    visual = visual_tokens(200)
    names = [view.name for view in select_views(visual.views)]
    assert len(names) == MAX_VIEWS
    assert (names[0], names[-1]) == ("frame 1", "frame 200")
    assert footnotes(trace_of(visual))[0].startswith("64 of 200 views are shown")
    assert footnotes(trace_of(visual_tokens(64))) == []
    assert sheet(trace_of(visual)).height < 2000


SIZES = {
    (1, 0.4): Layout(1, 1, True, (725, 1812), 22),
    (1, 4 / 3): Layout(1, 1, True, (725, 544), 22),
    (8, 16 / 9): Layout(4, 2, False, (347, 195), 22),
    (16, 1.0): Layout(8, 2, False, (162, 162), 22),
    (64, 0.5625): Layout(16, 4, False, (79, 140), 12),
}


@pytest.mark.parametrize(("count", "aspect"), SIZES)
def test_ordinary_pictures_have_the_layout_that_is_nearest_to_a_slide(
    count: int, aspect: float
) -> None:
    assert fit([aspect] * count) == SIZES[count, aspect]


@pytest.mark.parametrize("heatmaps", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 13, 45, MAX_VIEWS])
def test_cards_have_room_whatever_their_shape(count: int, heatmaps: bool) -> None:
    for aspect in np.geomspace(1 / 3000, 3000, 81):
        layout = fit([aspect] * count, heatmaps)
        assert layout.columns * layout.rows >= count
        assert layout.width <= WIDTH - 2 * MARGIN
        assert layout.height <= MAX_HEIGHT


@pytest.mark.parametrize("heatmaps", [True, False])
@pytest.mark.parametrize(("count", "aspect"), [(1, 0.1), (1, 0.2), (2, 0.1), (3, 0.05)])
def test_tall_pictures_are_made_smaller_and_not_more_than_they_must(
    count: int, aspect: float, heatmaps: bool
) -> None:
    layout = fit([aspect] * count, heatmaps)
    assert layout.height > MAX_HEIGHT - 3
    assert layout.size[0] / layout.size[1] == pytest.approx(aspect, rel=0.01)


def test_rows_of_tall_pictures_share_the_height() -> None:
    layout = fit([1 / 400] * MAX_VIEWS)
    assert layout.rows == 2
    assert layout.height == pytest.approx(MAX_HEIGHT, abs=2)


LINES = [(1200, 6), (6, 1200), (30, 6000), (2, 1), (1, 1000)]


@pytest.mark.parametrize("size", LINES)
@pytest.mark.parametrize("frames", [1, 3, 64])
def test_pictures_like_a_line_have_a_sheet_of_ordinary_size(
    size: tuple[int, int], frames: int
) -> None:
    visual = visual_tokens(
        frames, image=Image.new("RGB", size), kept=tuple(range(0, 12 * frames, 5))
    )
    tracemalloc.start()
    drawn = sheet(trace_of(visual))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert drawn.width == WIDTH
    assert drawn.height <= HEAD_HEIGHT + MAX_HEIGHT + FOOT_HEIGHT
    assert peak < 2e8


def test_what_is_longer_than_can_be_shown_is_drawn_shorter() -> None:
    for size, aspect in (
        ((1200, 6), 20),
        ((6, 1200), 1 / 20),
        ((2000, 100), 20),
        ((120, 90), 4 / 3),
    ):
        assert visual_tokens(1, image=Image.new("RGB", size), kept=(5,)).views[
            0
        ].aspect == pytest.approx(aspect)
    view = visual_tokens(1, image=Image.new("RGB", (1200, 6), (180, 180, 180)), kept=(5,)).views[0]
    top, left = HEAD_HEIGHT + 30, MARGIN
    drawn = sheet(trace_of(VisualTokens((view,), Counts(0, 0)))).crop(
        (left, top, WIDTH - MARGIN, top + 73)
    )
    values = middles(drawn, 3, 4)
    assert (values[view.kept] > 150).all()
    assert (values[~view.kept] < 80).all()


def test_cells_smaller_than_a_pixel_are_drawn_where_they_have_one() -> None:
    """Of 30 rows on 12 pixels, each pixel shows the row at its place."""
    kept = np.ones((30, 40), bool)
    kept[:15] = False
    view = View("", "", GREY, np.ones((30, 40), np.float32), kept, np.ones((30, 40), bool))
    for size in ((20, 12), (200, 12), (20, 120), (1, 1), (3, 2)):
        pixels = np.asarray(paint.kept_image(view, size), np.float32)
        assert pixels.shape == (size[1], size[0], 3)
        paint.heatmap(view, size, paint.Scale(0.5, 2.0))
    values = brightness(paint.kept_image(view, (200, 12)))
    assert (values[:6] < 80).all()
    assert (values[6:] > 150).all()


def test_a_line_of_text_has_room_above_a_narrow_picture() -> None:
    """Next to wider pictures the text takes the width of the box; if all are narrow, only the
    figure is drawn."""
    views = (
        *visual_tokens(3).views,
        *visual_tokens(1, image=Image.new("RGB", (10, 200)), kept=(5,)).views,
    )
    layout = fit([view.aspect for view in views])
    left, top = layout.corner(3)
    line = sheet(trace_of(VisualTokens(views, Counts(0, 0)))).crop(
        (0, HEAD_HEIGHT + top, WIDTH, HEAD_HEIGHT + top + 28)
    )
    dark = np.flatnonzero((brightness(line) < 200).any(0))
    inside_box = dark[dark >= MARGIN + left - 20]
    assert inside_box.min() >= MARGIN + left
    assert inside_box.max() == pytest.approx(MARGIN + left + layout.size[0], abs=4)
    assert paint.fit_text("frame 1", 14, 3) == paint.fit_text("frame 1", 14, -9) == ""
    assert paint.fit_text("frame 1", 14, paint.font(14).getlength("…")) == "…"


def test_bars_are_as_high_as_shares() -> None:
    visual = visual_tokens(2, kept=(*range(6), 12, 13, 14))  # 6 and 3 of 12
    drawn = np.asarray(sheet(trace_of(visual)), np.float32)
    below = (
        HEAD_HEIGHT + fit([4 / 3] * 2).height + 80
    )  # under the legend, which has a line of the same colour
    full = (np.abs(drawn - paint.rgb(paint.KEPT)) < 2).all(-1)[below:]
    tall = [int(full[:, MARGIN + 20 + index * 184].sum()) for index in range(2)]
    assert tall[0] == pytest.approx(2 * tall[1], abs=4)
    assert axis_top([0.5, 0.25]) == 0.5
    assert axis_top([0.51]) == 0.55
    assert axis_top([0.02]) == 0.02
    assert axis_top([0.0]) == 0.01


def test_pictures_of_other_aspects_keep_theirs() -> None:
    assert fit_inside(2.0, (100, 100)) == (100, 50)
    assert fit_inside(0.5, (100, 100)) == (50, 100)
    assert fit_inside(1.0, (200, 100)) == (100, 100)


def test_any_title_can_be_drawn() -> None:
    assert paint.fit_text("日本.mp4", 20, 500) == "??.mp4"
    cut = paint.fit_text("w" * 300, 20, 200)
    assert cut.endswith("…")
    assert 185 <= paint.font(20).getlength(cut) <= 200
    notes = ("a note " * 60,)
    assert (
        sheet(trace_of(visual_tokens(when=False), title="long name " * 40, notes=notes)).width
        == WIDTH
    )


def test_the_outline_of_heatmaps_is_in_the_legend() -> None:
    """The line around kept cells has another colour there than on the pictures."""
    for has_heatmaps in (True, False):
        image = Image.new("RGB", (1600, 80), "#123456")
        contact_sheet._draw_legend(image, 40, has_heatmaps)
        colours = {colour for _, colour in image.getcolors(100_000) or ()}
        assert ((255, 255, 255) in colours) == has_heatmaps
        assert (255, 176, 0) in colours
