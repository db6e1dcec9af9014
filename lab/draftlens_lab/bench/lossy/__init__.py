"""Lossy peers: published methods that drop visual tokens of the target itself.

They are here to be measured beside the methods of the package (ParallelVLM, Table 2) and are no
methods of it: their answers may differ from those of the model.
"""

from draftlens_lab.bench.lossy.acceptance import accepted_tokens
from draftlens_lab.bench.lossy.answer import LossyAnswer, answer_lossily
from draftlens_lab.bench.lossy.base import DROPPINGS, Dropping, Recall

__all__ = [
    "DROPPINGS",
    "Dropping",
    "LossyAnswer",
    "Recall",
    "accepted_tokens",
    "answer_lossily",
]
