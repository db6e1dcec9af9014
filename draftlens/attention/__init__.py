"""The registered attention of language models, and what it can do in a pass."""

from draftlens.attention.dispatch import AttentionPass, dispatching
from draftlens.attention.probe import AttentionProbe

__all__ = ["AttentionPass", "AttentionProbe", "dispatching"]
