"""`load`: from names to an `Engine`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Unpack

from draftlens.core.options import switch
from draftlens.decoding.observer import ignore
from draftlens.engine import CALIBRATION_SECONDS, Engine
from draftlens.methods.base import MethodLike, resolve, with_prefill
from draftlens.models.known_pairs import AUTO
from draftlens.models.loading import LoadWords, pair_options
from draftlens.models.prompt_cache import PromptCache
from draftlens.open_models import model_name, open_models
from draftlens.passes import Compile, check_compile, check_quantization, quantizations_of
from draftlens.prefill.base import make_prefill


def _unmarked(description: str) -> AbstractContextManager[None]:
    return nullcontext()


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
    compile: Compile = False,
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
            True for compiled code, which is kept in the user's cache folder, another name of
            `passes.PASSES`, or `"auto"`. Where the engine has 8-bit weights,
            `draft_quantization="int8"` gives them to the draft's passes; they change no answer.
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
    with_prefill(resolve(method, has_draft=True), prefill)
    reads = make_prefill("full" if prefill is None else prefill)
    check_compile(compile)
    prompt_cache = PromptCache.of(prompt_cache)
    progress = progress or LoadProgress()
    words = {"device": reads.device(device), "dtype": dtype, **options}
    draft_quantization = pop_pass_quantization(words, compile)
    began = time.perf_counter()
    with progress.stage(f"loading {target}"):
        opened = open_models(target, draft, method, pair_options(words))
        engine = Engine(
            opened.target,
            opened.draft,
            opened.method,
            prefill=prefill,
            notice=opened.notice,
            prompt_cache=prompt_cache,
        )
        progress.loaded(engine.target.backbone.model)
        reads.prepare(engine.target.backbone)
    loading_seconds = time.perf_counter() - began
    if compile:
        with progress.stage("preparing passes"):
            engine.compile(compile, draft_quantization)
    if calibrate:
        with progress.stage("measuring forwards"):
            engine.calibrate(max(CALIBRATION_SECONDS, loading_seconds / 10))
    return engine


def pop_pass_quantization(words: dict[str, Any], compile: Compile) -> str | None:
    """`draft_quantization`, taken out of the options of loading, if the engine of the passes has
    it: the model is loaded in full. Raises `ConfigError` if the engine is not installed."""
    quantization = words.get("draft_quantization")
    if quantization not in quantizations_of(compile):
        return None
    check_quantization(quantization, compile)
    words.pop("draft_quantization")
    return str(quantization)
