"""The protocol of all engines of passes, the registry, and the option `compile`, which names one
([compiled](../../docs/compiled.md))."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from draftlens.core.errors import ConfigError
from draftlens.core.locks import ForkLock
from draftlens.core.names import AUTO, UNQUANTIZED
from draftlens.core.options import Registry, shown
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER, Passes
from draftlens.models.model_state import Slot
from draftlens.models.outer_model import ReplacingEmbedding

Compile = bool | str
"""The option `compile`: what computes decode forwards. `"auto"`, the default: the first of
`BY_PREFERENCE` that suits a model; False: the model's modules; a name of `PASSES`; True: `DEFAULT`.
The registry may lack any of them but the modules."""

PASSES = Registry(
    "engine of passes",
    {
        "modules": "draftlens.passes.base:ModuleEngine",
        "inductor": "draftlens.passes.inductor.engine:InductorEngine",
        "openvino": "draftlens.passes.openvino:OpenVinoEngine",
    },
    group="draftlens.passes",
)

MODULES = "modules"
DEFAULT = "inductor"
BY_PREFERENCE = ("inductor", "openvino")

_log = logging.getLogger("draftlens")


class PassEngine:
    """Makes the passes of models in one way.

    An engine is a frozen dataclass; its fields are its options. It is pickled where a draft runs in
    another process. One that traces models finds what it needs in `structure` and `split_pass`.
    """

    quantizations: ClassVar[tuple[str, ...]] = ()
    """Values of its option `quantization`, of the weights in passes. An engine that has some has
    the option `is_target`, too: whether the tokens of an answer are chosen by these passes."""

    knows_kinds: ClassVar[bool] = False
    """Whether it has masks for each kind of layer, keys that layers share and inputs of tokens for
    each layer, scales and caps of logits, and ids that a model reads as others."""

    @property
    def label(self) -> str:
        """The engine's name in messages."""
        raise NotImplementedError

    @property
    def missing(self) -> str:
        """What is to be installed first, and how; empty if nothing is."""
        return ""

    def refusal(self, backbone: Backbone) -> str | None:
        """Why it does not run the passes of a model, as far as this is known beforehand."""
        raise NotImplementedError

    def make(self, backbone: Backbone) -> Passes:
        """The passes of a model that it does not refuse. They must not keep the model alive. What
        it raises is shown, and the modules compute the passes."""
        raise NotImplementedError

    def unsuited(self, backbone: Backbone) -> str | None:
        """Why `"auto"` does not take it for a model that it does not refuse."""
        return None

    def draft_quantization(self) -> str:
        """Which of `quantizations` makes a draft faster on this processor, for `"auto"`; empty if
        none does."""
        return ""

    def loading(self) -> Any:
        """A `quantization_config` of transformers with which the checkpoint of a target may be read
        for these passes; None to read it in full."""
        return None

    def without_compiling(self) -> PassEngine:
        """The same engine without work of minutes, for `"auto"` and for drafts of other
        processes."""
        return self

    def ready(self, backbone: Backbone) -> str:
        """What is prepared on this machine for a model that it does not refuse."""
        return "prepared at each start"


@dataclass(frozen=True)
class ModuleEngine(PassEngine):
    """The modules of the model."""

    label: ClassVar[str] = "the modules"
    knows_kinds: ClassVar[bool] = True

    def refusal(self, backbone: Backbone) -> str | None:
        return None

    def make(self, backbone: Backbone) -> Passes:
        return EAGER


BY_MODULES = ModuleEngine()


@dataclass(frozen=True)
class Choice:
    """What `"auto"` takes for a model: its name and passes, and why others are left out."""

    name: str
    passes: Passes
    skipped: dict[str, str]

    def __str__(self) -> str:
        quantization = self.passes.quantization
        name = f"{self.name} with {quantization} weights" if quantization else self.name
        others = "; ".join(f"not {other}: {reason}" for other, reason in self.skipped.items())
        return f"{name} ({others})" if others else name


@dataclass
class _Made:
    """What was made for a model.

    Args:
        passes: by engine.
        failures: why others made none.
        said: what was written to the log.
        roles: by the adapters that `attach` has seen, whether they are those of a target.
        by_modules: the choices of `"auto"` that are its modules, by device, dtype and quantization.
        was_called: whether a call has run it (`attach_for_call`).
        lock: held while passes are made.
    """

    passes: dict[PassEngine, Passes] = field(default_factory=dict)
    failures: dict[PassEngine, str] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)
    roles: WeakKeyDictionary[Backbone, bool] = field(default_factory=WeakKeyDictionary)
    by_modules: dict[tuple[Any, ...], Choice] = field(default_factory=dict)
    was_called: bool = False
    lock: ForkLock = field(default_factory=ForkLock)


_MADE = Slot[_Made]("passes by engine")


def check_compile(value: Any) -> None:
    """Refuse what is no value of the option `compile`.

    Raises:
        ConfigError: names the values, or what is to be installed for one.
    """
    if isinstance(value, bool) or (isinstance(value, str) and value == AUTO):
        return
    if not isinstance(value, str) or value not in PASSES:
        names = [f'"{name}"' for name in PASSES if name not in (DEFAULT, MODULES)]
        raise ConfigError(
            f'compile must be True (the same as "{DEFAULT}"), {", ".join(names)}, "{AUTO}" or '
            f"False, not {shown(value)}"
        )
    if missing := PASSES[value]().missing:
        raise ConfigError(f'compile="{value}" needs {missing}')


def attach(
    backbones: Sequence[Backbone],
    compile: Compile,
    draft_quantization: str | None = None,
    quantization: str | None = None,
    keeps: bool = False,
) -> None:
    """Let models compute their decode forwards by an engine, or by their modules again.

    Args:
        backbones: the target and, if there is one, the draft.
        compile: what computes their passes. The modules of a model that an engine cannot run stay
            in use, with a warning that says why.
        draft_quantization: of the weights in the draft's passes (`PassEngine.quantizations`);
            `UNQUANTIZED` for none, and None for none too, but with `"auto"` for those that are
            faster here. A model that is a target as well has none.
        quantization: of those in the target's passes. The modules never replace them.
        keeps: whether models that were attached before keep what computes their passes, except for
            8-bit weights of a draft that is a target now.

    Raises:
        ConfigError: a value is unknown or cannot be used.
        UnsupportedModelError: the target's passes cannot have this quantization.
    """
    check_compile(compile)
    if draft_quantization or quantization:
        _weights().check_quantization(draft_quantization, compile)
        _weights().check_quantization(quantization, compile, "quantization")
    for number, backbone in enumerate(backbones):
        roles = _MADE.get_or_make(backbone.model, _Made).roles
        stays = keeps and backbone in roles
        roles[backbone] = is_target = number == 0 or roles.get(backbone, False)
        if number == 0 and quantization not in (None, UNQUANTIZED):
            _weights().attach_rounded(backbone, compile, str(quantization))
            continue
        passes = backbone.passes
        if passes.rounding and not stays:
            _weights().check_weights(backbone)
        if stays and (passes.rounding or not (is_target and passes.quantization)):
            continue
        weights = UNQUANTIZED if is_target else draft_quantization
        if backbone.plain_only:  # its passes are not those of the modules
            if compile and compile != AUTO:
                _say_refusal(backbone, name_of(compile), backbone.plain_only)
        elif compile == AUTO:
            choice = chosen(backbone, weights)
            backbone.passes = choice.passes
            _say_once(backbone, logging.INFO, f"passes of {backbone.name} run by {choice}")
        else:
            attach_engine(backbone, _engine(name_of(compile), weights))


def _weights() -> Any:
    """What weights of passes may be rounded to, which most calls do not ask for."""
    from draftlens.passes import quantization

    return quantization


def attach_for_call(backbones: Sequence[Backbone], compile: Compile) -> None:
    """As `attach`, for a call with models that the caller holds. The first call of a model may be
    the only one: with `"auto"` it runs by what is there, and the next one prepares passes. Rounded
    passes stay."""
    made = [_MADE.get_or_make(backbone.model, _Made) for backbone in backbones]
    is_rounded = any(backbone.passes.rounding for backbone in backbones)
    if compile != AUTO or all(each.was_called or each.passes for each in made):
        attach(backbones, compile, keeps=compile == AUTO and is_rounded)
    for each in made:
        each.was_called = True


def attach_engine(backbone: Backbone, engine: PassEngine) -> None:
    """Let an engine compute the passes of a model; its modules do, with a warning, if it cannot."""
    backbone.passes = EAGER  # what an engine makes is compared with the modules
    passes = made_passes(backbone, engine)
    if isinstance(passes, Passes):
        backbone.passes = passes
        _MADE.get_or_make(backbone.model, _Made).by_modules.clear()  # code may be on disk now
        return
    _say_refusal(backbone, engine.label, passes)


def engine_of(backbone: Backbone) -> PassEngine:
    """What computes the passes of a model, for another process that runs the same model."""
    engine = backbone.passes.engine
    return engine if isinstance(engine, PassEngine) else BY_MODULES


def chosen(backbone: Backbone, draft_quantization: str | None = UNQUANTIZED) -> Choice:
    """The first of `BY_PREFERENCE` that runs a model and suits it, or its modules. Where no engine
    was found for a model, none is looked for again.

    Args:
        backbone: the model.
        draft_quantization: as for `attach`; by default the model is no draft.
    """
    by_modules = _MADE.get_or_make(backbone.model, _Made).by_modules
    conditions = (backbone.device, backbone.dtype, draft_quantization)
    if conditions in by_modules:
        return by_modules[conditions]
    before, backbone.passes = backbone.passes, EAGER
    skipped: dict[str, str] = {}
    try:
        for name in preferred():
            quantization = draft_quantization
            if quantization is None:
                quantization = PASSES[name]().draft_quantization()
            engine = _engine(name, quantization).without_compiling()
            passes = made_passes(backbone, engine, automatic=True)
            if isinstance(passes, Passes):
                return Choice(name, passes, skipped)
            skipped[name] = passes
    finally:
        backbone.passes = before
    by_modules[conditions] = Choice(MODULES, EAGER, skipped)
    return by_modules[conditions]


def preferred() -> list[str]:
    return [name for name in BY_PREFERENCE if name in PASSES]


def name_of(compile: Compile) -> str:
    if isinstance(compile, str):
        return compile
    return DEFAULT if compile else MODULES


def _engine(name: str, quantization: str | None) -> PassEngine:
    kind = PASSES[name]
    has_it = bool(quantization) and quantization in kind.quantizations
    engine: PassEngine = kind(quantization=quantization) if has_it else kind()
    return engine


def made_passes(backbone: Backbone, engine: PassEngine, automatic: bool = False) -> Passes | str:
    """The passes of a model by an engine, made once; or why there are none, which may change where
    that is automatic: the model may have moved or have hooks now."""
    made = _MADE.get_or_make(backbone.model, _Made)
    with made.lock:
        if engine in made.passes and not automatic:
            return made.passes[engine]
        if engine in made.failures:
            return made.failures[engine]
        try:
            reason = backbone.plain_only or beyond(engine, backbone) or engine.refusal(backbone)
            if reason is None and engine in made.passes:
                return made.passes[engine]
            if reason is None and automatic:
                reason = engine.unsuited(backbone) or _missing(engine, backbone)
            if reason is not None:
                return reason
            passes = engine.make(backbone)
        except Exception as error:  # conversion raises whatever its parts raise
            last_line = "".join(str(error).strip().splitlines()[-1:])
            made.failures[engine] = f"{type(error).__name__}: {last_line}"
            return made.failures[engine]
        passes.engine = engine
        made.passes[engine] = passes
        return passes


def _missing(engine: PassEngine, backbone: Backbone) -> str | None:
    """What is to be installed for an engine that suits a model, also in a line of the log."""
    if not engine.missing:
        return None
    reason = f"it needs {engine.missing}"
    _say_once(backbone, logging.WARNING, f"{backbone.name} would be faster: {reason}")
    return reason


def beyond(engine: PassEngine, backbone: Backbone) -> str:
    """Why an engine that knows full attention alone does not compute the passes of a model; empty
    if it may."""
    if engine.knows_kinds:
        return ""
    if backbone.kinds is not None:
        return "some of its layers have sliding windows or share keys"
    if backbone.scale is not None and not backbone.scale.is_quotient:
        return "its logits are scaled or capped after the output head"
    if isinstance(backbone.embed, ReplacingEmbedding):
        return "it reads placeholders of media in answers as other tokens"
    return ""


def _say_refusal(backbone: Backbone, engine: str, reason: str) -> None:
    text = f"passes of {backbone.name} do not run by {engine}: {reason}"
    _say_once(backbone, logging.WARNING, text)


def _say_once(backbone: Backbone, level: int, text: str) -> None:
    said = _MADE.get_or_make(backbone.model, _Made).said
    if text not in said:
        said.add(text)
        _log.log(level, "%s", text)
