"""The report as tables: for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Figures = Mapping[str, Any]
NONE = "–"


@dataclass(frozen=True)
class Table:
    """Rows of words under a title.

    Args:
        title: what they are.
        columns: their heads.
        rows: each as long as `columns`.
        note: what has to be known to read them.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def tables(report: Figures) -> Iterator[Table]:
    """Everything that the report holds so far."""
    for who, figures in report.get("accuracy", {}).items():
        yield from _accuracy(who, figures)
    if "agreement" in report:
        yield from _agreement(report["agreement"])
    if "visual" in report:
        yield _visual(report["visual"])
    if "goals" in report:
        yield _goals(report["goals"])


def markdown(report: Figures) -> str:
    """The report as a Markdown document."""
    parts = ["# draftlens evaluate", about(report)]
    for table in tables(report):
        marks = "|".join(["---", *["---:"] * (len(table.columns) - 1)])
        lines = [f"## {table.title}", "", f"| {' | '.join(table.columns)} |", f"|{marks}|"]
        lines += [f"| {' | '.join(row)} |" for row in table.rows]
        parts.append("\n".join([*lines, *(["", table.note] if table.note else [])]))
    return "\n\n".join(parts) + "\n"


def about(report: Figures) -> str:
    """One paragraph: which models, what on, where."""
    models = ", ".join(
        f"{role} {facts['name']} ({facts['class']}, {facts['parameters'] / 1e6:.2f}M "
        f"parameters, {facts['dtype']})"
        for role, facts in report["models"].items()
    )
    given, where = report["arguments"], report["environment"]
    packages = ", ".join(
        f"{name} {where['packages'][name]}" for name in ("draftlens", "torch", "transformers")
    )
    commit = f", commit {where['commit']}" if where["commit"] else ""
    unfinished = "" if report["finished"] else " Not finished: only these sections were."
    return (
        f"{models[0].upper()}{models[1:]}; {given['clips']} held-out clips, seed {given['seed']}; "
        f"{where['machine']}, {packages}{commit}.{unfinished} Intervals are 95%."
    )


def percent(share: Figures, interval: bool = True) -> str:
    """A share in percent with its interval."""
    if share["share"] is None:
        return NONE
    ends = f" [{100 * share['low']:.1f}, {100 * share['high']:.1f}]" if interval else ""
    return f"{100 * share['share']:.1f}%{ends}"


def _accuracy(who: str, figures: Figures) -> Iterator[Table]:
    shown = [(f"clips, {n} frames", c) for n, c in figures.get("captions", {}).items()]
    shown += [("pictures", figures["pictures"])] if "pictures" in figures else []
    if shown:
        columns = ("", "asked", "visual tokens", "right word for word", "facts right")
        rows = [
            (
                name,
                str(c["asked"]),
                str(c["visual_tokens"]),
                percent(c["exact"]),
                percent(c["facts"]),
            )
            for name, c in shown
        ]
        yield Table(f"Captions of the {who}", columns, rows)
        heads = tuple(name for name, _ in shown)
        kinds = dict.fromkeys(kind for _, c in shown for kind in c["kinds"])
        facts = [(kind, *(_cell(c["kinds"].get(kind)) for _, c in shown)) for kind in kinds]
        note = "Right of all stated or to be stated: what a caption invents counts as wrong."
        yield Table(f"Facts by kind, {who}", ("fact", *heads), facts, note)
        kinds = dict.fromkeys(kind for _, c in shown for kind in c["texts"])
        names = {
            "secret": "secret word",
            "all": "all of them",
            "named": "named rightly, of all named",
        }
        texts = [
            (names.get(kind, kind), *(_cell(c["texts"][kind], True) for _, c in shown))
            for kind in kinds
        ]
        yield Table(f"Text on the screen, {who}", ("named in the caption", *heads), texts)
    if "questions" in figures:
        yield _questions(f"Questions to the {who}", figures["questions"])


def _cell(share: Figures | None, interval: bool = False) -> str:
    return (
        NONE
        if share is None or share["share"] is None
        else f"{percent(share, interval)} of {share['total']}"
    )


def _questions(title: str, families: Figures) -> Table:
    rows = []
    for family, figures in families.items():
        rows.append(_question(family, figures))
        rows += [
            _question(f"· {question}", of) for question, of in figures.get("wordings", {}).items()
        ]
    note = "Chance is what the best constant answer to each question gets, learned from training scenes."
    return Table(
        title, ("family", "asked", "right word for word", "chance", "above chance"), rows, note
    )


def _question(name: str, figures: Figures) -> tuple[str, ...]:
    above = NONE if figures["above"] is None else f"{100 * figures['above']:+.1f}"
    return (
        name,
        str(figures["right"]["total"]),
        percent(figures["right"]),
        percent(figures["chance"], False),
        above,
    )


def _agreement(figures: Figures) -> Iterator[Table]:
    rows = [("ranked first", percent(figures["agreed"]))]
    rows += [
        (f"among the first {n}", percent(share)) for n, share in figures["top"].items() if n != "1"
    ]
    rows += [("ranked first, of tokens that tell what was seen", percent(figures["seen"]))]
    rows += [("ranked first, of connecting words", percent(figures["connecting"]))]
    note = (
        f"Of {figures['agreed']['total']} tokens of the target's captions of {figures['clips']} "
        f"clips; the last two "
        f"rows count the {figures['right_captions']} captions that are right word for word."
    )
    yield Table("The target's tokens in the draft's eyes", ("", "share"), rows, note)
    lengths = [(gamma, _number(length)) for gamma, length in figures["acceptance_length"].items()]
    note = "Tokens emitted by verification passes / passes, bonus token included."
    yield Table("Mean acceptance length", ("γ", "length"), lengths, note)
    depths = [(depth, percent(share)) for depth, share in figures["by_depth"].items()]
    note = (
        f"Share of guesses accepted where all before them in the pass were, at γ = {len(depths)}."
    )
    yield Table("Acceptance by depth", ("depth", "accepted"), depths, note)


def _visual(figures: Figures) -> Table:
    rows = [
        (
            f"{100 * (1 - row['removed']):g}%",
            percent(row["agreed"], False),
            f"{row['acceptance_length']:.2f} {_ends(row['length_interval'])}",
            NONE
            if row["fall"] is None
            else f"{100 * row['fall']:z.1f}% {_ends(row['fall_interval'], 100)}",
        )
        for row in figures["kept"]
    ]
    columns = (
        "visual tokens left to the draft",
        "ranked first",
        "mean acceptance length",
        "lower by",
    )
    draws = max(row["draws"] for row in figures["kept"])
    note = f"Chosen at random, {draws} draws each, at γ = {figures['gamma']}; intervals over {figures['clips']} clips."
    return Table("Visual dependence of the draft", columns, rows, note)


def _ends(interval: tuple[float, float] | list[float], times: float = 1) -> str:
    low, high = (times * end for end in interval)
    return f"[{low:z.1f}, {high:z.1f}]" if times != 1 else f"[{low:.2f}, {high:.2f}]"


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _goals(reached: list[Figures]) -> Table:
    rows = []
    for goal in reached:
        percents = "%" in goal["asked"] and goal["figure"] is not None
        figure = f"{100 * goal['figure']:.1f}%" if percents else _number(goal["figure"])
        met = {True: "yes", False: "no", None: "not measured"}[goal["met"]]
        rows.append((goal["goal"], figure, goal["asked"], met))
    return Table("Asked of the embedded pair", ("", "figure", "asked", "met"), rows)
