"""Trained weights that come with the package.

They lie in `weights/NAME/MODEL-NEURON[-kRANK].safetensors`, each with a card beside it (`.md`): the
data, how it was trained, what it scores, and what it is not good for. Nothing is unpickled, nothing
is fetched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from quadric.errors import InputError

FOLDER = Path(__file__).parent / "weights"
_FILE = re.compile(r"(?P<model>\w+)-(?P<neuron>[a-z]+)(?:-k(?P<rank>\d+))?")


@dataclass(frozen=True)
class Weights:
    """One file of weights.

    Attributes:
        name: the value for the argument `pretrained` of `quadric.models.create`.
        model: the network's name.
        neuron: the network's neuron.
        rank: the neuron's rank; None for a neuron without one.
        file: the file of the weights.
    """

    name: str
    model: str
    neuron: str
    rank: int | None
    file: Path

    @property
    def card(self) -> Path:
        """The file that tells data, recipe, accuracy and limits."""
        return self.file.with_suffix(".md")

    def __str__(self) -> str:
        rank = "" if self.rank is None else f", rank={self.rank}"
        return f'pretrained="{self.name}" of {self.model} with neuron="{self.neuron}"{rank}'


def pretrained() -> list[Weights]:
    """Lists the weights that come with the package.

    Examples:
        >>> [str(w) for w in pretrained() if w.name == "digits" and w.neuron == "linear"]
        ['pretrained="digits" of digits_cnn with neuron="linear"']
    """
    weights = []
    for file in sorted(FOLDER.glob("*/*.safetensors")):
        match = _FILE.fullmatch(file.stem)
        if match is not None:
            rank = None if match["rank"] is None else int(match["rank"])
            weights.append(Weights(file.parent.name, match["model"], match["neuron"], rank, file))
    return weights


def find(name: str, model: str, neuron: str, rank: object = None) -> Weights:
    """The weights of a network."""
    known = pretrained()
    for weights in known:
        same = (weights.name, weights.model, weights.neuron) == (name, model, neuron)
        if same and rank in (None, weights.rank):
            return weights
    wanted = f"pretrained={name!r} of {model} with neuron={neuron!r}"
    if rank is not None:
        wanted += f", rank={rank!r}"
    # Those of the name, else of the network, else all.
    near = [w for w in known if w.name == name] or [w for w in known if w.model == model] or known
    raise InputError(
        f"no trained weights {wanted}: choose {', or '.join(map(str, near))}, or leave pretrained "
        "out"
    )
