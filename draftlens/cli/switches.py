"""Ways to write the option `--compile`: without a value, and as a switch for each of its values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftlens.cli import catalogue
from draftlens.core.names import AUTO

_SWITCH = "--compile"


def with_values(words: Sequence[str]) -> list[str]:
    """The words of a command line with `--compile=VALUE` for every way to write it, such as
    `--compile VALUE`, `--compile` (yes) and `--VALUE` for an engine of passes of draftlens."""
    return list(_rewritten(words))


def _rewritten(words: Sequence[str]) -> Iterator[str]:
    engines = catalogue.names("passes")
    values = ("yes", "no", AUTO, *engines)
    short = {"--no-compile": "no", f"--compile-{AUTO}": AUTO}
    short |= {f"--{name}": name for name in catalogue.own_names("passes")}
    rest = iter(words)
    for word in rest:
        if word in short:
            yield f"{_SWITCH}={short[word]}"
        elif word != _SWITCH:
            yield word
        else:
            value = next(rest, None)
            yield f"{_SWITCH}={value if value in values else 'yes'}"
            if value is not None and value not in values:
                yield from _rewritten([value])
