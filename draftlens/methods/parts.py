"""What several methods share: trees, nested parts and their checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftlens.core.errors import ConfigError, IncompatiblePairError
from draftlens.core.options import Registry, shown, wrong
from draftlens.core.tree import EAGLE_PATHS, Topology, chain, from_paths
from draftlens.decoding.plan import Acceptance, DraftWorker, Plan, make_schedule
from draftlens.drafting.adaptive.controller import TreeController
from draftlens.drafting.adaptive.history import TreeControllers, record_of
from draftlens.drafting.draft_prompt import DraftPromptBuilder, TextPromptBuilder
from draftlens.drafting.model_drafter import ModelDrafter
from draftlens.drafting.pruning import Pruning
from draftlens.methods.base import Models
from draftlens.models.adapter import Backbone
from draftlens.models.checks import check_modalities, check_vocabularies, is_blind, max_positions

Tree = str | Sequence[Sequence[int]] | None

AUTO = "auto"
DEFAULT_LENGTH = 5  # Length of a chain without a given length.
MOST_DRAFT_TOKENS = 1024  # In a round: the mask of a tree grows with the square.
TREES = {"eagle": EAGLE_PATHS}
SAMPLING_RULES = ("coupled", "rejection")

# Makes the drafter of each schedule in which draft model and target work at the same time.
PARALLEL_DRAFTERS = Registry(
    "schedule",
    {
        "parallel": "draftlens.methods.parallelvlm.drafters:make_drafter",
    },
)

# Hint appended when a draft is refused because of pictures.
TEXT_DRAFT_HINT = "; method 'tabed' takes it with the view 'text'"


def check_choice(option: str, value: Any, choices: Sequence[str]) -> None:
    """Raise `ConfigError` unless `value` is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"unknown {option} {shown(value)}; known: {', '.join(choices)}")


def check_number(option: str, value: Any, most: int | None = None, least: int = 1) -> None:
    """Refuse all but whole numbers from `least` to `most`, or to `MOST_DRAFT_TOKENS`."""
    if type(value) is not int or value < least or (most is not None and value > most):
        limit = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise wrong(option, value, f"a whole number {limit}")
    if value > MOST_DRAFT_TOKENS:
        raise wrong(option, value, f"at most {MOST_DRAFT_TOKENS}")


def check_room(topology: Topology, models: Models) -> None:
    """Refuse a tree that is deeper than a model's positions, wider than its vocabulary, or no chain
    where a model needs one."""
    width = max(map(len, topology.children.values()), default=0)
    for model in (models.target, models.draft):
        if model is None:
            continue
        max_length = max_positions(model.text_config)
        if max_length is not None and topology.depth >= max_length:
            raise ConfigError(
                f"num_speculative_tokens, or the depth of a tree, must be below the {max_length} "
                f"positions of {model.name}, not {topology.depth}"
            )
        if model.chains_only and width > 1:
            raise ConfigError(
                f"{model.chains_only}, so tree must be a chain: give num_speculative_tokens, or "
                'leave the choice to tree="auto"'
            )
        if width > model.vocab_size:
            raise ConfigError(
                f"tree must have at most {model.vocab_size} branches at a node, the vocabulary of "
                f"{model.name}, not {width}"
            )


def check_switch(option: str, value: Any) -> None:
    """Raise `ConfigError` unless `value` is true or false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{option} must be true or false, not {shown(value)}")


def resolve_drafting(method: Any) -> None:
    """Check the fields that all drafting methods share, and fill in those that are left out.

    A length alone means a chain. Neither a length nor a tree means the automatic tree, or with
    rejection sampling, which the automatic tree does not allow, a chain of `DEFAULT_LENGTH`.

    Raises:
        ConfigError: a value makes no sense.
    """
    check_choice("sampling_rule", method.sampling_rule, SAMPLING_RULES)
    if method.schedule != "serial":
        _check_ahead(method)
    length = method.num_speculative_tokens
    tree = method.tree
    if length is not None:
        check_number("num_speculative_tokens", length)
        tree = None if tree == AUTO else tree
    elif tree is None and method.sampling_rule == "rejection":
        length = DEFAULT_LENGTH
    elif tree is None:
        tree = AUTO
    if tree == AUTO and method.sampling_rule == "rejection":
        raise ConfigError(
            "tree 'auto' depends on measured times, and with 'rejection' so would the tokens: "
            "use 'coupled', or name a tree or num_speculative_tokens"
        )
    if isinstance(tree, (list, tuple)):
        _check_size(tree)
        topology_of(tree, length)
        tree = tuple(map(tuple, tree))
    object.__setattr__(method, "num_speculative_tokens", length)
    object.__setattr__(method, "tree", tree)
    topology_of(tree, length)


def _check_size(tree: Sequence[Any]) -> None:
    if not tree:
        raise ConfigError(
            "tree must name at least one path, such as [[0]], not []: method 'plain' drafts nothing"
        )
    if len(tree) > MOST_DRAFT_TOKENS:
        raise ConfigError(
            f"tree must have at most {MOST_DRAFT_TOKENS} paths, one for each draft token, "
            f"not {len(tree)}"
        )


def _check_ahead(method: Any) -> None:
    """Refuse a tree for a draft that runs ahead of the target."""
    schedule = f"schedule {method.schedule!r}"
    if method.tree not in (None, AUTO):
        raise ConfigError(
            f"a draft that runs ahead writes a chain: {schedule} takes num_speculative_tokens "
            f"and no tree, not {shown(method.tree)}"
        )


def parallel_drafter(
    schedule: str,
    window: int | None,
    drafter: ModelDrafter,
    target: Backbone,
    pruning: Pruning | None = None,
    reads_target_prompt: bool = False,
) -> Any:
    """The drafter that works at the same time as the target; None for the serial schedule.

    Args:
        window: γ, the draft tokens of a round; None for a choice by measured times.
        drafter: drafts where the draft model cannot work beside the target.
        reads_target_prompt: whether the draft reads the target's own prompt, after pruning.
    """
    if schedule == "serial":
        return None
    make = PARALLEL_DRAFTERS[schedule]
    return make(window, drafter, target, pruning, reads_target_prompt)


def topology_of(tree: Tree, num_speculative_tokens: int | None) -> Topology:
    """The tree that a draft grows, or the largest one of an automatic tree.

    Raises:
        ConfigError: the name is unknown, or the paths are no tree.
    """
    if tree is None:
        return chain(num_speculative_tokens or DEFAULT_LENGTH)
    if tree == AUTO:
        return TreeController.limit
    if not isinstance(tree, str):
        return from_paths(tree)
    if tree not in TREES:
        names = ", ".join(TREES)
        raise ConfigError(f"unknown tree {shown(tree)}; known: auto, {names}, or a list of paths")
    return from_paths(TREES[tree])


def controllers_of(
    tree: Tree, target: Backbone, drafting: Backbone, settings: tuple[Any, ...] = ()
) -> TreeControllers | None:
    """The controllers of an automatic tree, else None; `settings` also affect acceptance."""
    if tree != AUTO:
        return None
    return lambda kind: TreeController(record_of(target, drafting, settings, kind))


def timed_models(tree: Tree, target: Backbone, drafting: Backbone) -> tuple[Backbone, ...]:
    """The models with costs that decide an automatic tree; none for any other tree."""
    if tree != AUTO:
        return ()
    return (target,) if drafting is target else (target, drafting)


def drafting_plan(
    method: Any,
    models: Models,
    drafter: ModelDrafter,
    pruning: Pruning | None = None,
    reads_target_prompt: bool = False,
) -> Plan:
    """The plan of a method that drafts with a model; see `parallel_drafter` for the arguments."""
    length = method.num_speculative_tokens
    check_room(method.topology, models)
    drafting = drafter.prompts.backbone
    if pruning is not None and drafting.indexers is not None:
        drafting.indexers.check_parts()
    lane = parallel_drafter(
        method.schedule, length, drafter, models.target, pruning, reads_target_prompt
    )
    return Plan(
        drafter=lane or drafter,
        schedule=make_schedule(method.schedule),
        prefill=method.prefill,
        acceptance=Acceptance(method.sampling_rule),
        uses_draft=drafting is not models.target,
        timed=timed_models(method.tree, models.target, drafting),
        worker=lane or DraftWorker(),
    )


def settings_of(pruning: Pruning) -> tuple[Any, ...]:
    """What distinguishes prunings, as names: a pruner of another package may not be hashable."""
    return (repr(pruning.pruner), pruning.ratio)


def draft_use_of(draft: str) -> str:
    """The `DRAFT_USES` of a method with an option `draft`."""
    return {"model": "needed", "self": "unused"}.get(draft, "optional")


def draft_prompts(models: Models, described: str) -> DraftPromptBuilder:
    """How a draft model reads prompts as a whole: a language model reads their words. Arguments and
    errors as for `draft_of`."""
    draft = models.draft
    if draft is None or draft.retokenizer is None:
        draft = draft_of(models, described, needs_vision=False)
    if is_blind(models.target, draft):
        return TextPromptBuilder(draft, models.target.model.config)
    check_modalities(models.target, draft, TEXT_DRAFT_HINT)
    return DraftPromptBuilder(draft)


def draft_of(models: Models, described: str, needs_vision: bool = True) -> Backbone:
    """The draft model; `described` names the method in messages.

    Raises:
        ConfigError: there is none.
        IncompatiblePairError: it does not go with the target.
    """
    if models.draft is None:
        raise ConfigError(f"{described} needs a draft model")
    if models.draft.retokenizer is not None:
        raise IncompatiblePairError(
            f"the draft {models.draft.name} has another tokenizer than the target, which only "
            f"chains of method 'speculative' with schedule 'serial' allow, not {described}"
        )
    check_vocabularies(models.target, models.draft)
    if needs_vision:
        check_modalities(models.target, models.draft, TEXT_DRAFT_HINT)
    return models.draft
