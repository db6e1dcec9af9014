"""The pair's processor, made once: training its tokenizer takes some seconds."""

from __future__ import annotations

from typing import Any

import pytest

from draftlens.train.pair.models import build_processor
from draftlens.train.pair.tokenizer import build_tokenizer


@pytest.fixture(scope="session")
def fresh_processor() -> Any:
    return build_processor(build_tokenizer())
