"""A cost model of ring, star and spava: measured rates of one process, compared with two and four
processes, and tabulated to 64 hosts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from shared import Benchmark, Report, table

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
    "spava": (SpavaPrefill(select="query"), loads.spava(blocks=16)),
}
"""Prefills that are compared with the model, by name."""

MESSAGES = {"ring": "pass_on", "star": "all_gather", "spava": "all_gather"}
"""Kind of exchange inside the layers."""


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
            cases[name] = (prompt, SpavaPrefill(blocks=blocks, select="query"))
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


def measure(args: argparse.Namespace) -> Report:
    """Measure rates, check the model, and tabulate it."""
    engine = load(device="cpu", method="plain", calibrate=False)
    target = engine.target.backbone
    prompts = {length: prompt_of(engine, frames) for length, frames in FITTED.items()}
    rates, fit = rates_of_one(target, prompts, args)
    with two_ranks(target) as ranks:
        rates = with_exchanges(rates, target, ranks, prompts[1025], args)
    checks: list[dict[str, Any]] = []
    for processes in args.processes:
        hosts = start(target, processes, args.threads)
        set_hosts(target, ALONE)
        checks += checked(rates, target, hosts, prompts, args)
        hosts.end()
    shape = shape_of(target, prompts[4097])
    tables = [tabulated(rates, replace(shape, context=context)) for context in CONTEXTS]
    return {"rates": asdict(rates), "fit": fit, "checks": checks, "tables": tables}


def page(report: Report) -> list[str]:
    """Rates, checks, and seconds by number of hosts."""
    columns = {
        "case": "{case}",
        "processes": "{processes}",
        "processor": "{processor:.3f} s",
        "modeled": "{modeled processor:.3f} s",
        "error": "{error:+.0%}",
        "clock": "{wall:.3f} s",
        "modeled wall": "{modeled wall:.3f} s",
        "error of the wall": "{error of the wall:+.0%}",
    }
    return [
        "## Rates",
        rates_in_words(report["rates"]),
        "## What was fitted",
        table(report["fit"], columns),
        "## What was not",
        table(report["checks"], columns),
        *(block for each in report["tables"] for block in length_page(each)),
    ]


def length_page(found: Mapping[str, Any]) -> list[str]:
    """The figures of one length."""
    names = [name for name in found["rows"][0] if name != "hosts"]
    columns = {"hosts": "{hosts}", **{name: f"{{{name}:.3f}}" for name in names}}
    knees = ", ".join(f"{name} {hosts}" for name, hosts in found["knees"].items())
    variants = {
        "spava": "{name}",
        **{str(hosts): f"{{seconds[{place}]:.3f}}" for place, hosts in enumerate(HOSTS)},
        "knee": "{knee}",
        "the ring is faster at": "{wins}",
    }
    rows = [
        {**row, "name": name, "wins": ", ".join(map(str, row["ring wins at"])) or "none"}
        for name, row in found["variants"].items()
    ]
    return [
        f"## Seconds at {found['context']:,} tokens",
        table(found["rows"], columns),
        f"Beyond these numbers of hosts, twice as many gain less than {KNEE}: {knees}.",
        table(rows, variants),
    ]


BENCHMARK = Benchmark(
    "spava_model",
    __doc__,
    "A cost model of prefills by several hosts",
    measure,
    page,
    {"--repeats": 3, "--processes": [2, 4], "--checked": [1025, 4097]},
)
