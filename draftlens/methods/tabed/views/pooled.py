"""Fewer and coarser visual tokens: the view P of TABED."""

from __future__ import annotations

from dataclasses import dataclass

from draftlens.core.errors import ConfigError
from draftlens.core.prefill_readings import NO_READINGS
from draftlens.drafting.draft_prompt import DraftPrompt, prefilled
from draftlens.methods.tabed.pooling import pool
from draftlens.methods.tabed.views.base import Source


@dataclass(frozen=True)
class PooledView:
    """The draft reads means over blocks of visual tokens, such as 2 x 2 (576 tokens become 144).

    The paper pools in front of the projector; here it is done behind it, in the draft's embeddings,
    where all families are alike.

    Args:
        size: side of a block in visual tokens.

    Raises:
        ConfigError: it is no whole number of at least 2.
    """

    size: int = 2

    same_without_media = True
    rewriting = ""
    needs_eyes = True
    readings = NO_READINGS

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 2:
            raise ConfigError(f"size is a whole number of at least 2, not {self.size!r}")

    @property
    def label(self) -> str:
        """The name, with the size if it is not the usual one."""
        return "pooled" if self.size == 2 else f"pooled({self.size})"

    def read(self, source: Source) -> DraftPrompt:
        """See `View.read`."""
        return prefilled(source.backbone, pool(source.whole, self.size))
