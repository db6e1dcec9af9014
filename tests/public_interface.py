"""The public interface of draftlens as text: names, signatures, and options of the commands.

`PYTHONPATH=tests python tests/public_interface.py` prints it, and `--write` writes
`tests/public_interface.txt`, with which a test compares it.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import draftlens
from draftlens.cli.app import LAB_COMMANDS, app
from draftlens.models.loading import LoadWords
from draftlens.options import CallOptions, PromptOptions

OPTIONS: tuple[Any, ...] = (CallOptions, LoadWords, PromptOptions)
"""Keyword arguments that signatures name by their class."""

FILE = Path(__file__).with_suffix(".txt")


def lines() -> list[str]:
    """One line for each name, member of a class, and command with its options."""
    found: list[str] = []
    for name in sorted(draftlens.__all__):
        value = getattr(draftlens, name)
        found += _of_class(name, value) if inspect.isclass(value) else [f"{name}{_signed(value)}"]
    found += [f"{kind.__name__}: {', '.join(kind.__annotations__)}" for kind in OPTIONS]
    return [*found, *_commands()]


def _of_class(name: str, kind: type) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in kind.__bases__ if base is not object)
    head = f"class {name}({bases})"
    if issubclass(kind, Exception):
        yield head
        return
    yield f"{head}: {_signed(kind)}"
    for member, value in sorted(inspect.getmembers_static(kind)):
        if member.startswith("_") or not _is_ours(kind, member):
            continue
        if isinstance(value, property):
            yield f"{name}.{member}: {_returned(value.fget)}"
        elif isinstance(value, classmethod | staticmethod) or inspect.isfunction(value):
            yield f"{name}.{member}{_signed(getattr(kind, member))}"


def _is_ours(kind: type, member: str) -> bool:
    owner = next(base for base in kind.__mro__ if member in vars(base))
    return owner.__module__.startswith("draftlens")


def _signed(value: Any) -> str:
    """The signature, with annotations as they are written in the source."""
    signature = inspect.signature(value)
    return re.sub(r" at 0x\w+", "", str(signature))


def _returned(getter: Any) -> str:
    return str(getter.__annotations__.get("return", ""))


def _commands() -> Iterator[str]:
    group: Any = typer.main.get_command(app)
    for name, command in sorted(group.commands.items()):
        if name in LAB_COMMANDS:
            continue
        words = []
        for parameter in command.params:
            is_argument = parameter.param_type_name == "argument"
            flags = [*parameter.opts, *parameter.secondary_opts]
            words.append(parameter.name.upper() if is_argument else "/".join(flags))
        yield f"$ draftlens {name} {' '.join(words)}".rstrip()


if __name__ == "__main__":
    text = "\n".join(lines()) + "\n"
    if "--write" in sys.argv:
        FILE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
