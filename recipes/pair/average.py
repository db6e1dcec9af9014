"""``python -m recipes.pair.average FIRST SECOND --out FOLDER``: the mean of two trained models.

A phase that teaches something new costs some of what was known before. The mean of the weights
before and after it keeps most of both, if the second model was trained from the first one
(Wortsman et al., 2022, "Robust fine-tuning of zero-shot models").
"""

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"


def average(
    first: dict[str, torch.Tensor], second: dict[str, torch.Tensor], share: float
) -> dict[str, torch.Tensor]:
    """The weighted mean of two models of the same sizes, in the data types of the second.

    Args:
        first: parameters by name.
        second: parameters by name.
        share: weight of the second model, from 0 to 1.

    Raises:
        ValueError: the models have different parameters, or the share is not from 0 to 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"the share of the second model must be from 0 to 1, not {share}")
    shapes = [{name: value.shape for name, value in model.items()} for model in (first, second)]
    if shapes[0] != shapes[1]:
        raise ValueError("the models have different parameters")
    return {
        name: torch.lerp(first[name].float(), value.float(), share).to(value.dtype)
        for name, value in second.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.pair.average", description="The mean of two trained models."
    )
    parser.add_argument("first", type=Path, help="folder of the model before a phase")
    parser.add_argument("second", type=Path, help="folder of the model after it")
    parser.add_argument("--share", type=float, default=0.8, help="weight of the second model")
    parser.add_argument("--out", type=Path, required=True, help="folder of the mean")
    options = parser.parse_args()
    first, second = (load_file(folder / WEIGHTS) for folder in (options.first, options.second))
    mean = average(first, second, options.share)
    shutil.copytree(options.second, options.out, dirs_exist_ok=True)
    file = options.out / WEIGHTS
    save_file(mean, file, metadata={"format": "pt"})
    file.chmod(0o644)  # by default only the owner may read it


if __name__ == "__main__":
    main()
