"""What the words of `draftlens bench` mean."""

from __future__ import annotations

from typing import Any

import pytest
from draftlens_lab.cli.bench_run import sweep_of

from draftlens.core.errors import ConfigError


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (None, {}),
        (["prune_ratio=0,0.5, 1"], {"prune_ratio": (0, 0.5, 1)}),
        (
            ["prune_ratio=0.5", "window=front", "prune_ratio=0.8,0.9"],
            {"prune_ratio": (0.5, 0.8, 0.9), "window": ("front",)},
        ),
        (["tree=[[0],[1]]"], {"tree": ([[0], [1]],)}),
        (
            [" tree = eagle,null,[[0],[0, 0]],[[0]]"],
            {"tree": ("eagle", None, [[0], [0, 0]], [[0]])},
        ),
    ],
)
def test_sweeps(texts: list[str] | None, found: dict[str, Any]) -> None:
    assert sweep_of(texts) == found


@pytest.mark.parametrize(
    "text", ["prune_ratio", "prune_ratio=", "=0.5", "tree=[[0],[1]", "tree=0]", "tree=a: b: c", ""]
)
def test_what_is_no_sweep_is_told_how_one_is_written(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"such as prune_ratio=0,0.5,0.9 or tree=eagle,\[\[0\],\[1\]\], not "
    ):
        sweep_of([text])
