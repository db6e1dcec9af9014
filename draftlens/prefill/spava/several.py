"""Prefills that several processes can run together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftlens.models.adapter import Backbone
from draftlens.prefill.base import NO_INPUTS, AtOnce


class SeveralProcesses(AtOnce):
    """The parts of `Prefill` about processes. They are imported on first use: jobs carry parts of
    prefills, so `processes` imports the prefills."""

    def check_hosts(self, hosts: Any) -> None:
        from draftlens.prefill.spava.processes.rendezvous import check_hosts

        check_hosts(hosts)

    def own_device(self, device: str | None) -> str | None:
        from draftlens.prefill.spava.processes.torchrun import own_device

        return own_device(device)

    def meet(
        self, backbone: Backbone, hosts: int | None = None, inputs: Mapping[str, Any] = NO_INPUTS
    ) -> None:
        from draftlens.prefill.spava.processes.rendezvous import meet

        meet(backbone, hosts, inputs)
