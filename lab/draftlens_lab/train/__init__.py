"""Training of a small draft model for a target: the LLaVA recipe for any transformers VLM."""

from typing import TYPE_CHECKING, Any

from draftlens_lab.train.options import DraftTraining

if TYPE_CHECKING:
    from draftlens_lab.train.run import train_draft

__all__ = ["DraftTraining", "train_draft"]


def __getattr__(name: str) -> Any:
    # The Trainer takes seconds to import, but the help of the command line only needs the options.
    if name == "train_draft":
        from draftlens_lab.train.run import train_draft

        return train_draft
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
