"""Lossy peers: published methods that drop visual tokens of the target itself.

They are here to be measured beside the methods of the package (ParallelVLM, Table 2) and are no
methods of it: their answers may differ from those of the model.
"""

from draftlens.bench.lossy.acceptance import accepted_tokens
from draftlens.bench.lossy.answer import LossyAnswer, answer_lossily
from draftlens.bench.lossy.base import DROPPINGS, Dropping, Recall

__all__ = [
    "DROPPINGS",
    "Dropping",
    "LossyAnswer",
    "Recall",
    "accepted_tokens",
    "answer_lossily",
]
