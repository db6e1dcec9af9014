"""The registered attention of language models, what it can do in a pass, and what hidden states
say."""

from draftlens.attention.cosines import similarity
from draftlens.attention.dispatch import AttentionPass, dispatching
from draftlens.attention.probe import AttentionProbe

__all__ = ["AttentionPass", "AttentionProbe", "dispatching", "similarity"]
