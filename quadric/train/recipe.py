"""A recipe: everything that decides what a training run computes, as one strict, flat record.

Flat, so that every field can be overridden by name (`--set field=value`) and two runs compared
field by field. A recipe is *resolved* once its neuron is known: ranks, learning rates that depend
on the neuron and fields that cannot matter (a linear network has no eigenvalues) then have one
spelling, and two runs are the same if and only if their resolved recipes are equal.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from functools import partial
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
from quadric.support.checks import check_name, nearest

Positive: TypeAlias = Annotated[int, Field(ge=1, lt=2**31)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Selection: TypeAlias = str | list[str] | None

DESCRIPTION = ("title", "reproduces")
# What the name of a run directory spells out; everything else that differs goes into its hash.
SPELLED = ("name", "neuron", "rank", "seed")
# The scale of eigenvalues has a margin for trained networks, which one that starts from random
# weights does not need: this factor was chosen on laws, judged on others (tools/evidence_fresh.py).
FRESH = 9
# What may stand before the colon of a data set's name; all other names are functions of a user's.
KINDS = ("law", "uci", "csv", "given")
# Options of a neuron: they do not outlive a change of the neuron.
OF_NEURON = ("rank", "neuron_options", "init")


class Recipe(BaseModel):
    """What a run computes; the fields are explained in docs/recipes.md."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, AfterValidator(partial(check_name, "the name of a recipe"))]
    title: str
    reproduces: str = ""

    # Data
    dataset: str = Field(description="A data set, csv:FILE, or your own module:function.")
    dataset_options: dict[str, Any] = {}
    data_dir: Annotated[str, AfterValidator(os.path.normpath)] | None = Field(
        None, description="Where the data set is."
    )
    resize: Positive | None = Field(None, description="Pixels on each side of a picture.")
    augment: bool = True
    shuffle: bool = True
    validation: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Share to hold out; the best epoch on it counts."
    )
    limit: Positive | None = Field(
        None, description="The most samples for training, and for the test."
    )
    split: Annotated[int, Field(ge=0)] = 0
    samples: Positive = 10_000
    data_seed: int = 0
    source: str | None = None
    target: str | None = None
    on_broken: Literal["skip", "refuse"] = "skip"
    workers: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Processes that decode pictures."
    )

    # Network
    model: str = Field(description="A network, or module:function of your own.")
    model_options: dict[str, Any] = {}
    width: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="Multiplies the channels."
    )
    channels: list[Positive] | None = None
    hidden: list[Positive] | None = None
    shortcut: Literal["A", "B"] | None = None
    activation: str | None = Field(None, description="Such as silu, or none.")
    neuron: str = Field("linear", description="A neuron, see quadric neurons.")
    rank: Positive | None = Field(None, description="Its rank; by default its own.")
    neuron_options: dict[str, Any] = {}
    init: Literal["published", "linear", "random"] = "published"
    include: Selection = Field(
        None, description="Convert only these layers: a name, a suffix or re:REGEX (repeatable)."
    )
    exclude: Selection = Field(
        None, description="Leave these layers linear: a name, a suffix or re:REGEX (repeatable)."
    )
    first: Positive | None = Field(
        None, description="Convert only this many layers, the first ones."
    )
    head: bool = False

    # Training
    epochs: Positive = Field(description="Passes over the training data.")
    batch_size: Positive = Field(
        description="Samples per step and process: 2 devices see twice as many."
    )
    pass_tokens: Positive = 4096
    epoch_steps: Positive | None = None
    solver: Literal["lm"] | None = Field(
        None, description="lm: go on with Levenberg-Marquardt after the last epoch."
    )
    drop_last: bool = False
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: NotNegative = Field(description="Learning rate.")
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    betas: Annotated[
        list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)
    ] = [
        0.9,
        0.999,
    ]
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: NotNegative = Field(0.0, description="Weight decay of all that is not quadratic.")
    decay_bias_and_norm: bool = True
    quadratic_lr: NotNegative | dict[str, NotNegative] | None = Field(
        None, description="Learning rate of the quadratic parameters; the default is right."
    )
    quadratic_scale: bool | dict[str, bool] | None = None
    quadratic_weight_decay: NotNegative = Field(0.0, description="Their weight decay.")
    quadratic_schedule: Literal["same", "constant"] = "same"
    schedule: Literal["constant", "step", "cosine", "onecycle", "inverse_sqrt"] = Field(
        "constant", description="Of the learning rates."
    )
    milestones: list[Positive] = []
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.1
    warmup: NotNegative = 0.0
    warmup_steps: Positive = 4000
    loss: str | None = Field(None, description="A loss of your own, module:function.")
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    clip: Annotated[float, Field(gt=0)] | None = None
    ema: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="Average the weights, such as 0.999; it is tested."
    )
    average: Positive | None = None
    patience: Positive | None = Field(
        None, description="Stop after this many epochs without a better one."
    )
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        0, description="Of the weights and the data's order."
    )

    # Code of the user's own: files or modules to import, and the checksum of each by its name.
    code: list[str] = []
    checksums: dict[str, str] = {}

    # Computation
    precision: Literal["32-true", "16-mixed", "bf16-mixed", "bf16-true", "64-true"] = Field(
        "32-true", description="Of numbers."
    )
    accelerator: str = Field("auto", description="cpu, gpu, mps or auto.")
    devices: Positive = Field(1, description="Processes on this machine.")
    nodes: Positive = 1
    strategy: Literal["auto", "ddp", "fsdp"] = Field(
        "auto", description="What several processes share."
    )
    compile: bool = Field(False, description="Use torch.compile.")
    kernels: bool = True
    memory_format: Literal["auto", "contiguous", "channels_last"] = Field(
        "auto", description="The layout of pictures and convolutions."
    )

    # What is kept
    keep_every: Positive | None = Field(
        None, description="Keep the checkpoint of every n-th epoch."
    )
    logger: Literal["tensorboard", "csv", "mlflow", "wandb"] = Field(
        "tensorboard", description="Where curves go besides metrics.csv."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        for wrong, message in self._rules():
            if wrong:
                raise InputError(message)
        return self

    def _rules(self) -> Iterator[tuple[bool, str]]:
        """What fields must not be together, and what to do about it."""
        yield (
            self.milestones != sorted(set(self.milestones)),
            f"milestones must be ascending, got {self.milestones}: sort them",
        )
        yield (
            self.schedule == "step" and not self.milestones,
            "schedule 'step' needs milestones, got none: give the epochs of the decays, such as "
            "milestones=[90,135]",
        )
        yield (
            self.width is not None and self.channels is not None,
            f"width and channels exclude each other, got {self.width} and {self.channels}: give "
            "one of them",
        )
        yield (
            self.patience is not None and not self.validation,
            f"patience needs a part to validate on, got patience={self.patience} without one: "
            "hold one out, such as with validation=0.1",
        )
        yield (
            self.average is not None and bool(self.validation),
            "average takes the last epochs and validation the best one, got "
            f"average={self.average} with validation={self.validation}: leave one of them out",
        )
        yield (
            self.ema is not None and self.precision == "bf16-true",
            "ema does not work with precision 'bf16-true', whose numbers are too coarse to be "
            "averaged: choose 'bf16-mixed'",
        )
        yield (
            self.loss is not None and bool(self.label_smoothing),
            f"label_smoothing belongs to cross-entropy, got {self.label_smoothing} with loss "
            f"{self.loss!r}: leave one of them out",
        )
        processes, exact = self.devices * self.nodes, self.precision in ("32-true", "64-true")
        yield (
            self.solver is not None and (processes > 1 or not exact or self.strategy == "fsdp"),
            "solver 'lm' needs one process and precision '32-true' or '64-true', got "
            f"{processes} and {self.precision!r}: leave it out, or them",
        )
        for what, is_given in {
            f"precision {self.precision!r}": self.precision in ("16-mixed", "64-true"),
            "compile": self.compile,
            "ema": self.ema is not None,
            "average": self.average is not None,
            "memory_format 'channels_last'": self.memory_format == "channels_last",
        }.items():
            yield (
                self.strategy == "fsdp" and is_given,
                f"strategy 'fsdp' does not work with {what}: choose another value, or strategy "
                "'ddp'",
            )

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
        from quadric.layers import get_neuron, neurons  # torch, which `--help` does not load

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
        for field in ("quadratic_lr", "quadratic_scale"):
            value = getattr(self, field)
            if isinstance(value, dict):
                unknown = [name for name in value if name not in registry]
                if unknown:
                    raise InputError(
                        f"{field} names the neuron {unknown[0]!r}: choose from "
                        f"{', '.join(registry)}"
                    )
                value = value.get(self.neuron)
            changes[field] = value
        rate, scale = changes["quadratic_lr"], changes["quadratic_scale"]
        has_scale = neuron.with_options().blocks(1, 1) is not None
        changes["quadratic_scale"] = scale is not False if has_scale else None
        if rate is None:
            rate = self.lr * (FRESH if changes["quadratic_scale"] else 1)
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

    def first_difference(self, other: Recipe, *, environment: bool = True) -> str | None:
        """A field in which two resolved recipes differ; None if they are one run."""
        from quadric.runs.groups import ENVIRONMENT_FIELDS

        ours, theirs = self.identity(), other.identity()
        fields = [key for key in ours if environment or key not in ENVIRONMENT_FIELDS]
        return next((key for key in fields if ours[key] != theirs[key]), None)

    def directory_name(self, plain: Recipe) -> str:
        """`<recipe>-<neuron>[-k<rank>][-<hash of overrides>]-s<seed>`.

        The hash is of what differs from `plain`, the resolved recipe of that name and neuron.
        """
        words = [self.name, self.neuron]
        if self.rank is not None:
            words.append(f"k{self.rank}")
        before = plain.identity()
        hidden = {key: value for key, value in self.identity().items() if value != before[key]}
        hidden = {key: value for key, value in hidden.items() if key not in SPELLED}
        if hidden:
            text = json.dumps(hidden, sort_keys=True)
            words.append(hashlib.sha256(text.encode()).hexdigest()[:8])
        return "-".join(check_name("the name of a run", w) for w in [*words, f"s{self.seed}"])

    def to_yaml(self, command: str) -> str:
        """The recipe as a file whose first line is the command."""
        body = yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True, width=100)
        return f"# {command}\n{body}"


def option_words(field: str, value: Any) -> list[str]:
    """A field as the words of a command line."""
    if field == "code":
        return [word for name in value for word in ("--code", name)]
    if field in OPTIONS and type(value) in (str, int, float) and field not in LISTS:
        return [f"--{field.replace('_', '-')}", str(value)]
    return ["--set", f"{field}={json.dumps(value)}"]


FIELDS: tuple[str, ...] = tuple(Recipe.model_fields)
OPTIONS = {name: field for name, field in Recipe.model_fields.items() if field.description}
"""Fields that are options of `quadric train`, with their help; all others are said by --set."""
LISTS = ("include", "exclude")
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
        near = nearest(field, FIELDS)
        hint = f"did you mean {near[0]!r}?" if near else f"the fields are {', '.join(FIELDS)}"
        return f"unknown field {field!r}: {hint}"
    if kind == "missing":
        return f"field {field!r} is missing: give it a value"
    if kind == "value_error":
        return str(first["ctx"]["error"])
    # A union reports each of its branches: the message of the first one says the rule.
    rule = first["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return f"{field} must be {rule}, got {first['input']!r}: give another value"
