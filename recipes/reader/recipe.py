"""The recipe of the reader: all numbers that training depends on."""

from dataclasses import dataclass
from pathlib import Path

from recipes.pair.loop import Phase
from recipes.reader.data import Bucket
from recipes.reader.model import DEEP, SHALLOW, Shape

WEIGHT_SEED = 0
DATA_SEED = 5
RUNS = Path("runs/reader")  # checkpoints, relative to the working directory
EMBEDDED = Path(__file__).resolve().parents[2] / "lab" / "draftlens_lab" / "reader"
KEPT = Path("runs/reader/kept")

LINES = (
    Bucket(160, 32, 36, share=0.6, invented=0.7),
    Bucket(256, 32, 24, share=1.0, invented=0.7),
    Bucket(192, 64, 20, share=1.0, invented=0.6),
)
PARAGRAPHS = (
    Bucket(256, 32, 26, share=0.5, invented=0.7),
    Bucket(192, 64, 20, share=0.7, invented=0.6),
    Bucket(320, 64, 13, share=1.0, invented=0.6),
    Bucket(256, 112, 10, share=1.0),
    Bucket(384, 96, 8, share=1.0),
)
PAGES = (
    Bucket(256, 32, 26, share=0.4, invented=0.7),
    Bucket(320, 64, 13, share=0.7, invented=0.6),
    Bucket(384, 96, 8, share=0.9),
    Bucket(320, 192, 5, share=1.2),
    Bucket(320, 320, 3, columns=1, share=1.2),
    Bucket(384, 448, 2, columns=1, share=0.9, invented=0.4),
    Bucket(416, 592, 1, columns=1, share=0.5, invented=0.4),
    Bucket(416, 400, 2, columns=2, share=0.5, invented=0.4),
    Bucket(416, 592, 1, columns=2, share=0.3, invented=0.4),
)


# A batch of a few pages shows few fonts, so each block has one of its own.
READING = (
    Bucket(256, 32, 26, share=0.5, invented=0.7),
    Bucket(320, 64, 13, share=1.0, invented=0.6, mixed=True),
    Bucket(384, 96, 8, share=1.0, mixed=True),
    Bucket(320, 192, 5, share=1.0, mixed=True),
    Bucket(320, 320, 3, columns=1, share=0.8, mixed=True),
    Bucket(384, 448, 2, columns=1, share=0.4, invented=0.4, mixed=True),
    Bucket(416, 592, 1, columns=1, share=0.15, invented=0.4, mixed=True),
    Bucket(416, 400, 2, columns=2, share=0.25, invented=0.4, mixed=True),
)


# More pages, longer ones and scans.
FURTHER = (
    Bucket(256, 32, 26, share=0.3, invented=0.7, scans=0.1),
    Bucket(320, 64, 13, share=0.7, invented=0.6, scans=0.1, mixed=True),
    Bucket(384, 96, 8, share=0.8, scans=0.1, mixed=True),
    Bucket(320, 192, 5, share=1.0, scans=0.1, mixed=True),
    Bucket(320, 320, 3, columns=1, share=1.0, scans=0.1, mixed=True),
    Bucket(384, 448, 2, columns=1, share=0.8, invented=0.4, scans=0.1, mixed=True),
    Bucket(416, 592, 2, columns=1, share=0.6, invented=0.4, scans=0.1, mixed=True),
    Bucket(416, 400, 2, columns=2, share=0.5, invented=0.4, scans=0.1, mixed=True),
    Bucket(416, 592, 2, columns=2, share=0.4, invented=0.4, scans=0.1, mixed=True),
)


@dataclass(frozen=True)
class Stage:
    """A phase with its sizes and its data.

    Args:
        phase: length and speed.
        shape: sizes of the reader.
        buckets: sizes of the pictures.
        pointing: the layers in which heads learn to point.
    """

    phase: Phase
    shape: Shape
    buckets: tuple[Bucket, ...]
    pointing: tuple[int, ...]


SHALLOW_POINTING = (2, 3)
DEEP_POINTING = (8, 12)  # the first copies of those layers

STAGES = (
    Stage(
        Phase("lines", 700, 3e-3, warmup=60, decay=0.03, save_every=100, horizon=20_000),
        SHALLOW,
        LINES,
        SHALLOW_POINTING,
    ),
    Stage(
        Phase("paragraphs", 300, 3e-3, warmup=20, decay=0.03, save_every=100, horizon=20_000),
        SHALLOW,
        PARAGRAPHS,
        SHALLOW_POINTING,
    ),
    Stage(
        Phase("pages", 100, 3e-3, warmup=20, decay=0.03, save_every=100, horizon=1000),
        SHALLOW,
        PAGES,
        SHALLOW_POINTING,
    ),
    Stage(
        Phase("reading", 560, 2.6e-3, warmup=10, decay=0.03, save_every=40),
        SHALLOW,
        READING,
        SHALLOW_POINTING,
    ),
    # The stages from here on have not been run yet.
    Stage(
        Phase("further", 6000, 2.4e-3, warmup=60, decay=0.03, save_every=100),
        SHALLOW,
        FURTHER,
        SHALLOW_POINTING,
    ),
    Stage(
        Phase("deep", 1000, 5e-4, warmup=40, decay=0.03, save_every=50),
        DEEP,
        FURTHER,
        DEEP_POINTING,
    ),
)
