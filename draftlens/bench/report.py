"""Figures for people: tables on the terminal and a Markdown page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftlens.bench.contestants import REFERENCE
from draftlens.bench.summary import PHASE_ROWS

Figures = Mapping[str, Any]
MIB = 2**20


@dataclass(frozen=True)
class Table:
    """A table with its heading.

    Args:
        title, columns, rows: as they are shown.
        note: a sentence below.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def tables(summary: Figures) -> Iterator[Table]:
    """Every table of the report, in its order."""
    for group, found in summary["groups"].items():
        if found["methods"]:
            yield _speeds(group, found)
            yield _details(group, found)
            yield _phases(
                group, found, [name for name in found["methods"] if name not in summary["variants"]]
            )
    yield from _sweeps(summary)
    if summary["divergences"]:
        yield _divergences(summary["divergences"])
    if summary["refused"]:
        yield Table("Does not run", ("method", "why"), list(summary["refused"].items()))
    if summary["failed"]:
        rows = [(f["clip"], f["method"] or "reading", f["error"]) for f in summary["failed"]]
        yield Table("Clips that failed, left out of every figure", ("clip", "method", "why"), rows)


def _speeds(group: str, found: Figures) -> Table:
    columns = ("method", "seconds", "speedup e2e", "speedup decode", "identical")
    rows = [
        (
            name,
            _number(_median(row["e2e"]), 3),
            ratio(row["speedup_e2e"]),
            ratio(row["speedup_decode"]),
            NOTHING
            if not row["compared"]
            else "yes"
            if row["identical"] == row["compared"]
            else _share(row),
        )
        for name, row in found["methods"].items()
    ]
    clips = f"{found['clips']} clip" + "s" * (found["clips"] != 1)
    note = f"{clips}, {found['prompt_tokens']['median']:.0f} prompt tokens (median). Seconds: median of whole calls. "
    note += (
        f"Speedups: against {REFERENCE} on the same clip in the same repeat, median (quartiles)."
    )
    return Table(group, columns, rows, note)


def _details(group: str, found: Figures) -> Table:
    columns = ("method", "tokens/s", "first token, s", "mean acc. length", "accepted")
    columns_of_memory = ("peak MiB", "of it grown", "caches MiB")
    rows = [
        (
            name,
            _number(_median(row["tokens_per_second"]), 1),
            _number(_median(row["ttft"]), 3),
            _number(row["mean_acceptance_length"], 2),
            _percent(row["draft_acceptance_rate"]),
            _number(row["peak_bytes"] / MIB, 0),
            _number(row["grown_bytes"] / MIB, 1),
            _number(None if row["cache_bytes"] is None else row["cache_bytes"] / MIB, 2),
        )
        for name, row in found["methods"].items()
    ]
    return Table(f"{group}: drafts and memory", (*columns, *columns_of_memory), rows)


def _share(row: Figures) -> str:
    return f"{row['identical']} of {row['compared']}"


def _phases(group: str, found: Figures, names: Sequence[str]) -> Table:
    rows = [
        (label, *(_milliseconds(found["methods"][name]["phases"][phase]) for name in names))
        for phase, label in PHASE_ROWS.items()
    ]
    note = "Milliseconds, medians: they do not add up exactly. Of the library's own loops only reading, the way to the"
    note += " first token (vision included, and for assisted generation its first round) and the rest can be told apart"
    return Table(f"{group}: where the time goes", ("phase, ms", *names), rows, note + ".")


def _sweeps(summary: Figures) -> Iterator[Table]:
    columns = (
        "clips",
        "method",
        "value",
        "mean acc. length",
        "accepted",
        "visual tokens kept",
        "draft step, ms",
    )
    for field_name in swept_fields(summary):
        rows = [
            (
                group,
                base,
                value if isinstance(value, str) else json.dumps(value),
                _number(row["mean_acceptance_length"], 2),
                _percent(row["draft_acceptance_rate"]),
                _percent(row["visual_kept"]),
                _milliseconds(_median(row["draft_step"])),
                ratio(row["speedup_decode"]),
            )
            for group in summary["groups"]
            for base, points in swept(summary, group, field_name).items()
            for value, row in points
        ]
        if rows:
            yield Table(f"By {field_name}", (*columns, "speedup decode"), rows)


def swept_fields(summary: Figures) -> list[str]:
    """Fields that were asked to be varied, with `--sweep` or by `--context`."""
    fields = [
        *summary["run"]["options"].get("sweep", {}),
        *(of["field"] for of in summary["variants"].values()),
    ]
    return list(dict.fromkeys(fields))


def swept(summary: Figures, group: str, field_name: str) -> dict[str, list[tuple[Any, Figures]]]:
    """Method to its figures by value of a field, in the order of the values; only lines of two
    points or more.

    Methods that differ in nothing but the field are one line, by whatever names they were measured.
    It bears the name of the first; if that is a variant, then of another field, and nobody asked
    for the line.
    """
    methods = summary["groups"][group]["methods"]
    lines: dict[str, list[tuple[Any, Figures]]] = {}
    shared: dict[str, Figures] = {}
    for name, settings in summary["settings"].items():
        if field_name not in settings:
            continue
        rest = {key: value for key, value in settings.items() if key != field_name}
        line = next((first for first, other in shared.items() if other == rest), name)
        shared.setdefault(line, rest)
        if name in methods:
            lines.setdefault(line, []).append((settings[field_name], methods[name]))
    for points in lines.values():
        if all(isinstance(value, int | float) for value, _ in points):
            points.sort(key=lambda point: point[0])
    variants = summary["variants"]
    return {
        line: points for line, points in lines.items() if len(points) > 1 and line not in variants
    }


def _divergences(found: Sequence[Figures]) -> Table:
    rows = [
        (
            d["clip"],
            d["method"],
            str(d["repeat"]),
            str(d["index"]),
            _token(d["reference"]),
            _token(d["method_says"]),
        )
        for d in found
    ]
    columns = ("clip", "method", "repeat", "token", f"{REFERENCE} says", "the method says")
    return Table(f"Answers that differ from {REFERENCE}'s", columns, rows)


def _token(token: int | None) -> str:
    return "(has ended)" if token is None else str(token)


def about(summary: Figures) -> str:
    """One paragraph on models, machine and settings."""
    run = summary["run"]
    models = [
        f"{role} {m['name']} ({m['class']}, {m['parameters'] / 1e6:.1f}M, {m['dtype']}, "
        f"{m['device']})"
        for role, m in run["models"].items()
    ]
    packages = ", ".join(f"{name} {v}" for name, v in run["environment"]["packages"].items() if v)
    where = run["environment"]
    options = run["options"]
    return (
        f"{'; '.join(models)}. {options['repeats']} repeats, at most "
        f"{options['max_new_tokens']} new tokens, greedy. "
        f"Memory: {run['memory']}. {where['machine']}, {where['threads']} threads, python "
        f"{where['python']}, "
        f"{packages}, commit {where['commit'] or 'unknown'}."
    )


def markdown(summary: Figures, pictures: Sequence[str] = ()) -> str:
    """The report as a page.

    Args:
        pictures: file names of plots beside it.
    """
    lines = ["# Benchmark", "", about(summary)]
    for table in tables(summary):
        lines += ["", f"## {table.title}", ""]
        lines += [
            "| " + " | ".join(map(_cell, table.columns)) + " |",
            "|---" * len(table.columns) + "|",
        ]
        lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in table.rows]
        lines += ["", table.note] if table.note else []
    for picture in pictures:
        lines += ["", f"![{picture}]({picture})"]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


NOTHING = ""


def ratio(value: Figures | None) -> str:
    """A median with its quartiles."""
    return (
        NOTHING
        if value is None
        else f"{value['median']:.2f} ({value['q1']:.2f} to {value['q3']:.2f})"
    )


def _median(value: Figures | None) -> float | None:
    return None if value is None else value["median"]


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.0f}%"


def _milliseconds(value: float | None) -> str:
    return NOTHING if value is None else f"{1000 * value:.2f}"
