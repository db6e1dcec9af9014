"""Plain decoding, the baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from draftlens.core.checks import shown
from draftlens.core.errors import ConfigError
from draftlens.decoding.drafter import NoDraft
from draftlens.decoding.plan import Plan, make_schedule
from draftlens.methods.base import Models, resolve_parts


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
