"""Artificial traces with known cells."""

from __future__ import annotations

import numpy as np
import torch
from draftlens_lab.explain.pictures import Picture
from draftlens_lab.explain.tracing import Piece, PlainRun, Round, Trace
from draftlens_lab.explain.views import VisualTokens, build_views
from PIL import Image

from draftlens.core.stats import Stats
from draftlens.methods.base import to_dict
from draftlens.methods.specvlm.config import SpecVLM
from draftlens.pruning import Choice, Visual

GREY = Image.new("RGB", (120, 90), (180, 180, 180))


def choice(
    frames: int = 4,
    rows: int = 3,
    columns: int = 4,
    kept: tuple[int, ...] = (0, 17),
    spare: int = 0,
) -> Choice:
    """A grid of cells with scores 1, 2, 3, ...; `spare` further tokens share the last cell."""
    grid = torch.cartesian_prod(torch.arange(frames), torch.arange(rows), torch.arange(columns))
    cells = torch.cat([grid, grid[-1:].expand(spare, -1)])
    scores = torch.arange(1.0, len(cells) + 1)
    return Choice(
        torch.arange(5, 5 + len(cells)),
        Visual(cells, torch.zeros(len(cells), 2), scores),
        torch.tensor(kept),
    )


def visual_tokens(
    frames: int = 4, image: Image.Image | None = GREY, when: bool = True, **options
) -> VisualTokens:
    """The visual tokens of a `choice` with these options, on grey pictures."""
    selection = choice(frames, **options)
    pictures = [
        Picture(f"frame {t + 1}", f"{t / 2:.1f} s" if when else "", image) for t in range(frames)
    ]
    return build_views(selection, pictures)


def trace_of(
    visual: VisualTokens,
    title: str = "clip.mp4",
    prompt: str = "Describe the video.",
    notes=(),
    timelines=None,
) -> Trace:
    """A trace of three rounds and a short answer."""
    rounds = (Round(25, 3, 4), Round(25, 0, 1), Round(25, 2, 2))
    pieces = (
        Piece("A", False, 0),
        Piece(" red", True, 1),
        Piece(" ball", False, 1),
        Piece(".", True, 3),
    )
    stats = Stats(emitted=8, first=1, passes=3, drafted=75, accepted=5, e2e=1.0, ttft=0.2)
    stats.phases["verify"] = 0.5
    return Trace(
        title,
        prompt,
        to_dict(SpecVLM()),
        pieces,
        rounds,
        stats,
        PlainRun(2.0, 1.6, True),
        {"target": "a", "draft": "b"},
        notes,
        timelines or {},
        visual=visual,
    )


def brightness(image: Image.Image) -> np.ndarray:
    """Grey values ``[h, w]``."""
    return np.asarray(image.convert("L"), np.float32)
