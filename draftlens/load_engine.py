"""From names to loaded models, with the fallback without a draft, and to an `Engine` (`load`)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, Unpack

from draftlens.core.errors import ConfigError, DraftlensError
from draftlens.core.names import AUTO, EMBEDDED, UNQUANTIZED
from draftlens.core.options import switch, wrong
from draftlens.decoding.observer import ignore
from draftlens.engine import CALIBRATION_SECONDS, Engine
from draftlens.methods.base import MethodLike, draft_use, name_of, resolve, with_prefill
from draftlens.models.known_pairs import remedy
from draftlens.models.load import PLAIN_PAIR, Loaded, known_draft, load_draft, load_model, load_pair
from draftlens.models.loading import PACKAGES, LoadWords, PairOptions, pair_options
from draftlens.models.prompt_cache import PromptCache
from draftlens.passes import Compile, check_compile, check_quantization, quantizations_of
from draftlens.passes.quantization import rounding_engine
from draftlens.prefill.base import make_prefill

_log = logging.getLogger("draftlens")


def _unmarked(description: str) -> AbstractContextManager[None]:
    return nullcontext()


PREPARING = "preparing passes"
"""The stage of `load` in which engines of passes are prepared. Small models need no time for it."""


@dataclass(frozen=True)
class LoadProgress:
    """Follows `load`.

    Args:
        stage: entered around each stage, with its description.
        loaded: receives the target's model before forwards are measured or processes are started.
    """

    stage: Callable[[str], AbstractContextManager[None]] = _unmarked
    loaded: Callable[[Any], None] = ignore


def load(
    target: str = "embedded",
    draft: str | None = AUTO,
    method: MethodLike = None,
    device: str | None = None,
    dtype: Any = None,
    calibrate: bool = True,
    prefill: Any = None,
    compile: Compile = AUTO,
    prompt_cache: PromptCache | int | str | None = None,
    progress: LoadProgress | None = None,
    **options: Unpack[LoadWords],
) -> Engine:
    """Load a target and its draft, and check that they can work together.

    The first time that a pair is loaded on a machine, some forwards are measured for at most two
    seconds or a tenth of the loading time, and the costs are kept in the user's cache folder.

    Args:
        target: a folder or Hub id of any transformers vision-language model, or `embedded`, the
            pair in the package.
        draft: a smaller model of the same tokenizer; None loads no draft. By default the known
            draft of the target (`draftlens pairs` lists them). If there is none, or it cannot be
            loaded, a line on standard error reports it, and method `lookup` is used. If another
            method is named, the target drafts for itself if the method's option `draft` is
            `"auto"`, and a method that needs a draft model is refused. A language model drafts from
            the words of the prompt.
        method: a method, its name, or a dict of its options.
        device: such as `cpu`, `cuda:0`, or `auto` to spread a large model over devices.
        dtype: `float32`, `bfloat16` (or `bf16`), `float16`, `auto` or a torch dtype; by default
            float32 on the CPU, else the checkpoint's own.
        calibrate: whether to measure forwards, if the method chooses its trees by their costs
            (`Engine.calibrate`).
        prefill: how the target reads prompts (`prefill.base.PREFILLS`), whatever the method: a
            name, a dict of its name and options, or a prefill; None for the method's own.
        compile: what computes decode forwards (`Engine.compile`), with the same tokens in float32:
            `"auto"` for what suits each model, False for its modules, True for compiled code, which
            is kept in the user's cache folder, or another name of `passes.PASSES`. Where the engine
            has 8-bit weights, `draft_quantization="int8"` gives them to the draft's passes, and
            `"auto"` does so where that is faster, unless it is `"none"`; they change no answer.
            `quantization="int8"`, `"int4"`, `"int8-weights"` or `"int4-weights"` rounds the weights
            of the target while they are read; it then answers as the rounded model does
            (`Engine.compile`).
        prompt_cache: a bound in bytes, such as ``"4GB"``, on what is kept of prompts (keys and
            values of both models, features of media), so that a later prompt with the same
            beginning is read from where it differs; or a `PromptCache` that engines share. None
            keeps nothing. `Engine.chat` has a cache of its own in that case.
        progress: follows the stages of loading.
        options: further options of loading, such as `revision`, `trust_remote_code`,
            `quantization`, `attn_implementation`, `device_map` and `cache_dir`
            (`models.loading.LoadOptions`); with the prefix `draft_` they are those of the draft.

    Raises:
        ConfigError, UnsupportedModelError, IncompatiblePairError, HostError: the message names the
            cause.

    Example:

        >>> import draftlens
        >>> draftlens.load(device="cpu").target.name
        'embedded'
    """
    target = model_name("target", target)
    draft = None if draft is None else model_name("draft", draft)
    calibrate = switch("calibrate", calibrate)
    # Refuses a bad method before minutes of loading.
    with_prefill(resolve(method), prefill)
    reads = make_prefill("full" if prefill is None else prefill)
    check_compile(compile)
    prompt_cache = PromptCache.of(prompt_cache)
    if not isinstance(progress, LoadProgress | None):
        raise wrong("progress", progress, "a LoadProgress, or None")
    progress = progress or LoadProgress()
    words = {"device": reads.device(device), "dtype": dtype, **options}
    quantization = pop_pass_quantization(words, compile, "quantization")
    draft_quantization = pop_pass_quantization(words, compile, "draft_quantization")
    began = time.perf_counter()
    with progress.stage(f"loading {target}"):
        opened = open_models(target, draft, method, pair_options(words))
        engine = Engine(
            opened.target,
            opened.draft,
            opened.method,
            prefill=prefill,
            notice=opened.notice,
            compile=False,
            prompt_cache=prompt_cache,
        )
        progress.loaded(engine.target.backbone.model)
        reads.prepare(engine.target.backbone)
    loading_seconds = time.perf_counter() - began
    if compile:
        with progress.stage(PREPARING):
            engine.compile(compile, draft_quantization, quantization)
    if calibrate:
        with progress.stage("measuring forwards"):
            engine.calibrate(max(CALIBRATION_SECONDS, loading_seconds / 10))
    return engine


def pop_pass_quantization(words: dict[str, Any], compile: Compile, option: str) -> str | None:
    """`quantization` or `draft_quantization`, taken out of the options of loading, if the engine of
    the passes has it: the model is loaded as these passes want it. With `"auto"` that is so for a
    model in float32 on the CPU. Raises `ConfigError` if the engine is not installed or no package
    and no engine has it."""
    quantization = words.get(option)
    if not isinstance(quantization, str | bool):
        return None
    if quantization in (UNQUANTIZED, False):
        words.pop(option)
        return UNQUANTIZED
    known = dict.fromkeys((*PACKAGES, *quantizations_of(AUTO)))
    if isinstance(quantization, str) and quantization not in known:
        raise ConfigError(f"unknown {option} {quantization!r}; known: {', '.join(known)}")
    if quantization not in quantizations_of(compile):
        if quantization in quantizations_of(AUTO) and quantization not in PACKAGES:
            check_quantization(quantization, compile, option)
        return None
    if compile == AUTO:
        loading = pair_options({**words, "quantization": None, "draft_quantization": None})
        own = loading.target if option == "quantization" else loading.draft
        if own.placed_on != "cpu" or own.dtype not in (None, "float32"):
            return None
    check_quantization(quantization, compile, option)
    words.pop(option)
    if option == "quantization":
        words[option] = rounding_engine(compile, str(quantization)).loading()
    return str(quantization)


@dataclass(frozen=True)
class Opened:
    """Loaded models and the method that was named or its fallback; `notice` is a line about a
    missing draft, or empty."""

    target: Loaded
    draft: Loaded | None
    method: MethodLike
    notice: str = ""


def open_models(
    target: str,
    draft: str | None = AUTO,
    method: MethodLike = None,
    options: PairOptions = PLAIN_PAIR,
) -> Opened:
    """Load a target and, if the method has a use for one, its draft.

    Draft `auto` is the known draft of the target. Without one, method `auto` copies draft tokens
    from texts, or drafts nothing for a target whose cache cannot be rolled back. A method with an
    optional draft (`specvlm`, `parallelvlm`, `tabed`) then lets the target draft for itself, and
    one that needs a draft is refused.

    Raises:
        ConfigError: a name or value is unknown, or the method needs a draft and there is none;
            before the target is loaded, if possible.
        UnsupportedModelError: a model lacks something that draftlens needs.
        IncompatiblePairError: the draft was named, and does not match the target.
    """
    use = draft_use(resolve(method))
    if draft == AUTO:
        return _open_with_known_draft(target, method, use, options)
    if draft is None and use == "needed":
        raise ConfigError(f"the method needs a draft model: {remedy()}")
    return Opened(*load_pair(target, draft, options), method)


def _open_with_known_draft(
    target: str, method: MethodLike, use: str, options: PairOptions
) -> Opened:
    # The embedded draft is small, and each call may choose another method.
    if use == "unused" and target != EMBEDDED:
        return Opened(load_model(target, "target", options.target), None, method)
    name = known_draft(target, options.target)
    reason = f"no draft is known for {target!r}"
    if name is None and use == "needed":
        raise ConfigError(f"{reason}, and the method needs one: {remedy()}")
    options.draft.model_arguments()  # refused here: a draft that cannot be loaded is left out
    loaded = load_model(target, "target", options.target)
    if is_automatic(method) and loaded.backbone.plain_only:
        return _without_draft(loaded, method, loaded.backbone.plain_only)
    if name is None:
        return _without_draft(loaded, method, reason)
    try:
        return Opened(loaded, load_draft(name, loaded, options), method)
    except DraftlensError as error:
        if use == "needed":
            raise
        return _without_draft(loaded, method, str(error))


def _without_draft(target: Loaded, method: MethodLike, reason: str) -> Opened:
    """A target and its fallback: the known draft is not available."""
    if is_automatic(method) and target.backbone.plain_only:
        notice = f"{reason}; method 'plain' drafts nothing"
    elif is_automatic(method):
        notice = f"{reason}; method 'lookup' drafts from the text instead"
    elif getattr(resolve(method), "draft", None) == AUTO:
        notice = f"{reason}; the target drafts for itself"
    else:
        notice = f"{reason}; the method goes on without one"
    _log.warning("%s", notice)
    return Opened(target, None, method, notice)


def is_automatic(method: MethodLike) -> bool:
    """Whether the models decide how they answer."""
    return name_of(resolve(method)) == "auto"


def model_name(role: str, value: Any) -> str:
    """The name of a model as text; raises ConfigError otherwise, also for a model that is loaded
    already, which goes into an `Engine`."""
    name = fspath(value) if isinstance(value, PathLike) else value
    if not isinstance(name, str) or not name.strip():
        raise wrong(
            role,
            value,
            "the name of a model, a folder or a Hub id (draftlens.Engine takes loaded models)",
        )
    return name
