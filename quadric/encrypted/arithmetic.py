"""The server's computation on ciphertexts, in two packings.

- one: a picture lies in the slots of one ciphertext; matrices are diagonals and rotations.
- many: slot s of ciphertext i holds number i of picture s. Weights are single numbers, nothing is
  rotated, and with one square in a row the server needs no keys at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from quadric.encrypted.diagonals import layouts
from quadric.encrypted.parameters import Plan
from quadric.encrypted.polynomial import Stage
from quadric.encrypted.seal import Ring


class Arithmetic:
    """Abstract: the stages of a network on ciphertexts."""

    def __init__(self, plan: Plan, stages: Sequence[Stage], relin: bytes, rotation: bytes) -> None:
        self.ring, self.plan, self.stages = Ring(plan), plan, stages
        self.relin = self.ring.load("RelinKeys", relin) if relin else None
        self.rotation = self.ring.load("GaloisKeys", rotation) if rotation else None

    def rescaled(self, ciphertext: Any) -> Any:
        """A ciphertext without the last prime, of two polynomials."""
        self.ring.evaluator.rescale_to_next_inplace(ciphertext)
        if ciphertext.size() > 2:
            self.ring.evaluator.relinearize_inplace(ciphertext, self.relin)
        return ciphertext

    def stage(self, index: int, z: list[Any], rows: slice) -> list[Any]:
        """Some of a stage's outputs."""
        raise NotImplementedError


class Many(Arithmetic):
    """A slot a picture."""

    def stage(self, index: int, z: list[Any], rows: slice) -> list[Any]:
        """The outputs of some rows."""
        ring, stage, bits = self.ring, self.stages[index], self.plan.weights[index]
        own = 2.0**bits
        matrices = [(z, stage.linear, own)]
        if stage.squares is not None:
            used = stage.squares.any(0).tolist()
            squared = [ring.square(c) if use else None for c, use in zip(z, used, strict=True)]
            matrices = [(z, stage.linear, own * z[0].scale), (squared, stage.squares, own)]
        made = []
        for row in range(len(stage.bias))[rows]:
            total = ring.sum_of_products(self._terms(matrices, row))
            if total is None:  # a row of zeros: the smallest weight there is
                total = ring.sum_of_products(
                    [(z[0], ring.encode(1 / matrices[0][2], *matrices[0][2:]))]
                )
            bias = ring.encode(float(stage.bias[row]), total.scale, total)
            ring.evaluator.add_plain_inplace(total, bias)
            made.append(self.rescaled(total) if self.plan.rescales(index) else total)
        return made

    def _terms(
        self, matrices: list[tuple[list[Any], Tensor, float]], row: int
    ) -> Iterator[tuple[Any, Any]]:
        plain = self.ring.seal.Plaintext()
        encode = self.ring.encoder.encode
        for values, matrix, scale in matrices:
            for ciphertext, weight in zip(values, matrix[row].tolist(), strict=True):
                if round(weight * scale):
                    encode(weight, ciphertext.parms_id(), scale, plain)
                    yield ciphertext, plain


class One(Arithmetic):
    """A picture in one ciphertext."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.layouts = layouts(self.plan)
        self.encoded: dict[int, list[dict[int, Any]]] = {}

    def stage(self, index: int, z: list[Any], rows: slice) -> list[Any]:
        """The one ciphertext of all outputs."""
        ring, stage, layout = self.ring, self.stages[index], self.layouts[index]
        evaluator, (value,) = ring.evaluator, z
        values, matrices = [value], [stage.linear]
        if stage.squares is not None:
            squared = ring.square(value)
            evaluator.relinearize_inplace(squared, self.relin)
            evaluator.rescale_to_next_inplace(squared)
            linear = ring.seal.Ciphertext()
            evaluator.mod_switch_to_next(value, linear)
            values, matrices = [linear, squared], [stage.linear, stage.squares]
        target = values[-1].scale * 2.0 ** self.plan.weights[index]
        plains = self._plains(index, values, matrices, target)
        turned = [
            {b: ring.rotated(v, b, self.rotation) for b in {o % layout.baby for o in own}}
            for v, own in zip(values, plains, strict=True)
        ]
        total: Any = None
        for giant in range(0, layout.offsets, layout.baby):
            terms = [
                (around[offset - giant], plain)
                for around, own in zip(turned, plains, strict=True)
                for offset, plain in own.items()
                if giant <= offset < giant + layout.baby
            ]
            part = ring.sum_of_products(terms)
            if part is None:
                continue
            if self.plan.rescales(index):
                evaluator.rescale_to_next_inplace(part)
            part = ring.rotated(part, giant, self.rotation)
            if total is None:
                total = part
            else:
                evaluator.add_inplace(total, part)
        for step in layout.sums:
            evaluator.add_inplace(total, ring.rotated(total, step, self.rotation))
        bias = stage.bias.new_zeros(layout.rows)
        bias[: len(stage.bias)] = stage.bias
        slots = bias.repeat(self.plan.slots // layout.rows).tolist()
        evaluator.add_plain_inplace(total, ring.encode(slots, total.scale, total))
        return [total]

    def _plains(
        self, index: int, values: list[Any], matrices: list[Tensor], target: float
    ) -> list[dict[int, Any]]:
        """The encoded diagonals of each matrix, turned back by their giant step; kept."""
        if index not in self.encoded:
            layout = self.layouts[index]
            self.encoded[index] = [
                {
                    offset: self.ring.encode(
                        diagonal.roll(offset // layout.baby * layout.baby).tolist(),
                        target / value.scale,
                        value,
                    )
                    for offset, diagonal in layout.of(matrix)
                }
                for value, matrix in zip(values, matrices, strict=True)
            ]
        return self.encoded[index]
