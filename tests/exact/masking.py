"""The slow twin of lossy peers: nothing is dropped, masks hide what a peer drops.

All layers run over all tokens with eager attention and a 4-D mask of their own, on the unmodified
model: its own deepstack features, its own caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from draftlens_lab.bench.lossy import Dropping
from torch import Tensor
from torch.nn.functional import cosine_similarity
from transformers import DynamicCache

from draftlens.models.prompt import Prompt
from draftlens.models.support import with_cache


class MaskedModel:
    """A model that reads a prompt and an answer with masks.

    Args:
        model: with eager attention.
        prompt: of one row.
        dropping: what is hidden.

    Attributes:
        visible: for each layer which tokens of the prompt it reads, bool ``[L]``.
        states: for each layer the states that enter it in the last pass, ``[T, D]``.
        choices: number of times that decoding chose what it reads.
    """

    def __init__(self, model: Any, prompt: Prompt, dropping: Dropping) -> None:
        self.model = model
        self.decoder = model.get_decoder()
        self.prompt = dropping.shorten(prompt)
        self.dropping = dropping
        self.cache = DynamicCache()
        depth = len(self.decoder.layers)
        self.drops = dropping.layers(depth)
        self.readers = dropping.readers(self.prompt)
        self.visible = [torch.ones(self.prompt.lengths[0], dtype=torch.bool) for _ in range(depth)]
        self.states: list[Tensor] = []
        self.weights: list[Tensor] = []
        self.choices = 0
        self.attention: Tensor | None = None

    def read(self) -> Tensor:
        """Logits after the prompt, ``[V]``."""
        return self._pass(self.prompt.embeds, self.prompt.position_ids, self.prompt.extra)

    def step(self, token: int, index: int) -> Tensor:
        """Logits after the token of the answer at this index, ``[V]``."""
        embeds = self.model.get_input_embeddings()(torch.tensor([[token]]))
        return self._pass(embeds, self.prompt.positions(torch.tensor([[index]])), {})

    @torch.no_grad()
    def _pass(self, embeds: Tensor, positions: Tensor, extra: dict[str, Any]) -> Tensor:
        self.states, self.weights = [], []
        past = self.cache.get_seq_length()
        with self._hooked(past):
            output = self.decoder(
                inputs_embeds=embeds,
                attention_mask=None,
                position_ids=positions,
                **with_cache(self.cache),
                use_cache=True,
                **extra,
            )
        logits: Tensor = self.model.lm_head(output.last_hidden_state[0, -1])
        return logits

    @contextmanager
    def _hooked(self, past: int) -> Iterator[None]:
        handles = []
        for number, layer in enumerate(self.decoder.layers):
            handles.append(
                layer.register_forward_pre_hook(self._before(number, past), with_kwargs=True)
            )
            handles.append(layer.self_attn.register_forward_hook(self._after_attention))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _after_attention(self, module: Any, args: Any, output: Any) -> None:
        self.weights.append(output[1][0].mean(0))

    def _before(self, number: int, past: int) -> Any:
        def before(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
            states = args[0] if args else kwargs["hidden_states"]
            self.states.append(states[0])
            if past == 0 and number in self.drops:
                self._drop(number)
            recall = self.dropping.recall
            if past > 0 and recall is not None and number == recall.layer:
                self._choose(number)
            mask = self._mask(number, past, states.shape[1])
            return args, {**kwargs, "attention_mask": mask.to(states.dtype)}

        return before

    def _mask(self, number: int, past: int, count: int) -> Tensor:
        """What the tokens of a pass do not see is far below zero, ``[1, 1, T, K]``."""
        answered = past + count - self.prompt.lengths[0]
        columns = torch.cat([self.visible[number], torch.ones(answered, dtype=torch.bool)])
        causal = torch.ones(count, past + count, dtype=torch.bool).tril(past)
        sees = causal & columns
        return torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)[
            None, None
        ]

    def _drop(self, number: int) -> None:
        visual = self.prompt.visual[0] & self.visible[number]
        places = visual.nonzero()[:, 0]
        kept = places[self.dropping.keep(self.weights[-1][self.readers][:, places])]
        visual[kept] = False
        for layer in range(number, len(self.visible)):
            self.visible[layer] = self.visible[layer] & ~visual

    def _choose(self, number: int) -> None:
        recall = self.dropping.recall
        assert recall is not None
        places = self.prompt.visual[0].nonzero()[:, 0]
        attention = self.weights[-1][-1, places]
        previous = self.attention
        self.attention = attention
        if previous is not None and _alike(attention, previous) >= recall.similarity:
            return
        self.choices += 1
        count = int(len(places) * (1 - recall.prune_ratio) + 1e-9)
        hidden = self.prompt.visual[0].clone()
        hidden[places[attention.topk(count).indices]] = False
        for layer in range(number, len(self.visible)):
            self.visible[layer] = ~hidden


def _alike(first: Tensor, second: Tensor) -> float:
    return float(cosine_similarity(first, second, dim=0))
