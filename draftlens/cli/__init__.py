"""The command line: parse, call, print."""

from draftlens.cli.app import main

__all__ = ["main"]
