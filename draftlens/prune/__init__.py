"""Which visual tokens the draft sees."""

from draftlens.prune.base import PRUNERS, Pruner, Visual, keep_count, make_pruner

__all__ = ["PRUNERS", "Pruner", "Visual", "keep_count", "make_pruner"]
