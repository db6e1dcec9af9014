"""One HTML file that needs nothing else: pictures, styles, script and data are all in it."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from PIL import Image

from draftlens.core.stats import DEFINITIONS
from draftlens.explain import paint
from draftlens.explain.charts import PHASE_COLOURS, rounds_chart, shares_chart
from draftlens.explain.sheet import inside, subtitle
from draftlens.explain.trace import Trace
from draftlens.explain.views import View, drawn

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""Whatever a page holds, it can load nothing."""
QUALITY = 88
"""Of the JPEG pictures."""
NARROW, BROAD = 0.4, 8.0
"""Width / height from which on a picture gets less or more room than its column has."""
TALLEST = 1200
"""Pixels that a narrow picture is high, at most."""


def page(trace: Trace) -> str:
    """The whole page as text."""
    parts = files("draftlens.explain")
    style, script = (
        parts.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    sections = (_head, _views, _answer, _rounds, _time, _settings)
    body = "\n".join(section(trace) for section in sections)
    data = _json("trace", trace.to_dict()) + "\n" + _json("look", _look(trace))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escape(trace.title)}: what the draft "
        f"saw</title>\n<style>\n{style}</style>\n</head>\n"
        f'<body>\n<main>\n{body}\n</main>\n<div id="tip" role="status" hidden></div>\n'
        f"{data}\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _json(name: str, value: Any) -> str:
    """Data that no text in it can break out of."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace(
        "<", "\\u003c"
    )
    return f'<script type="application/json" id="{name}">{text}</script>'


def _look(trace: Trace) -> dict[str, Any]:
    scale = paint.Scale.of(trace.shown.views)
    ends = {"low": 0.5, "high": 2.0} if scale is None else {"low": scale.low, "high": scale.high}
    return {"ramp": paint.RAMP, "nothing": paint.NOTHING, "kept": paint.KEPT, **ends}


def _head(trace: Trace) -> str:
    kept, total = trace.shown.counts
    stats = trace.stats
    supplied = sum(one.accepted for one in trace.rounds)
    figures = [
        (f"{kept:,} of {total:,}", "visual tokens seen by the draft"),
        (f"{stats.mean_acceptance_length:.2f}", "tokens a round (mean acceptance length)"),
        (
            f"{supplied / max(1, stats.emitted) * 100:.0f} %",
            f"of {stats.emitted} tokens supplied by the draft",
        ),
    ]
    if trace.speedup and trace.plain:
        same = "same answer" if trace.plain.identical else "ANOTHER ANSWER"
        figures.append((f"{trace.speedup[0]:.2f}x", f"plain decoding's speed, end to end; {same}"))
    tiles = "".join(
        f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in figures
    )
    return (
        f'<header><h1>{escape(trace.title)}</h1><p class="lead">{escape(subtitle(trace))}</p>'
        f'<div class="figures">{tiles}</div></header>'
    )


def _views(trace: Trace) -> str:
    views, scale = trace.shown.views, paint.Scale.of(trace.shown.views)
    modes = ("kept", *(("attention",) if scale else ()), "picture")
    buttons = "".join(
        f'<button type="button" data-mode="{mode}" aria-pressed="{str(mode == "kept").lower()}">{mode.title()}</button>'
        for mode in modes
    )
    side, wide = (640, 250) if len(views) <= 16 else (400, 180) if len(views) <= 64 else (256, 130)
    figures = "\n".join(_figure(index, view, side) for index, view in enumerate(views))
    legend = ""
    if scale:
        legend = (
            f'<div class="scale">attention of the target <span>{scale.low:.2g}x</span>'
            f'<i style="background: linear-gradient(90deg, {", ".join(paint.RAMP)})"></i>'
            f"<span>{scale.high:.2g}x the mean cell</span></div>"
        )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in trace.notes)
    kind = "frame" if views[0].when else "view"
    return (
        f'<section><div class="line"><h2>What the draft saw</h2>{legend}<div class="switch">{buttons}</div></div>'
        f'<div class="views" style="--wide: {wide}px">\n{figures}\n</div>{notes}</section>'
        f'<section><div class="line"><h2>Share kept of each {kind}</h2></div>'
        f'<div class="panel">{shares_chart(views)}</div></section>'
    )


def _figure(index: int, view: View, side: int) -> str:
    kept, total = view.counts
    name = f"{view.name}, {view.when}" if view.when else view.name
    image = (
        ""
        if view.image is None
        else f'<img alt="{escape(name)}" src="{inlined(view.image, side)}">'
    )
    row = ' style="grid-column: 1 / -1"' if view.aspect > BROAD else ""
    limit = f"; max-width: {TALLEST * view.aspect:.0f}px" if view.aspect < NARROW else ""
    return (
        f'<figure data-view="{index}"{row}><figcaption>{escape(name)}<span>{kept} of {total}</span></figcaption>'
        f'<div class="frame" style="aspect-ratio: {view.aspect:.4f}{limit}">{image}<canvas></canvas></div></figure>'
    )


def inlined(image: Image.Image, side: int) -> str:
    """A picture as a data address, its longer side at most `side` pixels and its shorter one as it
    is drawn."""
    small, own = image.convert("RGB"), image.width / image.height
    if drawn(own) != own:
        small = small.resize(inside(drawn(own), (side, side)), Image.Resampling.LANCZOS)
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _answer(trace: Trace) -> str:
    spans = "".join(
        f'<span data-round="{piece.round}"{" class=drafted" if piece.drafted else ""}>{escape(piece.text)}</span>'
        for piece in trace.pieces
    )
    return (
        '<section><div class="line"><h2>Answer</h2>'
        + _keys(
            [("var(--kept-soft)", "supplied by the draft"), ("var(--card)", "the target's own")]
        )
        + f'</div><div class="panel"><p class="note" style="margin: 0 0 8px">{escape(trace.prompt)}</p>'
        f'<div class="answer">{spans}</div></div></section>'
    )


def _rounds(trace: Trace) -> str:
    keys = _keys([("var(--kept)", "accepted from the draft"), ("var(--bonus)", "the target's own")])
    return (
        f'<section><div class="line"><h2>Tokens of each round</h2>{keys}</div>'
        f'<div class="panel">{rounds_chart(trace.rounds)}</div></section>'
    )


def _time(trace: Trace) -> str:
    stats = trace.stats
    spent = [(name, seconds) for name, seconds in stats.phases.items() if seconds > 0]
    whole = sum(seconds for _, seconds in spent) or 1.0
    bar = "".join(
        f'<i style="width: {seconds / whole * 100:.2f}%; background: {PHASE_COLOURS[name]}"></i>'
        for name, seconds in spent
    )
    keys = _keys(
        [
            (PHASE_COLOURS[name], f"{name.replace('_', ' ')} {seconds:.3f} s")
            for name, seconds in spent
        ]
    )
    rows = [("this answer", f"{stats.e2e:.3f} s end to end, {stats.decode:.3f} s of it decoding")]
    if trace.plain and trace.speedup:
        rows.append(
            (
                "plain decoding",
                f"{trace.plain.e2e:.3f} s end to end, {trace.plain.decode:.3f} s of it decoding",
            )
        )
        rows.append(
            ("speedup", f"{trace.speedup[0]:.2f}x end to end, {trace.speedup[1]:.2f}x decoding")
        )
    rows += [
        ("target forwards", str(stats.target_forwards)),
        ("draft forwards", str(stats.draft_forwards)),
        ("guesses accepted", f"{stats.accepted} of {stats.drafted}"),
        (
            "mean acceptance length",
            f"{stats.mean_acceptance_length:.2f}: {DEFINITIONS['mean_acceptance_length']}",
        ),
    ]
    return (
        f'<section><div class="line"><h2>Time</h2></div><div class="panel"><div class="time">{bar}</div>{keys}'
        f'<div style="height: 14px"></div>{_table(rows)}</div></section>'
    )


def _settings(trace: Trace) -> str:
    method = trace.to_dict()["method"]
    chosen = [(name.replace("_", " "), _word(value)) for name, value in method.items()]
    others = [("prompt", trace.prompt), *trace.settings.items()]
    return (
        '<section><div class="line"><h2>Settings</h2></div><div class="wide">'
        f'<div class="panel">{_table(chosen)}</div><div class="panel">{_table(others)}</div></div></section>'
    )


def _word(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


def _table(rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows
    )
    return f"<table>{cells}</table>"


def _keys(names: Sequence[tuple[str, str]]) -> str:
    keys = "".join(
        f'<span><i style="background: {colour}"></i>{escape(name)}</span>' for colour, name in names
    )
    return f'<div class="keys">{keys}</div>'
