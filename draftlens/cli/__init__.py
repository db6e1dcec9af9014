"""The command line."""

from draftlens.cli.entry import main

__all__ = ["main"]
