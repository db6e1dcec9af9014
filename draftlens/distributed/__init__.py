"""Several processes that read prompts together: the group, its launcher, and those that follow."""

from draftlens.distributed.launch import start
from draftlens.distributed.meeting import check_hosts, meet
from draftlens.distributed.torchrun import is_launched, join, own_device

__all__ = ["check_hosts", "is_launched", "join", "meet", "own_device", "start"]
