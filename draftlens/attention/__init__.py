"""Attention functions that transformers runs for us, by its own registry."""

from draftlens.attention.probe import Probe, probing

__all__ = ["Probe", "probing"]
