"""Targets and drafts that can work together, and refusals of others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from draftlens.core.errors import IncompatiblePairError
from draftlens.models.checks import (
    MAX_PADDING,
    check_modalities,
    check_tokenizers,
    check_vocabularies,
    unseen,
)


def model(name: str, vocab_size: int, *modalities: str) -> Any:
    return SimpleNamespace(
        name=name, vocab_size=vocab_size, modalities=frozenset(modalities or ("image", "text"))
    )


def tokenizer(*tokens: str) -> Any:
    return SimpleNamespace(get_vocab=lambda: {token: index for index, token in enumerate(tokens)})


def test_shared_ids() -> None:
    check_vocabularies(model("Big", 1100), model("Small", 1000))
    check_vocabularies(model("Big", 1000), model("Small", 1000 + MAX_PADDING))


def test_a_blind_draft_is_refused() -> None:
    with pytest.raises(
        IncompatiblePairError,
        match="the draft Small cannot see what the target Big can: image, video",
    ):
        check_modalities(model("Big", 10, "text", "video", "image"), model("Small", 10, "text"))
    with pytest.raises(IncompatiblePairError, match="can: image; name another"):
        check_modalities(model("Big", 10, "image"), model("Small", 10, "text"), "; name another")
    check_modalities(
        model("Big", 10, "text", "image"), model("Small", 10, "text", "image", "video")
    )
    check_modalities(
        model("Big", 10, "text", "audio", "image"), model("Small", 10, "text", "image")
    )


def test_kinds_that_only_the_target_sees() -> None:
    seeing = model("Big", 10, "text", "video", "image")
    assert unseen(seeing, model("Small", 10, "text")) == {"image", "video"}
    assert unseen(seeing, model("Small", 10, "text", "image")) == {"video"}
    assert unseen(model("Big", 10, "text", "audio"), model("Small", 10, "text")) == frozenset()


def test_vocabularies_of_very_different_sizes_are_refused() -> None:
    with pytest.raises(
        IncompatiblePairError, match="target Big and draft Small have 5000 and 1000 token ids"
    ):
        check_vocabularies(model("Big", 5000), model("Small", 1000))


def test_tokenizers_must_agree_where_both_have_an_id() -> None:
    check_tokenizers(tokenizer("a", "b", "c"), tokenizer("a", "b"), "Big", "Small")
    with pytest.raises(
        IncompatiblePairError, match="Big and Small differ: id 1 is 'b' in one and 'x' in the other"
    ):
        check_tokenizers(tokenizer("a", "b", "c"), tokenizer("a", "x", "y"), "Big", "Small")


def test_tokenizers_must_have_about_the_same_size() -> None:
    large = tokenizer(*map(str, range(MAX_PADDING + 10)))
    with pytest.raises(
        IncompatiblePairError, match=f"Big and Small have {MAX_PADDING + 10} and 2 tokens"
    ):
        check_tokenizers(large, tokenizer("0", "1"), "Big", "Small")
