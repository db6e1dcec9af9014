"""A cost model of ring, star and spava: measured rates of one process, tabulated to 64 hosts."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
from shared import (
    argument_parser,
    backbones,
    configure,
    environment,
    environment_line,
    save,
)

from draftlens import load
from draftlens.core.hosts import Hosts
from draftlens.distributed import start
from draftlens.measure.tables import markdown_table
from draftlens.models.backbone import Backbone
from spava_parts.formulas import (
    Sizes,
    equation_7,
    omitted,
    received_by_ring,
    received_by_spava,
    ring,
)

PREDICTION = """\
Written before the first run. On this machine a host reads 20 to 40 GFLOPs a second, an exchange
costs 0.1 ms and 1 GB/s. At 16,001 tokens the ring gains until 64 hosts; spava is the faster one up
to 32, where the copies of the anchor make half of its linear work. Links ten times slower cost the
ring more than spava at every number of hosts."""

QUERY = 24
HOSTS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (4097, 16001, 65537)
BYTES = 4
"""Of an element in float32."""
SLOW = 10
"""Factor of a slow link."""


def main() -> None:
    """Measure rates, tabulate the model, and write the report."""
    args = parse()
    configure(args.threads)
    target, _ = backbones(load(device="cpu", method="plain", calibrate=False))
    rates = compute_rates(target, args.repeats)
    hosts = start(target, 2, args.threads)
    rates |= exchange_rates(hosts, args.repeats)
    tables = [tabulated(target, context, rates) for context in CONTEXTS]
    report = {
        "environment": environment(args),
        "prediction": PREDICTION,
        "rates": rates,
        "tables": tables,
    }
    save(args.out, report, page(report))
    print(page(report))


def parse() -> argparse.Namespace:
    """Options of the part."""
    parser = argument_parser(__doc__, "benchmarks/results/spava_model", repeats=9)
    return parser.parse_args()


def compute_rates(target: Backbone, repeats: int) -> dict[str, float]:
    """FLOPs a second of linear layers and of attention, from prompts of two lengths: their times
    are linear in two unknowns."""
    lengths = (512, 4096)
    seconds = [prefill_seconds(target, length, repeats) for length in lengths]
    linear = [linear_flops(target) * length for length in lengths]
    squares = [attention_flops(target, length) for length in lengths]
    determinant = linear[0] * squares[1] - linear[1] * squares[0]
    per_linear = (seconds[0] * squares[1] - seconds[1] * squares[0]) / determinant
    per_attention = (linear[0] * seconds[1] - linear[1] * seconds[0]) / determinant
    return {"linear": 1 / per_linear, "attention": 1 / per_attention}


def prefill_seconds(target: Backbone, length: int, repeats: int) -> float:
    """Median seconds of a prefill of words."""
    prompt = target.text_prompt(torch.randint(10, target.vocab_size - 10, (1, length)))
    times = []
    for _ in range(repeats):
        cache = target.new_cache(prompt, 1)
        began = time.perf_counter()
        target.prefill(prompt, cache)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def exchange_rates(hosts: Hosts, repeats: int) -> dict[str, float]:
    """Seconds of an exchange as such, and bytes a second, from a shard's way to rank 0."""
    small, large = (exchange_seconds(hosts, size, repeats) for size in (1 << 10, 1 << 22))
    return {"alpha": small, "beta": BYTES * ((1 << 22) - (1 << 10)) / max(large - small, 1e-9)}


def exchange_seconds(hosts: Hosts, size: int, repeats: int) -> float:
    """Median seconds in which rank 1 sends this many elements."""
    times = []
    for _ in range(repeats):
        with hosts.answering():
            hosts.give([Sending(size)])
            hosts.gather(torch.zeros(1), [1, 1]).wait()
            began = time.perf_counter()
            hosts.gather(torch.zeros(size), [size, size]).wait()
            times.append(time.perf_counter() - began)
    return statistics.median(times)


class Sending:
    """A job that sends one element and then a number of them.

    Args:
        size: the number.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def run(self, backbone: Backbone, hosts: Hosts) -> None:
        """See `Hosts.give`."""
        hosts.gather(torch.zeros(1)).wait()
        hosts.gather(torch.zeros(self.size)).wait()


def linear_flops(target: Backbone) -> float:
    """FLOPs a token of the linear layers of the language model: two for each weight."""
    weights = sum(weight.numel() for weight in target.decoder.parameters() if weight.ndim > 1)
    return 2.0 * (weights - target.embed.weight.numel())


def attention_flops(target: Backbone, length: int) -> float:
    """FLOPs of causal attention over a prompt, all layers."""
    sizes = sizes_of(target, length, 1)
    return ring(sizes) * target.text_config.num_hidden_layers


def sizes_of(target: Backbone, context: int, hosts: int) -> Sizes:
    """One prompt for the embedded target with the default options."""
    config = target.text_config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Sizes(
        context,
        QUERY,
        hosts,
        context // 64,
        context // 128,
        config.num_attention_heads,
        config.num_key_value_heads,
        width,
    )


def tabulated(target: Backbone, context: int, rates: Mapping[str, float]) -> dict[str, Any]:
    """Seconds of the prefill by number of hosts, on the measured link and on a slow one."""
    rows = []
    for hosts in HOSTS:
        sizes = sizes_of(target, context, hosts)
        row: dict[str, Any] = {"hosts": hosts}
        for name in ("ring", "star", "spava"):
            row[name] = seconds_of(target, name, sizes, rates, 1)
            row[f"{name}, slow link"] = seconds_of(target, name, sizes, rates, SLOW)
        rows.append(row)
    return {"context": context, "rows": rows}


def seconds_of(
    target: Backbone, name: str, sizes: Sizes, rates: Mapping[str, float], slower: float
) -> float:
    """Seconds of one host: its linear layers, its attention, and what it waits for. Exchanges are
    taken to overlap with attention where they are issued before it."""
    layers = target.text_config.num_hidden_layers
    shared = sizes.context / sizes.hosts + sizes.query
    if name == "ring":
        tokens, flops = shared, ring(sizes)
        received, messages = received_by_ring(sizes), sizes.hosts - 1
    elif name == "star":
        block = sizes.context / sizes.hosts
        tokens = shared + (block if sizes.hosts > 1 else 0)
        seen = 4 * sizes.query * 2 * block
        flops = sizes.model_width * (8 * block**2 + seen) / (1 if sizes.hosts > 1 else 4)
        received = sizes.heads * sizes.query * (sizes.width + 1) * (sizes.hosts - 1)
        messages = min(sizes.hosts - 1, 1)
    else:
        tokens = shared + sizes.anchor
        flops = equation_7(sizes) + omitted(sizes)
        received = max(received_by_spava(sizes), 0) if sizes.hosts > 1 else 0
        messages = 2 * min(sizes.hosts - 1, 1)
    computing = layers * flops / rates["attention"]
    traveling = slower * layers * (BYTES * received / rates["beta"] + messages * rates["alpha"])
    return tokens * linear_flops(target) / rates["linear"] + max(computing, traveling)


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    rates = report["rates"]
    lines = ["# A cost model of prefills by several hosts", ""]
    lines += [environment_line(report["environment"]), "", "## Prediction", ""]
    lines += [report["prediction"], "", "## Rates", ""]
    lines += [
        f"Linear layers {rates['linear'] / 1e9:.1f} GFLOP/s, attention "
        f"{rates['attention'] / 1e9:.1f} GFLOP/s, an exchange {1e3 * rates['alpha']:.2f} ms and "
        f"{rates['beta'] / 1e9:.2f} GB/s.",
        "",
    ]
    for table in report["tables"]:
        columns = [name for name in table["rows"][0] if name != "hosts"]
        rows = []
        for row in table["rows"]:
            rows.append([str(row["hosts"]), *(f"{row[name]:.3f}" for name in columns)])
        lines += [f"## Seconds at {table['context']:,} tokens", ""]
        lines += [*markdown_table(["hosts", *columns], rows), ""]
    return "\n".join(lines)
