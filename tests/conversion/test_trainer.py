"""A converted model in the Trainer of transformers: its optimizer, its checkpoints."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import quadric
from tests.conversion.families import build
from tests.networks import quadratic_layers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="needs the Hugging Face extras")
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate")


def converted(name: str = "BERT") -> Any:
    model, _ = build(name)
    quadric.convert_(model, rank=4)
    return model


def examples() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 50, (16, 6), generator=generator)
    return [{"input_ids": row, "labels": row[0] % 3} for row in ids]


def trainer(model: Any, folder: Path, steps: int = 4, **options: Any) -> Any:
    arguments = transformers.TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        weight_decay=0.1,
        save_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    return transformers.Trainer(model, arguments, train_dataset=examples(), **options)


def optimizer(model: Any) -> torch.optim.Optimizer:
    groups = quadric.param_groups(model, lr=1e-2, quadratic_lr=3e-3, weight_decay=0.1)
    return torch.optim.AdamW(groups)


def group_of(made: Any, parameter: Tensor) -> dict[str, Any]:
    """The only group of an optimizer that holds a parameter."""
    (found,) = (g for g in made.param_groups if any(p is parameter for p in g["params"]))
    return found


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_param_groups_in_a_run(tmp_path: Path) -> None:
    model = converted()
    run = trainer(model, tmp_path, optimizers=(optimizer(model), None))
    run.train()
    used = run.optimizer.optimizer  # inside of accelerate's wrapper
    for name, layer in quadratic_layers(model).items():
        group = group_of(used, layer.eigenvalues)
        assert (group["name"], group["weight_decay"]) == ("quadratic", 0.0), name
        assert layer.eigenvalues.any(), name
        assert group_of(used, layer.weight)["weight_decay"] == 0.1
    # The Trainer's schedule moves both rates alike: it has reached its end.
    assert [group["initial_lr"] for group in used.param_groups] == [1e-2, 3e-3]
    assert [group["lr"] for group in used.param_groups] == [0.0, 0.0]
    # from_pretrained reads its checkpoints.
    loaded = type(model).from_pretrained(tmp_path / "checkpoint-4")
    ids = examples()[0]["input_ids"][None]
    torch.testing.assert_close(loaded(ids).logits, model.eval()(ids).logits)
    # A run that goes on from a checkpoint has the same groups and comes to the same weights.
    again = converted()
    resumed = trainer(again, tmp_path, optimizers=(optimizer(again), None))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for (key, value), other in zip(
        model.state_dict().items(), again.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(value, other, msg=key)


@pytest.mark.parametrize("name", ["BERT", "GPT-2"])
def test_a_checkpoint_is_called_what_it_is(name: str, tmp_path: Path) -> None:
    model = converted(name)
    model.save_pretrained(tmp_path)  # as the Trainer does
    file, plain = tmp_path / "model.safetensors", build(name)[0]
    message = (
        r"weights of a converted model without its header.*eigenvalues.*as save_pretrained and the "
        r"Trainer of transformers write them: convert the model as it was converted"
    )
    with pytest.raises(ValueError, match=message):
        quadric.load_(plain, file)
    build(name)[0].save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="a linear checkpoint loads with"):
        quadric.load_(plain, file)
