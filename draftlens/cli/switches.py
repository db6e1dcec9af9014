"""Switches for the values of the option `compile`: `--compile auto` is understood, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_SWITCH = "--compile"
_VALUES = {
    "yes": _SWITCH,
    "no": "--no-compile",
    "inductor": _SWITCH,
    "openvino": "--openvino",
    "auto": "--compile-auto",
}


def without_values(words: Sequence[str]) -> list[str]:
    """The words of a command line with `--compile` for `--compile yes`."""
    return list(_rewritten(words))


def _rewritten(words: Sequence[str]) -> Iterator[str]:
    rest = iter(_parted(words))
    for word in rest:
        if word != _SWITCH:
            yield word
            continue
        value = next(rest, None)
        yield _VALUES.get(value or "", _SWITCH)
        if value is not None and value not in _VALUES:
            yield value


def _parted(words: Sequence[str]) -> Iterator[str]:
    """With `--compile=yes` as two words."""
    for word in words:
        switch, equals, value = word.partition("=")
        if switch == _SWITCH and equals:
            yield switch
            yield value
        else:
            yield word
