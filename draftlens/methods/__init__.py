"""Methods as frozen dataclasses: the same keys in Python, in `--speculative-config` JSON and in
YAML."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from draftlens.core.errors import ConfigError
from draftlens.core.registry import Registry
from draftlens.core.tree import EAGLE_PATHS, Topology, chain, from_paths
from draftlens.draft import Drafter, NoDraft, SelfDrafter, SmallModelDrafter
from draftlens.draft.pruned import Pruning
from draftlens.draft.self_draft import check_source
from draftlens.draft.tuner import TreeTuner, Tuners, tuner_of
from draftlens.models.backbone import Backbone
from draftlens.models.gather import POSITIONS
from draftlens.models.pair import check_models
from draftlens.prune import make_pruner

TREES = {"eagle": EAGLE_PATHS}
SAMPLING_RULES = ("coupled", "rejection")


@dataclass(frozen=True)
class PlainDecoding:
    """One target forward per token: the baseline."""

    name: ClassVar[str] = "plain"
    sampling_rule: ClassVar[str] = "coupled"

    def drafter(
        self, target: Backbone, draft: Backbone | None, draft_inputs: Mapping[str, Any]
    ) -> Drafter:
        """Nobody drafts."""
        return NoDraft()


@dataclass(frozen=True)
class SpeculativeDecoding:
    """A smaller model drafts, the target checks all guesses in one forward (Leviathan et al. 2023).

    Args:
        num_speculative_tokens: γ, the length of the chain; not used with a tree.
        tree: None for a chain, `"eagle"` for EAGLE's static tree of 25 nodes, `"auto"` for the tree
            that pays most by what was measured so far (none at all if drafting does not pay), or a
            list of paths of ranks such as ``[[0], [1], [0, 0]]``.
        sampling_rule: `"coupled"` (same tokens as plain sampling with the same seed) or
            `"rejection"` (the papers' rule: same distribution, other tokens, accepts a little
            more).

    Raises:
        ConfigError: a value makes no sense.
    """

    name: ClassVar[str] = "speculative"
    num_speculative_tokens: int = 5
    tree: str | Sequence[Sequence[int]] | None = None
    sampling_rule: str = "coupled"

    def __post_init__(self) -> None:
        if type(self.num_speculative_tokens) is not int or self.num_speculative_tokens < 1:
            raise ConfigError(
                f"num_speculative_tokens must be a whole number of at least 1, not "
                f"{self.num_speculative_tokens!r}"
            )
        if self.sampling_rule not in SAMPLING_RULES:
            raise ConfigError(
                f"unknown sampling_rule {self.sampling_rule!r}; known: {', '.join(SAMPLING_RULES)}"
            )
        self._check()
        if isinstance(self.tree, (list, tuple)):
            object.__setattr__(self, "tree", tuple(map(tuple, self.tree)))

    def _check(self) -> None:
        """Raise now what would else be raised by the first request."""
        self.topology  # noqa: B018
        if self.tree == "auto" and self.sampling_rule == "rejection":
            raise ConfigError(
                "tree 'auto' goes by the clock, and with 'rejection' so would the tokens: use "
                "'coupled'"
            )

    def _tuners(self, target: Backbone, draft: Backbone, *settings: Hashable) -> Tuners | None:
        """The tuners that choose the tree, or None where the tree is fixed.

        Args:
            target: the model that verifies.
            draft: the model that drafts; `target` itself for self-drafting.
            settings: all other values that change which tokens are drafted.
        """
        if self.tree != "auto":
            return None
        return partial(tuner_of, target.model, draft.model, settings)

    @property
    def topology(self) -> Topology:
        """The tree that the draft grows."""
        if self.tree is None:
            return chain(self.num_speculative_tokens)
        if self.tree == "auto":
            return TreeTuner.limit
        if isinstance(self.tree, str):
            if self.tree not in TREES:
                raise ConfigError(
                    f"unknown tree {self.tree!r}; known: auto, {', '.join(TREES)}, or a list of "
                    f"paths"
                )
            return from_paths(TREES[self.tree])
        return from_paths(self.tree)

    def drafter(
        self, target: Backbone, draft: Backbone | None, draft_inputs: Mapping[str, Any]
    ) -> Drafter:
        """The drafter of one batch.

        Raises:
            ConfigError: there is no draft model.
            IncompatiblePairError: it does not go with the target.
        """
        if draft is None:
            raise ConfigError(f"method {self.name!r} needs a draft model")
        check_models(target, draft)
        tuners = self._tuners(target, draft)
        return SmallModelDrafter(
            draft, draft_inputs, self.topology, target.vocab_size, tuners=tuners
        )


@dataclass(frozen=True)
class SpecVLM(SpeculativeDecoding):
    """The draft sees only the visual tokens that the target looks at (SpecVLM).

    Args:
        tree: as for speculative decoding; by default EAGLE's, as in the paper.
        prune_ratio: r, the share of visual tokens that the draft does not see.
        pruner: who chooses (`prune.PRUNERS`).
        attention_mass: λ, the share of attention that the most attended tokens must hold; for
            pruner `specvlm`.
        positions: `"original"` leaves kept tokens where they were, `"compact"` closes the gaps.
        draft: `"model"` for a draft model, `"self"` for the target's own weights, `"auto"` for
            whichever there is.
        kv: for `"self"`: `"prefill"` reads the pruned prompt again, `"gather"` reuses the target's
            keys and values, `"sparse"` reuses in each layer those that are most attended there
            (Sparse-to-Dense).
        window: for pruner `window`: `front`, `middle` or `end`.
        seed: for pruner `random`.

    Raises:
        ConfigError: a value makes no sense.
    """

    name: ClassVar[str] = "specvlm"
    tree: str | Sequence[Sequence[int]] | None = "eagle"
    prune_ratio: float = 0.9
    pruner: str = "specvlm"
    attention_mass: float = 0.4
    positions: str = "original"
    draft: str = "auto"
    kv: str = "prefill"
    window: str = "front"
    seed: int = 0

    def _check(self) -> None:
        super()._check()
        if not isinstance(self.prune_ratio, (int, float)) or not 0 <= self.prune_ratio <= 1:
            raise ConfigError(f"prune_ratio is a share between 0 and 1, not {self.prune_ratio!r}")
        choices = {"positions": POSITIONS, "draft": ("auto", "model", "self")}
        for field, known in choices.items():
            if getattr(self, field) not in known:
                raise ConfigError(
                    f"unknown {field} {getattr(self, field)!r}; known: {', '.join(known)}"
                )
        check_source(self.kv, self.positions)
        self.pruning  # noqa: B018 - names its own errors

    @property
    def pruning(self) -> Pruning:
        """How the draft's prompt is pruned."""
        return Pruning(
            make_pruner(self.pruner, dataclasses.asdict(self)), self.prune_ratio, self.positions
        )

    def drafter(
        self, target: Backbone, draft: Backbone | None, draft_inputs: Mapping[str, Any]
    ) -> Drafter:
        """The drafter of one batch: the draft model, or the target itself.

        Raises:
            ConfigError: a draft model is asked for and there is none.
            IncompatiblePairError: it does not go with the target.
        """
        if self.draft == "self" or (self.draft == "auto" and draft is None):
            tuners = self._tuners(target, target, self.kv, self.pruner, self.prune_ratio)
            return SelfDrafter(target, self.topology, self.pruning, self.kv, tuners)
        if draft is None:
            raise ConfigError(f"method {self.name!r} with draft 'model' needs a draft model")
        check_models(target, draft)
        tuners = self._tuners(target, draft, self.pruner, self.prune_ratio)
        return SmallModelDrafter(
            draft, draft_inputs, self.topology, target.vocab_size, self.pruning, tuners
        )


Method = PlainDecoding | SpeculativeDecoding | SpecVLM

METHODS = Registry(
    "method",
    {
        "plain": "draftlens.methods:PlainDecoding",
        "speculative": "draftlens.methods:SpeculativeDecoding",
        "specvlm": "draftlens.methods:SpecVLM",
    },
)


def from_dict(options: Mapping[str, Any]) -> Method:
    """A method from ``{"method": name, **its fields}``.

    Raises:
        ConfigError: the name or a key is not known (the message lists those that are), or a value
            makes no sense.
    """
    fields = dict(options)
    kind = METHODS[fields.pop("method", "speculative")]
    known = [f.name for f in dataclasses.fields(kind)]
    unknown = sorted(set(fields) - set(known))
    if unknown:
        names = ", ".join(known) or "none"
        raise ConfigError(
            f"method {kind.name!r} does not know {', '.join(map(repr, unknown))}; known: {names}"
        )
    method: Method = kind(**fields)
    return method


def resolve(method: Method | str | Mapping[str, Any] | None, has_draft: bool) -> Method:
    """A method from whatever the caller gave; None means speculative decoding if there is a draft,
    else plain."""
    if method is None:
        return SpeculativeDecoding() if has_draft else PlainDecoding()
    if isinstance(method, str):
        return from_dict({"method": method})
    return from_dict(method) if isinstance(method, Mapping) else method
