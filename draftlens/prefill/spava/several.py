"""Prefills that several processes can run together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftlens.models.adapter import Backbone
from draftlens.prefill.base import NO_INPUTS, AtOnce


class SeveralProcesses(AtOnce):
    """The members of `Prefill` about processes, for a prefill with the field `hosts`. They are
    imported on first use: jobs carry parts of prefills, so `processes` imports the prefills."""

    hosts: int | None = None

    def device(self, device: str | None) -> str | None:
        from draftlens.prefill.spava.processes.torchrun import own_device

        return own_device(device)

    def prepare(self, backbone: Backbone, inputs: Mapping[str, Any] = NO_INPUTS) -> None:
        """Meet the other processes, if there are any (`rendezvous.meet`)."""
        from draftlens.prefill.spava.processes.rendezvous import meet

        meet(backbone, self.hosts, inputs)

    def check_hosts(self) -> None:
        """Raise `ConfigError` unless `hosts` is None or a number that this machine may start."""
        from draftlens.prefill.spava.processes.rendezvous import check_hosts

        if self.hosts is not None:
            check_hosts(self.hosts)
