"""Options of measurements as text and as JSON values."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from draftlens_lab.measure.options import frame_counts, options_to_json

from draftlens.core.errors import ConfigError


@dataclass
class Some:
    file: Path | None = Path("a/b")
    sizes: tuple[int, ...] = (1, 2)
    nested: dict[str, Any] = field(default_factory=lambda: {"tree": ((0,), (1,))})


def test_numbers_of_frames() -> None:
    assert frame_counts("8") == (8,)
    assert frame_counts(" 64, 8 ") == (64, 8)


@pytest.mark.parametrize("text", ["", "8,", "8,x", "8,8", "0", "-1", "1.5", "²"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="different whole numbers such as 8,64, not"):
        frame_counts(text)


def test_options_are_json_values() -> None:
    values = options_to_json(Some())
    assert values == {"file": "a/b", "sizes": [1, 2], "nested": {"tree": [[0], [1]]}}
    assert json.loads(json.dumps(values)) == values
    assert options_to_json(Some(file=None))["file"] is None
