"""A cost model of ring, star and spava: measured rates of one process, compared with two and four
processes, and tabulated to 64 hosts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from draftlens_lab.measure.tables import markdown_table
from shared import argument_parser, configure, environment, environment_line, save

from draftlens import load
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import FullPrefill, Prefill
from draftlens.prefill.spava.config import SpavaPrefill
from draftlens.prefill.spava.hosts import ALONE, Hosts, set_hosts
from draftlens.prefill.spava.processes.launch import start
from draftlens.prefill.spava.ring import RingPrefill
from spava_parts import loads
from spava_parts.loads import LOADERS, Load, Loader, Shape
from spava_parts.rates import (
    Rates,
    Seconds,
    beside,
    exchange_rates,
    fitted,
    prompt_of,
    seconds_of,
    shape_of,
    two_ranks,
)

PREDICTION = """\
Written before the first run. On this machine a host reads 20 to 40 GFLOPs a second, an exchange
costs 0.1 ms and 1 GB/s. At 16,001 tokens the ring gains until 64 hosts; spava is the faster one up
to 32, where the copies of the anchor make half of its linear work. Links ten times slower cost the
ring more than spava at every number of hosts. The model meets two processes to within 10% at 4,097
tokens, and is 20% too low for four, which share two cores with other programs."""

HOSTS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (4097, 16001, 65537)
SLOW = 10
"""Factor of a slow link."""

KNEE = 1.5
"""Twice the hosts beyond the knee gain less than this factor."""

FITTED = {257: 16, 1025: 64, 4097: 256}
"""Frames by visual tokens of the prompts that one process reads."""

BLOCKS = (4, 16, 64)

VARIANTS: Mapping[str, Loader] = {
    "defaults": loads.spava(),
    "l_a = 0": loads.spava(anchor=0),
    "l_a = n/256": loads.spava(anchor="n/256"),
    "l_a = n/16": loads.spava(anchor="n/16"),
    "l_p = n/512": loads.spava(passing="n/512"),
    "l_p = n/32": loads.spava(passing="n/32"),
}
"""SPAVA with other lengths."""

CHECKED: Mapping[str, tuple[Prefill, Loader]] = {
    "ring": (RingPrefill(), loads.ring),
    "spava": (SpavaPrefill(), loads.spava(blocks=16)),
}
"""Prefills that are compared with the model, by name."""

MESSAGES = {"ring": "pass_on", "star": "all_gather", "spava": "all_gather"}
"""Kind of exchange inside the layers."""


def main() -> None:
    """Measure rates, check the model, tabulate it, and write the report."""
    args = parse()
    configure(args.threads)
    engine = load(device="cpu", method="plain", calibrate=False)
    prompts = {length: prompt_of(engine, frames) for length, frames in FITTED.items()}
    rates, fit = rates_of_one(engine.target.backbone, prompts, args)
    with two_ranks(engine.target.backbone) as pair:
        rates = with_exchanges(rates, engine.target.backbone, pair, prompts[1025], args)
    checks: list[dict[str, Any]] = []
    for processes in args.processes:
        hosts = start(engine.target.backbone, processes, args.threads)
        set_hosts(engine.target.backbone, ALONE)
        checks += checked(rates, engine.target.backbone, hosts, prompts, args)
        hosts.end()
    shape = shape_of(engine.target.backbone, prompts[4097])
    tables = [tabulated(rates, replace(shape, context=context)) for context in CONTEXTS]
    report = {
        "environment": environment(args),
        "prediction": PREDICTION,
        "rates": asdict(rates),
        "fit": fit,
        "checks": checks,
        "tables": tables,
    }
    save(args.out, report, page(report))
    print(page(report))


def rates_of_one(
    target: Backbone, prompts: Mapping[int, Prompt], args: argparse.Namespace
) -> tuple[Rates, list[dict[str, Any]]]:
    """Compute rates from prefills by one process, and how well they meet these."""
    cases: dict[str, tuple[Prompt, Prefill]] = {}
    work: dict[str, Load] = {}
    for length, prompt in prompts.items():
        shape = shape_of(target, prompt)
        cases[f"full, {length}"] = (prompt, FullPrefill())
        work[f"full, {length}"] = loads.full(shape, 1)
        for blocks in BLOCKS if length > min(FITTED) else ():
            name = f"spava, {blocks} blocks, {length}"
            cases[name] = (prompt, SpavaPrefill(blocks=blocks))
            work[name] = loads.spava(blocks=blocks)(shape, 1)
    seconds = seconds_of(target, cases, ALONE, args.repeats)
    found = fitted([work[name] for name in seconds], [one.processor for one in seconds.values()])
    token, pair, call, merge, copy = found.tolist()
    rates = Rates(token, pair, call, merge, copy, alpha={}, beta={}, deal=0.0, beside=1.0)
    fit = []
    for name, measured in seconds.items():
        modeled = rates.computing(work[name])
        fit.append(compared(name, 1, measured, modeled, modeled))
    return rates, fit


def with_exchanges(
    rates: Rates, target: Backbone, hosts: Hosts, prompt: Prompt, args: argparse.Namespace
) -> Rates:
    """The rates with those of exchanges between two processes."""
    alpha, beta = exchange_rates(hosts)
    slower, deal = beside(target, prompt, hosts, args.repeats)
    return replace(rates, alpha=alpha, beta=beta, deal=deal, beside=slower)


def checked(
    rates: Rates,
    target: Backbone,
    hosts: Hosts,
    prompts: Mapping[int, Prompt],
    args: argparse.Namespace,
) -> list[dict[str, Any]]:
    """The model beside prefills by several processes of this machine."""
    cases: dict[str, tuple[Prompt, Prefill]] = {}
    modeled: dict[str, tuple[float, float]] = {}
    for length in args.checked:
        shape = shape_of(target, prompts[length])
        for name, (prefill, loader) in CHECKED.items():
            cases[f"{name}, {length}"] = (prompts[length], prefill)
            mine = loader(shape, hosts.size)
            modeled[f"{name}, {length}"] = on_this_machine(
                rates, mine, MESSAGES[name], shape.length, hosts.size
            )
    seconds = seconds_of(target, cases, hosts, args.repeats)
    return [
        compared(name, hosts.size, measured, *modeled[name]) for name, measured in seconds.items()
    ]


def parse() -> argparse.Namespace:
    """Options of the part."""
    parser = argument_parser(__doc__, "benchmarks/results/spava_model", repeats=3)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--checked", type=int, nargs="+", default=[1025, 4097])
    return parser.parse_args()


def compared(
    name: str, processes: int, measured: Seconds, processor: float, wall: float
) -> dict[str, Any]:
    """One measurement beside the model's seconds of the processor of rank 0, and of the clock."""
    return {
        "case": name,
        "processes": processes,
        "processor": measured.processor,
        "modeled processor": processor,
        "error": processor / measured.processor - 1,
        "wall": measured.wall,
        "modeled wall": wall,
        "error of the wall": wall / measured.wall - 1,
    }


def on_this_machine(
    rates: Rates, mine: Load, kind: str, num_tokens: int, processes: int
) -> tuple[float, float]:
    """Seconds of a prefill by processes of this machine, of the processor of rank 0 and of the
    clock, with everything that belongs to it: dealing tokens, exchanges, and collecting keys and
    values on rank 0.

    Exchanges do not overlap with computing here, since the cores that copy are those that compute,
    and processes beyond the number of cores take turns.
    """
    collecting = mine.collected * rates.beta["gather"]
    dealing = rates.deal * num_tokens * (processes - 1) / processes
    moving = rates.exchanging(mine, kind) + collecting + dealing
    computing = rates.beside * rates.computing(mine)
    turns = max(1.0, processes / (os.cpu_count() or 1))
    return computing + moving, turns * computing + moving


def by_hosts(rates: Rates, mine: Load, kind: str, slower: float = 1.0) -> float:
    """Seconds of the passes of hosts that have a machine each: exchanges overlap with attention,
    and keys and values stay where they are."""
    attention = rates.computing(replace(mine, tokens=0))
    traveling = rates.exchanging(mine, kind, slower)
    return rates.token * mine.tokens + max(attention, traveling)


def tabulated(rates: Rates, shape: Shape) -> dict[str, Any]:
    """Seconds of the prefill by number of hosts, on the measured link and on a slow one."""
    rows = []
    for hosts in HOSTS:
        row: dict[str, Any] = {"hosts": hosts}
        for name, loader in LOADERS.items():
            mine = loader(shape, hosts)
            row[name] = by_hosts(rates, mine, MESSAGES[name])
            row[f"{name}, slow link"] = by_hosts(rates, mine, MESSAGES[name], SLOW)
        rows.append(row)
    knees = {name: knee([row[name] for row in rows]) for name in LOADERS}
    variants = {}
    for name, loader in VARIANTS.items():
        seconds = [by_hosts(rates, loader(shape, hosts), "all_gather") for hosts in HOSTS]
        wins = [row["hosts"] for row, ours in zip(rows, seconds, strict=True) if row["ring"] < ours]
        variants[name] = {
            "knee": knee(seconds),
            "seconds": seconds,
            "ring wins at": [hosts for hosts in wins if hosts > 1],
        }
    return {"context": shape.context, "rows": rows, "knees": knees, "variants": variants}


def knee(seconds: Sequence[float]) -> int:
    """The number of hosts beyond which twice as many gain less than `KNEE`."""
    for place in range(len(HOSTS) - 1):
        if seconds[place] / seconds[place + 1] < KNEE:
            return HOSTS[place]
    return HOSTS[-1]


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = ["# A cost model of prefills by several hosts", ""]
    lines += [environment_line(report["environment"]), "", "## Prediction", ""]
    lines += [report["prediction"], "", "## Rates", "", rates_in_words(report["rates"]), ""]
    columns = ["case", "processes", "processor", "modeled", "error", "clock", "modeled", "error"]
    for title, key in (("What was fitted", "fit"), ("What was not", "checks")):
        rows = [words_of(row) for row in report[key]]
        lines += [f"## {title}", "", *markdown_table(columns, rows), ""]
    for table in report["tables"]:
        lines += [*table_lines(table), ""]
    return "\n".join(lines)


def rates_in_words(rates: Mapping[str, Any]) -> str:
    """The rates as a sentence."""
    exchanges = []
    for kind, alpha in rates["alpha"].items():
        per_second = 4e-9 / rates["beta"][kind] if rates["beta"][kind] else float("inf")
        exchanges.append(f"{kind} {1e3 * alpha:.2f} ms and {per_second:.2f} GB/s")
    return (
        f"A token of the linear layers {1e6 * rates['token']:.1f} µs, a thousand pairs of a query "
        f"and a key {1e9 * rates['pair']:.1f} µs, a call of the kernel {1e6 * rates['call']:.1f} "
        f"µs, a merged token {1e6 * rates['merge']:.2f} µs, a copied key "
        f"{1e6 * rates['copy']:.2f} µs, a dealt token "
        f"{1e6 * rates['deal']:.2f} µs; exchanges: {', '.join(exchanges)}. A process is "
        f"{rates['beside']:.2f} times as slow while another one computes on the other core."
    )


def words_of(row: Mapping[str, Any]) -> list[str]:
    """A row of a comparison."""
    return [
        row["case"],
        str(row["processes"]),
        f"{row['processor']:.3f} s",
        f"{row['modeled processor']:.3f} s",
        f"{100 * row['error']:+.0f}%",
        f"{row['wall']:.3f} s",
        f"{row['modeled wall']:.3f} s",
        f"{100 * row['error of the wall']:+.0f}%",
    ]


def table_lines(table: Mapping[str, Any]) -> list[str]:
    """The figures of one length."""
    columns = [name for name in table["rows"][0] if name != "hosts"]
    rows = [[str(row["hosts"]), *(f"{row[name]:.3f}" for name in columns)] for row in table["rows"]]
    lines = [f"## Seconds at {table['context']:,} tokens", ""]
    lines += [*markdown_table(["hosts", *columns], rows), ""]
    knees = ", ".join(f"{name} {hosts}" for name, hosts in table["knees"].items())
    lines += [f"Beyond these numbers of hosts, twice as many gain less than {KNEE}: {knees}.", ""]
    variants = []
    for name, found in table["variants"].items():
        wins = ", ".join(str(hosts) for hosts in found["ring wins at"])
        seconds = [f"{one:.3f}" for one in found["seconds"]]
        variants.append([name, *seconds, str(found["knee"]), wins or "none"])
    columns = ["spava", *(str(hosts) for hosts in HOSTS), "knee", "the ring is faster at"]
    return [*lines, *markdown_table(columns, variants)]
