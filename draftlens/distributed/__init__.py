"""Several processes that read prompts together: the group, its launcher, and those that follow."""

from draftlens.distributed.join import is_launched, join
from draftlens.distributed.launch import start
from draftlens.distributed.meet import check_hosts, meet

__all__ = ["check_hosts", "is_launched", "join", "meet", "start"]
