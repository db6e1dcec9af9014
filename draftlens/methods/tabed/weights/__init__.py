"""Weights of views, which follow what the target said."""

from draftlens.methods.tabed.weights.base import WEIGHTS, Seen, Tally, Weighting, make_weighting

__all__ = ["WEIGHTS", "Seen", "Tally", "Weighting", "make_weighting"]
