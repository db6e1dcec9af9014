"""The families of `stock_families` that draft, with prompts as processors make them: sliding
windows, states that are no keys and values, and prompts that attend both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from families import Family, tokenizer
from stock import target
from stock_families import PICTURE, STOCK_FAMILIES, WINDOWED, StockFamily
from torch import Tensor

from draftlens.models.adapter import Backbone


class Processor:
    """Makes the inputs of a family whose pictures are given as tensors.

    Args:
        family: decides which tensors a picture has; its values depend on the picture's pixels.
    """

    def __init__(self, family: StockFamily) -> None:
        self._family = family

    def __call__(
        self,
        text: Sequence[str],
        images: Sequence[Sequence[np.ndarray]] = (),
        padding_side: str = "left",
        **_: Any,
    ) -> dict[str, Any]:
        """A batch, as the processors of transformers make it."""
        picture = tokenizer().convert_ids_to_tokens(PICTURE)
        whole = [each.replace(picture, picture * self._family.tokens) for each in text]
        given = dict(
            tokenizer()(whole, padding=True, padding_side=padding_side, return_tensors="pt")
        )
        given.pop("token_type_ids", None)
        if self._family.types is not None:
            given[self._family.types] = (given["input_ids"] == PICTURE).long()
        return {**given, **self._tensors([pixels for row in images for pixels in row])}

    def _tensors(self, pictures: Sequence[np.ndarray]) -> Mapping[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        if not pictures:
            return tensors
        family = self._family
        for name, shape in family.pixels.items():
            made = [torch.Generator().manual_seed(int(pixels.sum())) for pixels in pictures]
            tensors[name] = torch.cat([torch.randn(shape, generator=each) for each in made])
        for name, value in family.fixed.items():
            step = family.steps.get(name, 0)
            tensors[name] = torch.cat([value + place * step for place in range(len(pictures))])
        return tensors


@dataclass(frozen=True, eq=False)
class MadeFamily(Family):
    """A family with tensors for pictures.

    Args:
        made: its configuration.
    """

    made: StockFamily = STOCK_FAMILIES[0]

    def build(self, seed: int = 0, **text: Any) -> Any:
        model = self.made.build(seed, **text)
        pad = tokenizer().pad_token_id
        with torch.no_grad():
            model.get_output_embeddings().weight[pad] = 0
        model.generation_config.pad_token_id = pad
        return model


def _family(made: StockFamily) -> MadeFamily:
    return MadeFamily(
        str(made),
        model=None,
        text={},
        vision={},
        config={},
        processor=partial(Processor, made),
        image=tokenizer().convert_ids_to_tokens(PICTURE) + ",",  # Qwen needs text between pictures
        kinds=("image", "images", "text") if made.tokens else ("text",),
        made=made,
    )


MADE = tuple(
    _family(made) for made in dict.fromkeys((*STOCK_FAMILIES, *WINDOWED)) if not made.cause
)


@cache
def takes_trees(family: Family) -> bool:
    """Whether draft tokens for it, or of it, may form trees."""
    return not isinstance(family, MadeFamily) or not Backbone(target(family)).chains_only


@cache
def is_static(family: Family) -> bool:
    """Whether static passes can compute it: all its layers attend fully."""
    if not isinstance(family, MadeFamily):
        return True
    backbone = Backbone(target(family))
    return backbone.kinds is None and backbone.states is None


@cache
def has_own_keys(family: Family) -> bool:
    """Whether each of its layers has keys and values of its own."""
    if not isinstance(family, MadeFamily):
        return True
    backbone = Backbone(target(family))
    own = backbone.kinds is None or (
        backbone.kinds.num_cached == backbone.text_config.num_hidden_layers
    )
    return backbone.states is None and own
