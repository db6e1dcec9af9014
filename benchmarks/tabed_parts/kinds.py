"""The kinds of prompts: the world's counterparts of the paper's sets."""

from __future__ import annotations

from draftlens_lab.bench.clips import Clip
from draftlens_lab.bench.options import BenchOptions
from draftlens_lab.bench.workloads import clips_of

from draftlens.engine import Engine
from draftlens.inputs import Inputs

KINDS = {
    "picture": "picture",
    "two pictures": "pairs",
    "five pictures": "story",
    "16 frames": "world:16",
    "64 frames": "world:64",
    "needle": "needle:64",
    "ordering": "ordering:16",
    "counting": "counting:16",
    "second turn, sees": "second",
    "second turn, said": "recall",
    "second turn, aside": "aside",
    "text only": "talk",
}
"""Workloads by kind. In the paper: one image, two images, PororoSV and VIST, then video, which it
leaves out, then second turns and text."""


def prompts(engine: Engine, kind: str, number: int) -> list[Clip]:
    """Held-out prompts of a kind."""
    options = BenchOptions(workload=KINDS[kind], clips=number)
    return clips_of(options, engine.target.processor)


def read(engine: Engine, clip: Clip) -> Inputs:
    """The processors' output for a prompt."""
    return engine.process([clip.prepare()()])
