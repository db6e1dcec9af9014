"""The recipes of the pair: all numbers that training depends on."""

from dataclasses import dataclass, replace
from pathlib import Path

from recipes.pair.data import Mix
from recipes.pair.loop import Phase
from recipes.pair.models import (
    DRAFT,
    LARGE,
    LARGE_SHALLOW,
    TARGET,
    TARGET_SHALLOW,
    Shape,
)

WEIGHT_SEED = 0
TARGET_SEED = 1  # of the data
DRAFT_SEED = 2  # of the data
RUNS = Path("runs/pair")  # checkpoints, relative to the working directory
EMBEDDED = Path(__file__).resolve().parents[2] / "draftlens" / "embedded"

FILM_DEPTH = 2
LATE = 0.6  # of a shot

SHORT = Mix((8, 12, 16), (0.7, 0.15, 0.15), tokens=4096)
LONG = Mix((8, 32, 64, 256), (0.25, 0.25, 0.25, 0.25), tokens=4096)
MIXED = Mix((8, 16, 64), (0.7, 0.2, 0.1), tokens=4096, first=3_000_000)


@dataclass(frozen=True)
class LanguageStage:
    """A phase of training on dialogues.

    Args:
        phase: length and speed.
        mix: the data.
        seed_offset: added to the recipe's seed, so that each stage has its own.
        film_depth: number of layers below the head that classifies events (see video.py); 0 for
            none.
        since: time in each shot from which its frames have labels of what happens in it. The more
            frames have them, the sooner the later layers find an event.
        asked_depth: number of layers below the head that classifies the shot that is asked about
            (see asked.py), of which the last one's attention is trained, too; 0 for none.
        pointing: layers whose first heads are trained to attend to the shot asked about, from 1;
            () for the last one below that head only.
        linking: layers whose first heads are trained to attend from a thing of a reel to the shot
            before in which it was (see video.py), from 1.
        heads_first: steps in which only the heads of `film_depth` and `asked_depth` are trained
            before the stage begins, if they are fresh.
        slow_turn: the rotary pairs that need more positions for a turn are slowed down (see
            `models.slow_down`); 0 for none.
    """

    phase: Phase
    mix: Mix
    seed_offset: int = 0
    film_depth: int = 0
    since: float = 1.0
    asked_depth: int = 0
    pointing: tuple[int, ...] = ()
    linking: tuple[int, ...] = ()
    heads_first: int = 0
    slow_turn: int = 0

    @property
    def deeper(self) -> int:
        """The number of layers below the last of the two heads."""
        return self.asked_depth or self.film_depth

    @property
    def pointers(self) -> tuple[int, ...]:
        """The layers whose first heads are trained to attend to the shot asked about."""
        if not self.asked_depth:
            return ()
        return self.pointing or (self.asked_depth,)


@dataclass(frozen=True)
class Recipe:
    """The training of one model: first the vision encoder, then the language model in stages.

    Args:
        name: ``target`` or ``draft``.
        seed: seed of the data.
        shape: sizes of the model.
        vision: training of the vision encoder.
        stages: training of the language model, in order.
        deep: sizes of the model that is made of the trained one (see grow.py), or None.
        deepened: training of that model.
    """

    name: str
    seed: int
    shape: Shape
    vision: Phase
    stages: tuple[LanguageStage, ...]
    deep: Shape | None = None
    deepened: LanguageStage | None = None


TARGET_RECIPE = Recipe(
    name="target",
    seed=TARGET_SEED,
    shape=TARGET_SHALLOW,
    vision=Phase("target-sight", 5000, 2e-3, warmup=50, decay=0.02),
    stages=(
        LanguageStage(Phase("target-tell", 800, 2e-3), SHORT),
        LanguageStage(
            Phase("target-watch", 900, 1.2e-3, warmup=40),
            replace(SHORT, first=1_000_000),
            seed_offset=25,
            film_depth=FILM_DEPTH,
        ),
        LanguageStage(
            Phase("target-long", 500, 1.5e-3, warmup=20),
            replace(LONG, share=(0.5, 0.2, 0.15, 0.15), first=2_000_000),
            seed_offset=50,
            film_depth=FILM_DEPTH,
        ),
        # From here on, more frames of each shot have labels of actions.
        LanguageStage(
            Phase("target-review", 360, 1.2e-3, warmup=20),
            Mix((8, 16, 64, 256), (0.65, 0.15, 0.1, 0.1), tokens=4096, first=4_000_000),
            seed_offset=75,
            film_depth=FILM_DEPTH,
            since=LATE,
        ),
        # Small batches allow many steps, in which the later layers learn to use the first ones.
        LanguageStage(
            Phase("target-read", 1700, 1.5e-3, warmup=40, horizon=5200),
            Mix((8, 16, 64, 256), (0.7, 0.14, 0.08, 0.08), batch=16, tokens=4096, first=5_000_000),
            seed_offset=100,
            film_depth=FILM_DEPTH,
            since=LATE,
        ),
        # The same with more long clips.
        LanguageStage(
            Phase("target-far", 2900, 1.2e-3, warmup=40),
            Mix((8, 16, 64, 256), (0.4, 0.15, 0.25, 0.2), batch=16, tokens=8192, first=6_000_000),
            seed_offset=125,
            film_depth=FILM_DEPTH,
            since=LATE,
        ),
    ),
    deep=TARGET,
    deepened=LanguageStage(
        Phase("target-deep", 10, 1e-4, warmup=2, save_every=10), MIXED, seed_offset=150
    ),
)

DRAFT_RECIPE = Recipe(
    name="draft",
    seed=DRAFT_SEED,
    shape=DRAFT,
    vision=Phase("draft-sight", 3000, 3e-3, warmup=50, decay=0.02),
    stages=(
        LanguageStage(Phase("draft-tell", 1000, 2e-3), SHORT),
        LanguageStage(Phase("draft-long", 300, 5e-4, warmup=20), LONG, seed_offset=50),
    ),
)

# For an NVIDIA GPU: a wider target, trained on larger batches. The draft is the same.
LARGE_SHORT = replace(SHORT, batch=64, tokens=32768)
LARGE_LONG = replace(LONG, batch=64, tokens=32768)
LARGE_RECIPE = Recipe(
    name="target",
    seed=TARGET_SEED,
    shape=LARGE_SHALLOW,
    vision=Phase("target-sight", 8000, 1e-3, warmup=100, decay=0.02, save_every=500),
    stages=(
        LanguageStage(Phase("target-tell", 4000, 8e-4, warmup=200, save_every=250), LARGE_SHORT),
        LanguageStage(
            Phase("target-watch", 4000, 6e-4, warmup=100, save_every=250),
            replace(LARGE_SHORT, first=1_000_000),
            seed_offset=25,
            film_depth=FILM_DEPTH,
        ),
        LanguageStage(
            Phase("target-long", 2000, 3e-4, warmup=50),
            replace(LARGE_LONG, first=2_000_000),
            seed_offset=50,
            film_depth=FILM_DEPTH,
        ),
        LanguageStage(
            Phase("target-review", 2000, 3e-4, warmup=50),
            replace(LARGE_LONG, first=4_000_000),
            seed_offset=75,
            film_depth=FILM_DEPTH,
            since=LATE,
        ),
        LanguageStage(
            Phase("target-read", 2000, 4e-4, warmup=50),
            replace(LARGE_LONG, first=5_000_000),
            seed_offset=100,
            film_depth=FILM_DEPTH,
            since=LATE,
        ),
        LanguageStage(
            Phase("target-far", 4000, 4e-4, warmup=50),
            replace(LARGE_LONG, first=6_000_000),
            seed_offset=125,
            film_depth=FILM_DEPTH,
            since=LATE,
        ),
    ),
    deep=LARGE,
    deepened=LanguageStage(
        Phase("target-deep", 1500, 3e-4, warmup=50),
        replace(MIXED, batch=64, tokens=32768),
        seed_offset=150,
    ),
)

RECIPES = {"cpu": (TARGET_RECIPE, DRAFT_RECIPE), "gpu": (LARGE_RECIPE, DRAFT_RECIPE)}


def shortened(recipe: Recipe, steps: int) -> Recipe:
    """The same recipe with at most ``steps`` steps per phase, to test that everything runs."""

    def shorten(stage: LanguageStage) -> LanguageStage:
        return replace(stage, phase=_shortened_phase(stage.phase, steps))

    return replace(
        recipe,
        vision=_shortened_phase(recipe.vision, steps),
        stages=tuple(shorten(stage) for stage in recipe.stages),
        deepened=None if recipe.deepened is None else shorten(recipe.deepened),
    )


def _shortened_phase(phase: Phase, steps: int) -> Phase:
    return replace(phase, steps=min(phase.steps, steps))
