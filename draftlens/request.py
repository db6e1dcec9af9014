"""A request and the call that answers it: the steps that every entry point shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, SupportsIndex, TypedDict

import torch

from draftlens.arguments import check_for_model, checked_options
from draftlens.compile import attach
from draftlens.core.errors import ConfigError, DraftlensError, InputError
from draftlens.core.prefill_readings import NO_READINGS, ReadingSpec
from draftlens.core.references import NO_REFERENCES, GivenReferences, References, references_of
from draftlens.core.sampling import as_seed, row_seeds
from draftlens.core.sequence import Sequence as AnswerSequence
from draftlens.core.stats import Clock, Stats
from draftlens.core.view_record import Weighed
from draftlens.decoding.drafter import ignore
from draftlens.decoding.plan import VIEW_INPUTS, Plan
from draftlens.decoding.session import Session
from draftlens.media.chat_source import ChatSource
from draftlens.methods.base import MethodLike, Models, resolve, with_prefill
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prepared
from draftlens.models.prompt_checks import LONG_PROMPT, check_length, check_tokens, num_ids_of
from draftlens.pruning import Choice

BESIDE_OPTIONS = (
    "draft",
    "draft_inputs",
    "method",
    "seed",
    "references",
    "prefill",
    "hosts",
    "compile",
)
"""Arguments of `draftlens.generate` beside the options of transformers."""

Seed = SupportsIndex | Sequence[SupportsIndex] | None
"""A seed for all rows of a call, one for each row, or None to draw one."""


class GenerateOptions(TypedDict, total=False):
    """Options of transformers' `generate` that work here, each with its meaning there, and
    `allow_long_prompt`: whether a prompt of more positions than the target was made for is answered
    all the same, as transformers does, instead of refused.

    Arguments of the model's forward belong into the inputs.
    """

    generation_config: Any
    max_new_tokens: int | None
    max_length: int | None
    min_new_tokens: int | None
    min_length: int | None
    do_sample: bool
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    top_h: float | None
    typical_p: float | None
    epsilon_cutoff: float | None
    eta_cutoff: float | None
    repetition_penalty: float | None
    encoder_repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    encoder_no_repeat_ngram_size: int | None
    length_penalty: float | None
    bad_words_ids: list[list[int]] | None
    sequence_bias: Any
    suppress_tokens: list[int] | None
    begin_suppress_tokens: list[int] | None
    forced_bos_token_id: int | None
    forced_eos_token_id: int | list[int] | None
    exponential_decay_length_penalty: tuple[int, float] | None
    remove_invalid_values: bool | None
    renormalize_logits: bool | None
    prefix_allowed_tokens_fn: Callable[..., list[int]] | None
    logits_processor: Any
    stopping_criteria: Any
    stop_strings: str | list[str] | None
    max_time: float | None
    tokenizer: Any
    streamer: Any
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    bos_token_id: int | None
    num_beams: int
    num_return_sequences: int
    use_cache: bool
    allow_long_prompt: bool


@dataclass(frozen=True)
class Request:
    """What is asked: a batch of prompts and how to answer them.

    Args:
        inputs: the output of the target's processor, padded on either side.
        draft_inputs: the output of the draft's processor for the same prompts; None if `inputs`
            serve both. Its entry `views`, if any, maps names of further views of the prompts
            (`Plan.views`) to the processor's output for them.
        method: how to decode; None for the default.
        seed: seed of the sampling noise. One seed is extended to different seeds of the rows; None
            draws one from torch's global generator.
        options: options of `generate` (`GenerateOptions`).
        readings: readings of the target's prefill besides those that the method needs.
        observe: receives every choice of a pruner.
        observe_weighed: receives what each token shows about the views of an ensemble.
        chat: the messages of the prompts, of which further views are made; None if only the
            processor's output is there.
        references: texts that the answers are expected to repeat (`core.references`), for methods
            that guess from them; None if nobody gave any.
        tokenizer: of the target, for references that are texts; None for the option `tokenizer` of
            `generate`.
        prefill: how the target reads the prompts, instead of the method's own way; None for that.
        hosts: number of processes that read the prompts together, which are started if need be;
            None for those that the model has, or those of torchrun.
        compile: whether decode forwards run as compiled code (`draftlens.compile`); None for
            whatever the models do already.
    """

    inputs: Mapping[str, Any]
    draft_inputs: Mapping[str, Any] | None = None
    method: MethodLike = None
    seed: Seed = None
    options: Mapping[str, Any] = field(default_factory=dict)
    readings: ReadingSpec = NO_READINGS
    observe: Callable[[Choice], None] | None = None
    observe_weighed: Callable[[Weighed], None] = ignore
    chat: ChatSource | None = None
    references: GivenReferences | None = None
    tokenizer: Any = None
    prefill: Any = None
    hosts: int | None = None
    compile: bool | None = None


@dataclass(frozen=True)
class Call:
    """A request that is being answered.

    Args:
        plan: of its method.
        session: answers it.
        sequences: its rows, in order.
        dtype: the target computes in it.
    """

    plan: Plan
    session: Session
    sequences: list[AnswerSequence]
    dtype: torch.dtype


def open_call(
    target_model: Any, draft_model: Any, request: Request, clock: Clock | None = None
) -> Call:
    """Prepare a request, so that the plan's schedule can answer it.

    Args:
        target_model: a transformers model, or a `Backbone`.
        draft_model: the same, or None.
        request: what is asked.
        clock: started when the request came; a new one by default.

    Raises:
        ConfigError, InputError, UnsupportedModelError, IncompatiblePairError, HostError: before any
            token is made.
    """
    clock = clock or Clock(Stats())
    request = checked_request(request)
    models = models_of(target_model, draft_model, request.compile)
    check_tokens("inputs", request.inputs, num_ids_of(models.target))
    defaults = models.target.model.generation_config
    check_for_model(request.options, models.target.vocab_size, defaults)
    method = with_prefill(resolve(request.method, models.draft is not None), request.prefill)
    plan = method.plan(models)
    meet_hosts(models.target, plan, request.hosts, request.inputs)
    with clock.phase("vision"):
        prepared = _prepare(models.target, request)
    return open_prepared(models, plan, prepared, request, clock)


def open_prepared(
    models: Models,
    plan: Plan,
    prepared: Prepared,
    request: Request,
    clock: Clock,
) -> Call:
    """The same for a call that stock `generate` has prepared already."""
    check_length(models.target, prepared, bool(request.options.get(LONG_PROMPT)))
    draft_inputs = with_views(plan, draft_inputs_for(plan, prepared, request), request.chat)
    references = references_for(plan, request, len(prepared.input_ids), clock)
    session = Session(
        models.target,
        plan.drafter,
        plan.prefill,
        clock,
        plan.acceptance,
        request.readings,
        request.observe,
        plan.lane,
        request.observe_weighed,
        plan.tolerance,
    )
    seeds = seeds_of(request.seed, prepared)
    sequences = session.add(prepared, seeds, draft_inputs, references)
    return Call(plan, session, sequences, models.target.dtype)


def checked_request(request: Request) -> Request:
    """The request with its options checked (`draftlens.arguments`).

    Raises:
        ConfigError, InputError: an option is wrong, or the inputs are none.
    """
    check_tokens("inputs", request.inputs)
    if request.draft_inputs is not None:
        check_tokens("draft_inputs", request.draft_inputs)
    options = checked_options(request.options, BESIDE_OPTIONS, request.inputs)
    return replace(request, options=options)


def _prepare(target: Backbone, request: Request) -> Prepared:
    """The request as stock `generate` prepares it.

    Raises:
        InputError: transformers refuses it; and as `Backbone.prepare`.
    """
    options = {name: value for name, value in request.options.items() if name != LONG_PROMPT}
    try:
        return target.prepare(request.inputs, **options)
    except DraftlensError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        cause = " ".join(str(error).split())
        raise InputError(f"transformers refuses the call: {cause}") from error


def meet_hosts(target: Backbone, plan: Plan, hosts: int | None, inputs: Mapping[str, Any]) -> None:
    """Let several processes read the prompts of a call, if its prefill uses them and there are any.

    Under torchrun it returns on rank 0 only.

    Args:
        target: of the call.
        plan: of its method.
        hosts: as for `Request`.
        inputs: what is asked.

    Raises:
        ConfigError, InputError, HostError: as `Prefill.check_hosts` and `Prefill.meet`.
    """
    plan.prefill.check_hosts(hosts)
    plan.prefill.meet(target, hosts, inputs)


def models_of(target_model: Any, draft_model: Any, compile: bool | None = None) -> Models:
    """Transformers models, or backbones, behind the seam, with the passes that are asked for."""
    target = Backbone.of(target_model)
    draft = None if draft_model is None else Backbone.of(draft_model)
    if compile is not None:
        attach([target] if draft is None else [target, draft], compile)
    return Models(target, draft)


def references_for(plan: Plan, request: Request, num_rows: int, clock: Clock) -> References:
    """The references that a plan's drafter guesses from.

    Raises:
        ConfigError: the plan's method uses none.
        InputError: they have another form, or do not go with the rows.
    """
    given = request.references
    if given is None and plan.read_references is not None and request.chat is not None:
        given = plan.read_references(request.chat, clock.phase)
    if given is None:
        return NO_REFERENCES
    tokenizer = request.tokenizer
    if tokenizer is None:
        tokenizer = request.options.get("tokenizer")
    references = references_of(given, num_rows, tokenizer)
    if references and not plan.uses_references:
        raise ConfigError(
            "references are given, and the method does not guess from references: use method "
            "'hsd' or 'lookup', or leave them out"
        )
    return references


def draft_inputs_for(plan: Plan, prepared: Prepared, request: Request) -> Mapping[str, Any]:
    """What the drafter reads: the inputs that were given for it, else those of the target. Where
    the target drafts for itself, it reads its own inputs and the views that were given.

    Raises:
        InputError: the given inputs belong to another batch.
    """
    given = request.draft_inputs
    if given is not None:
        check_rows(prepared, given, plan.uses_draft)
        if plan.uses_draft:
            return given
    own = dict(request.inputs)
    mask = prepared.model_kwargs.get("attention_mask")
    if own.get("attention_mask") is None and mask is not None:  # `generate` found padding
        own["attention_mask"] = mask
    if given is not None and VIEW_INPUTS in given:
        own[VIEW_INPUTS] = given[VIEW_INPUTS]
    return own


def with_views(
    plan: Plan, draft_inputs: Mapping[str, Any], chat: ChatSource | None
) -> Mapping[str, Any]:
    """The draft's inputs with what makes its inputs for further views of the prompts.

    Args:
        plan: names the views that can be made of messages.
        draft_inputs: the output of the draft's processor, with the views that the caller has made
            himself under `views`.
        chat: the messages; None if they are not known.

    Returns:
        The same inputs if the plan has no views. Otherwise their entry `views` maps the name of
        each view that the caller has made, or that can be made of the messages, to a callable
        without arguments that returns the inputs of this view. The drafter calls it behind the
        first token, so that captions do not delay that.

    Raises:
        InputError: views are given that the method does not read.
    """
    given = given_views(draft_inputs)
    unknown = sorted(given.keys() - plan.views.keys())
    if unknown and not plan.views:
        raise InputError(
            f"draft_inputs hold views ({', '.join(unknown)}), and the method reads its prompt in "
            "one way only: leave them out"
        )
    if unknown:
        raise InputError(
            f"draft_inputs hold views that the method does not read: {', '.join(unknown)}; it "
            f"reads {', '.join(sorted(plan.views))}"
        )
    if not plan.views:
        return draft_inputs
    makers: dict[str, Callable[[], Mapping[str, Any]]] = {}
    for name, make in plan.views.items():
        if name in given:
            makers[name] = partial(dict, given[name])
        elif chat is not None:
            makers[name] = partial(make, chat)
    return {**draft_inputs, VIEW_INPUTS: makers}


def given_views(draft_inputs: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """The views of the prompts that the caller has made himself, by name.

    Raises:
        InputError: they have another form.
    """
    given = draft_inputs.get(VIEW_INPUTS, {})
    if not isinstance(given, Mapping):
        raise InputError(
            "draft_inputs['views'] map names of views to the processor's output for them, "
            f"not {type(given).__name__}"
        )
    for name, inputs in given.items():
        if not isinstance(inputs, Mapping):
            raise InputError(
                f"draft_inputs['views'][{name!r}] is the output of a processor, "
                f"not {type(inputs).__name__}"
            )
    return given


def check_rows(prepared: Prepared, draft_inputs: Mapping[str, Any], needs_ids: bool = True) -> None:
    """Refuse draft inputs that belong to another batch, and views that do.

    Args:
        prepared: the call.
        draft_inputs: what was given for the draft.
        needs_ids: whether `input_ids` are needed beside views.

    Raises:
        InputError: there are no `input_ids`, or not as many rows as the target has.
    """
    num_rows = prepared.input_ids.shape[0]
    if needs_ids or "input_ids" in draft_inputs:
        _check_rows_of("draft_inputs", draft_inputs, num_rows)
    for name, inputs in given_views(draft_inputs).items():
        _check_rows_of(f"draft_inputs['views'][{name!r}]", inputs, num_rows)


def _check_rows_of(described: str, inputs: Mapping[str, Any], num_rows: int) -> None:
    check_tokens(described, inputs)
    ids = inputs.get("input_ids")
    num_given = 0 if ids is None else len(ids)
    if num_given != num_rows:
        raise InputError(f"{described} must hold input_ids for {num_rows} rows, not {num_given}")


def seeds_of(seed: Seed, prepared: Prepared) -> list[int]:
    """The seed of each row's noise.

    Raises:
        ConfigError: a seed is no whole number, or there are not as many seeds as rows.
    """
    num_rows = len(prepared.input_ids)
    if seed is None:
        drawn = int(torch.randint(2**62, ())) if prepared.config.do_sample else 0
        return row_seeds(drawn, num_rows)
    if not isinstance(seed, Sequence) or isinstance(seed, (str, bytes)):
        return row_seeds(as_seed(seed), num_rows)  # type: ignore[arg-type]
    if len(seed) != num_rows:
        raise ConfigError(f"{len(seed)} seeds are given for {num_rows} rows")
    return [row_seeds(as_seed(one), 1)[0] for one in seed]
