"""Quality of a model or a pair on held-out scenes of the procedural world: `draftlens evaluate`."""

from draftlens_lab.evaluate.report import about_evaluation, evaluation_page, evaluation_tables
from draftlens_lab.evaluate.run import Evaluation, EvaluationOptions, save_evaluation

__all__ = [
    "Evaluation",
    "EvaluationOptions",
    "about_evaluation",
    "evaluation_page",
    "evaluation_tables",
    "save_evaluation",
]
