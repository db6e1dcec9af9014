"""The one adapter over transformers vision-language models: any family, unmodified.

A VLM's forward prepares everything (vision features, M-RoPE positions, deepstack features) and then
calls its language model. A pre-hook there takes the arguments and stops the forward: they are the
`Prompt`. From then on the language model and the output head are called directly, with our cache
and our masks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import wraps
from threading import RLock
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from draftlens.attention import Probe, probing
from draftlens.core import tree as trees
from draftlens.core.errors import ConfigError, InputError, UnsupportedModelError
from draftlens.core.tree import ROOT, Topology
from draftlens.models.cache import KVCache, check_rollback
from draftlens.models.cells import read_layout
from draftlens.models.prompt import (
    Prepared,
    Prompt,
    build_prompt,
    capture_call,
    left_padded,
    with_stop_strings,
)

ATTENTION = ("sdpa", "eager")
"""Attention implementations that take the mask of a tree."""


P = ParamSpec("P")
T = TypeVar("T")


def _alone(method: Callable[P, T]) -> Callable[P, T]:
    """One thread at a time on one model: hooks and the probe's attention are set on it while a pass
    lasts."""

    @wraps(method)
    def locked(*args: P.args, **kwargs: P.kwargs) -> T:
        backbone: Any = args[0]
        with backbone._lock:
            return method(*args, **kwargs)

    return locked


class Backbone:
    """A transformers VLM behind the seam. Several threads may use one model; their passes take
    turns.

    Args:
        model: any `PreTrainedModel` that generates text, on one device or spread by accelerate,
            quantized or not.

    Raises:
        UnsupportedModelError: the model does not fit; says what is missing.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._lock = _LOCKS.setdefault(model, RLock())
        self.name = type(model).__name__
        self.decoder, self.head, self.embed = _modules(model, self.name)
        self.text_config = model.config.get_text_config(decoder=True)
        check_rollback(self.name, self.text_config)
        with self._lock:
            self.attention = self.decoder.config._attn_implementation
        if self.attention not in ATTENTION:
            raise UnsupportedModelError(
                f"{self.name} runs {self.attention!r} attention, which takes no tree mask; "
                'load it with attn_implementation="sdpa" (which uses flash kernels where it can)'
            )
        self.device = _execution_device(self.embed)
        self.vocab_size: int = _rows(self.head) or self.text_config.vocab_size
        with self._lock:
            if model not in _CHECKED:
                check_seam(self)
                _CHECKED.add(model)

    @classmethod
    def of(cls, model: Any) -> Backbone:
        """A model behind the seam; one that is there already is returned as it is."""
        return model if isinstance(model, Backbone) else cls(model)

    @property
    def modalities(self) -> frozenset[str]:
        """What the model can be shown, such as image, video, text."""
        modalities = getattr(self.model, "input_modalities", ("text",))
        return frozenset((modalities,) if isinstance(modalities, str) else modalities)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the model computes in, as transformers tells it."""
        return self.model.dtype  # type: ignore[no-any-return]

    @_alone
    def prepare(self, inputs: Mapping[str, Any], **options: Any) -> Prepared:
        """Let stock `generate` prepare a call, up to where its own loop would begin.

        So every option of `generate` means here what it means there, and vision features are
        encoded as it does.

        Args:
            inputs: what the processor returned: `input_ids` int64 ``[B, L]`` and friends, padded on
                either side.
            options: anything `generate` takes (`max_new_tokens`, `do_sample`, a
                `generation_config`, ...).

        Raises:
            InputError: there are no `input_ids`.
            ConfigError: `stop_strings` without a `tokenizer`, an `assistant_model`, or a strategy
                other than greedy decoding and sampling.
        """
        if options.get("assistant_model") is not None:
            raise ConfigError("assistant_model is for stock generate: give it as draft")
        if inputs.get("input_ids") is None:
            raise InputError("inputs must hold the processor's input_ids")
        moved = {
            key: value.to(self.device) if isinstance(value, Tensor) else value
            for key, value in inputs.items()
        }
        options = with_stop_strings(options)
        prepared: Prepared = self.model.generate(
            **left_padded(moved), **options, custom_generate=capture_call
        )
        return prepared

    @_alone
    @torch.no_grad()
    def encode(self, prepared: Prepared) -> Prompt:
        """Run everything in front of the language model; the result is what the language model
        would be called with."""
        kwargs = {
            k: v
            for k, v in prepared.model_kwargs.items()
            if k not in ("past_key_values", "logits_to_keep")
        }
        inputs = self.model.prepare_inputs_for_generation(
            prepared.input_ids, is_first_iteration=True, **kwargs
        )
        inputs.pop("past_key_values", None)
        pictures, videos = (
            self._stands_for(kind, prepared.input_ids) for kind in ("image", "video")
        )
        visual = pictures | videos
        prompt = build_prompt(self.name, self._language_inputs(inputs), self.embed, visual)
        return replace(
            prompt,
            layout=read_layout(self.model, prepared.model_kwargs, visual, videos & ~pictures),
        )

    def new_cache(self, prompt: Prompt, room: int) -> KVCache:
        """An empty cache for this prompt and `room` further tokens a row."""
        return KVCache(
            self.text_config.num_hidden_layers, len(prompt.lengths), max(prompt.lengths) + room
        )

    # Inference mode, which no_grad is not, skips the bookkeeping of views and versions: 15% of a
    # small model's forward. It stays inside this method, so that nothing it makes is left on the
    # model.
    @_alone
    @torch.inference_mode()
    def prefill(self, prompt: Prompt, cache: KVCache, probe: Probe | None = None) -> Tensor:
        """Fill the cache with the prompt; logits behind each row's last token, ``[B, 1, V]``.

        Rows stand left-aligned, so a plain causal pass is right for all of them: padding comes last
        and is never seen; its cache slots are overwritten by the first new tokens.

        Args:
            prompt: what to read.
            cache: empty.
            probe: takes a reading on the way; the attention is then `sdpa`, whatever it is
                otherwise.

        Raises:
            UnsupportedModelError: the model hands nothing on to its attention, so it cannot be
                probed.
        """
        extra = prompt.extra if probe is None else {**prompt.extra, "probe": probe}
        with nullcontext() if probe is None else probing(self.decoder):
            output = self.decoder(
                inputs_embeds=prompt.embeds,
                attention_mask=None,
                position_ids=prompt.position_ids,
                past_key_values=cache,
                use_cache=True,
                **extra,
            )
        if probe is not None and probe.layers != self.text_config.num_hidden_layers:
            raise UnsupportedModelError(
                f"{self.name} does not let its attention be read: prune without attention"
            )
        cache.truncate(prompt.lengths)
        hidden = output.last_hidden_state
        last = torch.tensor(prompt.lengths, device=hidden.device)[:, None] - 1
        return self._logits(
            hidden[torch.arange(len(prompt.lengths), device=hidden.device)[:, None], last]
        )

    @_alone
    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor:
        """Append tokens to the cache; logits behind each of them.

        Args:
            tokens: int64 ``[B, T]``.
            position_ids: int64 ``[..., B, T]`` (`Prompt.positions`).
            cache: grows by T in every row.
            mask: bool ``[B, 1, T, K]`` (`core.tree.attention_mask`), None if each token sees all
                there is.

        Returns:
            logits ``[B, T, V]`` in the model's dtype, on the device of the embeddings.
        """
        output = self.decoder(
            inputs_embeds=self.embed(tokens),
            attention_mask=self._attention_mask(mask),
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        cache.advance(tokens.shape[1])
        return self._logits(output.last_hidden_state)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.head(hidden)
        return logits.to(self.device)

    def _attention_mask(self, mask: Tensor | None) -> Tensor | None:
        if mask is None or self.attention == "sdpa":
            return mask
        # Eager attention adds its mask to the scores.
        return torch.zeros(mask.shape, dtype=self.dtype, device=mask.device).masked_fill_(
            ~mask, torch.finfo(self.dtype).min
        )

    def _language_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Call the whole model, but stop at its language model and return what that was called
        with."""
        handle = self.decoder.register_forward_pre_hook(_stop_here, with_kwargs=True)
        try:
            self.model(**inputs)
        except _Reached as reached:
            return reached.kwargs
        finally:
            handle.remove()
        raise UnsupportedModelError(
            f"{self.name} did not call its {type(self.decoder).__name__}: it cannot be driven"
        )

    def _stands_for(self, kind: str, input_ids: Tensor) -> Tensor:
        """Which prompt tokens stand for pixels of this kind (image, video), bool ``[B, L]``."""
        ids = {
            getattr(self.model.config, f"{kind}_token_{name}", None) for name in ("id", "index")
        } - {None}
        return torch.isin(
            input_ids, torch.tensor(sorted(ids), dtype=torch.long, device=input_ids.device)
        )


_LOCKS: weakref.WeakKeyDictionary[Any, RLock] = weakref.WeakKeyDictionary()
"""Whoever holds a model's may run it."""
_CHECKED: weakref.WeakSet[Any] = weakref.WeakSet()
"""Models that passed `check_seam`, so that a model used in many calls pays for it once."""


class _Reached(Exception):  # noqa: N818 - not an error: it ends a forward that has served its purpose
    def __init__(self, kwargs: dict[str, Any]) -> None:
        self.kwargs = kwargs


def _stop_here(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if args:
        kwargs = {"input_ids": args[0], **kwargs}
    raise _Reached(kwargs)


def _modules(model: Any, name: str) -> tuple[Any, Any, Any]:
    if getattr(model.config, "is_encoder_decoder", False) or not hasattr(model, "generate"):
        raise UnsupportedModelError(f"{name} is no decoder-only model with generate()")
    decoder, head, embed = (
        model.get_decoder(),
        model.get_output_embeddings(),
        model.get_input_embeddings(),
    )
    if decoder is None or decoder is model or head is None or embed is None:
        raise UnsupportedModelError(
            f"{name} does not show its language model, embeddings and output head"
        )
    return decoder, head, embed


def _execution_device(module: Any) -> torch.device:
    """Where inputs go: accelerate knows for a spread or offloaded module, whose weights may be
    elsewhere."""
    device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
    return torch.device(device) if device is not None else next(module.parameters()).device


def _rows(head: Any) -> int | None:
    return getattr(head, "out_features", None)


@torch.no_grad()
def check_seam(backbone: Backbone) -> None:
    """Compare the model's own forward on four tokens with the seam's, where the last is one of a
    tree's two leaves.

    Catches what no structural check can: logits that are scaled after the head, masks that are
    ignored, positions that are made elsewhere.

    Raises:
        UnsupportedModelError: they differ.
    """
    ids = torch.tensor([[1, 2, 3, 4]], device=backbone.device) % backbone.vocab_size
    stock = backbone.model(
        input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False
    ).logits[:, -1]
    root, right, wrong = int(ids[0, 2]), int(ids[0, 3]), int(ids[0, 1])
    fork = Topology((ROOT, ROOT))
    bound = (1e-3 if stock.dtype == torch.float32 else 5e-2) * float(
        stock.abs().max().clamp_min(1e-6)
    )
    cache, prompt = _tiny_prefill(backbone, ids[:, :2])
    mask = trees.attention_mask([2], trees.ancestors(fork, backbone.device))
    tokens = torch.tensor([[root, wrong, right]], device=backbone.device)
    steps = trees.depths(fork, backbone.device)
    seam = backbone.forward(tokens, prompt.positions(steps[None]), cache, mask)[:, 2]
    difference = float((seam.to(stock.device) - stock).abs().max())
    if not difference <= bound:
        raise UnsupportedModelError(
            f"{backbone.name} computes other logits when its language model is called directly "
            f"(they differ by {difference:.3g}), so its answers could not be kept the same"
        )


def _tiny_prefill(backbone: Backbone, ids: Tensor) -> tuple[KVCache, Prompt]:
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    prompt = build_prompt(
        backbone.name,
        backbone._language_inputs(inputs),
        backbone.embed,
        torch.zeros_like(ids, dtype=torch.bool),
    )
    cache = backbone.new_cache(prompt, room=4)
    backbone.prefill(prompt, cache)
    return cache, prompt
