"""Hidden states of prompts that are read in parts or begin with what a prompt cache has of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import HeldTokens, KVCache
from draftlens.models.prompt import Prompt


class HiddenStates:
    """Collects the hidden states of some layers from all parts of a prompt.

    A prompt cache keeps them beside the keys and values, in a namespace that names the layers.

    Args:
        layers: as for `Backbone.watching`, rising.
        receive: called with a layer and the states ``[B, L, D]`` of the whole prompt while the last
            part is read.
    """

    def __init__(
        self,
        backbone: Backbone,
        prompt: Prompt,
        layers: Sequence[int],
        receive: Callable[[int, Tensor], None],
    ) -> None:
        self._backbone = backbone
        self._lengths = prompt.lengths
        self._layers = list(layers)
        self._receive = receive
        # Hidden states lie where keys do in a cache of keys and values; the values are empty.
        self._cache = KVCache(len(layers), len(prompt.lengths), max(prompt.lengths), True, 1)
        self._is_last = True

    def restore(self, row: int, held: HeldTokens, most: int) -> int:
        """Take the states of a row's first tokens, at most `most`, from the prompt cache; returns
        the number of tokens that it has."""
        stored = self._backbone.prompt_cache
        assert stored is not None
        stored.restore(self._backbone.model, self.hold(row, held), self._cache, row, most)
        count, self._cache.lengths[row] = self._cache.lengths[row], 0
        return count

    def hold(self, row: int, held: HeldTokens) -> HeldTokens:
        """Let the states of a row be stored beside its keys, which are those of `held`."""
        states = self._cache.held[row] = held_states(held, self._layers)
        return states

    def begin_part(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        """Let the next pass read each row's tokens from one index up to another. A pass that is not
        announced reads the whole prompt."""
        self._cache.truncate(starts)
        self._is_last = list(ends) == self._lengths

    def receive(self, layer: int, states: Tensor) -> None:
        """Add the states ``[B, T, D]`` of the pass that runs."""
        buffers = self._cache.layers[self._layers.index(layer)]
        whole, _ = buffers.update(states[:, None], states[:, None, :, :0])
        if self._is_last:
            self._receive(layer, whole[:, 0, : max(self._lengths)])
            if layer == self._layers[-1]:
                self._store()

    def _store(self) -> None:
        for row, held in enumerate(self._cache.held):
            if held is not None and self._backbone.prompt_cache is not None:
                self._backbone.prompt_cache.store(self._backbone.model, held, self._cache, row)


def held_states(held: HeldTokens, layers: Sequence[int]) -> HeldTokens:
    """The tokens of a row as the prompt cache has their hidden states after some layers."""
    return HeldTokens(f"{held.namespace}\0states after {list(layers)}", held.digests)
