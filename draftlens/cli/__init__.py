"""The command line."""

from draftlens.cli.app import main

__all__ = ["main"]
