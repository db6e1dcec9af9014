"""The colours of all pictures: those of `explain`, `bench` and `evaluate`."""

PAPER = "#ffffff"
INK = "#15171c"
MUTED = "#5d636e"
GRID = "#dedbd2"

BLUE = "#3f66b0"
YELLOW = "#ffb000"
TEAL = "#2f8f83"
PURPLE = "#8a6bbf"
MAGENTA = "#c2477f"
ORANGE = "#d9772b"
SKY = "#6f9bd1"
SLATE = "#8b909a"

SERIES = (BLUE, YELLOW, TEAL, PURPLE, MAGENTA, SKY, ORANGE)
"""Colours of lines and bars beside each other, in their order."""

PHASES = {
    "render": "#c9d3dc",
    "layout": "#b08a4a",
    "read": "#cdb06a",
    "regions": "#e3d3a8",
    "frames": "#9aa5b8",
    "vision": SKY,
    "target_prefill": "#34518c",
    "prune": MAGENTA,
    "caption": ORANGE,
    "draft_prefill": "#ffd980",
    "draft": YELLOW,
    "lookup": "#a87400",
    "verify": TEAL,
    "rollback": PURPLE,
    "other": MUTED,
}
"""Colour of each phase (`core.stats.PHASES`), of drafting without a model, and of the rest."""
