"""The mean of two trained models."""

from __future__ import annotations

import pytest
import torch

from recipes.pair.average import average


def test_the_mean_of_two_models() -> None:
    first = {"weight": torch.tensor([0.0, 4.0]), "bias": torch.tensor([1.0])}
    second = {"weight": torch.tensor([1.0, 0.0]), "bias": torch.tensor([1.0])}
    mean = average(first, second, 0.75)
    torch.testing.assert_close(mean["weight"], torch.tensor([0.75, 1.0]))
    torch.testing.assert_close(mean["bias"], torch.tensor([1.0]))
    assert torch.equal(average(first, second, 0.0)["weight"], first["weight"])
    assert torch.equal(average(first, second, 1.0)["weight"], second["weight"])


def test_half_precision_is_averaged_in_float32() -> None:
    first = {"weight": torch.full((3,), 40000.0, dtype=torch.float16)}
    mean = average(first, {"weight": torch.full((3,), 60000.0, dtype=torch.float16)}, 0.5)
    assert mean["weight"].dtype == torch.float16
    torch.testing.assert_close(mean["weight"].float(), torch.full((3,), 50000.0), rtol=1e-3, atol=0)


def test_different_models_and_shares_are_refused() -> None:
    model = {"weight": torch.zeros(2)}
    with pytest.raises(ValueError, match="different parameters"):
        average(model, {"weight": torch.zeros(3)}, 0.5)
    with pytest.raises(ValueError, match="from 0 to 1"):
        average(model, model, 1.5)
