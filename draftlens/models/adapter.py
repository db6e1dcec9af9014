"""The one adapter over transformers vision-language models: any family, unmodified.

A VLM's forward prepares everything (vision features, M-RoPE positions, deepstack features) and then
calls its language model. A pre-hook there takes the arguments and stops the forward: they are the
`Prompt`. From then on the language model and the output head are called directly, with the cache
and the masks of this library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from threading import get_ident
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from draftlens.core import tree as trees
from draftlens.core.checks import shown
from draftlens.core.errors import ConfigError, InputError, UnsupportedModelError
from draftlens.core.process_group import ALONE, Hosts
from draftlens.core.tree import ROOT, Topology
from draftlens.models.attention.dispatch import ARGUMENT, AttentionPass, dispatching
from draftlens.models.cache_argument import PAST_REFUSAL, cache_in, with_cache, without_cache
from draftlens.models.forward_backend import EAGER, Passes
from draftlens.models.kv_cache import BLOCK, LAYERS_PER_BLOCK, KVCache, check_rollback
from draftlens.models.model_lock import lock_of
from draftlens.models.model_state import Slot
from draftlens.models.onednn_linear import few_rows, has_large
from draftlens.models.prompt import (
    Prepared,
    Prompt,
    build_prompt,
    capture_call,
    checked_inputs,
    neutral_config,
    with_config,
    with_stop_strings,
)
from draftlens.models.visual_grid import read_layout

ATTENTION = ("sdpa", "eager")
"""Attention implementations that take the mask of a tree."""

MEDIA = ("image", "video", "vision", "audio", "img", "boi", "eoi")
"""Beginnings of the names of token ids that a configuration has for media."""

_CHECKED = Slot[bool]("passed check_seam")

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Backbone:
    """A transformers VLM behind the seam.

    Several threads may use one model. Plain forwards run side by side, and so do passes whose
    hidden states are watched; passes that set other hooks or change the attention run alone
    (`models.model_lock`).

    Args:
        model: any `PreTrainedModel` that generates text, on one device or spread by accelerate,
            quantized or not.

    Attributes:
        hosts: processes with copies of the model that read prompts together with this one; none
            unless `distributed` sets it.
        passes: computes decode forwards; the model's modules do unless `compiled` sets it.
        divisor: of the logits behind the output head.
        has_large_matrices: whether oneDNN computes products of a few rows (`models.onednn_linear`).
        has_groups: whether several heads of queries read the same keys (`models.attention.gqa`).

    Raises:
        UnsupportedModelError: the model does not fit; the message says what is missing.
    """

    def __init__(self, model: Any) -> None:
        model = unwrapped(model)
        _check_is_model(model)
        self.model = model
        self.name = type(model).__name__
        self.hosts: Hosts = ALONE
        self.passes: Passes = EAGER
        self._lock = lock_of(model)
        modules = _Modules.of(model, self.name)
        self.decoder = modules.decoder
        self.head = modules.head
        self.embed = modules.embed
        self.text_config = model.config.get_text_config(decoder=True)
        # Granite's models divide the logits behind their head.
        self.divisor = float(getattr(self.text_config, "logits_scaling", None) or 1.0)
        self.has_large_matrices = has_large([self.decoder, self.head])
        self.has_groups = _has_groups(self.text_config)
        check_rollback(self.name, self.text_config)
        with self._lock.exclusive():
            self.attention = self.decoder.config._attn_implementation
        if self.attention not in ATTENTION:
            raise UnsupportedModelError(
                f"{self.name} runs {self.attention!r} attention, which takes no tree mask; "
                'load it with attn_implementation="sdpa" (which uses flash kernels where it can)'
            )
        self.device = _execution_device(self.embed)
        self.vocab_size: int = getattr(self.head, "out_features", None) or (
            self.text_config.vocab_size
        )
        self._check_mode()
        with self._lock.exclusive():
            if not _CHECKED.get(model):
                check_seam(self)
                _CHECKED.set(model, True)

    @classmethod
    def of(cls, model: Any) -> Backbone:
        """A model behind the seam; a backbone is returned as it is."""
        return model if isinstance(model, Backbone) else cls(model)

    @property
    def modalities(self) -> frozenset[str]:
        """The kinds of input that the model takes, such as image, video, text."""
        modalities = getattr(self.model, "input_modalities", ("text",))
        return frozenset((modalities,) if isinstance(modalities, str) else modalities)

    @property
    def pixel_ids(self) -> frozenset[int]:
        """Ids that the configuration names for media: those that stand for pixels in a prompt, and
        the marks around them. They have no meaning in a text."""
        ids: set[int] = set()
        for name, value in vars(self.model.config).items():
            is_id = name.endswith(("_token_id", "_token_index"))
            if is_id and name.startswith(MEDIA) and isinstance(value, int):
                ids.add(value)
        return frozenset(ids)

    @property
    def is_spread(self) -> bool:
        """Whether accelerate moves weights or inputs between devices."""
        return any(hasattr(module, "_hf_hook") for module in self.model.modules())

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the model computes in: that of its weights, or of a running autocast."""
        if torch.is_autocast_enabled(self.device.type):
            return torch.get_autocast_dtype(self.device.type)
        return self.model.dtype  # type: ignore[no-any-return]

    def prepare(self, inputs: Mapping[str, Any], **options: Any) -> Prepared:
        """Let stock `generate` prepare a call, up to the place where its own loop would begin.

        So every option of `generate` has the meaning that it has there, and vision features are
        encoded as there, or by all processes of the model (`hosts`).

        Args:
            inputs: the processor's output: `input_ids` int64 ``[B, L]`` and further tensors, padded
                on either side.
            options: anything that `generate` takes (`max_new_tokens`, `do_sample`, a
                `generation_config`, ...).

        Raises:
            InputError: there are no `input_ids`, a row has no tokens, or the cache of an earlier
                turn is given.
            ConfigError: `stop_strings` without a `tokenizer`, an `assistant_model`, or a strategy
                other than greedy decoding and sampling.
            UnsupportedModelError: the model is in training mode.
        """
        if options.get("assistant_model") is not None:
            raise ConfigError("assistant_model is for stock generate: give it as draft")
        if cache_in(options) is not None:
            raise InputError(PAST_REFUSAL)
        options = with_stop_strings(without_cache(options), self.model.generation_config)
        return self._prepare(self.model, inputs, options)

    def prepare_prompt(self, inputs: Mapping[str, Any], max_new_tokens: int = 1) -> Prepared:
        """Prepare inputs that are only read, or continued greedily, whatever the model's generation
        config says.

        Ids that the model does not have are replaced by its last one.

        Args:
            inputs: as for `prepare`. Without an `attention_mask` every token is read.
            max_new_tokens: length of the answer.

        Raises:
            InputError: as `prepare`.
        """
        ids = inputs.get("input_ids")
        if ids is not None:
            inputs = {**inputs, "input_ids": ids.clamp_max(self.vocab_size - 1)}
        config = neutral_config(max_new_tokens)
        if max_new_tokens > 1:
            for name in ("eos_token_id", "pad_token_id"):
                setattr(config, name, getattr(self.model.generation_config, name))
        model = with_config(self.model, config)
        return self._prepare(model, inputs, {"generation_config": config})

    def _prepare(
        self, model: Any, inputs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Prepared:
        self._check_mode()
        self.passes.begin()
        padded = checked_inputs(inputs)
        moved = {
            key: value.to(self.device) if isinstance(value, Tensor) else value
            for key, value in padded.items()
        }
        encoded = self.hosts.encode(self.model, moved)
        with self._passing():
            prepared: Prepared = model.generate(
                **encoded.inputs, **options, custom_generate=capture_call
            )
        return replace(prepared, notes=encoded.notes)

    @torch.no_grad()
    def encode(self, prepared: Prepared) -> Prompt:
        """Run everything in front of the language model; return the arguments that the language
        model would be called with."""
        kwargs = without_cache(prepared.model_kwargs)
        kwargs.pop("logits_to_keep", None)
        pictures = self._represents("image", prepared.input_ids)
        videos = self._represents("video", prepared.input_ids)
        visual = pictures | videos
        with self._lock.exclusive():
            inputs = self.model.prepare_inputs_for_generation(
                prepared.input_ids, is_first_iteration=True, **kwargs
            )
            arguments = self._language_inputs(without_cache(inputs))
            prompt = build_prompt(self.name, arguments, self.embed, visual)
        layout = read_layout(self.model, prepared.model_kwargs, visual, videos & ~pictures)
        return replace(prompt, layout=layout)

    @torch.no_grad()
    def text_prompt(self, ids: Tensor) -> Prompt:
        """A prompt of text only, from its token ids ``[B, L]``, for checks and measurements."""
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        no_pixels = torch.zeros_like(ids, dtype=torch.bool)
        with self._lock.exclusive():
            return build_prompt(self.name, self._language_inputs(inputs), self.embed, no_pixels)

    def new_cache(self, prompt: Prompt, room: int) -> KVCache:
        """An empty cache for a prompt and some further tokens.

        Args:
            prompt: names the rows and their lengths.
            room: further tokens of each row. At most `BLOCK` of them are reserved; the buffers grow
                when more are written.
        """
        capacity = max(prompt.lengths) + min(room, BLOCK)
        num_layers = self.text_config.num_hidden_layers
        # The layers of a block lie on one device.
        layers_per_block = 1 if self.is_spread else LAYERS_PER_BLOCK
        return KVCache(num_layers, len(prompt.lengths), capacity, True, layers_per_block)

    @torch.no_grad()
    def followed_by(self, prompt: Prompt, tokens: Tensor) -> Prompt:
        """The prompt with text tokens behind each row's own last one.

        Args:
            prompt: any.
            tokens: int64 ``[B, T]``.
        """
        return prompt.followed_by(self.embed(tokens))

    # Inference mode, which no_grad is not, skips the bookkeeping of views and versions: 15% of a
    # small model's forward. It stays inside this method, so that no inference tensor is left on the
    # model.
    @torch.inference_mode()
    def prefill(
        self,
        prompt: Prompt,
        cache: KVCache,
        attention: AttentionPass | None = None,
        num_logits: int = 1,
    ) -> Tensor:
        """Fill the cache with the prompt; logits behind each row's last tokens, ``[B, K, V]``.

        Rows are left-aligned, so a plain causal pass is right for all of them: padding comes last,
        no token attends to it, and the first new tokens overwrite its cache slots.

        Args:
            prompt: what to read.
            cache: empty.
            attention: computes the attention of every layer instead of the model's own.
            num_logits: K, at most the length of the shortest row.
        """
        with self._running(attention):
            output = self.decoder(
                inputs_embeds=prompt.embeds,
                attention_mask=None,
                position_ids=prompt.position_ids,
                use_cache=True,
                **with_cache(cache),
                **prompt.extra,
                **_directed(attention),
            )
        cache.truncate(prompt.lengths)
        hidden = output.last_hidden_state
        ends = torch.tensor(prompt.lengths, device=hidden.device)[:, None]
        last = ends - num_logits + torch.arange(num_logits, device=hidden.device)
        rows = torch.arange(len(prompt.lengths), device=hidden.device)[:, None]
        return self._logits(hidden[rows, last])

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor:
        """Append tokens to the cache; logits behind each of them.

        Args:
            tokens: int64 ``[B, T]``.
            position_ids: int64 ``[..., B, T]`` (`Prompt.positions`).
            cache: grows by T in every row.
            mask: bool ``[B, 1, T, K]`` (`core.tree.attention_mask`), None if each token attends to
                everything.

        Returns:
            logits ``[B, T, V]`` in the model's dtype, on the device of the embeddings.
        """
        with cache.directing(tokens, position_ids, mask) as attention, self._running(attention):
            logits = None
            if attention is None and not self._lock.is_watching():
                logits = self.passes.run(tokens, position_ids, cache, mask)
            if logits is None:
                logits = self.forward_modules(tokens, position_ids, cache, mask, attention)
        cache.advance(tokens.shape[1])
        return logits

    @torch.inference_mode()
    def greedy_chain(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, count: int, vocab_size: int
    ) -> Tensor | None:
        """Append a token to every row, then the likeliest token behind it, and so on, in less time
        than by `forward`; all rows of the cache are equally long.

        Args:
            tokens: int64 ``[B, 1]``.
            position_ids: theirs, int64 ``[..., B, 1]``; those of later tokens follow.
            cache: grows by `count` in every row.
            count: number of forwards.
            vocab_size: only ids below it are chosen.

        Returns:
            The likeliest token behind each appended one, int64 ``[B, count]``; the last is not in
            the cache. None, with nothing appended, if only `forward` can compute it.
        """
        if cache.spread or self._lock.is_watching():
            return None
        with self._passing():
            chosen = self.passes.run_chain(tokens, position_ids, cache, count, vocab_size)
        if chosen is not None:
            cache.advance(count)
        return chosen

    def forward_modules(
        self,
        tokens: Tensor,
        position_ids: Tensor,
        cache: KVCache,
        mask: Tensor | None,
        attention: AttentionPass | None = None,
    ) -> Tensor:
        """`forward` by the model's own modules, without counting the tokens in the cache."""
        copies_keys = attention is None and mask is not None and tokens.shape[1] > 1
        grouping = self._grouping() if copies_keys else nullcontext()
        with few_rows(tokens, self.has_large_matrices), grouping:
            output = self.decoder(
                inputs_embeds=self.embed(tokens),
                attention_mask=self._attention_mask(mask),
                position_ids=position_ids,
                use_cache=True,
                **with_cache(cache),
                **_directed(attention),
            )
            return self._logits(output.last_hidden_state)

    @torch.inference_mode()
    def forward_along(self, tokens: Tensor, position_ids: Tensor, attention: AttentionPass) -> None:
        """Forward tokens whose keys and values another process keeps, and which it judges: for what
        `attention` exchanges with that process.

        Args:
            tokens, position_ids: as for `forward`.
            attention: computes the attention of every layer.
        """
        with self._dispatching():
            self.decoder(
                inputs_embeds=self.embed(tokens),
                attention_mask=None,
                position_ids=position_ids,
                use_cache=False,
                **_directed(attention),
            )

    @contextmanager
    def watching(
        self, layers: Sequence[int], receive: Callable[[int, Tensor], None]
    ) -> Iterator[None]:
        """Hand over hidden states of this thread's passes inside the context, from inside them.

        Passes of other threads may run beside them and are not seen. A pass inside the context that
        directs the attention runs alone, which two threads must not request at once: enter
        `alone` first.

        Args:
            layers: l means behind l layers, as the next layer reads them (with the features that
                Qwen3-VL adds between layers): 0 for the embeddings that enter the first layer, the
                number of layers for the output of the last one, before the final norm.
            receive: called with a layer and its hidden states ``[B, T, D]``.

        Raises:
            UnsupportedModelError: the language model does not list its layers.
            ConfigError: there is no such layer.
        """
        if not layers:
            yield
            return
        modules = getattr(self.decoder, "layers", None)
        if modules is None:
            raise UnsupportedModelError(f"{self.name} does not list the layers of its decoder")
        if not 0 <= min(layers) <= max(layers) <= len(modules):
            raise ConfigError(f"{self.name} has layers 0 to {len(modules)}, not {list(layers)}")
        with self._passing(), self._lock.watching(), ExitStack() as hooks:
            for layer in layers:
                is_last = layer == len(modules)
                module = modules[-1] if is_last else modules[layer]
                watch = _after(layer, receive) if is_last else _before(layer, receive)
                hooks.enter_context(self._lock.hooked(module, watch, is_last))
            yield

    @contextmanager
    def hidden_states(self, layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
        """Collect hidden states of this thread's passes inside the context.

        Args:
            layers: as for `watching`.

        Yields:
            layer to hidden states ``[B, T, D]`` of the last pass.

        Raises:
            UnsupportedModelError: the language model does not list its layers.
            ConfigError: there is no such layer.
        """
        states: dict[int, Tensor] = {}
        with self.watching(layers, states.__setitem__):
            yield states

    def stopping_at(
        self, module: nn.Module, stop: Callable[..., Any]
    ) -> AbstractContextManager[None]:
        """Call `stop` before each forward of a module, with the arguments of the call; entered
        while this thread is `alone`."""
        return self._lock.hooked(module, stop, after=False)

    def alone(self) -> AbstractContextManager[None]:
        """Let no other thread run a pass of the model: hooks are set on it."""
        return self._lock.exclusive()

    def _check_mode(self) -> None:
        if self.model.training:
            raise UnsupportedModelError(
                f"{self.name} is in training mode, where dropout changes the answer: "
                "call its eval() first"
            )

    def _passing(self) -> AbstractContextManager[None]:
        """Of eager models passes run alone: the dispatching attention would change theirs."""
        return self._lock.shared() if self.attention == "sdpa" else self._lock.exclusive()

    def _grouping(self) -> AbstractContextManager[None]:
        """Around a masked pass over several tokens, for which transformers' `sdpa` copies the keys
        that several heads of queries share."""
        if self.has_groups and self.attention == "sdpa":
            return dispatching(self.decoder)
        return nullcontext()

    def _running(self, attention: AttentionPass | None) -> AbstractContextManager[None]:
        """Around a pass whose attention the model computes itself, or `attention` does."""
        return self._passing() if attention is None else self._dispatching()

    @contextmanager
    def _dispatching(self) -> Iterator[None]:
        with self._lock.exclusive(), dispatching(self.decoder):
            yield

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.head(hidden)
        if self.divisor != 1:
            logits = logits / self.divisor
        return logits.to(self.device)

    def _attention_mask(self, mask: Tensor | None) -> Tensor | None:
        if mask is None or self.attention == "sdpa":
            return mask
        # Eager attention adds its mask to the scores.
        additive = torch.zeros(mask.shape, dtype=self.model.dtype, device=mask.device)
        return additive.masked_fill_(~mask, torch.finfo(additive.dtype).min)

    def _language_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Call the whole model, but stop at its language model and return the arguments of that
        call."""
        with self.stopping_at(self.decoder, _stop_here):
            try:
                self.model(**inputs)
            except _Reached as reached:
                return reached.kwargs
        raise UnsupportedModelError(
            f"{self.name} did not call its {type(self.decoder).__name__}: it cannot be driven"
        )

    def _represents(self, kind: str, input_ids: Tensor) -> Tensor:
        """Which prompt tokens represent pixels of this kind (image, video), bool ``[B, L]``."""
        names = (f"{kind}_token_id", f"{kind}_token_index")
        ids = {getattr(self.model.config, name, None) for name in names} - {None}
        return torch.isin(
            input_ids, torch.tensor(sorted(ids), dtype=torch.long, device=input_ids.device)
        )


def _directed(attention: AttentionPass | None) -> dict[str, AttentionPass]:
    """Further arguments of the language model's forward."""
    return {} if attention is None else {ARGUMENT: attention}


class _Modules:
    """The parts of a model that are called directly.

    Args:
        decoder, head, embed: language model, output head and input embeddings.
    """

    def __init__(self, decoder: Any, head: Any, embed: Any) -> None:
        self.decoder = decoder
        self.head = head
        self.embed = embed

    @classmethod
    def of(cls, model: Any, name: str) -> _Modules:
        """The parts of a transformers model.

        Raises:
            UnsupportedModelError: it has another architecture.
        """
        if getattr(model.config, "is_encoder_decoder", False) or not hasattr(model, "generate"):
            raise UnsupportedModelError(f"{name} is no decoder-only model with generate()")
        decoder = model.get_decoder()
        head = model.get_output_embeddings()
        embed = model.get_input_embeddings()
        if decoder is None or decoder is model or head is None or embed is None:
            raise UnsupportedModelError(
                f"{name} does not show its language model, embeddings and output head"
            )
        if getattr(decoder, "get_output_embeddings", _nothing)() is not None:
            raise UnsupportedModelError(
                f"{name} shows no language model without an output head, so its hidden states "
                "cannot be read"
            )
        return cls(decoder, head, embed)


def _nothing() -> None:
    """What a decoder that is no transformers model shows as its output head."""


def unwrapped(model: Any) -> Any:
    """The model inside DataParallel, DistributedDataParallel and what `torch.compile` returns,
    which have the same weights and leave all of `generate` to it."""
    while isinstance(model, nn.Module):
        if isinstance(model, (nn.DataParallel, DistributedDataParallel)):
            model = model.module
        elif hasattr(model, "_orig_mod"):  # by `torch.compile`, whose class takes long to import
            model = model._orig_mod
        else:
            break
    return model


def _check_is_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(
            f"a transformers model is needed, not {shown(model)}; draftlens.load takes names"
        )
    if not hasattr(model, "config"):
        raise UnsupportedModelError(
            f"{type(model).__name__} is no transformers model: give the model that it wraps"
        )


class _Reached(Exception):  # noqa: N818 - not an error: it ends a forward that has served its purpose
    def __init__(self, kwargs: dict[str, Any]) -> None:
        self.kwargs = kwargs


def _stop_here(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if args:
        kwargs = {"input_ids": args[0], **kwargs}
    raise _Reached(kwargs)


# These hooks hand hidden states to `receive` in passes of the thread that makes them. Passes of
# other threads go on while one is set and removed. Those may call it at any time, and without
# `kwargs`, which torch passes on only while the hook is wholly registered.


def _before(layer: int, receive: Callable[[int, Tensor], None]) -> Callable[..., None]:
    """A hook in front of a layer."""
    thread = get_ident()

    def hook(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] = _NOTHING) -> None:
        if get_ident() == thread:
            receive(layer, args[0] if args else kwargs["hidden_states"])

    return hook


def _after(layer: int, receive: Callable[[int, Tensor], None]) -> Callable[..., None]:
    """A hook behind the last layer."""
    thread = get_ident()

    def hook(module: Any, args: tuple[Any, ...], output: Any) -> None:
        if get_ident() == thread:
            receive(layer, output[0] if isinstance(output, tuple) else output)

    return hook


def _has_groups(text_config: Any) -> bool:
    """Whether a language model may have fewer heads of keys than of queries."""
    heads = getattr(text_config, "num_attention_heads", None)
    return getattr(text_config, "num_key_value_heads", None) not in (None, heads)


def _execution_device(module: Any) -> torch.device:
    """The device of inputs. For a spread or offloaded module, whose weights may be elsewhere,
    accelerate names it."""
    device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
    return torch.device(device) if device is not None else next(module.parameters()).device


@torch.no_grad()
def check_seam(backbone: Backbone) -> None:
    """Compare the model's own forward on four tokens with the seam's, where the last token is one
    of a tree's two leaves.

    This detects what no structural check can: logits that are scaled after the head, masks that
    are ignored, positions that are made elsewhere.

    Raises:
        UnsupportedModelError: they differ.
    """
    ids = torch.tensor([[1, 2, 3, 4]], device=backbone.device) % backbone.vocab_size
    model_output = backbone.model(
        input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False
    )
    stock = model_output.logits[:, -1]
    wrong, root, right = ids[0, 1:].tolist()
    fork = Topology((ROOT, ROOT))
    relative = 1e-3 if stock.dtype == torch.float32 else 5e-2
    bound = relative * float(stock.abs().max().clamp_min(1e-6))
    prompt = backbone.text_prompt(ids[:, :2])
    cache = backbone.new_cache(prompt, room=4)
    backbone.prefill(prompt, cache)
    mask = trees.attention_mask([2], trees.ancestors(fork, backbone.device))
    tokens = torch.tensor([[root, wrong, right]], device=backbone.device)
    positions = prompt.positions(trees.depths(fork, backbone.device)[None])
    seam = backbone.forward(tokens, positions, cache, mask)[:, 2]
    difference = float((seam.to(stock.device) - stock).abs().max())
    if not difference <= bound:
        raise UnsupportedModelError(
            f"{backbone.name} computes other logits when its language model is called directly "
            f"(they differ by {difference:.3g}), so its answers could not be kept the same"
        )
