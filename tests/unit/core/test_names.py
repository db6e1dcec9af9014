"""Former names of options go on to work, and say the present ones."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from draftlens.cli import options as cli_options
from draftlens.cli.entry import main
from draftlens.core.errors import ConfigError
from draftlens.core.names import renamed
from draftlens.core.options import Registry, build, make


@renamed(frames="num_frames", words="max_new_tokens")
def answer(prompt: str, *, num_frames: int = 8, max_new_tokens: int = 4) -> tuple[str, int, int]:
    return prompt, num_frames, max_new_tokens


@renamed(prune="prune_ratio")
@dataclass(frozen=True)
class Pruned:
    prune_ratio: float = 0.9

    def plan(self, models: Any) -> None: ...


METHODS = Registry("method", {"pruned": f"{__name__}:Pruned"})


def by_call() -> object:
    return answer("a", frames=2)  # type: ignore[call-arg]


def by_class() -> object:
    return Pruned(prune=0.5)  # type: ignore[call-arg]


def by_registry() -> object:
    return make(METHODS, {"name": "pruned", "prune": 0.5}, "plan")


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS, "_loaded", {"pruned": Pruned})


@pytest.mark.parametrize(
    ("call", "old", "new", "value"),
    [
        (by_call, "frames", "num_frames", ("a", 2, 4)),
        (by_class, "prune", "prune_ratio", Pruned(0.5)),
        (by_registry, "prune", "prune_ratio", Pruned(0.5)),
    ],
)
def test_a_former_name_works_and_says_the_present_one(
    call: Callable[[], object], old: str, new: str, value: object
) -> None:
    """The warning is about the line of the user, wherever in draftlens the name is read."""
    with pytest.warns(DeprecationWarning, match=f"'{old}' is deprecated: use '{new}'") as seen:
        assert call() == value
    assert [warning.filename for warning in seen] == [__file__]


def test_present_names_are_as_before() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert answer("a", num_frames=1, max_new_tokens=2) == ("a", 1, 2)
        assert build(METHODS, "pruned", {"prune_ratio": 0.5}) == Pruned(0.5)
        assert replace(Pruned(), prune_ratio=0.5) == Pruned(0.5)
    assert list(inspect.signature(answer).parameters) == ["prompt", "num_frames", "max_new_tokens"]
    assert list(inspect.signature(Pruned).parameters) == ["prune_ratio"]


def test_both_names_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match="'frames' is the former name of 'num_frames'"):
        answer("a", frames=1, num_frames=2)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="'pruned' has no option 'ratio'; known: prune_ratio"):
        build(METHODS, "pruned", {"ratio": 0.5})


def test_a_former_option_of_a_command_is_a_line_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_options, "FORMER_OPTIONS", {"--as-json": "--json", "--to": "--target"})
    words = ["--as-json", "--to=name", "--to", "name", "--target", "--as-json-not"]
    expected = ["--json", "--target=name", "--target", "name", "--target", "--as-json-not"]
    assert cli_options.with_present_names(words) == expected
    assert capsys.readouterr().err.splitlines() == [
        "warning: --as-json is deprecated: use --json",
        *["warning: --to is deprecated: use --target"] * 2,
    ]
    monkeypatch.setattr(sys, "argv", ["draftlens", "methods", "--as-json"])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert not ended.value.code
    assert out.startswith("{")
    assert err == "warning: --as-json is deprecated: use --json\n"
