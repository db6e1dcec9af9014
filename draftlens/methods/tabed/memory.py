"""What earlier answers of a conversation have shown about the views of a draft."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens.core.files import parse_json, write_json
from draftlens.models.prompt import Prompt

FORMAT = 1
"""Version of the files."""


class ViewMemory:
    """Numbers about views, which later answers begin with.

    A memory is for one conversation, or for many of the same user. It holds no text and no tokens:
    for each rule that weighs views and each kind of prompt (text, picture or video, and the power
    of two of its visual tokens) some numbers by the names of the views. A method without a memory
    begins every answer afresh.

    Example:

        >>> import draftlens
        >>> memory = draftlens.ViewMemory()
        >>> method = draftlens.TABED(memory=memory)
        >>> draftlens.ViewMemory.from_dict(memory.to_dict()) == memory
        True
    """

    def __init__(self) -> None:
        self._states: dict[str, dict[str, Any]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ViewMemory) and self._states == other._states

    __hash__ = None  # type: ignore[assignment]  # its contents change

    def __repr__(self) -> str:
        return f"ViewMemory({len(self._states)} kinds of prompts)"

    def recall(self, rule: str, kind: str) -> Mapping[str, Any] | None:
        """What is known about a kind of prompt; None if there was none like it.

        Args:
            rule: the rule that weighs the views, with its options.
            kind: see `kind_of`.
        """
        return self._states.get(f"{rule} {kind}")

    def record(self, rule: str, kind: str, state: Mapping[str, Any]) -> None:
        """Replace what is known about a kind of prompt."""
        self._states[f"{rule} {kind}"] = dict(state)

    def to_dict(self) -> dict[str, Any]:
        """The contents as JSON values."""
        return {"format": FORMAT, "states": json.loads(json.dumps(self._states))}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ViewMemory:
        """The inverse of `to_dict`.

        Raises:
            ConfigError: the values are no memory of this version.
        """
        if not isinstance(values, Mapping) or values.get("format") != FORMAT:
            raise ConfigError(f"this is no memory of views of version {FORMAT}")
        states = values.get("states")
        refusal = "the states of a memory of views are mappings of numbers by name"
        if not isinstance(states, Mapping):
            raise ConfigError(refusal)
        if not all(isinstance(state, Mapping) for state in states.values()):
            raise ConfigError(refusal)
        memory = cls()
        memory._states = {key: dict(state) for key, state in states.items()}
        return memory

    def save(self, path: str | PathLike[str]) -> None:
        """Write the memory as JSON."""
        write_json(Path(path), self.to_dict())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> ViewMemory:
        """Read a memory that `save` has written.

        Raises:
            ConfigError: the file holds something else.
            OSError: it cannot be read.
        """
        try:
            values = parse_json(Path(path).read_bytes())
        except ValueError as error:
            raise ConfigError(f"{path} holds no memory of views: {error}") from error
        return cls.from_dict(values)


def kind_of(prompt: Prompt, row: int) -> str:
    """The kind of prompt of a row: what it shows, and the bits of its number of visual tokens.

    Args:
        prompt: the target's.
        row: of its rows.

    Returns:
        ``"text"``, or such as ``"picture 5"`` for 16 to 31 visual tokens.
    """
    number = int(prompt.visual[row].sum())
    if not number:
        return "text"
    return f"{prompt.kind} {number.bit_length()}"
