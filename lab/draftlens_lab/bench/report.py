"""The summary of a run as tables, for the terminal and for Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from draftlens_lab.bench.batches import agreement, batch_table
from draftlens_lab.bench.contestants import REFERENCE
from draftlens_lab.bench.summary import PHASE_ROWS
from draftlens_lab.measure.statistics import format_quartiles
from draftlens_lab.measure.tables import Table, format_number, markdown_page

Figures = Mapping[str, Any]
Point = tuple[Any, Figures]
"""A value of a field, and the figures of the method with this value."""

MIB = 2**20


def bench_tables(summary: Figures) -> Iterator[Table]:
    """All tables of the report, in its order."""
    for group, figures in summary["groups"].items():
        if figures["methods"]:
            yield _speed_table(group, figures)
            if _has_lossy(figures):
                yield _lossy_table(group, figures)
            yield _detail_table(group, figures)
            if _runs_ahead(figures):
                yield _ahead_table(group, figures)
            view_rows = list(_view_rows(figures))
            if view_rows:
                yield _view_table(group, view_rows)
            names = [name for name in figures["methods"] if name not in summary["variants"]]
            yield _phase_table(group, figures, names)
    for field_name in swept_fields(summary):
        rows = list(_sweep_rows(summary, field_name))
        if rows:
            yield _sweep_table(field_name, rows)
    if summary.get("batches"):
        yield batch_table(summary["batches"])
    if summary["divergences"]:
        yield _divergence_table(summary["divergences"])
    if summary["refused"]:
        rows = list(summary["refused"].items())
        yield Table("Does not run", ("method", "why"), rows, text_columns=(0, 1))
    if summary["failed"]:
        yield _failure_table(summary["failed"])


def bench_page(summary: Figures, pictures: Sequence[str] = ()) -> str:
    return markdown_page("Benchmark", about_run(summary), bench_tables(summary), pictures)


def about_run(summary: Figures) -> str:
    """One paragraph on models, options and environment of the run."""
    run = summary["run"]
    environment = run["environment"]
    options = run["options"]
    models = "; ".join(_model(role, facts) for role, facts in run["models"].items())
    packages = [f"{name} {version}" for name, version in environment["packages"].items() if version]
    software = [
        f"{environment['threads']} threads",
        f"python {environment['python']}",
        *packages,
        f"commit {environment['commit'] or 'unknown'}",
    ]
    return (
        f"{models}. {options['repeats']} repeats, at most {options['max_new_tokens']} new tokens, "
        f"greedy. Memory: {run['memory']}. {environment['machine']}, {', '.join(software)}."
    )


def swept_fields(summary: Figures) -> list[str]:
    """Fields of methods that vary in the run, by `BenchOptions.sweep` or `context`."""
    fields = list(summary["run"]["options"].get("sweep", {}))
    fields += [variant["field"] for variant in summary["variants"].values()]
    return list(dict.fromkeys(fields))


def swept(summary: Figures, group: str, field_name: str) -> dict[str, list[Point]]:
    """Figures of methods by the value of a field.

    Methods that differ in this field alone form one line, which has the name of the first of them.
    Lines that begin with a variant are left out, since they are variants of another field and not
    part of this sweep.

    Returns:
        Name of each line of two or more points to its points, in the order of numeric values.
    """
    methods = summary["groups"][group]["methods"]
    lines: dict[str, list[Point]] = {}
    for line, names in _methods_by_line(summary["settings"], field_name).items():
        points = [
            (summary["settings"][name][field_name], methods[name])
            for name in names
            if name in methods
        ]
        if len(points) > 1 and line not in summary["variants"]:
            lines[line] = _sorted_points(points)
    return lines


def _methods_by_line(settings: Figures, field_name: str) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = {}
    fixed_settings: dict[str, Figures] = {}
    for name, values in settings.items():
        if field_name not in values:
            continue
        fixed = {key: value for key, value in values.items() if key != field_name}
        line = next(
            (
                first
                for first, settings_of_line in fixed_settings.items()
                if settings_of_line == fixed
            ),
            name,
        )
        fixed_settings.setdefault(line, fixed)
        lines.setdefault(line, []).append(name)
    return lines


def _sorted_points(points: list[Point]) -> list[Point]:
    if all(isinstance(value, int | float) for value, _ in points):
        return sorted(points, key=lambda point: point[0])
    return points


def _speed_table(group: str, figures: Figures) -> Table:
    columns = ("method", "seconds", "speedup e2e", "speedup decode", "by eq. 1", "identical")
    rows = []
    for name, row in figures["methods"].items():
        seconds = format_number(_median(row["e2e"]), 3)
        kinds = ("speedup_e2e", "speedup_decode", "speedup_expected")
        speedups = [format_quartiles(row[kind]) for kind in kinds]
        rows.append((_marked(name, row), seconds, *speedups, agreement(row)))
    clips = "1 clip" if figures["clips"] == 1 else f"{figures['clips']} clips"
    note = (
        f"{clips}, {figures['prompt_tokens']['median']:.0f} prompt tokens (median). Seconds: "
        f"median of whole calls. Speedups: against {REFERENCE} on the same clip in the same "
        f"repeat, median (quartiles). By eq. 1: the speedup of decoding that acceptance and costs "
        f"explain, tokens a pass / (seconds of drafting a pass / seconds a token of {REFERENCE} "
        f"+ 1)."
    )
    return Table(group, columns, rows, note)


def _marked(name: str, row: Figures) -> str:
    return f"{name} (lossy)" if row["lossy"] else name


def _has_lossy(figures: Figures) -> bool:
    return any(row["lossy"] for row in figures["methods"].values())


def _lossy_table(group: str, figures: Figures) -> Table:
    columns = ("method", "A", "identical", "visual tokens read", "speedup e2e", "speedup decode")
    rows = []
    for name, row in figures["methods"].items():
        kept = _percent(row["visual_kept"]) if row["lossy"] else "100%"
        speedups = (format_quartiles(row["speedup_e2e"]), format_quartiles(row["speedup_decode"]))
        acceptance = _percent(row["target_acceptance"], 1)
        rows.append((_marked(name, row), acceptance, agreement(row), kept, *speedups))
    note = (
        "A: share of an answer's tokens that the full target accepts, given the tokens before "
        "them; 100% for lossless methods by definition. Visual tokens read: by the target's "
        "layers while decoding, the mean over layers."
    )
    return Table(f"{group}: lossy methods", columns, rows, note)


def _detail_table(group: str, figures: Figures) -> Table:
    columns = (
        "method",
        "tokens/s",
        "first token, s",
        "mean acc. length",
        "accepted",
        "peak MiB",
        "of it grown",
        "caches MiB",
    )
    rows = [
        (
            name,
            format_number(_median(row["tokens_per_second"]), 1),
            format_number(_median(row["ttft"]), 3),
            format_number(row["mean_acceptance_length"], 2),
            _percent(row["draft_acceptance_rate"]),
            _mebibytes(row["peak_bytes"], 0),
            _mebibytes(row["grown_bytes"], 1),
            _mebibytes(row["cache_bytes"], 2),
        )
        for name, row in figures["methods"].items()
    ]
    return Table(f"{group}: drafts and memory", columns, rows)


def _runs_ahead(figures: Figures) -> bool:
    return any(row["mean_run_length"] is not None for row in figures["methods"].values())


def _ahead_table(group: str, figures: Figures) -> Table:
    rows = [
        (name, format_number(row["mean_run_length"], 2), str(row["corrections"]))
        for name, row in figures["methods"].items()
        if row["mean_run_length"] is not None
    ]
    note = (
        "M: accepted draft tokens / corrections, over all answers: the accepted length "
        "of ParallelVLM, which is not a number of tokens a pass."
    )
    return Table(f"{group}: drafts that run ahead", ("method", "M", "corrections"), rows, note)


def _view_table(group: str, rows: Sequence[Sequence[str]]) -> Table:
    columns = ("method", "view", "mean weight", "asked", "right")
    note = (
        "Asked: share of the answers' tokens that the view was asked about; one that rests is not. "
        "Right: share of these that it would have drafted."
    )
    return Table(f"{group}: views of the prompt", columns, rows, note, text_columns=(0, 1))


def _view_rows(figures: Figures) -> Iterator[tuple[str, ...]]:
    for name, row in figures["methods"].items():
        for view, counted in row.get("views", {}).items():
            asked = counted["asked"] / counted["tokens"] if counted["tokens"] else None
            weight = format_number(counted["weight"], 2)
            yield (name, view, weight, _percent(asked), _percent(counted["right_share"]))


def _phase_table(group: str, figures: Figures, names: Sequence[str]) -> Table:
    rows = []
    for phase, label in PHASE_ROWS.items():
        seconds = [figures["methods"][name]["phases"][phase] for name in names]
        if any(seconds):
            rows.append((label, *(_milliseconds(value) for value in seconds)))
    note = (
        "Milliseconds, medians, which do not add up exactly. The library's own generation is "
        "timed in three parts: reading; everything up to the first token, vision and (for "
        "assisted generation) the first round included; and the rest."
    )
    return Table(f"{group}: where the time goes", ("phase, ms", *names), rows, note)


def _sweep_table(field_name: str, rows: Sequence[Sequence[str]]) -> Table:
    columns = (
        "clips",
        "method",
        "value",
        "mean acc. length",
        "accepted",
        "visual tokens kept",
        "draft step, ms",
        "speedup decode",
    )
    return Table(f"By {field_name}", columns, rows, text_columns=(0, 1, 2))


def _sweep_rows(summary: Figures, field_name: str) -> Iterator[tuple[str, ...]]:
    for group in summary["groups"]:
        for line, points in swept(summary, group, field_name).items():
            for value, row in points:
                yield (
                    group,
                    line,
                    value_text(value),
                    format_number(row["mean_acceptance_length"], 2),
                    _percent(row["draft_acceptance_rate"]),
                    _percent(row["visual_kept"]),
                    _milliseconds(_median(row["draft_step"])),
                    format_quartiles(row["speedup_decode"]),
                )


def value_text(value: Any) -> str:
    """A value of an option in words: ``name(option=value)`` for a part with options."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and "name" in value:
        options = [f"{key}={value_text(option)}" for key, option in value.items() if key != "name"]
        name = str(value["name"])
        return f"{name}({', '.join(options)})" if options else name
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return " + ".join(value_text(part) for part in value)
    return json.dumps(value)


def _divergence_table(divergences: Sequence[Figures]) -> Table:
    columns = ("clip", "method", "repeat", "token", f"{REFERENCE} says", "the method says")
    rows = []
    for difference in divergences:
        place = (str(difference["repeat"]), str(difference["index"]))
        tokens = (_token(difference["reference"]), _token(difference["method_says"]))
        rows.append((difference["clip"], difference["method"], *place, *tokens))
    return Table(f"Answers that differ from {REFERENCE}'s", columns, rows, text_columns=(0, 1))


def _failure_table(failures: Sequence[Figures]) -> Table:
    columns = ("clip", "method", "why")
    rows = [
        (failure["clip"], failure["method"] or "reading", failure["error"]) for failure in failures
    ]
    title = "Clips that failed, left out of every figure"
    return Table(title, columns, rows, text_columns=(0, 1, 2))


def _model(role: str, facts: Figures) -> str:
    size = f"{facts['parameters'] / 1e6:.1f}M"
    details = ", ".join([facts["class"], size, facts["dtype"], facts["device"]])
    return f"{role} {facts['name']} ({details})"


def _token(token: int | None) -> str:
    return "(has ended)" if token is None else str(token)


def _median(value: Figures | None) -> float | None:
    return None if value is None else value["median"]


def _percent(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{100 * value:.{digits}f}%"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.2f}"


def _mebibytes(size: int | None, digits: int) -> str:
    return "" if size is None else f"{size / MIB:.{digits}f}"
