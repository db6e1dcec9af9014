"""The recipe of the shipped pair: every number that training depends on."""

from pathlib import Path

from draftlens.train.pair.data import Mix
from draftlens.train.pair.loop import Phase

SEED = 0
TARGET_SEED, DRAFT_SEED = 1, 2  # of the data
RUNS = Path("runs/pair")  # checkpoints, from where the command is run
EMBEDDED = Path(__file__).resolve().parents[2] / "embedded"

# The target learns to see and to tell, on few layers and few frames; then to watch (what moves), and to tell that
# too; then it is deepened and learns on.
TARGET_SIGHT = Phase("target-sight", 1300, 2e-3, warmup=50, decay=0.02)
TARGET_TELL = Phase("target-tell", 700, 2e-3)
TARGET_TELL_MIX = Mix((2, 4, 6, 8), (0.2, 0.5, 0.1, 0.2))
TARGET_WATCH = Phase("target-watch", 250, 2e-3, warmup=50)
TARGET_WATCH_MIX = Mix((4, 6, 8), (0.5, 0.2, 0.3))
TARGET_WATCH_DEPTH = 2
TARGET_RETELL = Phase("target-retell", 800, 1.2e-3, warmup=40)
TARGET_RETELL_MIX = Mix((4, 6, 8), (0.6, 0.2, 0.2))
TARGET_DEEP = Phase("target-deep", 120, 6e-4, warmup=20, save_every=20)
TARGET_DEEP_MIX = Mix((4, 6, 8, 12, 16), (0.15, 0.1, 0.6, 0.1, 0.05))

DRAFT_SIGHT = Phase("draft-sight", 1300, 3e-3, warmup=50, decay=0.02)
DRAFT_TELL = Phase("draft", 800, 2e-3)
DRAFT_MIX = Mix((2, 4, 6, 8, 12, 16), (0.1, 0.3, 0.1, 0.4, 0.06, 0.04))
