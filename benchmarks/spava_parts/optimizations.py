"""Two optimizations of the system, each beside the same without it (table 4): one pass over context
and query in place of two, and frames encoded by two processes in place of one."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from shared import (
    Benchmark,
    Report,
    caption_sample,
    encoded_prompt,
    interleaved_seconds,
    rotated,
    sample_inputs,
    table,
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


def measure(args: argparse.Namespace) -> Report:
    """Passes and encoders by number of frames."""
    engine = load(device="cpu", method="plain", calibrate=False)
    target = engine.target.backbone
    fused = {
        str(frames): passes(target, prompt_of(engine, frames), args.repeats)
        for frames in args.frames
    }
    vision = {str(frames): encoders(engine, frames, args) for frames in args.frames}
    return {"fused": fused, "vision": vision}


def page(report: Report) -> list[str]:
    """Medians of both optimizations."""

    def medians_of(times: Mapping[str, list[float]], first: str, second: str) -> dict[str, float]:
        one, two = median(times[first]), median(times[second])
        return {"one": one, "two": two, "quotient": two / one, "gain": one / two}

    fused = [
        {"frames": frames, **found, **medians_of(found["seconds"], "one", "two")}
        for frames, found in report["fused"].items()
    ]
    vision = []
    for frames, found in report["vision"].items():
        row: dict[str, Any] = {"frames": frames, "units": " and ".join(map(str, found["units"]))}
        for clock in ("processor", "wall"):
            times = {name: found["seconds"][name][clock] for name in ("1", "2")}
            row[clock] = medians_of(times, "1", "2")
        vision.append(row)
    passes_columns = {
        "frames": "{frames}",
        "context": "{context}",
        "query": "{query}",
        "one": "{one:.3f}",
        "two": "{two:.3f}",
        "two over one": "{quotient:.3f}",
    }
    vision_columns = {"frames": "{frames}", "frames of each": "{units}"}
    for clock in ("processor", "wall"):
        for title, figure in (("1", "one:.3f"), ("2", "two:.3f"), ("gain", "gain:.2f")):
            name, _, form = figure.partition(":")
            vision_columns[f"{clock}, {title}"] = f"{{{clock}[{name}]:{form}}}"
    return [
        "## One pass over context and query, or two",
        "Processor seconds, medians.",
        table(fused, passes_columns),
        "## Frames encoded by one process, or two",
        "Medians; `processor` is that of rank 0, which others do not lengthen.",
        table(vision, vision_columns),
    ]


BENCHMARK = Benchmark(
    "spava_optimizations",
    __doc__,
    "Optimizations of SPAVA",
    measure,
    page,
    {"--repeats": 12, "--frames": [64, 256]},
)
