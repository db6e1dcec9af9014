"""A request and the call that answers it: the steps that every entry point shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from draftlens.core.errors import ConfigError, DraftlensError, InputError
from draftlens.core.forms import with_form
from draftlens.core.logprobs import record_logprobs
from draftlens.core.sampling import as_seed, row_seeds
from draftlens.core.sequence import Sequence as AnswerSequence
from draftlens.core.stats import Clock, Stats
from draftlens.decoding.admission import NAMESPACE
from draftlens.decoding.observer import NO_OBSERVER, Observer
from draftlens.decoding.plan import ExtraSource, Plan
from draftlens.decoding.session import Session
from draftlens.media.conversation import ChatSource
from draftlens.methods.base import MethodLike, Models, methods_with, resolve
from draftlens.methods.base import plan_of as method_plan
from draftlens.models.adapter import Backbone
from draftlens.models.checks import (
    LONG_PROMPT,
    check_length,
    check_padding,
    check_tokens,
    num_ids_of,
)
from draftlens.models.prompt import Prepared, remembering
from draftlens.options import (
    NOT_OF_STOCK,
    CallOptions,
    CheckedOptions,
    Seed,
    check_for_model,
    checked_options,
    names_beside_options,
)
from draftlens.passes import Compile, attach_for_call


@dataclass(frozen=True)
class Request:
    """A batch of prompts and how to answer them.

    Args:
        inputs: the output of the target's processor, padded on either side.
        draft_inputs: the output of the draft's processor for the same prompts; None if `inputs`
            serve both. Entries that are mappings themselves, such as `views`, are extras.
        method: how to decode; None for the default.
        seed: seed of the sampling noise. One seed is extended to different seeds of the rows; None
            draws one from torch's global generator.
        options: options of `generate` (`GenerateOptions`); they are checked here, once.
        compile: what computes decode forwards; None leaves the models as they are.
        observer: is notified of events.
        chat: the messages of the prompts, if known.
        extras: further inputs of the method (`Plan.extras`), by name, such as `references`; and
            `namespace`, whose entries of the prompt cache the call uses.
    """

    inputs: Mapping[str, Any]
    draft_inputs: Mapping[str, Any] | None = None
    method: MethodLike = None
    seed: Seed = None
    options: Mapping[str, Any] = field(default_factory=dict)
    compile: Compile | None = None
    observer: Observer = NO_OBSERVER
    chat: ChatSource | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ConfigError and InputError, which name the option or the argument."""
        further = names_beside_options(CallOptions)
        checked = checked_options(self.options, further, self.inputs)
        if checked.get("form") is not None:
            checked = CheckedOptions(with_form(checked))
        object.__setattr__(self, "options", checked)
        if self.draft_inputs is not None:
            check_tokens("draft_inputs", self.draft_inputs)


@dataclass(frozen=True)
class Call:
    """A request that is being answered: its rows in order, and the target's dtype."""

    plan: Plan
    session: Session
    sequences: list[AnswerSequence]
    dtype: torch.dtype


def open_call(
    target_model: Any, draft_model: Any, request: Request, clock: Clock | None = None
) -> Call:
    """Prepare a request, so that the plan's schedule can answer it.

    The models are transformers models or `Backbone`s; `clock` was started when the request came.

    Raises:
        ConfigError, InputError, UnsupportedModelError, IncompatiblePairError, HostError: before any
            token is made.
    """
    clock = clock or Clock(Stats())
    models = models_of(target_model, draft_model, request.compile)
    check_for_models(models, request)
    plan = plan_of(models, request)
    with clock.phase("vision"):
        prepared = prepare(models.target, request)
    return open_prepared(models, plan, prepared, request, clock)


def open_prepared(
    models: Models,
    plan: Plan,
    prepared: Prepared,
    request: Request,
    clock: Clock,
) -> Call:
    """`open_call` for a call that stock `generate` has prepared already."""
    session = Session(models.target, plan, clock, request.observer)
    sequences = add_rows(session, plan, prepared, request)
    return Call(plan, session, sequences, models.target.dtype)


def check_for_models(models: Models, request: Request) -> None:
    """Raise ConfigError or InputError for tokens and options that the target does not have."""
    check_tokens("inputs", request.inputs, num_ids_of(models.target))
    defaults = models.target.model.generation_config
    check_for_model(request.options, models.target.vocab_size, defaults)


def plan_of(models: Models, request: Request) -> Plan:
    """The plan of the request's method, ready to read prompts."""
    plan = method_plan(resolve(request.method), models)
    plan.prefill.prepare(models.target, request.inputs)
    return plan


def add_rows(
    session: Session, plan: Plan, prepared: Prepared, request: Request
) -> list[AnswerSequence]:
    """Let the rows of a request join a session of the plan of its method."""
    check_length(session.target, prepared, bool(request.options.get(LONG_PROMPT)))
    check_padding(session.target, prepared)
    num_rows = len(prepared.input_ids)
    raw_extras, draft_inputs = _split_extras(plan, request)
    draft_inputs = _draft_inputs(plan, prepared, request.inputs, draft_inputs)
    phase = session.clock.phase
    source = ExtraSource(num_rows, request.options.get("tokenizer"), request.chat, phase)
    extras = read_extras(plan, raw_extras, source)
    extras[NAMESPACE] = request.extras.get(NAMESPACE)
    sequences = session.add(prepared, seeds_of(request.seed, prepared), draft_inputs, extras)
    if request.options.get("logprobs"):
        record_logprobs(sequences, request.options)
    return sequences


def prepare(target: Backbone, request: Request) -> Prepared:
    """The request as stock `generate` prepares it; raises InputError if transformers refuses it."""
    options = {name: value for name, value in request.options.items() if name not in NOT_OF_STOCK}
    try:
        with remembering(request.extras.get(NAMESPACE)):
            return target.prepare(request.inputs, **options)
    except DraftlensError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        cause = " ".join(str(error).split())
        raise InputError(f"transformers refuses the call: {cause}") from error


def models_of(target_model: Any, draft_model: Any, compile: Compile | None = None) -> Models:
    """Transformers models, or backbones, as backbones, compiled if that is asked for."""
    target = Backbone.of(target_model)
    draft = None if draft_model is None else Backbone.of(draft_model)
    if compile is not None:
        attach_for_call([target] if draft is None else [target, draft], compile)
    return Models(target, draft)


def read_extras(plan: Plan, given: Mapping[str, Any], source: ExtraSource) -> dict[str, Any]:
    """The extras of a call as its drafter gets them. Raises ConfigError for one that the method
    does not read, InputError for a wrong form or number of rows."""
    for name, value in given.items():
        if name not in plan.extras and not _says_nothing(value):
            readers = ", ".join(map(repr, methods_with(name)))
            use = f"use one that does ({readers}), or " if readers else ""
            raise ConfigError(
                f"{name} are given, and the method does not read {name}: {use}leave them out"
            )
    return {name: read(given.get(name), source) for name, read in plan.extras.items()}


def _says_nothing(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_says_nothing, value))
    return value is None or (isinstance(value, Mapping) and not value)


def _split_extras(plan: Plan, request: Request) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """The extras of a request, and its draft inputs without those among them."""
    raw_extras = {name: value for name, value in request.extras.items() if name != NAMESPACE}
    if request.draft_inputs is None:
        return raw_extras, None
    draft_inputs: dict[str, Any] = {}
    for name, value in request.draft_inputs.items():
        is_extra = name in plan.extras or isinstance(value, Mapping)
        (raw_extras if is_extra else draft_inputs)[name] = value
    return raw_extras, draft_inputs


def _draft_inputs(
    plan: Plan, prepared: Prepared, inputs: Mapping[str, Any], given: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """The inputs given for the drafter, else those of the target, as also where the target drafts
    for itself. Raises InputError if they belong to another batch."""
    if given is not None:
        if plan.uses_draft or "input_ids" in given:
            _check_rows(given, len(prepared.input_ids))
        if plan.uses_draft:
            return given
    target_inputs = dict(inputs)
    mask = prepared.model_kwargs.get("attention_mask")
    if target_inputs.get("attention_mask") is None and mask is not None:  # `generate` found padding
        target_inputs["attention_mask"] = mask
    return target_inputs


def _check_rows(draft_inputs: Mapping[str, Any], num_rows: int) -> None:
    ids = draft_inputs.get("input_ids")
    num_given = 0 if ids is None else len(ids)
    if num_given != num_rows:
        raise InputError(f"draft_inputs must hold input_ids for {num_rows} rows, not {num_given}")


def seeds_of(seed: Seed, prepared: Prepared) -> list[int]:
    """The seed of each row's noise. Raises ConfigError for a seed that is no whole number, or
    another number of seeds than rows."""
    num_rows = len(prepared.input_ids)
    if seed is None:
        base_seed = int(torch.randint(2**62, ())) if prepared.config.do_sample else 0
        return row_seeds(base_seed, num_rows)
    if not isinstance(seed, Sequence) or isinstance(seed, (str, bytes)):
        return row_seeds(as_seed(seed), num_rows)  # type: ignore[arg-type]
    if len(seed) != num_rows:
        raise ConfigError(f"{len(seed)} seeds are given for {num_rows} rows")
    return [row_seeds(as_seed(row_seed), 1)[0] for row_seed in seed]
