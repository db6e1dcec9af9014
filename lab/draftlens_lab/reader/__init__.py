"""The reader: a small document model for the pages of one generator."""

from importlib.resources import files


def folder() -> str:
    """The folder of its weights, for `from_pretrained`."""
    return str(files("draftlens_lab.reader"))
