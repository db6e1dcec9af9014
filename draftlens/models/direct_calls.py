"""Whether the language model of a transformers model computes the same logits when it is called
directly, with the cache and the masks of this library: tried on a few tokens."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.errors import UnsupportedModelError
from draftlens.core.tree import ROOT, Topology, chain
from draftlens.models.inspection import ERRORS

KINDS_OF_TOKENS = ("token_type_ids", "mm_token_type_ids")
"""Arguments that mark the tokens of pictures in a prompt."""


def reason_against(backbone: Any) -> str:
    """Why the language model of a `Backbone` cannot be called directly; empty if it can."""
    if backbone.states is not None and backbone.states.missing:
        return f"{backbone.name} keeps states that cannot be rolled back: {backbone.states.missing}"
    try:
        difference = _difference(backbone)
    except torch.OutOfMemoryError:
        raise
    except UnsupportedModelError as error:
        return str(error)
    except ERRORS as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        return f"{backbone.name} cannot read a text of four tokens by its language model ({cause})"
    if difference is not None and difference > torch.finfo(backbone.model.dtype).max / 2:
        return (
            f"{backbone.name} forbids some ids after its output head, such as those of pictures, "
            "which draftlens does not do to draft tokens"
        )
    if difference is not None:
        return (
            f"{backbone.name} computes other logits when its language model is called directly "
            f"(they differ by {difference:.3g}), so its answers could not be kept the same"
        )
    if backbone.kinds is not None:
        from draftlens.models.layer_kinds import misfit

        if reason := misfit(backbone):
            return reason
    if backbone.indexers is not None and (reason := backbone.indexers.misfit(backbone)):
        return str(reason)
    try:
        _encode_marked_tokens(backbone)
    except UnsupportedModelError as error:
        return str(error)
    except ERRORS:  # it takes no such text
        pass
    return ""


def _encode_marked_tokens(backbone: Any) -> None:
    """Encode a text with the kinds of its tokens, as a processor gives them: some models make
    masks of them (`UnsupportedModelError`)."""
    ids = torch.tensor([[1, 2, 3, 4]], device=backbone.device) % backbone.vocab_size
    backbone.encode(_marked(backbone, ids))


def _marked(backbone: Any, ids: Tensor) -> Any:
    names = inspect.signature(backbone.model.forward).parameters
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs |= {name: torch.zeros_like(ids) for name in KINDS_OF_TOKENS if name in names}
    return backbone.prepare_prompt(inputs)


@torch.no_grad()
def _difference(backbone: Any) -> float | None:
    """Compare the model's own forward on four tokens with `Backbone.forward`, where the last token
    is one of a tree's two leaves, or follows after a chain was rejected.

    Returns how far apart they are, None for rounding. No other check finds logits scaled after the
    head, ignored masks and positions that are made elsewhere.
    """
    ids = torch.tensor([[1, 2, 3, 4]], device=backbone.device) % backbone.vocab_size
    if backbone.both_ways:
        from draftlens.models.prompt_blocks import by_steps

        stock, prompt = by_steps(backbone, _marked(backbone, ids[:, :2]), ids[:, 2:])
    else:
        full = torch.ones_like(ids)
        stock = backbone.model(input_ids=ids, attention_mask=full, use_cache=False).logits[:, -1]
        prompt = backbone.text_prompt(ids[:, :2])
    rejected, root, accepted = ids[0, 1:].tolist()
    tree = chain(2) if backbone.chains_only else Topology((ROOT, ROOT))
    relative = 1e-3 if stock.dtype == torch.float32 else 5e-2
    bound = relative * float(stock.abs().max().clamp_min(1e-6))
    cache = backbone.new_cache(prompt, room=4)
    backbone.prefill(prompt, cache)
    mask = trees.attention_mask([2], trees.ancestors(tree, backbone.device))
    tokens = torch.tensor([[root, rejected, accepted]], device=backbone.device)
    positions = prompt.positions(trees.depths(tree, backbone.device)[None])
    called = backbone.forward(tokens, positions, cache, mask)[:, 2]
    if backbone.chains_only:  # a leaf of a tree does not see the other one; a chain is rolled back
        cache.keep([2], [[0]])
        called = backbone.forward(tokens[:, 2:], positions[..., 1:2], cache, None)[:, 0]
    difference = float((called.to(stock.device) - stock).abs().max())
    return None if difference <= bound else difference
