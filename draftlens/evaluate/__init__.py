"""Quality of a model or a pair on held-out scenes of the procedural world: `draftlens evaluate`."""

from draftlens.evaluate.run import Evaluation, Options, save
from draftlens.evaluate.tables import about, markdown, tables

__all__ = ["Evaluation", "Options", "about", "markdown", "save", "tables"]
