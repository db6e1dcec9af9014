"""Pruners, which choose the visual tokens that a draft reads."""

from draftlens.pruning.base import PRUNERS, Choice, Pruner, Visual, keep_count, make_pruner

__all__ = ["PRUNERS", "Choice", "Pruner", "Visual", "keep_count", "make_pruner"]
