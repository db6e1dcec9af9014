"""Quality of a model or a pair on held-out scenes of the procedural world: `draftlens evaluate`."""

from draftlens_lab.evaluate.report import about, markdown, tables
from draftlens_lab.evaluate.run import Evaluation, Options, save

__all__ = ["Evaluation", "Options", "about", "markdown", "save", "tables"]
