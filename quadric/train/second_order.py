"""`solver: lm` of a recipe: after its last epoch a regression goes on to second order."""

from __future__ import annotations

from typing import Any, TextIO

import torch
from torch import Tensor, nn

from quadric.data.batches import Batches
from quadric.errors import InputError
from quadric.solve import Progress, choose_solver, least_squares
from quadric.train.data import RunData
from quadric.train.evaluation import measure
from quadric.train.recipe import Recipe
from quadric.train.tasks import Regression

# Between the steps that are printed.
PRINT_EVERY = 20


def check(recipe: Recipe, data: RunData, network: nn.Module) -> None:
    """Refuses `solver: lm` where it cannot work, before anything is trained."""
    if recipe.solver is None:
        return
    obstacle = ""
    if not isinstance(data.task, Regression):
        obstacle = f"fits numbers by least squares, got the data set {recipe.dataset!r}"
    elif data.task.own_loss is not None:
        obstacle = f"minimizes squares alone, got loss {recipe.loss!r}"
    elif len(data.input_shape) != 1:
        obstacle = f"takes rows of numbers, got inputs of shape {data.input_shape}"
    else:
        rows, outputs = data.data.train_size, network(*data.example_inputs()).numel()
        parameters = sum(p.numel() for p in network.parameters())
        choice = choose_solver(rows * outputs, parameters)
        if choice.solver not in ("normal", "residual"):
            obstacle = f"is for small networks, got {choice.reason}"
    if obstacle:
        raise InputError(f"solver 'lm' {obstacle}: leave it out")


def refine_(
    network: nn.Module, data: RunData, recipe: Recipe, screen: TextIO | None
) -> dict[str, Any]:
    """Takes a trained network to a minimum; returns what a result says of it.

    With a validation part the best step on it counts, the trained network among them. Ctrl-C keeps
    the best so far.
    """
    network.eval()
    held = data.validation(0, 1)

    def report(step: Progress) -> None:
        if screen is not None and step.step % PRINT_EVERY == 0:
            said = "" if step.validation is None else f", validation {step.validation:.3g}"
            print(f"second-order step {step.step}: loss {step.loss:.3g}{said}", file=screen)

    fit = least_squares(
        network,
        *_rows(data.train(0, 1)),
        validation=None if held is None else _rows(held),
        callback=report,
    )
    found = {
        "steps": fit.steps,
        "seconds": fit.seconds,
        "loss": fit.loss,
        "effective_parameters": fit.effective_parameters,
        "reason": fit.reason,
    }
    if screen is not None:
        print(f"second order: {fit.steps} steps in {fit.seconds:.1f} s: {fit.reason}", file=screen)
    device = next(network.parameters()).device
    metrics = measure(network, data.test(0, 1), data.task, device, recipe.precision)
    return {"second_order": found, **{f"test_{n}": metrics.pop(n) for n in data.task.names}}


def _rows(batches: Batches) -> tuple[Tensor, Tensor]:
    """All rows of some batches."""
    inputs, targets = zip(*batches, strict=True)
    return torch.cat(inputs).flatten(1), torch.cat(targets).flatten(1)
