"""The claims of SPAVA, with the numbers of the records; M is what follows from its formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from .claim import Check, Claim, Paper, Report
from .figures import Figure, at, computed, difference, paired, times

OUT = "--out benchmarks/results"
FIDELITY = (
    "python benchmarks/spava.py fidelity --claims --minutes 60 --rows "
    f"benchmarks/results/spava_claimed_rows.jsonl {OUT}/spava_claimed"
)
QUICK = (
    "python benchmarks/spava.py fidelity --claims --minutes 60 --rounds 1 "
    "--prompts 6 --rows OUT/spava_claimed_rows.jsonl --out OUT/spava_claimed"
)
MODEL = f"python benchmarks/spava.py model {OUT}/spava_model"
COUNTS = f"python benchmarks/spava.py counts {OUT}/spava_counts"
TEXTS = f"python benchmarks/spava.py texts --lengths 1024 2048 {OUT}/spava_texts"
ROWS = "spava_claimed_rows.jsonl"

CELLS = {
    "ordering": "ordering, 1,025 visual tokens",
    "counting": "counting, 1,025 visual tokens",
    "retrieval": "retrieval, 1,025 visual tokens, texts of 1 frames",
}
"""Cells of `spava_parts.fidelity` by family."""

Reader = Callable[[Report], Figure]


def cells(cell: str, ways: Iterable[str], report: Report) -> list[Mapping[str, Any]]:
    """Figures by way of the prompts of a cell that were read in all of these ways."""
    rows = [row["figures"] for row in at(report, "rows") if row["cell"] == cell]
    return [row for row in rows if set(ways) <= set(row)]


def answers(cell: str, way: str, other: str, report: Report) -> Figure:
    """Share of right answers by one prefill minus that by another one, over prompts."""
    found = cells(CELLS[cell], (way, other), report)
    first, second = ([row[name]["right"][0] for row in found] for name in (way, other))
    return paired(first, second)


def nearer(ways: tuple[str, str], others: tuple[str, str] | None, report: Report) -> Figure:
    """KL to the full prefill by one way minus that by another one, less the same of two others."""
    names = (*ways, *(others or ()))
    found = cells("ordering, 1,025 visual tokens, lengths", names, report)
    values = []
    for row in found:
        value = row[ways[0]]["kl"] - row[ways[1]]["kl"]
        if others:
            value -= row[others[0]]["kl"] - row[others[1]]["kl"]
        values.append((value, 1.0))
    return difference(values, [(0.0, 1.0)] * len(values), 0, 1)


def on_texts(way: str, task: str, tokens: int, report: Report) -> Figure:
    """The difference of a way from the full prefill by a language model, over texts."""
    row = next(
        row
        for row in at(report, "rows")
        if (row["task"], row["tokens"], row["way"]) == (task, tokens, way)
    )
    return Figure(row["difference"], (row["low"], row["high"]))


def by_hosts(report: Report) -> list[dict[int, Mapping[str, float]]]:
    """Rows of the cost model by number of hosts, from short to long contexts."""
    return [{row["hosts"]: row for row in table["rows"]} for table in at(report, "tables")]


def gain_grows(report: Report) -> Figure:
    """The least growth of the gain over the ring from one length to the next, at 8 hosts."""
    gains = [rows[8]["ring"] / rows[8]["spava"] for rows in by_hosts(report)]
    return computed(min(second / first for first, second in pairwise(gains)))


def scaling(report: Report) -> Figure:
    """What SPAVA gains from 2 to 8 hosts over what the ring gains, least of three lengths."""
    found = []
    for rows in by_hosts(report):
        ours, ring = (rows[2][name] / rows[8][name] for name in ("spava", "ring"))
        found.append(ours / ring)
    return computed(min(found))


def slow_link(report: Report) -> Figure:
    """Seconds lost to a slow link by SPAVA minus those by the ring, as shares, at 4,097 tokens."""
    row = by_hosts(report)[0][8]
    ours, ring = (row[f"{name}, slow link"] / row[name] - 1 for name in ("spava", "ring"))
    return computed(ours - ring)


def counted(
    pick: Callable[[Iterable[float]], float],
    value: Callable[[Mapping[str, Any]], float],
    hosts: int | None,
    shortest: int,
    report: Report,
) -> Figure:
    """The least or the greatest figure over lengths and numbers of hosts."""
    rows = [
        row
        for row in at(report, "rows")
        if row["context"] >= shortest and (hosts is None or row["hosts"] == hosts)
    ]
    return computed(pick([value(row) for row in rows]))


def passing_work(row: Mapping[str, Any]) -> float:
    """The passing term of eq. 7 of a host over n² d / 32."""
    length, hosts = row["context"], row["hosts"]
    block = (length - row["anchor"]) / (2 * hosts)
    return float(4 * (2 * hosts - 1) * row["passing"] * block / (length**2 / 32))


def without_zigzag(row: Mapping[str, Any]) -> float:
    """FLOPs of the busiest host with neighbouring blocks on a host, over those in zigzag."""
    return float(max(row["flops of neighbours"]) / max(row["flops"]))


def chosen(name: str, report: Report) -> Figure:
    """How many times as often the answer's tokens are passed on as others."""
    found = at(report, "choices", name)
    low, high = found["interval"]
    return Figure(found["ratio"], (low, high))


def unfused(frames: int, report: Report) -> Figure:
    """Processor seconds of two passes over those of one."""
    seconds = at(report, "fused", str(frames), "seconds")
    return times(seconds["two"], seconds["one"])


def encoded(frames: int, report: Report) -> Figure:
    """Processor seconds of the vision encoder in one process over those of rank 0 of two."""
    seconds = at(report, "vision", str(frames), "seconds")
    return times(seconds["1"]["processor"], seconds["2"]["processor"])


def right(label: str, family: str, way: str, other: str, **bounds: Any) -> Check:
    return Check(label, ROWS, partial(answers, family, way, other), form="+.0%", **bounds)


def texts(number: str, place: str, says: str, paper: str, label: str, way: str) -> Claim:
    """A claim about a way to read texts, beside the full prefill."""
    checks = tuple(
        Check(
            f"{measured}, {label} - full, {tokens:,} tokens",
            "spava_texts",
            partial(on_texts, way, task, tokens),
            above,
            below,
            form,
        )
        for tokens in (1024, 2048)
        for measured, task, above, below, form in (
            ("needles", "needle", -0.1, None, "+.0%"),
            ("loss of what follows", "loss", None, 0.05, "+.3f"),
        )
    )
    why = "a language model of 135M parameters; twelve texts of 1,024 tokens, eight of 2,048"
    return Claim(number, place, says, paper, TEXTS, checks, why, weights="")


def kl(label: str, ways: tuple[str, str], others: tuple[str, str] | None = None) -> Check:
    return Check(label, ROWS, partial(nearer, ways, others), above=0.0, form=".4f")


def accuracy(
    number: str, place: str, says: str, paper: str, *checks: Check, why: str = "", quick: str = ""
) -> Claim:
    return Claim(number, place, says, paper, FIDELITY, checks, why, quick=quick)


def model(
    number: str, place: str, says: str, paper: str, label: str, read: Reader, **bounds: Any
) -> Claim:
    """A claim that the cost model decides."""
    check = Check(label, "spava_model", read, **bounds)
    why = "by the cost model, whose seconds are 23 to 51% too low for two and four processes"
    quick = "python benchmarks/spava.py model --repeats 1 --processes 2 --checked 1025"
    return Claim(
        number,
        place,
        says,
        paper,
        MODEL,
        (check,),
        why,
        quick=f"{quick} --out OUT/spava_model" if number == "1b" else "",
    )


def work(
    number: str,
    place: str,
    says: str,
    paper: str,
    label: str,
    read: Reader,
    form: str = ".2f",
    why: str = "",
    **bounds: Any,
) -> Claim:
    """A claim that counted FLOPs and elements decide."""
    check = Check(label, "spava_counts", read, form=form, **bounds)
    quick = "python benchmarks/spava.py counts --contexts 1025 4097 --out OUT/spava_counts"
    return Claim(number, place, says, paper, COUNTS, (check,), why, quick=quick, weights="")


def optimization(number: str, says: str, paper: str, check: Check, why: str) -> Claim:
    """A claim about seconds with and without an optimization."""
    command = "python benchmarks/spava.py optimizations"
    quick = f"{command} --repeats 4 --out OUT/spava_optimizations" if number == "5b" else ""
    command += f" {OUT}/spava_optimizations"
    return Claim(number, "Table 4", says, paper, command, (check,), why, quick=quick)


def cannot(number: str, place: str, says: str, paper: str, why: str) -> Claim:
    return Claim(number, place, says, paper, why=why)


CLAIMS = (
    cannot(
        "1a",
        "Fig. 7",
        "At 1440p on eight GPUs the first token comes 12.72 times as early, and 1.70 times as "
        "early as by ring attention.",
        "12.72, 1.70; APB 1.18",
        "no eight GPUs; on two CPU cores two processes are 3.42 times as fast as one full prefill "
        "at 16,001 visual tokens (from the record, de12eeb, 2026-11-23, two repeats)",
    ),
    model(
        "1b",
        "Table 5",
        "The gain over the ring grows with length.",
        "1.10 to 1.21 at H = 8",
        "growth of the gain to the next length, least, 8 hosts",
        gain_grows,
        above=1.0,
    ),
    model(
        "1c",
        "Table 5",
        "More hosts help SPAVA more than the ring.",
        "3.52 beside 3.17 from 2 to 8 hosts",
        "gain of SPAVA over that of the ring, least of three lengths",
        scaling,
        above=1.0,
    ),
    accuracy(
        "2a",
        "Table 1",
        "On questions about order SPAVA keeps most of the full prefill's right answers, and Star "
        "attention few.",
        "53.8, 48.9, 13.3: -4.9 and -40.5 points; SPAVA at most -10",
        right("SPAVA - full", "ordering", "spava", "full", above=-0.1),
        right("Star - SPAVA", "ordering", "star", "spava", below=0.0),
        quick=QUICK,
    ),
    accuracy(
        "2b",
        "Table 1",
        "XAttention and SpargeAttn lose more there than SPAVA.",
        "42.7 and 20.0 beside 48.9",
        right("XAttention - SPAVA", "ordering", "xattention", "spava", below=0.0),
        right("SpargeAttn - SPAVA", "ordering", "spargeattn", "spava", below=0.0),
        why="at this length both masks keep 88 to 90% of the FLOPs",
    ),
    accuracy(
        "2c",
        "Table 1",
        "Retrieval hardly moves, but for SlowFast.",
        "74.2, 73.1; SlowFast 43.6; SPAVA at most -10",
        right("SPAVA - full", "retrieval", "spava", "full", above=-0.1),
        right("SlowFast - full", "retrieval", "slowfast", "full", below=0.0),
        why="texts that one frame shows; those of several frames are found by all prefills",
    ),
    cannot(
        "2d",
        "Table 1",
        "APB is below SPAVA.",
        "43.9 beside 50.7",
        "its retaining heads are trained, and there are none for the embedded target",
    ),
    cannot(
        "3a",
        "Table 2",
        "Nothing is lost on real videos.",
        "53.5 to 54.3 (LongVideoBench)",
        "the embedded target knows the clips of its world only",
    ),
    accuracy(
        "3b",
        "Table 6",
        "Accuracy is steady over the number of hosts.",
        "53.2, 53.6, 54.4, 54.3; at most -10",
        right("4 blocks - full, ordering", "ordering", "spava, 4 blocks", "full", above=-0.1),
        right("64 blocks - full, ordering", "ordering", "spava, 64 blocks", "full", above=-0.1),
    ),
    accuracy(
        "4a",
        "Table 3",
        "Without passing keys SPAVA counts worse.",
        "17.3 beside 30.0",
        right("nothing passed - SPAVA", "counting", "nothing passed", "spava", below=0.0),
    ),
    accuracy(
        "4b",
        "Table 3",
        "Without the anchor SPAVA counts worse.",
        "25.3 beside 30.0",
        right("no anchor - SPAVA", "counting", "no anchor", "spava", below=0.0),
    ),
    accuracy(
        "4c",
        "not in the paper",
        "Without passing keys SPAVA answers questions about order worse.",
        "",
        right("nothing passed - SPAVA", "ordering", "nothing passed", "spava", below=0.0),
    ),
    cannot(
        "5a",
        "Table 4",
        "Overlap of messages with computing gives at most 1%.",
        "at most 1%",
        "with one process a core, the core that copies a message is the one that computes",
    ),
    optimization(
        "5b",
        "The fused pass of context and query gives 4 to 11%.",
        "4 to 11%",
        Check(
            "two passes over one, 1,025 visual tokens",
            "spava_optimizations",
            partial(unfused, 64),
            1.04,
            1.11,
            ".3f",
        ),
        "the processor's time of one process; with more visual tokens the query's share shrinks",
    ),
    work(
        "5c",
        "Table 4",
        "The zigzag order of blocks gives 2 to 8%.",
        "2 to 8% of the seconds",
        "attention of the busiest of 8 hosts without over with it, least from 4,097 tokens on",
        partial(counted, min, without_zigzag, 8, 4000),
        above=1.02,
        why="a part of the seconds only, which need eight hosts",
    ),
    optimization(
        "5d",
        "Frames encoded in parallel give a factor of 4, half of the number of hosts.",
        "about 4 with eight hosts",
        Check(
            "vision encoder, one process over two, 256 frames",
            "spava_optimizations",
            partial(encoded, 256),
            above=1.5,
        ),
        "the processor's time of rank 0, which deals pixels and receives features; each of two "
        "processes encodes 128 of 256 frames. On the clock it was 1.14, beside other programs",
    ),
    accuracy(
        "6a",
        "Table 8",
        "More passing keys help.",
        "12.7, 34.0, 37.3, 40.0",
        kl("KL, nothing - n/32", ("nothing passed", "passing n/32")),
        kl("KL, n/256 - n/32", ("passing n/256", "passing n/32")),
    ),
    accuracy(
        "6b",
        "Table 9",
        "The anchor's length matters less.",
        "36.7, 38.0, 37.3",
        kl(
            "KL, nothing passed - n/32, less no anchor - n/16",
            ("nothing passed", "passing n/32"),
            ("no anchor", "anchor n/16"),
        ),
    ),
    model(
        "7",
        "Table 7",
        "A slower link costs SPAVA less than the ring.",
        "0.75% beside 3.44%",
        "loss of SPAVA - loss of the ring, 8 hosts, 4,097 tokens",
        slow_link,
        below=0.0,
    ),
    work(
        "8a",
        "Eq. 7",
        "Every host has the same work.",
        "equal; within 5%",
        "spread of FLOPs, greatest from 4,097 tokens on",
        partial(counted, max, lambda row: row["spread"], None, 4000),
        ".1%",
        below=0.05,
    ),
    Claim(
        "8b",
        "Fig. 8",
        "The answer's tokens are passed on more often than others.",
        "a picture",
        f"python benchmarks/spava.py selection {OUT}/spava_selection",
        (
            Check(
                "times as often, 34 needles",
                "spava_selection",
                partial(chosen, "query"),
                above=1.0,
            ),
        ),
        quick="python benchmarks/spava.py selection --prompts 8 --out OUT/spava_selection",
    ),
    accuracy(
        "9a",
        "Table 10",
        "FastV is below SPAVA.",
        "36.3 beside 43.3",
        right("FastV - SPAVA, ordering", "ordering", "fastv", "spava", below=0.0),
    ),
    texts(
        "9b",
        "Table 11",
        "On texts (RULER) SPAVA is level with full attention.",
        "80.70 beside 80.00; APB 78.29",
        "SPAVA",
        "spava",
    ),
    accuracy(
        "R",
        "not in the paper",
        "Random passing keys do as well as those that the query chooses.",
        "at most 10 points below",
        right("random - query, ordering", "ordering", "random", "spava", above=-0.1),
        right("random - query, counting", "counting", "random", "spava", above=-0.1),
    ),
    texts(
        "R2",
        "not in the paper",
        "On texts random passing keys are level with full attention.",
        "as SPAVA in row 9b",
        "random keys",
        "spava, random keys",
    ),
    work(
        "M1",
        "Eq. 7",
        "With the terms that eq. 7 leaves out (blocks on the anchor, the query) it meets the "
        "count of FLOPs.",
        "within 1%",
        "error, greatest from 4,097 tokens on",
        partial(counted, max, lambda row: row["error"], None, 4000),
        ".1%",
        below=0.01,
    ),
    work(
        "M2",
        "Section 3",
        "At 64 hosts a host receives as many keys as in the ring.",
        "equal",
        "received, over the ring, least of three lengths",
        partial(counted, min, lambda row: row["received"] / row["received by the ring"], 64, 1000),
        above=1.0,
    ),
    work(
        "M3",
        "Eq. 7",
        "At 64 hosts the ring needs fewer FLOPs.",
        "fewer",
        "SPAVA over the ring, least of three lengths",
        partial(counted, min, lambda row: row["with omitted terms"] / row["ring"], 64, 1000),
        above=1.0,
    ),
    work(
        "M4",
        "Eq. 7",
        "The work of a host on passing keys is about n² d / 32, whatever the number of hosts.",
        "0.75 to 1 of it",
        "least over 2 to 64 hosts, from 4,097 tokens on",
        partial(counted, min, passing_work, None, 4000),
        above=0.7,
        below=1.05,
    ),
)

PAPER = Paper(
    "SPAVA",
    "draftlens/prefill/spava",
    "draftlens/embedded/target/model.safetensors",
    CLAIMS,
    "Answers of the embedded target at 1,025 visual tokens; differences are points of right "
    "answers to the same prompts: 105 about order, 206 to count, 35 to retrieve.",
)
