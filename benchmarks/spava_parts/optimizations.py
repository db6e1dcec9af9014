"""Two optimizations of the system, each beside the same without it (table 4): one pass over context
and query in place of two, and frames encoded by two processes in place of one."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from draftlens_lab.measure.tables import markdown_table
from shared import (
    argument_parser,
    caption_sample,
    configure,
    encoded_prompt,
    environment,
    environment_line,
    interleaved_seconds,
    rotated,
    sample_inputs,
    save,
)
from torch import Tensor

from draftlens import load
from draftlens.engine import Engine
from draftlens.models.adapter import Backbone
from draftlens.models.media_features import encode, encoder_arguments
from draftlens.models.pixel_split import pixel_shares
from draftlens.models.prompt import Prompt
from draftlens.prefill.spava.blocks import Blocks, near_equal_parts
from draftlens.prefill.spava.config import SpavaPrefill
from draftlens.prefill.spava.flops import Work
from draftlens.prefill.spava.lse_merge import Part
from draftlens.prefill.spava.one_process_attention import BlockAttention
from draftlens.prefill.spava.processes.launch import start
from draftlens.prefill.spava.vision import encode_by_ranks

PREDICTION = """\
Written before the first run. A pass over the query alone reads all weights for some twenty tokens,
which a CPU does at a third of its rate for a thousand: two passes take 1.04 times one pass at 1,025
visual tokens and 1.01 at 4,097. Two processes encode half of the frames each, and rank 0 also deals
pixels and receives features: 1.9."""

PROCESSES = 2


class WithoutContext(Work):
    """Attention of the pass over the context alone: the query, which is there to choose passing
    keys, sees the anchor in place of the whole context."""

    def __init__(self, blocks: Blocks) -> None:
        super().__init__()
        self._blocks = blocks

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, causal: bool = False
    ) -> Part:
        if key.shape[1] == self._blocks.context:
            anchor = slice(self._blocks.anchor)
            key, value = key[:, anchor], value[:, anchor]
        return super().attend(query, key, value, scaling=scaling, causal=causal)


def main() -> None:
    """Measure, and write the report."""
    args = parse()
    configure(args.threads)
    engine = load(device="cpu", method="plain", calibrate=False)
    fused = {
        str(frames): passes(engine.target.backbone, prompt_of(engine, frames), args.repeats)
        for frames in args.frames
    }
    vision = {str(frames): encoders(engine, frames, args) for frames in args.frames}
    report = {
        "environment": environment(args),
        "prediction": PREDICTION,
        "fused": fused,
        "vision": vision,
    }
    save(args.out, report, page(report))
    print(page(report))


def parse() -> argparse.Namespace:
    """Options of the part."""
    parser = argument_parser(__doc__, "benchmarks/results/spava_optimizations", repeats=12)
    parser.add_argument("--frames", type=int, nargs="+", default=[64, 256])
    return parser.parse_args()


def prompt_of(engine: Engine, frames: int) -> Prompt:
    inputs = sample_inputs(engine, caption_sample(0), frames)
    return encoded_prompt(engine.target.backbone, inputs.target)


@torch.inference_mode()
def passes(backbone: Backbone, prompt: Prompt, repeats: int) -> dict[str, Any]:
    """Processor seconds of prefills by one pass and by two."""
    (row,) = SpavaPrefill().rows(prompt)
    blocks = row.blocks
    assert blocks is not None

    def one_pass(work: Work) -> Any:
        cache = backbone.new_cache(prompt, 1)
        attention = BlockAttention([blocks], prompt.lengths)
        attention.work = work
        with backbone.alone():
            backbone.prefill(prompt, cache, attention)
        return cache

    def two_passes() -> None:
        cache = one_pass(WithoutContext(blocks))
        cache.truncate([blocks.context])
        query = torch.arange(blocks.context, blocks.length)
        mask = torch.arange(blocks.length) <= query[:, None]
        tokens = torch.full((1, len(query)), 5)  # any tokens cost the same
        positions = prompt.positions(torch.arange(-len(query), 0)[None])
        backbone.forward(tokens, positions, cache, mask[None, None])

    cases = {"one": lambda: one_pass(Work()), "two": two_passes}
    seconds = interleaved_seconds(cases, repeats, time.process_time)
    query = blocks.length - blocks.context
    return {"context": blocks.context, "query": query, "seconds": seconds}


@torch.inference_mode()
def encoders(engine: Engine, frames: int, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the vision encoder by one process and by two, and the frames of each of two."""
    backbone = engine.target.backbone
    inputs = sample_inputs(engine, caption_sample(0), frames).target
    arguments = encoder_arguments(backbone.model, "video", inputs)
    shares = pixel_shares(backbone.model.config.model_type, "video", arguments)
    assert shares is not None
    hosts = start(backbone, PROCESSES, args.threads)
    cases: Mapping[str, Callable[[], object]] = {
        "1": lambda: encode(backbone.model, "video", arguments),
        "2": lambda: encode_by_ranks(backbone.model, hosts, inputs),
    }
    found: dict[str, Any] = {name: {"processor": [], "wall": []} for name in cases}
    for repeat in range(-1, args.repeats):
        for name, case in rotated(list(cases.items()), repeat + 1):
            began, spent = time.perf_counter(), time.process_time()
            case()
            if repeat >= 0:
                found[name]["processor"].append(time.process_time() - spent)
                found[name]["wall"].append(time.perf_counter() - began)
    return {"units": near_equal_parts(shares.units, PROCESSES), "seconds": found}


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = ["# Optimizations of SPAVA", "", environment_line(report["environment"]), ""]
    lines += ["## One pass over context and query, or two", "", "Processor seconds, medians.", ""]
    rows = []
    for frames, found in report["fused"].items():
        one, two = (median(found["seconds"][name]) for name in ("one", "two"))
        sizes = [str(found["context"]), str(found["query"])]
        rows.append([frames, *sizes, f"{one:.3f}", f"{two:.3f}", f"{two / one:.3f}"])
    columns = ["frames", "context", "query", "one", "two", "two over one"]
    lines += [*markdown_table(columns, rows), ""]
    lines += ["## Frames encoded by one process, or two", ""]
    lines += ["Medians; `processor` is that of rank 0, which others do not lengthen.", ""]
    rows = []
    for frames, found in report["vision"].items():
        seconds = found["seconds"]
        row = [frames, " and ".join(map(str, found["units"]))]
        for clock in ("processor", "wall"):
            one, two = (median(seconds[name][clock]) for name in ("1", "2"))
            row += [f"{one:.3f}", f"{two:.3f}", f"{one / two:.2f}"]
        rows.append(row)
    clocks = [f"{clock}, {name}" for clock in ("processor", "wall") for name in ("1", "2", "gain")]
    lines += [*markdown_table(["frames", "frames of each", *clocks], rows), ""]
    return "\n".join([*lines, "## Prediction", "", report["prediction"], ""])
