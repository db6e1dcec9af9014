"""The running state of requests: their tokens, their histories and where they end."""

from draftlens.sequences.batch import Batch
from draftlens.sequences.history import History
from draftlens.sequences.sequence import Sequence, sequences_of
from draftlens.sequences.stopping import StoppingRules

__all__ = ["Batch", "History", "Sequence", "StoppingRules", "sequences_of"]
