"""Muon for matrices and AdamW for everything else, as one optimizer.

Muon (Jordan et al. 2024) replaces the momentum of a matrix by the nearest orthogonal one, which a
few steps of a Newton-Schulz iteration find. ``torch.optim.Muon`` iterates in bfloat16, which a CPU
without AMX emulates at a quarter of the speed of float32, and treats one matrix at a time. Here
matrices of one shape are treated together, in float32.
"""

import math
from collections import defaultdict
from typing import Any

import torch
from torch import nn
from torch.optim.adamw import adamw

from recipes.pair.loop import Phase

MUON_FACTOR = 6.0  # learning rate of matrices, as a multiple of that of the rest
MOMENTUM = 0.95
BETAS = (0.9, 0.98)
EPSILON = 1e-8
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Muon on the groups with ``orthogonal``, AdamW on the others.

    Args:
        groups: parameter groups with ``lr``, ``weight_decay`` and ``orthogonal``.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 1.0, "weight_decay": 0.0, "orthogonal": False})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make one step."""
        for group in self.param_groups:
            parameters = [item for item in group["params"] if item.grad is not None]
            if group["orthogonal"]:
                self._muon(parameters, group["lr"], group["weight_decay"])
            else:
                self._adamw(parameters, group["lr"], group["weight_decay"])

    def _muon(self, parameters: list[torch.Tensor], rate: float, decay: float) -> None:
        by_shape: dict[torch.Size, list[torch.Tensor]] = defaultdict(list)
        for parameter in parameters:
            by_shape[parameter.shape].append(parameter)
        for shape, members in by_shape.items():
            updates = torch.stack([self._nesterov(member) for member in members])
            rows, columns = shape
            if rows == 3 * columns:  # queries, keys and values in one matrix
                updates = orthogonal(updates.view(-1, columns, columns))
                updates = updates.view(len(members), rows, columns)
                rows = columns
            else:
                updates = orthogonal(updates)
            step = rate * math.sqrt(max(1.0, rows / columns))
            for member, update in zip(members, updates, strict=True):
                member.mul_(1 - rate * decay).add_(update, alpha=-step)

    def _nesterov(self, parameter: torch.Tensor) -> torch.Tensor:
        """Update and return Nesterov's momentum of a parameter."""
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        gradient = parameter.grad
        assert gradient is not None
        state["momentum"].lerp_(gradient, 1 - MOMENTUM)
        return gradient.lerp(state["momentum"], MOMENTUM)

    def _adamw(self, parameters: list[torch.Tensor], rate: float, decay: float) -> None:
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros(())
                state["mean"] = torch.zeros_like(parameter)
                state["square"] = torch.zeros_like(parameter)
        states = [self.state[parameter] for parameter in parameters]
        gradients = [parameter.grad for parameter in parameters]
        adamw(
            parameters,
            [gradient for gradient in gradients if gradient is not None],
            [state["mean"] for state in states],
            [state["square"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=rate,
            weight_decay=decay,
            eps=EPSILON,
            maximize=False,
        )


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """About the nearest matrices with orthogonal rows or columns.

    Five steps bring all singular values between about 0.7 and 1.2, which suffices.

    Args:
        matrices: float32 ``[K, M, N]``.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    found: torch.Tensor = matrices.mT if is_tall else matrices
    found = found / found.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = found @ found.mT
        found = a * found + (b * gram + c * gram @ gram) @ found
    return found.mT if is_tall else found


def muon(module: nn.Module, phase: Phase) -> Muon:
    """Muon on the matrices of all layers; AdamW on embeddings, heads, patches and vectors.

    The learning rates are multiples of 1: the schedule multiplies them by the actual rate.
    """
    matrices = []
    others = []
    vectors = []
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.ndim < 2:
            vectors.append(parameter)
        elif ".layers." in name or ".blocks." in name or ".merger." in name:
            matrices.append(parameter)
        else:
            others.append(parameter)
    return Muon(
        [
            {
                "params": matrices,
                "lr": MUON_FACTOR,
                "weight_decay": phase.decay / MUON_FACTOR,
                "orthogonal": True,
            },
            {"params": others, "weight_decay": phase.decay},
            {"params": vectors},
        ]
    )
