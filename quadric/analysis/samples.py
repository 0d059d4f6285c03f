"""What a network is analyzed on: some inputs of a data set, and what is known of its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quadric.data import laws
from quadric.data.batches import SplitDataset
from quadric.data.images import Normalization
from quadric.data.tables import Standardization, TableData
from quadric.errors import FileError, InputError, InputTypeError
from quadric.support.extras import load_extra

BATCH = 64


@dataclass(frozen=True)
class Columns:
    """The columns of a table, and how the network sees them."""

    names: tuple[str, ...]  # one per input
    units: tuple[str, ...]  # one per input; "" where it is not known
    target: str = "target"  # what is predicted
    target_unit: str = ""  # its unit, or ""
    # From the numbers of the network to the columns' own; None if they are the same.
    scale: Standardization | None = None


@dataclass(frozen=True)
class Samples:
    """Inputs of a network."""

    batches: Callable[[], Iterator[Any]]  # of inputs; they can be read again and again
    count: int  # how many inputs there are
    columns: Columns | None = None  # of a table; None for anything else
    normalization: Normalization | None = None  # of pictures, if it is known
    # Of one input, if it is known: given pictures are brought to it.
    shape: tuple[int, ...] = field(default=())

    def take(self, places: Sequence[int]) -> Tensor:
        """Some inputs, by their place among these."""
        wrong = [place for place in places if not 0 <= place < self.count]
        if wrong:
            raise InputError(
                f"a picture must be one of 0 ... {self.count - 1}, the ones that are analyzed, got "
                f"{wrong[0]}: analyze more of them, or choose another"
            )
        rows: dict[int, Tensor] = {}
        first = 0
        for batch in self.batches():
            inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
            inside = [p for p in places if first <= p < first + len(inputs)]
            rows |= {place: inputs[place - first] for place in inside}
            first += len(inputs)
        return torch.stack([rows[place] for place in places])


def samples(
    data: Any,
    limit: int,
    *,
    flat: bool = False,
    names: Any = None,
    dtype: torch.dtype | None = None,
) -> Samples:
    """The inputs that a network is analyzed on."""
    if limit < 1:
        raise InputError(f"an analysis needs at least 1 sample, got {limit}: ask for more")
    columns = None
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):  # a data frame
        names = [str(name) for name in data.columns]
        data = torch.tensor(data.to_numpy(dtype="float64")).to(dtype or torch.float32)
    if names is not None:
        columns = Columns(tuple(map(str, names)), ("",) * len(names))
    if isinstance(data, TableData):
        columns = _columns(data)
        data = data.standardized()
    if isinstance(data, SplitDataset):
        taken = _of_parts(data, limit, flat, columns)
    elif isinstance(data, Tensor):
        inputs = data[:limit]
        if dtype is not None and names is not None and inputs.is_floating_point():
            inputs = inputs.to(dtype)
        shape = inputs.shape[1:]
        taken = Samples(lambda: iter(inputs.split(BATCH)), len(inputs), columns, None, shape)
    elif isinstance(data, str) or not isinstance(data, Iterable):
        raise InputTypeError(
            "data must be a data set of quadric.data, a tensor, a data frame or an iterable of "
            f"batches, got {type(data).__name__}: give one of these"
        )
    else:
        batches, count = [], 0
        for batch in data:
            batches.append(batch)
            first = batch
            while isinstance(first, (tuple, list)) and first:  # the inputs may be several, too
                first = first[0]
            count += len(first) if isinstance(first, Tensor) else 1
            if count >= limit:
                break
        taken = Samples(lambda: iter(batches), count, columns)
    if not taken.count:
        raise InputError("the data must hold at least one input, got none: give some")
    return taken


def _of_parts(data: Any, limit: int, flat: bool, columns: Columns | None) -> Samples:
    """Test samples of a data set, evenly spread: folders are sorted by class."""
    total = len(data.part("test")[0])
    count = min(limit, total)
    chosen = data.take("test", torch.arange(count) * total // max(count, 1))

    def batches() -> Iterator[Tensor]:
        for inputs, _ in chosen.test_batches(BATCH):
            yield inputs.flatten(1) if flat else inputs

    shape = () if columns is not None or flat else tuple(data.input_shape)
    return Samples(batches, count, columns, getattr(data, "normalization", None), shape)


def _columns(table: TableData) -> Columns:
    """The names of a table's columns, and the units of those of a law."""
    units, unit = ("",) * table.num_inputs, ""
    kind, _, name = table.name.partition(":")
    if kind == "law" and name in laws.LAWS:
        law = laws.get(name)
        units, unit = tuple(v.unit for v in law.variables), law.unit
    return Columns(table.input_names, units, table.target_name, unit, table.standardization())


def read_pictures(files: Sequence[str | Path], like: Samples) -> Tensor:
    """Reads given pictures and brings them to the shape that a network takes."""
    if len(like.shape) != 3 or like.normalization is None:
        raise InputError(
            "pictures can be given only to a network that takes pictures: leave them out"
        )
    pil = load_extra("PIL.Image", "reading a picture")
    channels, height, width = like.shape
    pictures = []
    for file in map(Path, files):
        try:
            with pil.open(file) as image:
                small = image.convert("L" if channels == 1 else "RGB").resize((width, height))
        except OSError as error:
            raise FileError(f"{file} cannot be read as a picture ({error}): name another") from None
        pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
        pictures.append(pixels.view(height, width, channels).permute(2, 0, 1))
    bytes_ = torch.stack(pictures).float() * (like.normalization.scale / 255)
    return like.normalization(bytes_)
