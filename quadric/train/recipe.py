"""A recipe: everything that decides what a training run computes, as one strict, flat record.

Flat, so that every field can be overridden by name (`--set field=value`) and two runs compared
field by field. A recipe is *resolved* once its neuron is known: ranks, learning rates that depend
on the neuron and fields that cannot matter (a linear network has no eigenvalues) then have one
spelling, and two runs are the same if and only if their resolved recipes are equal.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shlex
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from quadric.errors import InputError
from quadric.layers import get_neuron, neurons
from quadric.runs.groups import ENVIRONMENT_FIELDS

Positive: TypeAlias = Annotated[int, Field(ge=1)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Selection: TypeAlias = str | list[str] | None

DESCRIPTION = ("title", "reproduces")
# What the name of a run directory spells out; everything else that differs goes into its hash.
SPELLED = ("name", "neuron", "rank", "seed")
# Neurons whose quadratic parameters are whole weights that start at random: their authors train
# them with the rate of all other weights.
ONE_RATE = tuple("general pure qres lowrank quadralib symmetric bilinear glu cross".split())
# What a command says by an option of its own; all other fields by --set.
OPTIONS = (
    "rank epochs batch_size lr quadratic_lr quadratic_weight_decay weight_decay schedule first "
    "width activation resize validation limit seed data_dir workers devices strategy accelerator "
    "precision memory_format model dataset loss patience ema keep_every logger"
).split()
# What may stand before the colon of a data set's name; all other names are functions of a user's.
KINDS = ("law", "uci", "csv", "given")
# Options of a neuron: they do not outlive a change of the neuron.
OF_NEURON = ("rank", "neuron_options", "init")


class Recipe(BaseModel):
    """What a run computes; the fields are explained in docs/recipes.md."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    title: str
    reproduces: str = ""

    # Data
    dataset: str
    dataset_options: dict[str, Any] = {}
    data_dir: Annotated[str, AfterValidator(os.path.normpath)] | None = None
    resize: Positive | None = None
    augment: bool = True
    shuffle: bool = True
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    limit: Positive | None = None
    split: Annotated[int, Field(ge=0)] = 0
    samples: Positive = 10_000
    data_seed: int = 0
    source: str | None = None
    target: str | None = None
    on_broken: Literal["skip", "refuse"] = "skip"
    workers: Annotated[int, Field(ge=0)] | None = None

    # Network
    model: str
    model_options: dict[str, Any] = {}
    width: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    channels: list[Positive] | None = None
    hidden: list[Positive] | None = None
    shortcut: Literal["A", "B"] | None = None
    activation: str | None = None
    neuron: str = "linear"
    rank: Positive | None = None
    neuron_options: dict[str, Any] = {}
    init: Literal["published", "linear", "random"] = "published"
    include: Selection = None
    exclude: Selection = None
    first: Positive | None = None
    head: bool = False

    # Training
    epochs: Positive
    batch_size: Positive
    pass_tokens: Positive = 4096
    epoch_steps: Positive | None = None
    drop_last: bool = False
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: NotNegative
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    betas: Annotated[
        list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)
    ] = [
        0.9,
        0.999,
    ]
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: NotNegative = 0.0
    decay_bias_and_norm: bool = True
    quadratic_lr: NotNegative | dict[str, NotNegative] | None = None
    quadratic_weight_decay: NotNegative = 0.0
    quadratic_schedule: Literal["same", "constant"] = "same"
    schedule: Literal["constant", "step", "cosine", "onecycle", "inverse_sqrt"] = "constant"
    milestones: list[Positive] = []
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.1
    warmup: NotNegative = 0.0
    warmup_steps: Positive = 4000
    loss: str | None = None
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    clip: Annotated[float, Field(gt=0)] | None = None
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    average: Positive | None = None
    patience: Positive | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0

    # Code of the user's own: files or modules to import, and the checksum of each by its name.
    code: list[str] = []
    checksums: dict[str, str] = {}

    # Computation
    precision: Literal["32-true", "16-mixed", "bf16-mixed", "bf16-true", "64-true"] = "32-true"
    accelerator: str = "auto"
    devices: Positive = 1
    nodes: Positive = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    compile: bool = False
    kernels: bool = True
    memory_format: Literal["auto", "contiguous", "channels_last"] = "auto"

    # What is kept
    keep_every: Positive | None = None
    logger: Literal["tensorboard", "csv", "mlflow", "wandb"] = "tensorboard"

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if self.milestones != sorted(set(self.milestones)):
            raise InputError(f"milestones must be ascending, got {self.milestones}: sort them")
        if self.schedule == "step" and not self.milestones:
            raise InputError(
                "schedule 'step' needs milestones, got none: give the epochs of the decays, such "
                "as milestones=[90,135]"
            )
        if self.width is not None and self.channels is not None:
            raise InputError(
                f"width and channels exclude each other, got {self.width} and {self.channels}: "
                "give one of them"
            )
        if self.patience is not None and not self.validation:
            raise InputError(
                f"patience needs a part to validate on, got patience={self.patience} without one: "
                "hold one out, such as with validation=0.1"
            )
        if self.average is not None and self.validation:
            raise InputError(
                f"average takes the last epochs and validation the best one, got average="
                f"{self.average} with validation={self.validation}: leave one of them out"
            )
        if self.ema is not None and self.precision == "bf16-true":
            raise InputError(
                "ema does not work with precision 'bf16-true', whose numbers are too coarse to be "
                "averaged: choose 'bf16-mixed'"
            )
        if self.loss is not None and self.label_smoothing:
            raise InputError(
                f"label_smoothing belongs to cross-entropy, got {self.label_smoothing} with loss "
                f"{self.loss!r}: leave one of them out"
            )
        if self.strategy == "fsdp":
            refused = {
                f"precision {self.precision!r}": self.precision in ("16-mixed", "64-true"),
                "compile": self.compile,
                "ema": self.ema is not None,
                "average": self.average is not None,
                "memory_format 'channels_last'": self.memory_format == "channels_last",
            }
            found = [what for what, is_given in refused.items() if is_given]
            if found:
                raise InputError(
                    f"strategy 'fsdp' does not work with {found[0]}: choose another value, or "
                    "strategy 'ddp'"
                )
        return self

    def functions(self) -> dict[str, str]:
        """The functions of a user's own that the recipe names, by field."""
        named = {"model": self.model, "dataset": self.dataset, "loss": self.loss}
        kind = self.dataset.partition(":")[0]
        return {
            field: name
            for field, name in named.items()
            if name is not None and ":" in name and not (field == "dataset" and kind in KINDS)
        }

    def resolved(self) -> Recipe:
        """This recipe in its one spelling: what depends on the neuron is put in."""
        neuron, registry = get_neuron(self.neuron), neurons()
        changes: dict[str, Any] = {}
        if self.rank is None:
            changes["rank"] = neuron.default_rank
        elif not neuron.has_rank:
            with_rank = ", ".join(name for name, row in registry.items() if row.has_rank)
            raise InputError(
                f"neuron {self.neuron!r} has no rank, got rank={self.rank}: leave rank out "
                f"(neurons with a rank: {with_rank})"
            )
        rate = self.quadratic_lr
        if isinstance(rate, dict):
            unknown = [name for name in rate if name not in registry]
            if unknown:
                raise InputError(
                    f"quadratic_lr names the neuron {unknown[0]!r}: choose from "
                    f"{', '.join(registry)}"
                )
            rate = rate.get(self.neuron)
        if rate is None:
            # Steps of Adam do not depend on the scale of the gradient: no smaller rate is needed.
            one_rate = self.optimizer != "sgd" or self.neuron in ONE_RATE
            rate = self.lr if one_rate else self.lr / 10
        changes["quadratic_lr"] = float(rate)
        if not neuron.quadratic:
            changes |= {"quadratic_lr": None, "quadratic_weight_decay": 0.0}
            changes["quadratic_schedule"] = "same"
        if self.neuron == "linear":
            changes |= {"include": None, "exclude": None, "head": False, "neuron_options": {}}
            changes |= {"init": "published", "first": None}
        if self.strategy == "ddp":
            changes["strategy"] = "auto"  # what several processes do, and one has no need of
        if self.schedule != "step":
            changes |= {"milestones": [], "gamma": 0.1}
        if self.schedule != "inverse_sqrt":
            changes["warmup_steps"] = DEFAULTS["warmup_steps"]
        if self.optimizer != "sgd":
            changes |= {"momentum": 0.9, "nesterov": False}
        else:
            changes |= {"betas": DEFAULTS["betas"], "eps": DEFAULTS["eps"]}
        for field in ("lr", "weight_decay", "quadratic_weight_decay", "warmup", "width"):
            value = changes.get(field, getattr(self, field))
            changes[field] = None if value is None else float(value)  # 1 and 1.0 are one spelling
        return self.model_copy(update=changes)

    def with_overrides(self, overrides: dict[str, Any]) -> Recipe:
        """This recipe with other values of some fields, checked."""
        values = self.model_dump()
        if overrides.get("neuron", self.neuron) != self.neuron:
            values = {key: value for key, value in values.items() if key not in OF_NEURON}
        # Numbers of channels replace the multiplier, and the other way round.
        for one, other in (("width", "channels"), ("channels", "width")):
            if overrides.get(one) is not None and other not in overrides:
                values.pop(other, None)
        return make_recipe(values | overrides, f"recipe {self.name}")

    def identity(self) -> dict[str, Any]:
        """Every field that can make two runs differ; of a resolved recipe."""
        return self.model_dump(exclude=set(DESCRIPTION))

    def first_difference(self, other: Recipe, *, place: bool = True) -> str | None:
        """A field in which two resolved recipes differ; None if they are one run."""
        ours, theirs = self.identity(), other.identity()
        fields = [key for key in ours if place or key not in ENVIRONMENT_FIELDS]
        return next((key for key in fields if ours[key] != theirs[key]), None)

    def differences(self, base: Recipe) -> dict[str, Any]:
        """The fields in which this resolved recipe differs from a base with the same neuron."""
        plain = base.with_overrides({"neuron": self.neuron}).resolved().identity()
        return {key: value for key, value in self.identity().items() if value != plain[key]}

    def directory_name(self, base: Recipe) -> str:
        """`<recipe>-<neuron>[-k<rank>][-<hash of overrides>]-s<seed>`."""
        parts = [self.name, self.neuron]
        if self.rank is not None:
            parts.append(f"k{self.rank}")
        hidden = {k: v for k, v in self.differences(base).items() if k not in SPELLED}
        if hidden:
            text = json.dumps(hidden, sort_keys=True)
            parts.append(hashlib.sha256(text.encode()).hexdigest()[:8])
        return "-".join([*parts, f"s{self.seed}"])

    def command(self, base: Recipe, source: Sequence[str] | None = None) -> str:
        """The shortest command that makes this run, to be pasted into a shell."""
        words = ["quadric", "train", *(source or [self.name])]
        if self.neuron != base.neuron:
            words += ["--neuron", self.neuron]
        needed = self.differences(base)
        for field in list(needed):
            # Some fields follow from others: without a step schedule there are no milestones.
            rest = {key: value for key, value in needed.items() if key != field}
            try:
                again = base.with_overrides(rest | {"neuron": self.neuron}).resolved()
            except ValueError:
                continue
            if again.identity() == self.identity():
                needed = rest
        for field, value in needed.items():
            if field not in ("name", "checksums"):
                words += option_words(field, value)
        return shlex.join(words)

    def to_yaml(self, command: str) -> str:
        """The recipe as a file whose first line is the command."""
        body = yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True, width=100)
        return f"# {command}\n{body}"


def option_words(field: str, value: Any) -> list[str]:
    """A field as the words of a command line."""
    if field == "code" and value:
        return [word for name in value for word in ("--code", name)]
    if field in OPTIONS and value is not None:
        return [f"--{field.replace('_', '-')}", str(value)]
    return ["--set", f"{field}={json.dumps(value)}"]


FIELDS: tuple[str, ...] = tuple(Recipe.model_fields)
DEFAULTS: dict[str, Any] = {
    name: field.default for name, field in Recipe.model_fields.items() if not field.is_required()
}


def make_recipe(values: dict[str, Any], where: str) -> Recipe:
    """A checked recipe."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{where}: {_one_line(error)}") from None


def _one_line(error: ValidationError) -> str:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][:1])
    kind = first["type"]
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(field, FIELDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the fields are {', '.join(FIELDS)}"
        return f"unknown field {field!r}: {hint}"
    if kind == "missing":
        return f"field {field!r} is missing: give it a value"
    if kind == "value_error":
        return str(first["ctx"]["error"])
    # A union reports each of its branches: the message of the first one says the rule.
    rule = first["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return f"{field} must be {rule}, got {first['input']!r}: give another value"
