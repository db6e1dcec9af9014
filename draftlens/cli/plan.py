"""`draftlens doctor --plan NAME`: the memory and the methods of a target and its draft, without
their weights."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig

from draftlens.cli.doctor import FREE, describe_choices
from draftlens.cli.show import print_json, say, table
from draftlens.core.errors import ConfigError
from draftlens.core.names import AUTO
from draftlens.drafting.adaptive.costs import CostCurve
from draftlens.models.known_pairs import path_of
from draftlens.models.load import check_source, known_draft
from draftlens.models.loading import LoadOptions
from draftlens.models.memory_plan import PRECISIONS, PROCESS_BYTES, MemoryPlan, ModelMemory
from draftlens.models.prompt_cache import num_bytes
from draftlens.models.support import changing_frequencies

TOKENS = 4_096
"""Tokens of the row whose memory is shown."""
WIDTHS = (1, 49)
"""Tokens of passes, which take the same time where it is that of reading the weights."""


def read_config(name: str, role: str) -> Any:
    """The configuration in a folder, the local cache or on the Hub; raises ConfigError without
    one."""
    check_source(name, role, LoadOptions())
    return AutoConfig.from_pretrained(path_of(name, role))


def method_facts(config: Any, draft_share: float | None) -> dict[str, str]:
    """The method of a call that names none, if the model takes draft tokens, which is tried when it
    is loaded; and what drafts may gain, in plain decoding's speed, by share of accepted tokens.

    Args:
        config: of the target.
        draft_share: weights of the draft over those of the target; None without a draft.
    """
    target = CostCurve(WIDTHS, (1.0, 1.0))
    copying = describe_choices(target, FREE, chains_only=True)
    if draft_share is None:
        changes = changing_frequencies(config.get_text_config(decoder=True))
        return {"default": "plain" if changes else "lookup", "copying": copying}
    draft = CostCurve(WIDTHS, (draft_share, draft_share))
    drafting = describe_choices(target, draft, chains_only=True)
    return {"default": "mixed", "drafting": drafting, "copying": copying}


def parse_memory(text: str) -> int:
    """The bytes of a size such as `24GB`; raises ConfigError for what is none."""
    try:
        return num_bytes(text)
    except ConfigError as error:
        raise ConfigError(f"--memory is a size such as 24GB or 16GiB, not {text!r}") from error


def memory_facts(target: str, draft: str | None, memory: str | None) -> dict[str, Any]:
    """Figures by precision, in bytes.

    Args:
        target: folder or Hub id.
        draft: the same; `auto` for the known one, None for none.
        memory: of the device, such as `24GB`; None for no limit.
    """
    limit = None if memory is None else parse_memory(memory)
    if draft == AUTO:
        draft = known_draft(target, LoadOptions())
    config = read_config(target, "target")
    own = ModelMemory.of(config)
    other = None if draft is None else ModelMemory.of(read_config(draft, "draft"))
    rows: dict[str, Any] = {}
    for precision in PRECISIONS:
        for has_copy in (False, True) if precision == "float32" else (False,):
            plan = MemoryPlan(own, other, precision, has_copy)
            rows[f"{precision}, with the copy of passes" if has_copy else precision] = {
                "target": round(plan.weights),
                "draft": round(plan.draft_weights),
                "copies": round(plan.copies),
                "keys_of_1000_tokens": plan.keys(1000),
                "all": round(plan.fixed + plan.keys(TOKENS)),
                **({} if limit is None else {"most_tokens": plan.most_tokens(limit)}),
            }
    share = None if other is None else other.parameters / own.parameters
    return {
        "target": target,
        "draft": draft,
        "parameters": {"target": own.parameters, "draft": other.parameters if other else 0},
        "precisions": rows,
        "methods": method_facts(config, share),
    }


def show_memory(facts: dict[str, Any], memory: str | None, as_json: bool) -> None:
    """Print the figures as a table in GB (10^9 bytes), or as JSON."""
    if as_json:
        print_json(facts)
        return
    billions = {role: f"{count / 1e9:.2f}" for role, count in facts["parameters"].items()}
    title = f"{facts['target']}: {billions['target']} billion parameters"
    if facts["draft"] is not None:
        title += f"; draft {facts['draft']}: {billions['draft']}"
    columns = ["GB", "target", "draft", "copies", "1,000 tokens", f"all, {TOKENS:,} tokens"]
    if memory is not None:
        columns.append(f"most tokens in {memory}")
    cells = []
    for name, row in facts["precisions"].items():
        sizes = ("target", "draft", "copies", "keys_of_1000_tokens", "all")
        most = [f"{row['most_tokens']:,}" if row["most_tokens"] else "none"] if memory else []
        cells.append([name, *(f"{row[size] / 1e9:.2f}" for size in sizes), *most])
    table(title, columns, cells)
    say(
        f"By arithmetic, with {PROCESS_BYTES / 1e9:.1f} GB for the process, one row, and without "
        "the activations of prompt and pictures; see docs/memory.md."
    )
    table("", ["method", "value"], list(facts["methods"].items()))
    say(
        "By arithmetic, for passes that take the time in which their weights are read: at most so "
        "many times as fast as plain decoding; see docs/methods.md."
    )
