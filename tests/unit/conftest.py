"""The processor of the embedded pair, made once: training its tokenizer takes some seconds."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def fresh_processor() -> Any:
    from recipes.pair.models import build_processor
    from recipes.pair.tokenizer import build_tokenizer

    return build_processor(build_tokenizer())
