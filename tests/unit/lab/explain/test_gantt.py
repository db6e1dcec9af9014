"""The artists of charts of known timelines."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from draftlens_lab.explain import chart, chart_of, gantt, page
from draftlens_lab.explain.gantt import CAPTION, by_method
from draftlens_lab.explain.gantt_layout import first_rounds, joined
from draftlens_lab.explain.gantt_panel import label_of
from draftlens_lab.explain.gantt_style import (
    COLOURS,
    DARK,
    NAMES,
    PLAIN_STEP,
    SHOWN_KINDS,
    Unit,
    shown_kind,
)
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from PIL import Image

from draftlens.core.errors import ConfigError, InputError
from draftlens.core.timeline import DISCARDED, KINDS, Span, Timeline
from tests.unit.lab.explain.timelines import parallel, plain, serial
from tests.unit.lab.explain.traces import trace_of, visual_tokens


def timelines(rounds: int, **options: float) -> dict[str, Timeline]:
    """The three answers that a chart compares."""
    return {
        "plain": plain(3 * rounds, **options),
        "serial": serial(rounds, **options),
        "parallel": parallel(rounds, **options),
    }


def bars(axes: Axes) -> dict[str, PolyCollection]:
    """Collections of bars by id."""
    return {str(c.get_gid()): c for c in axes.collections if isinstance(c, PolyCollection)}


def num_bars(axes: Axes, gid: str) -> int:
    return len(bars(axes)[gid].get_paths())


def bounds(axes: Axes, gid: str) -> list[tuple[float, float]]:
    """Left and right ends of the bars of a collection."""
    ends = []
    for path in bars(axes)[gid].get_paths():
        xs = path.vertices[:, 0]
        ends.append((float(xs.min()), float(xs.max())))
    return ends


def labels(axes: Axes, gid: str) -> list[str]:
    return [text.get_text() for text in axes.texts if text.get_gid() == gid]


def texts(figure: Figure) -> list[str]:
    found = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        found += [text.get_text() for text in axes.texts]
    return found


def test_there_is_a_bar_for_every_span() -> None:
    runs = timelines(24)
    figure = chart(runs)
    axes = figure.axes[0]
    counted = 0
    for run, timeline in runs.items():
        for lane in timeline.lanes:
            for kind in SHOWN_KINDS:
                spans = [span for span in timeline.of(lane) if shown_kind(span) == kind]
                lost = [span for span in spans if span.outcome == DISCARDED]
                for gid, number in (
                    (f"{run}: {lane}: {kind}", len(spans) - len(lost)),
                    (f"{run}: {lane}: {kind}: discarded", len(lost)),
                ):
                    assert (gid in bars(axes)) == bool(number), gid
                    if number:
                        assert num_bars(axes, gid) == number
                        counted += number
    assert counted == sum(len(timeline.spans) for timeline in runs.values())


def test_bars_are_where_their_spans_are() -> None:
    """In milliseconds, in the whole answer and after the start of the first round."""
    runs = {"serial": serial(24)}
    above, below = chart(runs).axes
    assert bounds(above, "serial: target: vision") == [pytest.approx((0.0, 20.0))]
    assert bounds(above, "serial: target: verify")[0] == pytest.approx((97.0, 104.0))
    assert bounds(below, "serial: target: verify")[0] == pytest.approx((5.0, 12.0))
    assert bounds(below, "serial: draft: draft")[0] == pytest.approx((0.0, 5.0))
    assert "serial: target: vision" not in bars(below)


def test_lanes_stand_one_above_the_other_on_one_axis() -> None:
    runs = timelines(24)
    figure = chart(runs)
    above, below = figure.axes
    for axes in (above, below):
        lanes = [text.get_text() for text in axes.get_yticklabels()]
        assert lanes == ["target", "target", "draft", "target", "draft"]
        places = axes.get_yticks()
        assert list(places) == sorted(places)
        bottom, top = axes.get_ylim()
        assert bottom > max(places) > min(places) > top
        names = [text.get_text() for text in axes.texts if text.get_text() in runs]
        assert names == list(runs)
    latest = max(timeline.end for timeline in runs.values())
    left, right = above.get_xlim()
    assert left == 0
    assert 1.0 < right / (latest * 1000) < 1.2
    assert above.get_xlabel() == "time since the call, ms"


def test_the_second_panel_shows_ten_rounds() -> None:
    """The longest ten rounds of an answer with a draft: those of the serial one, 12.4 ms each."""
    runs = timelines(300)
    below = chart(runs).axes[1]
    left, right = below.get_xlim()
    assert left == 0
    assert 120 < right < 130
    assert num_bars(below, "serial: target: verify") == 10
    assert num_bars(below, "parallel: target: verify") > 10
    boxes = [patch for patch in chart(runs).axes[0].patches if patch.get_gid()]
    assert [box.get_gid() for box in boxes] == [f"{run}: first rounds" for run in runs]


def test_short_answers_need_no_second_panel() -> None:
    spans = (Span("target", "prefill", 0.0, 1.0), Span("target", "verify", 1.0, 5.0))
    assert len(chart({"plain": Timeline(spans, 1.0, 5.0)}).axes) == 1
    prefill = {"plain": Timeline(spans[:1], 1.0, 1.0)}
    assert first_rounds(prefill) is None
    assert len(chart(prefill).axes) == 1
    assert len(chart({"serial": serial(3)}).axes) == 2


def test_outcomes_stand_on_bars_that_are_wide_enough() -> None:
    runs = {"serial": serial(24), "parallel": parallel(24)}
    above, below = chart(runs).axes
    assert labels(below, "serial: target: label")[:6] == ["1/5", "2/5", "0/5", "4/5", "5/5", "0/5"]
    assert labels(below, "serial: draft: label")[:3] == ["5", "5", "5"]
    assert labels(below, "parallel: target: label")[:4] == ["5/5", "5/5", "2/5", "5/5"]
    assert "1/5" not in labels(above, "serial: target: label")
    assert "prefill" in labels(above, "serial: target: label")
    many = chart({"serial": serial(2000)}).axes[0]
    assert labels(many, "serial: target: label") == []


def test_every_whole_bar_of_a_lane_has_its_count_or_none_has() -> None:
    """A short round does not lose its count while others keep theirs."""
    spans = []
    for number, seconds in enumerate([0.02, 0.2, 0.2, 0.2]):
        start = number * 0.3
        spans += [
            Span("draft", "draft", start, start + 0.05, 3),
            Span("target", "verify", start + 0.05, start + 0.05 + seconds, 3, accepted=1),
        ]
    axes = chart({"serial": Timeline(tuple(spans), 0.0, 1.2)}).axes[0]
    assert labels(axes, "serial: target: label") == []
    wide = [
        replace(span, end=span.start + 0.2) if span.kind == "verify" else span for span in spans
    ]
    axes = chart({"serial": Timeline(tuple(wide), 0.0, 1.2)}).axes[0]
    assert labels(axes, "serial: target: label") == ["1/3"] * 4
    assert labels(axes, "serial: draft: label") == ["3"] * 4


def test_plain_steps_have_a_colour_of_their_own() -> None:
    """Those of plain decoding, and those of a method where nothing was drafted."""
    spans = (Span("target", "verify", 0, 1), Span("target", "verify", 1, 2, 3, accepted=1))
    axes = chart({"serial": Timeline(spans, 0.0, 2.0)}).axes[0]
    found = bars(axes)
    plain_step, verify = found["serial: target: plain"], found["serial: target: verify"]
    assert plain_step.get_facecolor().tolist() != verify.get_facecolor().tolist()


def test_rows_are_named_by_the_method() -> None:
    trace = SimpleNamespace(
        title="clip.mp4",
        method={"method": "specvlm"},
        timelines={"plain": plain(5), "serial": serial(5)},
    )
    assert list(by_method(trace)) == ["plain", "specvlm"]
    trace = SimpleNamespace(method={"method": "parallelvlm"}, timelines=timelines(5))
    assert list(by_method(trace)) == ["plain", "parallelvlm serial", "parallelvlm parallel"]


def test_discarded_work_is_hatched_unless_bars_are_too_narrow() -> None:
    above, below = chart({"parallel": parallel(300)}).axes
    gid = "parallel: draft: draft"
    assert bars(below)[f"{gid}: discarded"].get_hatch()
    assert not bars(below)[gid].get_hatch()
    assert not bars(above)[f"{gid}: discarded"].get_hatch()
    colours = [bars(above)[name].get_facecolor()[0].tolist() for name in (gid, f"{gid}: discarded")]
    assert colours[0] != colours[1]


def test_many_bars_without_gaps_are_one() -> None:
    """Only where they are hardly wider than a pixel; others keep their gaps."""
    above, below = chart({"plain": plain(900), "serial": serial(300)}).axes
    assert num_bars(above, "plain: target: plain") == 1
    assert num_bars(below, "plain: target: plain") > 20
    assert num_bars(above, "serial: target: verify") == 300
    spans = [Span("target", "verify", *ends) for ends in ((0, 3), (1, 2), (3.1, 4), (6, 7))]
    places = [(span.start, span.end) for span in joined(spans, 0.2)]
    assert places == [(0, 4), (6, 7)]
    assert joined(spans[2:], 0.2) == spans[2:]


def test_idle_shares_stand_at_the_right() -> None:
    line = serial(24)
    above, below = chart({"serial": line}).axes
    for axes, start, end in ((above, 0.0, line.end), (below, None, None)):
        shares = [text.get_text() for text in axes.texts if text.get_text().endswith("%")]
        assert len(shares) == 2
        if start is not None:
            expected = [line.idle_share(lane, start, end) for lane in line.lanes]
            assert shares == [f"{share * 100:.0f}%" for share in expected]


def test_durations_and_speeds_stand_behind_the_bars() -> None:
    runs = timelines(24)
    axes = chart(runs).axes[0]
    ratio = runs["plain"].end / runs["parallel"].end
    assert labels(axes, "plain: duration") == ["440 ms"]
    assert labels(axes, "parallel: duration")[0].endswith(f"\n{ratio:.2f}x plain")


def test_the_legend_names_what_occurs() -> None:
    legend = chart({"plain": plain(5)}).legends[0]
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["vision", "prefill", "plain step", "first token"]
    names = [text.get_text() for text in chart(timelines(5)).legends[0].get_texts()]
    assert "draft tokens thrown away" in names
    assert "waits" in names


@pytest.mark.parametrize(
    ("rounds", "scale"), [(3, 0.01), (3, 1.0), (300, 2.5e-4), (300, 2.5e-2), (1, 1e-6)]
)
def test_charts_of_short_and_long_answers_can_be_written(rounds: int, scale: float) -> None:
    """From microseconds to minutes, without a warning, and as large as a slide."""
    file = io.BytesIO()
    chart(timelines(rounds, scale=scale), theme=DARK).savefig(file, format="png")
    with Image.open(file) as drawn:
        assert drawn.width in (1999, 2000)
        assert 900 < drawn.height < 1500


def test_work_behind_the_last_token_is_drawn() -> None:
    spans = (Span("target", "verify", 0.0, 1.0), Span("draft", "draft", 0.5, 2.0, 4, DISCARDED))
    axes = chart({"parallel": Timeline(spans, 0.0, 1.0)}).axes[0]
    assert bounds(axes, "parallel: draft: draft: discarded") == [pytest.approx((0.5, 2.0))]
    assert axes.get_xlim()[1] > 2.0


def test_titles_of_any_characters_are_drawn() -> None:
    title = "$x^{ \U0001f600 " + "long " * 40
    figure = chart({"plain": plain(2)}, title, "$y$")
    figure.savefig(io.BytesIO(), format="png")
    assert texts(figure)[0].startswith("$x^{ ? long")
    assert len(texts(figure)[0]) <= 72


def test_every_kind_has_a_colour_and_a_name() -> None:
    assert set(COLOURS) == set(NAMES) == set(SHOWN_KINDS) == {*KINDS, PLAIN_STEP}


@pytest.mark.parametrize(
    ("span", "label"),
    [
        (Span("target", "verify", 0, 1, 7, accepted=3), "3/7"),
        (Span("target", "verify", 0, 1), ""),
        (Span("draft", "draft", 0, 1, 7), "7"),
        (Span("target", "wait", 0, 1), ""),
        (Span("target", "vision", 0, 1), "vision"),
    ],
)
def test_labels(span: Span, label: str) -> None:
    assert label_of(span) == label


@pytest.mark.parametrize(
    ("length", "seconds", "text"),
    [(1.0, 0.0123, "12.3 ms"), (1.0, 1.0, "1000 ms"), (9.0, 1.0, "1.00 s"), (300.0, 211, "211 s")],
)
def test_units(length: float, seconds: float, text: str) -> None:
    assert Unit.of(length).text(seconds) == text


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(InputError, match="at least one timeline, and spans"):
        chart({})
    with pytest.raises(InputError, match="at least one timeline, and spans"):
        chart({"plain": plain(2), "serial": Timeline(())})


def test_without_matplotlib_there_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gantt, "find_spec", lambda name: None)
    trace = trace_of(visual_tokens(), timelines=timelines(3))
    with pytest.raises(ConfigError, match="pip install matplotlib"):
        chart_of(trace)
    text = page(trace)
    assert "needs matplotlib" in text
    assert "image/png" not in text
    assert "<td>parallel: draft</td>" in text


def test_the_page_has_the_chart_in_both_modes_and_a_table(tmp_path: Path) -> None:
    runs = timelines(3)
    text = page(trace_of(visual_tokens(), timelines=runs))
    assert "Who did what when" in text
    assert f">{CAPTION}</p>" in text
    pictures = text.split("data:image/png;base64,")[1:]
    assert len(pictures) == 2
    backgrounds = []
    for picture in pictures:
        file = io.BytesIO(base64.b64decode(picture.split('"')[0]))
        with Image.open(file) as drawn:
            backgrounds.append(drawn.convert("RGB").getpixel((2, 2)))
    assert backgrounds == [(0x1A, 0x1D, 0x24), (255, 255, 255)]  # dark, light
    row = text.split("<td>serial: target</td>")[1].split("</tr>")[0]
    # vision, prefill, no pruning, no drafting, verify, roll back, no waiting, nothing thrown away
    cells = [cell.split("</td>")[0] for cell in row.split("<td>")[1:]]
    assert cells[:8] == ["0.020", "0.060", "", "", "0.021", "0.001", "", ""]
    share = runs["serial"].idle_share("target")
    assert cells[8] == f"{share * 100:.0f}%"
    assert cells[9] == "0%"  # before the first token


def test_a_trace_without_timelines_has_no_section() -> None:
    assert "Who did what when" not in page(trace_of(visual_tokens()))
