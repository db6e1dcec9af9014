"""One HTML file with its pictures, styles, script and data; it loads nothing else."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from PIL import Image

from draftlens.core.stats import DEFINITIONS, Stats
from draftlens.core.timeline import KINDS, Timeline
from draftlens.explain import paint
from draftlens.explain.charts import PHASE_COLOURS, rounds_chart, shares_chart
from draftlens.explain.contact_sheet import subtitle
from draftlens.explain.gantt import (
    CAPTION,
    DARK,
    LIGHT,
    NAMES,
    NEEDS_MATPLOTLIB,
    TITLE,
    Theme,
    chart_of,
    has_matplotlib,
)
from draftlens.explain.layout import fit_inside
from draftlens.explain.tracing import PlainRun, Speedup, Trace
from draftlens.explain.views import View, clamp_aspect, view_noun

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""Content security policy with which the page cannot load anything."""
JPEG_QUALITY = 88
NARROW_ASPECT = 0.4
"""Width / height below which the height of a picture is limited."""
BROAD_ASPECT = 8.0
"""Width / height above which a picture has a row of its own."""
MAX_HEIGHT = 1200
"""Height of a narrow picture in pixels, at most."""
_VIEW_SIZES = ((16, 640, 250), (64, 400, 180))
"""Largest number of views, pixels of a picture's longer side, and width of a column."""
_SMALLEST_VIEW_SIZE = (256, 130)
IDLE_COLUMNS = ("idle", "idle before the first token", "idle behind the first token")


def page(trace: Trace) -> str:
    """Return the HTML page of a trace."""
    folder = files("draftlens.explain")
    style = folder.joinpath("page.css").read_text(encoding="utf-8")
    script = folder.joinpath("page.js").read_text(encoding="utf-8")
    sections = (_head, _views, _answer, _rounds, _timelines, _time, _settings)
    body = "\n".join(section(trace) for section in sections)
    data = _json("trace", trace.to_dict()) + "\n" + _json("look", _colours(trace))
    title = f"{escape(trace.title)}: visual tokens kept for the draft"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n"
        f'<body>\n<main>\n{body}\n</main>\n<div id="tip" role="status" hidden></div>\n'
        f"{data}\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _json(name: str, value: Any) -> str:
    """A script element with JSON data; `<` is escaped so that no text can end the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _colours(trace: Trace) -> dict[str, Any]:
    """The colours and the scale that the script draws with."""
    scale = paint.Scale.of(trace.visual.views) or paint.Scale(0.5, 2.0)
    return {
        "ramp": paint.RAMP,
        "nothing": paint.NO_SCORE,
        "kept": paint.KEPT,
        "low": scale.low,
        "high": scale.high,
        "score": trace.visual.quantity,
    }


def _head(trace: Trace) -> str:
    tiles = "".join(
        f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>"
        for value, name in _figures(trace)
    )
    return (
        f'<header><h1>{escape(trace.title)}</h1><p class="lead">{escape(subtitle(trace))}</p>'
        f'<div class="figures">{tiles}</div></header>'
    )


def _figures(trace: Trace) -> list[tuple[str, str]]:
    """Values and names of the figures at the top of the page."""
    counts = trace.visual.counts
    stats = trace.stats
    supplied = sum(entry.accepted for entry in trace.rounds)
    supplied_share = supplied / max(1, stats.emitted)
    figures = [
        (f"{counts.kept:,} of {counts.total:,}", "visual tokens kept for the draft"),
        (f"{stats.mean_acceptance_length:.2f}", "tokens per round (mean acceptance length)"),
        (f"{supplied_share * 100:.0f}%", f"of {stats.emitted} tokens supplied by the draft"),
    ]
    speedup = trace.speedup
    if speedup and trace.plain:
        answer = "same answer" if trace.plain.identical else "DIFFERENT ANSWER"
        name = f"end-to-end speedup over plain decoding; {answer}"
        figures.append((f"{speedup.end_to_end:.2f}x", name))
    return figures


def _views(trace: Trace) -> str:
    views = trace.visual.views
    scale = paint.Scale.of(views)
    side, column_width = _view_size(len(views))
    figures = "\n".join(_figure(index, view, side) for index, view in enumerate(views))
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in trace.notes)
    legend = "" if scale is None else _scale_legend(scale, trace.visual.score_name)
    buttons = _mode_buttons(scale is not None, trace.visual.quantity)
    return (
        '<section><div class="line"><h2>Visual tokens kept for the draft</h2>'
        f'{legend}<div class="switch">{buttons}</div></div>'
        f'<div class="views" style="--wide: {column_width}px">\n{figures}\n</div>{notes}</section>'
        '<section><div class="line">'
        f"<h2>Share of cells kept in each {view_noun(views)}</h2></div>"
        f'<div class="panel">{shares_chart(views)}</div></section>'
    )


def _view_size(num_views: int) -> tuple[int, int]:
    """Pixels of a picture's longer side, and the width of a column."""
    for max_views, side, column_width in _VIEW_SIZES:
        if num_views <= max_views:
            return side, column_width
    return _SMALLEST_VIEW_SIZE


def _mode_buttons(has_scores: bool, quantity: str) -> str:
    titles = {"kept": "Kept", "score": quantity.title(), "picture": "Picture"}
    if not has_scores:
        del titles["score"]
    buttons = []
    for mode, title in titles.items():
        pressed = "true" if mode == "kept" else "false"
        buttons.append(
            f'<button type="button" data-mode="{mode}" aria-pressed="{pressed}">{title}</button>'
        )
    return "".join(buttons)


def _scale_legend(scale: paint.Scale, score_name: str) -> str:
    gradient = f"linear-gradient(90deg, {', '.join(paint.RAMP)})"
    return (
        f'<div class="scale">{score_name} <span>{scale.low:.2g}x</span>'
        f'<i style="background: {gradient}"></i>'
        f"<span>{scale.high:.2g}x the mean cell</span></div>"
    )


def _figure(index: int, view: View, side: int) -> str:
    counts = view.counts
    name = escape(f"{view.name}, {view.when}" if view.when else view.name)
    image = ""
    if view.image is not None:
        image = f'<img alt="{name}" src="{inline_image(view.image, side)}">'
    row = ' style="grid-column: 1 / -1"' if view.aspect > BROAD_ASPECT else ""
    style = f"aspect-ratio: {view.aspect:.4f}"
    if view.aspect < NARROW_ASPECT:
        style += f"; max-width: {MAX_HEIGHT * view.aspect:.0f}px"
    return (
        f'<figure data-view="{index}"{row}>'
        f"<figcaption>{name}<span>{counts.kept} of {counts.total}</span></figcaption>"
        f'<div class="frame" style="{style}">{image}<canvas></canvas></div></figure>'
    )


def inline_image(image: Image.Image, side: int) -> str:
    """Return a picture as a JPEG data URL.

    Its longer side has at most `side` pixels. Its aspect is limited like that of views.
    """
    small = image.convert("RGB")
    aspect = image.width / image.height
    drawn_aspect = clamp_aspect(aspect)
    if drawn_aspect != aspect:
        small = small.resize(fit_inside(drawn_aspect, (side, side)), Image.Resampling.LANCZOS)
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _answer(trace: Trace) -> str:
    spans = []
    for piece in trace.pieces:
        style = " class=drafted" if piece.drafted else ""
        spans.append(f'<span data-round="{piece.round}"{style}>{escape(piece.text)}</span>')
    keys = _keys(
        [
            ("var(--kept-soft)", "supplied by the draft"),
            ("var(--card)", "generated by the target"),
        ]
    )
    return (
        f'<section><div class="line"><h2>Answer</h2>{keys}</div><div class="panel">'
        f'<p class="note" style="margin: 0 0 8px">{escape(trace.prompt)}</p>'
        f'<div class="answer">{"".join(spans)}</div></div></section>'
    )


def _rounds(trace: Trace) -> str:
    keys = _keys(
        [
            ("var(--kept)", "accepted from the draft"),
            ("var(--bonus)", "generated by the target"),
        ]
    )
    return (
        f'<section><div class="line"><h2>Tokens of each round</h2>{keys}</div>'
        f'<div class="panel">{rounds_chart(trace.rounds)}</div></section>'
    )


def _timelines(trace: Trace) -> str:
    """The chart of all lanes, and their seconds."""
    if not trace.timelines:
        return ""
    return (
        f'<section><div class="line"><h2>{TITLE}</h2></div><div class="panel">{_chart(trace)}'
        f"{_seconds(trace.timelines)}</div></section>"
    )


def _chart(trace: Trace) -> str:
    """The chart as a picture for each of the system's modes."""
    if not has_matplotlib():
        return f'<p class="note">{escape(NEEDS_MATPLOTLIB)}</p>'
    return (
        '<picture class="chart">'
        f'<source media="(prefers-color-scheme: dark)" srcset="{_inline_chart(trace, DARK)}">'
        f'<img alt="{TITLE}" src="{_inline_chart(trace, LIGHT)}"></picture>'
        f'<p class="note" style="margin: 0 0 14px">{CAPTION}</p>'
    )


def _inline_chart(trace: Trace, theme: Theme) -> str:
    file = io.BytesIO()
    chart_of(trace, theme).savefig(file, format="png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _seconds(timelines: Mapping[str, Timeline]) -> str:
    """A table of the seconds of each lane by kind, and of its idle shares."""
    found = {span.kind for timeline in timelines.values() for span in timeline.spans}
    kinds = [kind for kind in KINDS if kind in found]
    names = [NAMES[kind] for kind in kinds]
    head = ["seconds of each lane", *names, "thrown away", *IDLE_COLUMNS]
    rows = []
    for name, timeline in timelines.items():
        for lane in timeline.lanes:
            rows.append([f"{name}: {lane}", *_lane_figures(timeline, lane, kinds)])
    return _grid(head, rows)


def _lane_figures(timeline: Timeline, lane: str, kinds: Sequence[str]) -> list[str]:
    sums = timeline.seconds[lane]
    seconds = [sums.get(kind, 0.0) for kind in kinds]
    seconds.append(timeline.discarded[lane])
    first = timeline.first_token
    shares = [
        timeline.idle_share(lane),
        timeline.idle_share(lane, 0.0, first),
        timeline.idle_share(lane, first),
    ]
    figures = [f"{value:.3f}" if value else "" for value in seconds]
    return [*figures, *(f"{share * 100:.0f}%" for share in shares)]


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with a head."""
    lines = ["".join(f"<th>{escape(name)}</th>" for name in head)]
    for row in rows:
        lines.append("".join(f"<td>{escape(value)}</td>" for value in row))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table class="grid">{body}</table></div>'


def _time(trace: Trace) -> str:
    phases = [(name, seconds) for name, seconds in trace.stats.phases.items() if seconds > 0]
    total = sum(seconds for _, seconds in phases) or 1.0
    bars = []
    keys = []
    for name, seconds in phases:
        colour = PHASE_COLOURS[name]
        width = seconds / total * 100
        bars.append(f'<i style="width: {width:.2f}%; background: {colour}"></i>')
        keys.append((colour, f"{name.replace('_', ' ')} {seconds:.3f} s"))
    rows = [("this answer", _duration(trace.stats))]
    if trace.plain and trace.speedup:
        rows += _comparison_rows(trace.plain, trace.speedup)
    rows += _count_rows(trace.stats)
    return (
        '<section><div class="line"><h2>Time</h2></div>'
        f'<div class="panel"><div class="time">{"".join(bars)}</div>{_keys(keys)}'
        f'<div style="height: 14px"></div>{_table(rows)}</div></section>'
    )


def _duration(run: Stats | PlainRun) -> str:
    return f"{run.e2e:.3f} s end to end, of which decoding takes {run.decode:.3f} s"


def _comparison_rows(plain: PlainRun, speedup: Speedup) -> list[tuple[str, str]]:
    factors = f"{speedup.end_to_end:.2f}x end to end, {speedup.decoding:.2f}x decoding"
    return [("plain decoding", _duration(plain)), ("speedup", factors)]


def _count_rows(stats: Stats) -> list[tuple[str, str]]:
    length = f"{stats.mean_acceptance_length:.2f}: {DEFINITIONS['mean_acceptance_length']}"
    return [
        ("target forwards", str(stats.target_forwards)),
        ("draft forwards", str(stats.draft_forwards)),
        ("draft tokens accepted", f"{stats.accepted} of {stats.drafted}"),
        ("mean acceptance length", length),
    ]


def _settings(trace: Trace) -> str:
    method = trace.to_dict()["method"]
    method_rows = [(name.replace("_", " "), _value_text(value)) for name, value in method.items()]
    run_rows = [("prompt", trace.prompt), *trace.settings.items()]
    return (
        '<section><div class="line"><h2>Settings</h2></div><div class="wide">'
        f'<div class="panel">{_table(method_rows)}</div>'
        f'<div class="panel">{_table(run_rows)}</div></div></section>'
    )


def _value_text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        options = [f"{name} {_value_text(option)}" for name, option in value.items()]
        return ", ".join(options).removeprefix("name ")
    return value if isinstance(value, str) else json.dumps(value)


def _table(rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows
    )
    return f"<table>{cells}</table>"


def _keys(entries: Sequence[tuple[str, str]]) -> str:
    """A legend of colours and their meanings."""
    keys = "".join(
        f'<span><i style="background: {colour}"></i>{escape(name)}</span>'
        for colour, name in entries
    )
    return f'<div class="keys">{keys}</div>'
