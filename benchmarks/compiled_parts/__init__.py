"""Parts of `benchmarks/compiled.py`, and the switch that they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER


@contextmanager
def by_modules(backbones: Sequence[Backbone]) -> Iterator[None]:
    """Let models compute their forwards by their modules while the context lasts."""
    before = [backbone.passes for backbone in backbones]
    for backbone in backbones:
        backbone.passes = EAGER
    try:
        yield
    finally:
        for backbone, passes in zip(backbones, before, strict=True):
            backbone.passes = passes
