"""Whether a target and a draft can work together: asked once, before anything runs."""

from __future__ import annotations

from typing import Any

from draftlens.core.errors import IncompatiblePairError
from draftlens.models.backbone import Backbone

MOST_PADDING = 1024
"""Models of one tokenizer pad their vocabulary differently, but not by more than this."""


def check_models(target: Backbone, draft: Backbone) -> None:
    """Refuse a draft that sees less than the target or cannot have its tokenizer.

    Raises:
        IncompatiblePairError: the draft lacks a modality of the target, or the vocabularies cannot
            be the same.
    """
    blind = (target.modalities & {"image", "video"}) - draft.modalities
    if blind:
        raise IncompatiblePairError(
            f"the draft {draft.name} cannot see what the target {target.name} can: "
            f"{', '.join(sorted(blind))}"
        )
    if abs(target.vocab_size - draft.vocab_size) > MOST_PADDING:
        raise IncompatiblePairError(
            f"target {target.name} and draft {draft.name} have {target.vocab_size} and "
            f"{draft.vocab_size} token ids, "
            "so they cannot share a tokenizer"
        )


def check_tokenizers(target: Any, draft: Any, target_name: str, draft_name: str) -> None:
    """Refuse a draft whose token ids mean other text.

    Raises:
        IncompatiblePairError: names both models and the first id that differs.
    """
    ours, theirs = (
        {i: t for t, i in tokenizer.get_vocab().items()} for tokenizer in (target, draft)
    )
    for token_id in sorted(ours.keys() & theirs.keys()):
        if ours[token_id] != theirs[token_id]:
            raise IncompatiblePairError(
                f"the tokenizers of {target_name} and {draft_name} differ: id {token_id} is "
                f"{ours[token_id]!r} in one "
                f"and {theirs[token_id]!r} in the other"
            )
    if abs(len(ours) - len(theirs)) > MOST_PADDING:
        raise IncompatiblePairError(
            f"the tokenizers of {target_name} and {draft_name} have {len(ours)} and "
            f"{len(theirs)} tokens"
        )
