"""The recipes of the pair: every number that training depends on."""

from dataclasses import dataclass, replace
from pathlib import Path

from recipes.pair.data import Mix
from recipes.pair.loop import Phase
from recipes.pair.models import DRAFT, LARGE, LARGE_SHALLOW, TARGET, TARGET_SHALLOW, Shape

SEED = 0  # of the weights
TARGET_SEED, DRAFT_SEED = 1, 2  # of the data
RUNS = Path("runs/pair")  # checkpoints, from where the command is run
EMBEDDED = Path(__file__).resolve().parents[2] / "draftlens" / "embedded"

SHORT = Mix((8, 12, 16), (0.7, 0.15, 0.15), tokens=4096)
LONG = Mix((8, 32, 64, 256), (0.25, 0.25, 0.25, 0.25), tokens=4096)
MIXED = Mix((8, 16, 64), (0.7, 0.2, 0.1), tokens=4096, first=3_000_000)
NOTHING = Phase("", 0, 0.0)


@dataclass(frozen=True)
class Recipe:
    """How one model is made: it learns to see, to tell, to watch while it tells, to tell of long
    clips, and all again.

    To read is to watch and tell on small batches, so that words learn in many steps to find what
    the first layers know; to read far is to do so in long clips too.

    A model with a ``deep`` shape is then deepened (see grow.py) and learns on. One that does not
    watch leaves those phases out.
    """

    name: str
    seed: int  # of the data
    shape: Shape
    sight: Phase
    tell: Phase
    long: Phase
    watch: Phase = NOTHING
    watch_depth: int = 0  # layers that learn to watch; 0 for a model that does not
    review: Phase = NOTHING  # watching again, more frames of each shot
    read: Phase = NOTHING
    far: Phase = NOTHING
    review_since: float = 0.6  # of a shot, from review on
    deep: Shape | None = None
    deepened: Phase = NOTHING
    tell_mix: Mix = SHORT
    watch_mix: Mix = SHORT
    long_mix: Mix = LONG
    review_mix: Mix = SHORT
    read_mix: Mix = SHORT
    far_mix: Mix = LONG
    deepened_mix: Mix = MIXED


TARGET_RECIPE = Recipe(
    name="target",
    seed=TARGET_SEED,
    shape=TARGET_SHALLOW,
    sight=Phase("target-sight", 5000, 2e-3, warmup=50, decay=0.02),
    tell=Phase("target-tell", 800, 2e-3),
    watch=Phase("target-watch", 900, 1.2e-3, warmup=40),
    watch_depth=2,
    long=Phase("target-long", 500, 1.5e-3, warmup=20),
    watch_mix=replace(SHORT, first=1_000_000),
    long_mix=replace(LONG, share=(0.5, 0.2, 0.15, 0.15), first=2_000_000),
    review=Phase("target-review", 360, 1.2e-3, warmup=20),
    review_mix=Mix((8, 16, 64, 256), (0.65, 0.15, 0.1, 0.1), tokens=4096, first=4_000_000),
    read=Phase("target-read", 1700, 1.5e-3, warmup=40, horizon=5200),
    read_mix=Mix((8, 16, 64, 256), (0.7, 0.14, 0.08, 0.08), batch=16, tokens=4096, first=5_000_000),
    far=Phase("target-far", 2900, 1.2e-3, warmup=40),
    far_mix=Mix((8, 16, 64, 256), (0.4, 0.15, 0.25, 0.2), batch=16, tokens=8192, first=6_000_000),
    deep=TARGET,
    deepened=Phase("target-deep", 10, 1e-4, warmup=2, save_every=10),
)

DRAFT_RECIPE = Recipe(
    name="draft",
    seed=DRAFT_SEED,
    shape=DRAFT,
    sight=Phase("draft-sight", 3000, 3e-3, warmup=50, decay=0.02),
    tell=Phase("draft-tell", 1000, 2e-3),
    long=Phase("draft-long", 300, 5e-4, warmup=20),
)

# For a machine with an NVIDIA GPU: a wider target on larger batches, and the same draft.
LARGE_RECIPE = replace(
    TARGET_RECIPE,
    shape=LARGE_SHALLOW,
    deep=LARGE,
    sight=Phase("target-sight", 8000, 1e-3, warmup=100, decay=0.02, save_every=500),
    tell=Phase("target-tell", 4000, 8e-4, warmup=200, save_every=250),
    watch=Phase("target-watch", 4000, 6e-4, warmup=100, save_every=250),
    long=Phase("target-long", 2000, 3e-4, warmup=50),
    review=Phase("target-review", 2000, 3e-4, warmup=50),
    read=Phase("target-read", 2000, 4e-4, warmup=50),
    far=Phase("target-far", 4000, 4e-4, warmup=50),
    deepened=Phase("target-deep", 1500, 3e-4, warmup=50),
    tell_mix=replace(SHORT, batch=64, tokens=32768),
    watch_mix=replace(SHORT, batch=64, tokens=32768, first=1_000_000),
    long_mix=replace(LONG, batch=64, tokens=32768, first=2_000_000),
    review_mix=replace(LONG, batch=64, tokens=32768, first=4_000_000),
    read_mix=replace(LONG, batch=64, tokens=32768, first=5_000_000),
    far_mix=replace(LONG, batch=64, tokens=32768, first=6_000_000),
    deepened_mix=replace(MIXED, batch=64, tokens=32768),
)
RECIPES = {"cpu": (TARGET_RECIPE, DRAFT_RECIPE), "gpu": (LARGE_RECIPE, DRAFT_RECIPE)}


def shortened(recipe: Recipe, steps: int) -> Recipe:
    """The same recipe with at most this many steps a phase: to see that everything runs."""
    names = ("sight", "tell", "watch", "long", "review", "read", "far", "deepened")
    phases = {name: getattr(recipe, name) for name in names}
    return replace(
        recipe, **{name: replace(p, steps=min(p.steps, steps)) for name, p in phases.items()}
    )
