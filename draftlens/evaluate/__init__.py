"""How good a model or a pair is on the procedural world's held-out scenes: `draftlens evaluate`."""

from draftlens.evaluate.run import Evaluation, Options, save
from draftlens.evaluate.tables import about, markdown, tables

__all__ = ["Evaluation", "Options", "about", "markdown", "save", "tables"]
