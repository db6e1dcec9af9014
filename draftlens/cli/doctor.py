"""The environment of draftlens, and a check that a target and its draft can be used together."""

from __future__ import annotations

import os
import platform
from typing import Any

import av
import psutil
import torch
import transformers

from draftlens.cli.loading import load_models
from draftlens.cli.options import PLAIN, Loading
from draftlens.cli.show import print_json, table
from draftlens.core.errors import ConfigError, DraftlensError
from draftlens.core.names import AUTO, UNQUANTIZED
from draftlens.core.tree import Topology
from draftlens.core.version import __version__
from draftlens.drafting.adaptive.controller import Costs, best_for
from draftlens.drafting.adaptive.costs import CostCurve, ForwardCosts
from draftlens.drafting.adaptive.history import calibrate_models
from draftlens.methods.automatic import Automatic
from draftlens.methods.base import (
    METHODS,
    Models,
    has_option,
    name_of,
    plan_of,
    resolve,
    with_option,
)
from draftlens.methods.parts import TEXT_DRAFT_HINT
from draftlens.models.adapter import Backbone
from draftlens.models.checks import is_blind, unseen
from draftlens.models.inspection import ATTENTION
from draftlens.models.load import Loaded
from draftlens.passes import attach, chosen, describe_passes

DOCTOR_SECONDS = 10.0
"""Time for measuring forwards, if the pair was never measured before."""
STEP = 1.2
"""Factor between the times of neighbouring widths that counts as a step."""
CHANCES = (0.9, 0.7, 0.5, 0.3)
"""Acceptance rates for which the best tree is shown."""

FREE = CostCurve((1, 2), (1e-9, 1e-9))
"""Drafts that cost nothing: tokens that are copied from a text."""

_GIB = 2**30
_MIB = 2**20


def collect_facts(target: str | None, draft: str, loading: Loading = PLAIN) -> dict[str, Any]:
    """Return facts about the environment and, if a target is named, about the models."""
    facts = _environment()
    if target is not None:
        return facts | _models(target, draft, loading)
    if draft != AUTO:
        raise ConfigError("a draft is checked together with its target: name it with --target")
    return facts


def show_facts(facts: dict[str, Any], as_json: bool) -> None:
    """Print facts as a table or as JSON."""
    if as_json:
        print_json(facts)
        return
    table("", ["", "value"], [[name, str(value)] for name, value in facts.items()])


def _environment() -> dict[str, Any]:
    threads = torch.get_num_threads()
    return {
        "draftlens": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "PyAV": av.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {threads} torch threads",
        "memory": _memory(),
        "devices": ", ".join(_devices()),
        "attention backends": ", ".join(ATTENTION),
    }


def _models(target: str, draft: str, loading: Loading) -> dict[str, Any]:
    target_model, draft_model = load_models(target, draft, loading, quiet=True)
    draft_backbone = None if draft_model is None else draft_model.backbone
    if target_model.backbone.plain_only:
        cause = target_model.backbone.plain_only
        return {"target": _model(target_model), "drafting": f"none: {cause}"}
    facts = {
        "target": _model(target_model),
        **_passes("target", target_model.backbone),
        **_methods(Models(target_model.backbone, draft_backbone)),
    }
    if draft_model is None:
        return facts
    modalities = target_model.backbone.modalities & draft_model.backbone.modalities
    facts["draft"] = _model(draft_model)
    facts |= _passes("draft", draft_model.backbone)
    backbones = [target_model.backbone, draft_model.backbone]
    tokenizers = "same tokenizer"
    if draft_model.backbone.retokenizer is not None:
        tokenizers = "the draft's text is tokenized again for the target"
    facts["pair"] = f"fits: {tokenizers}, both accept {', '.join(sorted(modalities))}"
    missing = unseen(*backbones)
    if is_blind(*backbones):
        facts["pair"] += "; the draft drafts from the words, without pictures and clips"
    elif missing:
        facts["pair"] += f"; the draft cannot see {', '.join(sorted(missing))}{TEXT_DRAFT_HINT}"
    attach(backbones, AUTO)
    curves = calibrate_models(backbones, DOCTOR_SECONDS)
    for name, curve in zip(("target", "draft"), curves, strict=True):
        facts[f"{name} forwards"] = describe_curve(curve)
    chains_only = any(backbone.chains_only for backbone in backbones)
    facts["best drafting"] = describe_choices(curves[0], curves[1], chains_only)
    facts["best copying"] = describe_choices(curves[0], FREE, chains_only=True)
    facts["draft that runs ahead"] = describe_window(curves[0], curves[1])
    return facts


def _passes(role: str, backbone: Backbone) -> dict[str, str]:
    """What each engine of passes has for a model, and what `--compile auto` chooses and why."""
    facts = {f"{role} passes by {name}": text for name, text in describe_passes(backbone).items()}
    quantization = None if role == "draft" else UNQUANTIZED
    return facts | {f"{role} passes by default": str(chosen(backbone, quantization))}


def _methods(models: Models) -> dict[str, str]:
    """The method of a call that names none, the others that these models can take, and why not the
    rest."""
    chosen = name_of(Automatic().method_for(models))
    fitting: list[str] = []
    refused: dict[str, list[str]] = {}
    for name in METHODS:
        if name in (chosen, "auto"):
            continue
        method = resolve(name)
        if has_option(method, "schedule"):  # another one may start a process for the draft
            method = with_option(method, "schedule", "serial")
        try:
            plan_of(method, models)
            fitting.append(name)
        except DraftlensError as error:
            refused.setdefault(str(error), []).append(name)
    facts = {"method by default": chosen, "further methods": ", ".join(fitting)}
    causes = [f"{', '.join(names)} ({cause})" for cause, names in refused.items()]
    return facts | ({"methods refused": "; ".join(causes)} if causes else {})


def describe_curve(curve: CostCurve) -> str:
    """Times by the number of tokens of a forward, and where they rise in steps."""
    pairs = zip(curve.widths, curve.seconds, strict=True)
    times = ", ".join(f"{width}: {1e3 * seconds:.3g} ms" for width, seconds in pairs)
    steps = ", ".join(map(str, curve.steps(STEP)))
    return f"{times}; " + (f"steps after {steps} tokens" if steps else "no steps")


def describe_choices(target: CostCurve, draft: CostCurve, chains_only: bool = False) -> str:
    """The choice of the automatic tree by acceptance rate."""
    choices = []
    for chance in CHANCES:
        costs = Costs(ForwardCosts(target), ForwardCosts(draft), chains_only)
        tree, tokens_per_second = best_for(costs, chance)
        gain = tokens_per_second * target.cost(1)
        choices.append(f"{chance:.0%} accepted: {_shape(tree)} ({gain:.2f}x plain)")
    return "; ".join(choices)


def describe_window(target: CostCurve, draft: CostCurve) -> str:
    """Equation 6 of ParallelVLM, γ = T_p / T_q. Rejection sampling does not take this γ by itself,
    since the tokens of a seed would depend on measured times."""
    ratio = target.cost(1) / draft.cost(1)
    return (
        f"T_p / T_q = {ratio:.1f}; γ of equation 6 for schedule 'parallel' with sampling_rule "
        f"'rejection': num_speculative_tokens={max(1, round(ratio))}"
    )


def _shape(topology: Topology) -> str:
    if not topology:
        return "none"
    if topology.depth == len(topology):
        return f"γ = {len(topology)}"
    return f"tree of {len(topology)}"


def _devices() -> list[str]:
    devices = ["cpu"]
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        devices.append(f"cuda:{index} {name} ({_free_memory(free, total)})")
    return devices


def _memory() -> str:
    memory = psutil.virtual_memory()
    return _free_memory(memory.available, memory.total)


def _free_memory(free: int, total: int) -> str:
    return f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free"


def _model(model: Loaded) -> str:
    backbone = model.backbone
    parameters = list(backbone.model.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    size = sum(parameter.nbytes for parameter in parameters)
    dtype = str(backbone.dtype).removeprefix("torch.")
    return (
        f"{backbone.name}, {count / 1e6:.1f}M parameters ({size / _MIB:.0f} MiB), "
        f"{dtype} on {backbone.device}, {backbone.attention} attention, "
        f"{backbone.vocab_size} token ids"
    )
