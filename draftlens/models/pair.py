"""Checks, before anything runs, that a target and a draft can work together."""

from __future__ import annotations

from typing import Any

from draftlens.core.errors import IncompatiblePairError
from draftlens.models.adapter import Backbone

MAX_PADDING = 1024
"""Largest difference between the vocabulary sizes of models with the same tokenizer, which pad
their vocabularies differently."""


PIXELS = frozenset({"image", "video"})
"""The kinds of input that take eyes."""


def check_vocabularies(target: Backbone, draft: Backbone) -> None:
    """Raise unless the sizes of the vocabularies allow for the same tokenizer.

    Raises:
        IncompatiblePairError: they differ by more than padding.
    """
    if abs(target.vocab_size - draft.vocab_size) > MAX_PADDING:
        raise IncompatiblePairError(
            f"target {target.name} and draft {draft.name} have {target.vocab_size} and "
            f"{draft.vocab_size} token ids, so they cannot share a tokenizer"
        )


def unseen(target: Backbone, draft: Backbone) -> frozenset[str]:
    """The kinds of input (image, video) that the target sees and the draft does not."""
    return (target.modalities & PIXELS) - draft.modalities


def check_eyes(target: Backbone, draft: Backbone, remedy: str = "") -> None:
    """Raise unless the draft sees what the target sees.

    Args:
        target: decides.
        draft: reads pictures and clips, too.
        remedy: follows in the message.

    Raises:
        IncompatiblePairError: the draft lacks the target's image or video input.
    """
    missing = unseen(target, draft)
    if missing:
        kinds = ", ".join(sorted(missing))
        raise IncompatiblePairError(
            f"the draft {draft.name} cannot see what the target {target.name} can: {kinds}{remedy}"
        )


def check_tokenizers(target: Any, draft: Any, target_name: str, draft_name: str) -> None:
    """Raise unless all token ids that both tokenizers have represent the same text.

    Args:
        target: tokenizer of the target.
        draft: tokenizer of the draft.
        target_name: name of the target, for the message.
        draft_name: name of the draft, for the message.

    Raises:
        IncompatiblePairError: an id differs, of which the first is named, or the sizes do.
    """
    target_tokens = _tokens_by_id(target)
    draft_tokens = _tokens_by_id(draft)
    for token_id in sorted(target_tokens.keys() & draft_tokens.keys()):
        if target_tokens[token_id] != draft_tokens[token_id]:
            raise IncompatiblePairError(
                f"the tokenizers of {target_name} and {draft_name} differ: id {token_id} is "
                f"{target_tokens[token_id]!r} in one and {draft_tokens[token_id]!r} in the other"
            )
    if abs(len(target_tokens) - len(draft_tokens)) > MAX_PADDING:
        raise IncompatiblePairError(
            f"the tokenizers of {target_name} and {draft_name} have {len(target_tokens)} and "
            f"{len(draft_tokens)} tokens"
        )


def _tokens_by_id(tokenizer: Any) -> dict[int, str]:
    return {token_id: token for token, token_id in tokenizer.get_vocab().items()}
