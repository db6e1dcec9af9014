"""The adapter to transformers vision-language models of any family, unmodified.

The forward of a model prepares vision features, M-RoPE positions and deepstack features, and then
calls its language model. A pre-hook takes the arguments of that call, the `Prompt`, and ends the
forward. From then on the language model and the output head are called directly, with the cache
and the masks of this library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from draftlens.core import tree as trees
from draftlens.core.errors import UnsupportedModelError
from draftlens.models import inspection, support
from draftlens.models.attention.dispatch import ARGUMENT, AttentionPass, dispatching
from draftlens.models.forward_backend import EAGER, EndsChain, Passes
from draftlens.models.kv_cache import BLOCK, LAYERS_PER_BLOCK, KVCache
from draftlens.models.media_features import with_features
from draftlens.models.model_state import capture_arguments, layers_of, lock_of, watched_layers
from draftlens.models.products import ModelProducts
from draftlens.models.prompt import (
    PixelEncoder,
    Prepared,
    Prompt,
    blocks,
    build_prompt,
    capture_call,
    checked_inputs,
    neutral_config,
    prompt_options,
    unencoded,
    with_config,
)
from draftlens.models.prompt_cache import PromptCache
from draftlens.models.retokenizer import Retokenizer
from draftlens.models.visual_grid import read_layout


def wait_for(device: torch.device) -> None:
    """Until a device has done what it was given; a clock that is read before measures launches."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Backbone:
    """A transformers model as this library drives it, in any thread (`models.model_state`).

    Args:
        model: any `PreTrainedModel` that generates text, on one device or spread by accelerate,
            quantized or not.

    Attributes:
        encode_pixels: makes features of pixels before `generate` gets them; by default `generate`
            makes them itself.
        prompt_cache: features and prompts that were read before; None for none.
        retokenizer: of a draft whose tokenizer is not that of its target; else None.
        passes: computes decode forwards; the model's modules do unless `compile` sets it.
        products: the libraries that multiply matrices while the modules run.
        scale, divisor: of the logits after the output head.
        both_ways: whether tokens attend to all others where the language model gets no mask.
        kinds: of its layers; None if all attend fully to keys of their own.
        indexers: of layers that select the tokens that they attend to; None if none does.
        plain_only: why draft tokens cannot be verified, so that the model answers by the steps of
            stock `generate` alone (`models.stock_rows`); empty if they can.
        states: the layers that keep states (`models.recurrent`); None for a model without.
        chains_only: why draft tokens must form chains; empty if they may form trees.

    Raises:
        UnsupportedModelError: the model does not fit; the message names what is missing.
    """

    def __init__(self, model: Any) -> None:
        model = inspection.unwrapped_model(model)
        self.model = model
        self.name = type(model).__name__
        self.encode_pixels: PixelEncoder = unencoded
        self.prompt_cache: PromptCache | None = None
        self.retokenizer: Retokenizer | None = None
        self.passes: Passes = EAGER
        self._lock = lock_of(model)
        self.decoder, self.head, self.embed, missing = inspection.model_parts(model, self.name)
        self.text_config = model.config.get_text_config(decoder=True)
        self._widens = inspection.is_wide(self.head, model.dtype)
        with self._lock.exclusive():
            self.attention = getattr(self.decoder, "config", model.config)._attn_implementation
        inspection.check_attention(self.name, self.attention)
        # Passes of frequencies that are set anew in each of them must not run side by side.
        changing = support.changing_frequencies(self.text_config)
        self._shares_passes = self.attention == "sdpa" and not changing
        self._dynamic = support.dynamic_modules(self.decoder)
        self.device = inspection.execution_device(self.embed)
        self.products = ModelProducts(model, self.decoder, self.head, self.device)
        self.vocab_size: int = getattr(self.head, "out_features", None) or (
            self.text_config.vocab_size
        )
        self._check_mode()
        self.both_ways = inspection.attends_both_ways(self.decoder)
        self.indexers = inspection.indexers_of(self)
        self.has_groups = self.indexers is None and inspection.has_groups(self.text_config)
        self.plain_only = missing or inspection.no_rollback(
            self.name, self.text_config, self.indexers
        )
        self.kinds = None if self.plain_only else inspection.kinds_of(self.text_config)
        self.states, self.chains_only = inspection.state_layers(self, self.plain_only)
        self.scale: Any = None
        if not self.plain_only:
            with self._lock.exclusive():
                self.scale, self.embed = inspection.around(self)
                self.plain_only = inspection.no_direct_calls(self)
        if self.plain_only:
            from draftlens.models.stock_rows import StockPasses

            self.passes = StockPasses(self.device)

    @classmethod
    def of(cls, model: Any) -> Backbone:
        return model if isinstance(model, Backbone) else cls(model)

    @property
    def divisor(self) -> float:
        return 1.0 if self.scale is None else self.scale.divisor

    @property
    def modalities(self) -> frozenset[str]:
        modalities = getattr(self.model, "input_modalities", ("text",))
        return frozenset((modalities,) if isinstance(modalities, str) else modalities)

    @property
    def pixel_ids(self) -> frozenset[int]:
        return support.media_ids(self.model.config)

    @property
    def is_spread(self) -> bool:
        # `hasattr` takes five times as long on a module that has no such attribute.
        return any("_hf_hook" in vars(module) for module in self.model.modules())

    @property
    def dtype(self) -> torch.dtype:
        if torch.is_autocast_enabled(self.device.type):
            return torch.get_autocast_dtype(self.device.type)
        return self.model.dtype  # type: ignore[no-any-return]

    @property
    def notes(self) -> tuple[str, ...]:
        """For the user, on every answer of the model as a target."""
        return (f"{self.plain_only}: nothing was drafted",) if self.plain_only else ()

    def prepare(self, inputs: Mapping[str, Any], **options: Any) -> Prepared:
        """Run stock `generate` up to the start of its own loop, so that every option keeps its
        meaning. Pixels are encoded there, or by `encode_pixels`.

        Args:
            inputs: the processor's output, `input_ids` int64 ``[B, L]`` padded on either side.
            options: anything that `generate` takes.

        Raises:
            InputError, ConfigError: `models.prompt` refuses inputs or options.
            UnsupportedModelError: the model is in training mode.
        """
        options = prompt_options(options, self.model.generation_config)
        return self._prepare(self.model, inputs, options)

    def prepare_prompt(self, inputs: Mapping[str, Any], max_new_tokens: int = 1) -> Prepared:
        """Prepare inputs for a greedy continuation, whatever the model's generation config. Without
        an `attention_mask` every token is read; ids out of range become the last id."""
        ids = inputs.get("input_ids")
        if ids is not None:
            inputs = {**inputs, "input_ids": ids.clamp_max(self.vocab_size - 1)}
        config = neutral_config(max_new_tokens, self.model.generation_config)
        model = with_config(self.model, config)
        return self._prepare(model, inputs, {"generation_config": config})

    def _prepare(
        self, model: Any, inputs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Prepared:
        self._check_mode()
        self.passes.begin()
        checked = checked_inputs(inputs, self.device)
        if self.prompt_cache is not None:
            with self._passing(), self._reading_pixels(checked):
                checked = with_features(self.prompt_cache, self.model, checked)
        with self.passes.of_pixels(self.model) or nullcontext():
            encoded = self.encode_pixels(self.model, checked)
        with self._passing(), self._reading_pixels(encoded.inputs):
            prepared: Prepared = model.generate(
                **encoded.inputs, **options, custom_generate=capture_call
            )
        return replace(prepared, notes=(*self.notes, *encoded.notes))

    def _reading_pixels(self, inputs: Mapping[str, Any]) -> AbstractContextManager[Any]:
        """A context in which the vision tower reads the pixels of a processor's output."""
        return self.passes.of_pixels(self.model) or self.products.of_pixels(inputs)

    @torch.no_grad()
    def encode(self, prepared: Prepared) -> Prompt:
        """Run everything before the language model and return the arguments of its call."""
        kwargs = support.without_cache(prepared.model_kwargs)
        kwargs.pop("logits_to_keep", None)
        pictures = support.represents(self.model.config, "image", prepared.input_ids)
        videos = support.represents(self.model.config, "video", prepared.input_ids)
        visual = pictures | videos
        if self.plain_only:
            from draftlens.models.stock_rows import stock_prompt

            return stock_prompt(prepared, visual)
        with self._lock.exclusive():
            inputs = self.model.prepare_inputs_for_generation(
                prepared.input_ids, is_first_iteration=True, **kwargs
            )
            prompt = self._built(
                support.without_cache(inputs), visual, kwargs.get("attention_mask")
            )
        layout = read_layout(self.model, prepared.model_kwargs, visual, videos & ~pictures)
        return replace(prompt, layout=layout)

    @torch.no_grad()
    def text_prompt(self, ids: Tensor) -> Prompt:
        """A prompt of text only, from its token ids ``[B, L]``."""
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        with self._lock.exclusive():
            return self._built(inputs, torch.zeros_like(ids, dtype=torch.bool), None)

    def new_cache(self, prompt: Prompt, room: int) -> KVCache:
        """An empty cache for the prompt and `room` further tokens of each row, of which at most
        `BLOCK` are reserved at once, or what suits the passes."""
        if self.plain_only:
            from draftlens.models.stock_rows import StockRows

            return StockRows(len(prompt.lengths))
        at_once = self.passes.cache_step or BLOCK
        return self.empty_cache(len(prompt.lengths), max(prompt.lengths) + min(room, at_once))

    def empty_cache(self, rows: int, capacity: int) -> KVCache:
        """A cache for so many rows and, until it grows, tokens of each. Of models with sliding
        windows see `LayerKinds.bounded`."""
        # The layers of a block lie on one device.
        layers_per_block = 1 if self.is_spread else LAYERS_PER_BLOCK
        if self.indexers is not None:
            return self.indexers.new_cache(rows, capacity, layers_per_block)  # type: ignore[no-any-return]
        num_layers = self.kinds.num_cached if self.kinds else self.text_config.num_hidden_layers
        make = KVCache if self.states is None else self.states.new_cache
        step = self.passes.cache_step
        if step:
            capacity = -(-capacity // step) * step
        cache = make(num_layers, rows, capacity, True, layers_per_block)
        cache.step = step
        if self.kinds is None:
            return cache
        return self.kinds.bounded(cache, layers_per_block, whole=bool(self.passes.label))

    @torch.no_grad()
    def followed_by(self, prompt: Prompt, tokens: Tensor) -> Prompt:
        """The prompt with text tokens, int64 ``[B, T]``, after each row."""
        return prompt.followed_by(self.embed(tokens), self.token_inputs(tokens))

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
        """Fill an empty cache with the prompt; logits ``[B, K, V]`` after each row's last K tokens.

        Rows are left-aligned, so a causal pass is correct for all of them: padding comes last, no
        token attends to it, and the first new tokens overwrite its slots in the cache.

        Args:
            attention: computes the attention of every layer in place of the model's own.
            num_logits: K, at most the length of the shortest row.
        """
        logits = self._read_by_passes(prompt, cache, attention, num_logits)
        if logits is not None:
            return logits
        with self.running(attention), self.products.of_prompt(prompt):
            embeds, positions = prompt.embeds, prompt.position_ids
            hidden = self._hidden(embeds, positions, cache, None, attention, prompt)
        cache.truncate(prompt.lengths)
        return self._logits(prompt.last(hidden, num_logits))

    @torch.inference_mode()
    def read_on(
        self, part: Prompt, cache: KVCache, attention: AttentionPass | None = None
    ) -> Tensor:
        """Append a part of a prompt, rows left-aligned, to the parts that a cache holds; logits
        ``[B, 1, V]`` after each row's last token. The twin of one `prefill` of the whole prompt.

        Args:
            attention: as for `prefill`.
        """
        logits = self._read_by_passes(part, cache, attention, 1)
        if logits is not None:
            return logits
        length = part.embeds.shape[1]
        window = torch.ones(length, length, dtype=torch.bool, device=part.embeds.device).tril()
        mask = trees.attention_mask(cache.lengths, window)
        with self.running(attention), self.products.of_prompt(part):
            hidden = self._hidden(part.embeds, part.position_ids, cache, mask, attention, part)
        cache.advance(part.lengths)
        return self._logits(part.last(hidden, 1))

    def _read_by_passes(
        self, part: Prompt, cache: KVCache, attention: AttentionPass | None, num_logits: int
    ) -> Tensor | None:
        """Append a prompt or a part of one by `passes`; its logits, or None to let the modules read
        it."""
        logits = None
        if attention is None and cache.is_local and not self._lock.is_watching():
            with self._passing():
                logits = self.passes.read(part, cache, num_logits)
        if logits is None:
            self.passes.check_modules(self.name)
        else:
            cache.advance(part.lengths)
        return logits

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor:
        """Append tokens to the cache; logits after each of them.

        Args:
            tokens: int64 ``[B, T]``.
            position_ids: int64 ``[..., B, T]`` (`Prompt.positions`).
            cache: grows by T in every row.
            mask: bool ``[B, 1, T, K]`` (`core.tree.attention_mask`), None if each token attends to
                everything.

        Returns:
            logits ``[B, T, V]`` in the model's dtype, on the device of the embeddings.
        """
        with cache.directing(tokens, position_ids, mask) as attention, self.running(attention):
            logits = None
            if attention is None and not self._lock.is_watching():
                logits = self.passes.run(tokens, position_ids, cache, mask)
            if logits is None:
                self.passes.check_modules(self.name)
                logits = self.forward_modules(tokens, position_ids, cache, mask, attention)
        cache.advance(tokens.shape[1])
        return logits

    @torch.inference_mode()
    def greedy_chain(
        self,
        tokens: Tensor,
        position_ids: Tensor,
        cache: KVCache,
        count: int,
        vocab_size: int,
        ends: EndsChain | None = None,
    ) -> Tensor | None:
        """Append a token to each of equally long rows and continue greedily, faster than `forward`.

        Args:
            tokens: int64 ``[B, 1]``.
            position_ids: of `tokens`, int64 ``[..., B, 1]``; those of later tokens follow.
            cache: grows by T tokens in every row.
            count: the most tokens that are appended.
            vocab_size: only ids below it are chosen.
            ends: may end the chain early.

        Returns:
            The likeliest token after each of the T appended ones, int64 ``[B, T]``; the last is not
            in the cache. None, with nothing appended, if only `forward` can compute it.
        """
        if not cache.is_local or self._lock.is_watching():
            return None
        with self._passing():
            next_tokens = self.passes.run_chain(
                tokens, position_ids, cache, count, vocab_size, ends
            )
        if next_tokens is not None:
            cache.advance(next_tokens.shape[1])
        return next_tokens

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
        with self.products.of_tokens(tokens), grouping:
            embeds = self.embed(tokens)
            hidden = self._hidden(embeds, position_ids, cache, mask, attention, None, tokens)
            return self._logits(hidden)

    @contextmanager
    def watching(
        self, layers: Sequence[int], receive: Callable[[int, Tensor], None]
    ) -> Iterator[None]:
        """Pass hidden states of this thread's passes to `receive` while the passes run.

        A pass inside the context that directs the attention runs alone, which two threads must not
        request at once: enter `alone` first.

        Args:
            layers: l means after l layers, as the next layer reads them (with the features that
                Qwen3-VL adds between layers): 0 for the embeddings, the number of layers for the
                output of the last one, before the final norm.
            receive: called with a layer and its hidden states ``[B, T, D]``.
        """
        if not layers:
            yield
            return
        modules = layers_of(self.decoder, self.name, layers)
        with self._passing(), watched_layers(self._lock, modules, layers, receive):
            yield

    @contextmanager
    def hidden_states(self, layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
        """Collect hidden states ``[B, T, D]`` of the last pass by layer (`watching`)."""
        states: dict[int, Tensor] = {}
        with self.watching(layers, states.__setitem__):
            yield states

    def stopping_at(
        self, module: nn.Module, stop: Callable[..., Any]
    ) -> AbstractContextManager[None]:
        """Call `stop` before each forward of a module; entered while this thread is `alone`."""
        return self._lock.hooked(module, stop, after=False)

    def alone(self) -> AbstractContextManager[None]:
        """Let no other thread run a pass of the model, since hooks are set on it."""
        return self._lock.exclusive()

    def _check_mode(self) -> None:
        if self.model.training:
            raise UnsupportedModelError(
                f"{self.name} is in training mode, where dropout changes the answer: "
                "call its eval() first"
            )

    def _passing(self) -> AbstractContextManager[None]:
        """Passes of eager models run alone: the dispatching attention would change them."""
        return self._lock.shared() if self._shares_passes else self._lock.exclusive()

    def _grouping(self) -> AbstractContextManager[None]:
        is_grouped = self.has_groups and self.attention == "sdpa"
        return dispatching(self.decoder) if is_grouped else nullcontext()

    def running(self, attention: AttentionPass | None) -> AbstractContextManager[None]:
        """Entered around one pass; `attention` computes the attention of its layers."""
        passing = self._passing() if attention is None else self._dispatching()
        return support.restarted(self._dynamic, passing) if self._dynamic else passing

    @contextmanager
    def _dispatching(self) -> Iterator[None]:
        if self.indexers is not None:
            self.indexers.refuse_attention()
        with self._lock.exclusive(), dispatching(self.decoder):
            yield

    def _hidden(
        self,
        embeds: Tensor,
        position_ids: Tensor,
        cache: KVCache,
        mask: Tensor | None,
        attention: AttentionPass | None,
        prompt: Prompt | None = None,
        tokens: Tensor | None = None,
    ) -> Tensor:
        """The last hidden states ``[B, T, D]`` of one call of the language model, which reads
        `prompt` or answer `tokens`. Without a mask it makes those of a prompt itself."""
        cache.begin_pass(embeds.shape[1], None if prompt is None else prompt.lengths)
        given = {"attention_mask": self.attention_mask(mask), **(prompt.extra if prompt else {})}
        if prompt is not None and prompt.ahead is not None:
            given["attention_mask"] = blocks().masks(prompt.ahead, cache, self)
        elif self.kinds is not None:
            given |= self.kinds.arguments(self, cache, mask, tokens, whole=attention is not None)
        call = self.decoder if self.states is None else partial(self.states.run, prompt)
        output = call(
            inputs_embeds=embeds,
            position_ids=position_ids,
            use_cache=True,
            **support.with_cache(cache),
            **given,
            **({} if attention is None else {ARGUMENT: attention}),
        )
        return output.last_hidden_state  # type: ignore[no-any-return]

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.head(hidden.float() if self._widens else hidden)
        return (self.scale(logits) if self.scale else logits).to(self.device)

    def attention_mask(self, mask: Tensor | None) -> Tensor | None:
        """A boolean mask in the form that the attention of the model takes."""
        if mask is None or self.attention == "sdpa":
            return mask
        return support.additive(mask, self.model.dtype)

    def _built(self, inputs: Mapping[str, Any], visual: Tensor, mask: Tensor | None) -> Prompt:
        with self.passes.of_pixels(self.model) or nullcontext():
            given = capture_arguments(self._lock, self.model, self.decoder, inputs)
        arguments = {**given, **self.token_inputs(given.get("input_ids"))}
        return build_prompt(self.name, arguments, self.embed, visual, mask, self.both_ways)

    def token_inputs(self, tokens: Tensor | None) -> dict[str, Tensor]:
        """Further arguments of the language model for text tokens ``[..., T]``, if any."""
        return self.kinds.token_inputs(self.decoder, self.embed, tokens) if self.kinds else {}
