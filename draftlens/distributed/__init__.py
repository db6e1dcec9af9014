"""Several processes that read prompts together: the group, its launcher, and those that follow."""

from draftlens.distributed.join import is_launched, join
from draftlens.distributed.launch import start

__all__ = ["is_launched", "join", "start"]
