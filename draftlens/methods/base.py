"""The method protocol, methods from names and options, and plain decoding, the baseline."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from draftlens.core.errors import ConfigError, UnsupportedModelError
from draftlens.core.options import Registry, build, describe, shown
from draftlens.decoding.plan import NoDraft, Plan, make_schedule
from draftlens.models.adapter import Backbone
from draftlens.prefill.base import PREFILLS, FullPrefill, make_prefill
from draftlens.pruning import PRUNERS, make_pruner

METHODS = Registry(
    "method",
    {
        "auto": "draftlens.methods.automatic:Automatic",
        "plain": "draftlens.methods.base:PlainDecoding",
        "speculative": "draftlens.methods.speculative:SpeculativeDecoding",
        "specvlm": "draftlens.methods.specvlm.config:SpecVLM",
        "parallelvlm": "draftlens.methods.parallelvlm.config:ParallelVLM",
        "tabed": "draftlens.methods.tabed.config:TABED",
        "lookup": "draftlens.methods.lookup.config:Lookup",
        "hsd": "draftlens.methods.hsd.config:HSD",
        "mixed": "draftlens.methods.mixed.config:Mixed",
    },
    group="draftlens.methods",
)

# Fields of methods and of their parts that hold one object of a registry, or several.
PARTS: Mapping[str, Registry] = {"pruner": PRUNERS, "prefill": PREFILLS}


@dataclass(frozen=True)
class Models:
    """The models of a call: `target` verifies, `draft` proposes, if there is one."""

    target: Backbone
    draft: Backbone | None = None


class Method(Protocol):
    """A way to decode: a frozen dataclass whose fields are its options."""

    def plan(self, models: Models) -> Plan:
        """The parts that one session runs.

        Raises:
            ConfigError: the method needs a draft model and there is none.
            IncompatiblePairError: the draft does not go with the target.
        """
        ...


MethodLike = Method | str | Mapping[str, Any] | None  # None is the default.


def resolve_parts(method: Any, *, pruner: bool = False) -> None:
    """Replace the names of a method's nested parts by the parts, when the method is made.

    Raises:
        ConfigError: a name or option is unknown.
    """
    if method.schedule == "lockstep":
        raise ConfigError(
            "schedule 'lockstep' is schedule 'parallel' with num_speculative_tokens: use that"
        )
    make_schedule(method.schedule)
    object.__setattr__(method, "prefill", make_prefill(method.prefill))
    if pruner:
        object.__setattr__(method, "pruner", make_pruner(method.pruner))


def plan_of(method: Method, models: Models) -> Plan:
    """The plan of a method. Raises as `check_drafting` and `Method.plan`."""
    check_drafting(method, models)
    return method.plan(models)


def check_drafting(method: Method, models: Models) -> None:
    """Raise `UnsupportedModelError` for a method that drafts, or a prefill other than the model's
    own, with a model that answers by the steps of stock `generate` alone."""
    if getattr(method, "drafts", True):
        for model in (models.target, models.draft):
            if model is not None and model.plain_only:
                raise UnsupportedModelError(
                    f"{model.plain_only}; method 'plain' drafts nothing and takes such a target"
                )
    reason = models.target.plain_only
    prefill = getattr(method, "prefill", None)
    if reason and not isinstance(prefill, FullPrefill | None):
        raise UnsupportedModelError(
            f"{reason}, and its prompts are not divided by prefill "
            f"{PREFILLS.name_of(type(prefill))!r}: use prefill 'full'"
        )


DRAFT_USES = ("needed", "optional", "unused")


def draft_use(method: Method) -> str:
    """The attribute `draft_use` of a method; `optional` for plug-ins without it."""
    return str(getattr(method, "draft_use", "optional"))


def mixes_as(method: Method) -> str:
    """The field of `Mixed` that a method can be the value of, `model` or `copying`, or neither; its
    drafter then has what `methods.mixed.drafter` needs."""
    return str(getattr(method, "mixes_as", ""))


def methods_with(extra: str) -> list[str]:
    """Names of the methods with an extra of a call (`Plan.extras`) in their attribute `extras`."""
    return [name for name in METHODS if extra in getattr(METHODS[name], "extras", ())]


def from_dict(options: Mapping[str, Any]) -> Method:
    """A method from ``{"method": name, **options}``; the name is `speculative` if left out.

    Raises:
        ConfigError: the name or an option is unknown (the message lists those that exist), or a
            value makes no sense.

    Example:

        >>> from draftlens import from_dict
        >>> from_dict({"method": "specvlm", "pruner": {"name": "uv", "layer": 9}}).pruner.layer
        9
    """
    remaining = dict(options)
    name = remaining.pop("method", "speculative")
    method: Method = build(METHODS, name, remaining)
    return method


def to_dict(method: Method) -> dict[str, Any]:
    """The name and options of a method as JSON values, from which `from_dict` builds an equal one.

    Example:

        >>> from draftlens import PlainDecoding
        >>> to_dict(PlainDecoding())
        {'method': 'plain', 'schedule': 'serial', 'prefill': {'name': 'full'}}
    """
    options: dict[str, Any] = {"method": name_of(method)}
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        value = getattr(method, field.name)
        options[field.name] = described(field.name, value, parts_of(type(method)))
    return options


def parts_of(method: type) -> Mapping[str, Registry]:
    """The registries by field name: `PARTS`, and those in the class attribute `parts`."""
    return {**PARTS, **getattr(method, "parts", {})}


def described(name: str, value: Any, parts: Mapping[str, Registry]) -> Any:
    """The value of a field of a method, or of a part, as JSON values."""
    registry = parts.get(name)
    if registry is None:
        return value
    if isinstance(value, tuple):
        return [described(name, part, parts) for part in value]
    options = describe(registry, value)
    return {key: described(key, option, parts) for key, option in options.items()}


def name_of(method: Method) -> str:
    return METHODS.name_of(type(method))


def with_option(method: Method, path: str, value: Any) -> Method:
    """The same method with one other option.

    `path` is a field, or an option of a nested part such as ``"pruner.attention_mass"``.

    Raises:
        ConfigError: there is no such option, or the value makes no sense.
    """
    name, _, nested = path.partition(".")
    if not has_option(method, path):
        raise ConfigError(f"method {name_of(method)!r} has no option {path!r}")
    if nested:
        value = dataclasses.replace(getattr(method, name), **{nested: value})
    return dataclasses.replace(method, **{name: value})  # type: ignore[type-var]


def with_prefill(method: Method, prefill: Any) -> Method:
    """The same method with another prefill (an object, a name, a mapping); None keeps its own.

    Raises:
        ConfigError: the name or an option is unknown, or the method has no prefill.
    """
    return method if prefill is None else with_option(method, "prefill", make_prefill(prefill))


def has_option(method: Method, path: str) -> bool:
    name, _, nested = path.partition(".")
    if name not in _field_names(method):
        return False
    return not nested or nested in _field_names(getattr(method, name))


def _field_names(value: Any) -> set[str]:
    if not dataclasses.is_dataclass(value):
        return set()
    return {field.name for field in dataclasses.fields(value)}


def resolve(method: MethodLike) -> Method:
    """A method from any `MethodLike`; None means `auto`.

    Raises:
        ConfigError: a name or option is unknown, or a value makes no sense.
    """
    if isinstance(method, str | None):
        return from_dict({"method": "auto" if method is None else method})
    if isinstance(method, Mapping):
        return from_dict(method)
    if not callable(getattr(method, "plan", None)):
        raise ConfigError(
            f"a method is a name, a mapping of options or a method, not {shown(method)}"
        )
    return method


@dataclass(frozen=True)
class PlainDecoding:
    """One target forward per token: the baseline.

    Args:
        schedule: `"serial"`.
        prefill: how the target reads prompts (`prefill.base.PREFILLS`).

    Raises:
        ConfigError: a name is unknown, or the schedule is another one.

    Example:

        >>> import draftlens
        >>> draftlens.PlainDecoding().schedule
        'serial'
    """

    draft_use: ClassVar[str] = "unused"
    drafts: ClassVar[bool] = False

    schedule: str = "serial"
    prefill: Any = "full"

    def __post_init__(self) -> None:
        resolve_parts(self)
        if self.schedule != "serial":
            raise ConfigError(
                "there is no draft that could work beside the target: method 'plain' has the "
                f"schedule 'serial' only, not {shown(self.schedule)}"
            )

    def plan(self, models: Models) -> Plan:
        """How a session answers by this method."""
        return Plan(
            drafter=NoDraft(),
            schedule=make_schedule(self.schedule),
            prefill=self.prefill,
        )
