"""A matrix times a vector in the slots of one ciphertext: diagonals, with baby and giant steps.

Slots can be multiplied one by one and rotated. Row r of the product needs every column at a slot
s with s mod m = r, where m is the number of rows rounded up to a power of two. Rotation by j brings
the column of slot s + j there. The numbers that fit form a diagonal for each j. Rotated sums then
gather the columns of each row. The client writes the input several times, each time shifted: that
takes the place of most rotations of the first matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quadric.encrypted.parameters import Plan


def power_of_two(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()


@dataclass(frozen=True)
class Diagonals:
    """Where the numbers of one stage's matrices stand."""

    sources: Tensor  # for each slot of the block which entry of the vector it holds
    rows: int  # m
    offsets: int  # how many diagonals
    baby: int  # the diagonals between two giant steps
    slots: int

    @property
    def sums(self) -> list[int]:
        """The rotations whose sums gather the columns."""
        steps, step = [], self.rows
        while step < len(self.sources):
            steps.append(step)
            step *= 2
        return steps

    @property
    def steps(self) -> set[int]:
        """The rotations that need a key: powers of two, of which all others are made."""
        small = [1 << i for i in range(self.baby.bit_length()) if 1 << i < self.offsets]
        return {*small, *self.sums}

    @property
    def rotations(self) -> int:
        """How often a ciphertext is turned, at most."""
        giants = (self.offsets - 1) // self.baby
        return min(self.baby, self.offsets) - 1 + giants + len(self.sums)

    def diagonal(self, matrix: Tensor, offset: int) -> Tensor:
        """The diagonal of a matrix at an offset."""
        block, (outputs, inputs) = len(self.sources), matrix.shape
        slot = torch.arange(block)
        row, column = slot % self.rows, self.sources.roll(-offset)
        # Where the same entry would come twice, the first one counts.
        entry, place = torch.unique(
            row * (int(self.sources.max()) + 1) + column, return_inverse=True
        )
        first = torch.full((len(entry),), block).scatter_reduce_(0, place, slot, "amin")[place]
        inside = (row < outputs) & (column < inputs) & (first == slot)
        found = matrix[row.clamp(max=outputs - 1), column.clamp(max=inputs - 1)] * inside
        return found.repeat(self.slots // block)


def first_shift(plan: Plan) -> tuple[int, int]:
    """The period of the input in the slots, and by how much each copy is shifted."""
    period = power_of_two(max(plan.sizes[:2]))
    return period, max(1, power_of_two(plan.sizes[1]) * period // plan.slots)


def layouts(plan: Plan) -> list[Diagonals]:
    """The layout of every stage."""
    found = []
    period, shift = first_shift(plan)
    slot = torch.arange(plan.slots)
    sources, offsets = (slot % period + slot // period * shift) % period, shift
    for i, outputs in enumerate(plan.sizes[1:]):
        rows = power_of_two(outputs)
        if i:
            sources = torch.arange(max(rows, period)) % period
            offsets = min(rows, period)
        baby = power_of_two(max(1, round(offsets**0.5)))
        found.append(Diagonals(sources, rows, offsets, baby, plan.slots))
        period = rows
    return found


def spread(rows: Tensor, plan: Plan) -> Tensor:
    """Inputs as they stand in the slots."""
    period, _ = first_shift(plan)
    padded = torch.nn.functional.pad(rows, (0, period - rows.shape[1]))
    return padded[:, layouts(plan)[0].sources]
