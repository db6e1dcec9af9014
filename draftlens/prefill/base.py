"""How prompts are read: what a reading measures, the protocol of a prefill, and the model's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from torch import Tensor

from draftlens.core.errors import UnsupportedModelError
from draftlens.core.options import Registry, make
from draftlens.core.prefill_readings import NO_FEATURES, FeatureSpec, PrefillFeatures, Similarity
from draftlens.models.adapter import Backbone
from draftlens.models.attention.scores import AttentionProbe
from draftlens.models.attention.similarities import similarity
from draftlens.models.hidden_states import HiddenStates
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.models.prompt_reading import PromptReading


@dataclass(frozen=True)
class PrefillReading:
    """One prompt to be read.

    Args:
        prompt: what to read.
        cache: empty; made by `Prefill.new_cache` or `Backbone.new_cache`. It holds the whole of
            `prompt` afterwards.
        spec: the readings to take.
        early: receives the readings once, from inside the forward and in its thread, as soon as all
            are taken. It must not wait for the prefill. It is not called where `spec` is empty or
            needs the whole pass, as attention does. The result has all readings in any case.
    """

    prompt: Prompt
    cache: KVCache
    spec: FeatureSpec = NO_FEATURES
    early: Callable[[PrefillFeatures], None] | None = None


class FeatureCollector:
    """Receives hidden states layer by layer and keeps only what was requested. `layers` are those
    that it needs, rising; 0 for the embeddings.

    Args:
        early: receives the readings as soon as all of them are taken, from inside the forward. It
            is not called if `spec` has attention, which needs the whole pass, or is empty.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        prompt: Prompt,
        num_layers: int,
        early: Callable[[PrefillFeatures], None] | None = None,
    ) -> None:
        self._spec = spec
        self._prompt = prompt
        self._similar_at = {entry: entry.layer_in(num_layers) for entry in spec.similarities}
        self._early = early
        self._hidden_states: dict[int, Tensor] = {}
        self._similarities: dict[Similarity, Tensor] = {}
        self.layers = sorted({*spec.hidden_layers, *self._similar_at.values()})

    def receive(self, layer: int, states: Tensor) -> None:
        """Take what is requested of the hidden states ``[B, L, D]`` after `layer` layers."""
        if layer in self._spec.hidden_layers:
            self._hidden_states[layer] = states
        for entry, place in self._similar_at.items():
            if place == layer:
                self._similarities[entry] = similarity(
                    states, self._prompt.visual, self._prompt.lengths, entry.text
                )
        if layer == self.layers[-1] and self._early is not None and not self._spec.attention:
            self._early(self.readings())

    def readings(self, probe: AttentionProbe | None = None) -> PrefillFeatures:
        """All readings, with the attention that a probe has read in the same pass."""
        taken = dict(self._hidden_states), dict(self._similarities)
        if probe is None:
            return PrefillFeatures(None, (), *taken)
        return PrefillFeatures(probe.result(), tuple(probe.by_layer), *taken)


NO_INPUTS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class PrefillOutput:
    """The result of reading a prompt.

    Args:
        logits: after each row's last token, ``[B, 1, V]``.
        readings: the readings that were requested.
        approximate: what differed from the model's own prefill for these rows, in words for the
            user: all or nothing of `Prefill.approximate`.
        notes: messages to the user, by row.
        cached: tokens of each row that were not read, since a prompt cache had them; empty for
            none.
    """

    logits: Tensor
    readings: PrefillFeatures
    approximate: tuple[str, ...] = ()
    notes: Mapping[int, str] = field(default_factory=dict)
    cached: Sequence[int] = ()


class Prefill(Protocol):
    """Reads prompts with the target."""

    @property
    def approximate(self) -> tuple[str, ...]:
        """What differs from the model's own prefill, in words for the user; empty if exact."""
        ...

    def device(self, device: str | None) -> str | None:
        """The device of this process's model, before it is loaded; `device` is as for
        `draftlens.load`."""
        ...

    def prepare(self, backbone: Backbone, inputs: Mapping[str, Any] = NO_INPUTS) -> None:
        """Get ready to read prompts of a model, once it is loaded and before each request.

        Args:
            backbone: of the model.
            inputs: of the request; empty if there is none yet.

        Raises:
            ConfigError, InputError, HostError: this prefill cannot read them.
        """
        ...

    def check(self, backbone: Backbone) -> None:
        """Refuse a model whose prompts cannot be read in this way.

        Raises:
            UnsupportedModelError: the message names the reason.
        """
        ...

    def new_cache(self, backbone: Backbone, prompt: Prompt, room: int) -> KVCache:
        """An empty cache for what `run` reads; arguments as for `Backbone.new_cache`."""
        ...

    def run(self, backbone: Backbone, reading: PrefillReading) -> PrefillOutput:
        """Read a prompt into an empty cache and take the requested readings."""
        ...

    @property
    def divides_prompts(self) -> bool:
        """Whether `run_parts` divides long prompts."""
        ...

    def run_parts(
        self, backbone: Backbone, reading: PrefillReading, size: Callable[[], int | None]
    ) -> Iterator[PrefillOutput | None]:
        """`run` in parts of at most `size()` tokens of each row, None for all at once. Yields None
        after each part but the last."""
        ...


class AtOnce:
    """The members of `Prefill` for one that reads whole prompts and needs no preparation."""

    divides_prompts: ClassVar[bool] = False

    def device(self, device: str | None) -> str | None:
        return device

    def prepare(self, backbone: Backbone, inputs: Mapping[str, Any] = NO_INPUTS) -> None: ...

    def run_parts(
        self: Prefill, backbone: Backbone, reading: PrefillReading, size: Callable[[], int | None]
    ) -> Iterator[PrefillOutput | None]:
        yield self.run(backbone, reading)


PREFILLS = Registry(
    "prefill",
    {
        "full": "draftlens.prefill.base:FullPrefill",
        "ring": "draftlens.prefill.spava.ring:RingPrefill",
        "spava": "draftlens.prefill.spava.config:SpavaPrefill",
    },
    group="draftlens.prefills",
    lab=("spava-ablation", "star"),
)


def make_prefill(choice: Any) -> Prefill:
    """A prefill from a name, a mapping with `name` and options, or itself. Raises `ConfigError`."""
    prefill: Prefill = make(PREFILLS, choice, "run")
    return prefill


@dataclass(frozen=True)
class FullPrefill(AtOnce):
    """One causal pass over the whole prompt; exact."""

    divides_prompts: ClassVar[bool] = True

    @property
    def approximate(self) -> tuple[str, ...]:
        return ()

    def check(self, backbone: Backbone) -> None: ...

    def new_cache(self, backbone: Backbone, prompt: Prompt, room: int) -> KVCache:
        return backbone.new_cache(prompt, room)

    def run(self, backbone: Backbone, reading: PrefillReading) -> PrefillOutput:
        """`Prefill.run`; raises as `run_parts`."""
        (output,) = self.run_parts(backbone, reading, lambda: None)
        assert output is not None
        return output

    def run_parts(
        self, backbone: Backbone, reading: PrefillReading, size: Callable[[], int | None]
    ) -> Iterator[PrefillOutput | None]:
        """`Prefill.run_parts`.

        Raises:
            UnsupportedModelError: the model passes nothing on to its attention, so attention scores
                cannot be read, or does not list its layers, so hidden states cannot.
            ConfigError: a layer of these hidden states does not exist.
        """
        prompt = reading.prompt
        num_layers = backbone.text_config.num_hidden_layers if reading.spec else 0
        collector = FeatureCollector(reading.spec, prompt, num_layers, reading.early)
        probe = AttentionProbe(prompt.visual, prompt.lengths) if reading.spec.attention else None
        layers, receive, states = collector.layers, collector.receive, None
        if layers and (prompt.namespace is not None or size() is not None):
            states = HiddenStates(backbone, prompt, layers, collector.receive)
            receive = states.receive
        part = PromptReading(backbone, prompt, reading.cache, probe, states)
        logits = None
        while logits is None:
            alone = backbone.alone() if layers and probe is not None else nullcontext()
            with alone, backbone.watching(layers, receive) if layers else nullcontext():
                logits = part.read(size())
            if logits is None:
                yield None
        if probe is not None:
            with_states = () if backbone.states is None else backbone.states.num_states
            if len(probe.by_layer) != num_layers - len(with_states):
                raise UnsupportedModelError(
                    f"{backbone.name} does not let its attention be read: prune without attention"
                )
        yield PrefillOutput(logits, collector.readings(probe), cached=part.cached)
