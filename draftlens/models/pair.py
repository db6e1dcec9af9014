"""Checks, before anything runs, that a target and a draft can work together."""

from __future__ import annotations

from typing import Any

from draftlens.core.errors import IncompatiblePairError
from draftlens.models.adapter import Backbone

MAX_PADDING = 1024
"""Largest difference between the (padded) vocabulary sizes of models with the same tokenizer."""


PIXELS = frozenset({"image", "video"})


def check_vocabularies(target: Backbone, draft: Backbone) -> None:
    """Raise `IncompatiblePairError` if the sizes differ by more than padding."""
    if abs(target.vocab_size - draft.vocab_size) > MAX_PADDING:
        raise IncompatiblePairError(
            f"target {target.name} and draft {draft.name} have {target.vocab_size} and "
            f"{draft.vocab_size} token ids, so they cannot share a tokenizer"
        )


def unseen(target: Backbone, draft: Backbone) -> frozenset[str]:
    """The kinds of input (image, video) that the target takes and the draft does not."""
    return (target.modalities & PIXELS) - draft.modalities


def is_blind(target: Backbone, draft: Backbone) -> bool:
    """Whether the draft takes no pictures and no clips, and the target does."""
    return bool(unseen(target, draft)) and not draft.modalities & PIXELS


def check_modalities(target: Backbone, draft: Backbone, remedy: str = "") -> None:
    """Raise `IncompatiblePairError` plus `remedy` unless the draft takes the target's media."""
    missing = unseen(target, draft)
    if missing:
        kinds = ", ".join(sorted(missing))
        raise IncompatiblePairError(
            f"the draft {draft.name} cannot see what the target {target.name} can: {kinds}{remedy}"
        )


def check_tokenizers(target: Any, draft: Any, target_name: str, draft_name: str) -> None:
    """Raise `IncompatiblePairError` unless all token ids that both tokenizers have represent the
    same text; the message names the first difference."""
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
