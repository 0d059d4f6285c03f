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

_KEPT = 2**30
"""Bytes of encoded diagonals that a server keeps for its next request."""


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

    def stage(self, index: int, z: list[Any]) -> list[Any]:
        """A stage's outputs."""
        raise NotImplementedError


class Many(Arithmetic):
    """A slot a picture."""

    def stage(self, index: int, z: list[Any]) -> list[Any]:
        """The outputs, one by one."""
        ring, stage, bits = self.ring, self.stages[index], self.plan.weights[index]
        own = 2.0**bits
        matrices = [(z, stage.linear, own)]
        if stage.squares is not None:
            used = stage.squares.any(0).tolist()
            squared = [ring.square(c) if use else None for c, use in zip(z, used, strict=True)]
            matrices = [(z, stage.linear, own * z[0].scale), (squared, stage.squares, own)]
        made = []
        for row in range(len(stage.bias)):
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
        self.encoded: dict[tuple[int, int, int], Any] = {}

    def stage(self, index: int, z: list[Any]) -> list[Any]:
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
        turned = [{0: value} for value in values]
        total: Any = None
        # The giant steps from the last to the first: what is there turns by one more each time.
        for giant in range((layout.offsets - 1) // layout.baby * layout.baby, -1, -layout.baby):
            part = ring.sum_of_products(
                (self._turned(own, offset - giant), plain)
                for which, (own, matrix) in enumerate(zip(turned, matrices, strict=True))
                for offset in range(giant, min(giant + layout.baby, layout.offsets))
                if (plain := self._plain((index, which, offset), matrix, target, own[0]))
            )
            if total is not None:
                total = ring.rotated(total, layout.baby, self.rotation)
            if part is None:
                continue
            if self.plan.rescales(index):
                evaluator.rescale_to_next_inplace(part)
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

    def _turned(self, known: dict[int, Any], step: int) -> Any:
        """A value turned by a baby step: by its lowest power of two from one with the others."""
        if step not in known:
            rest = step & (step - 1)
            known[step] = self.ring.rotated(self._turned(known, rest), step - rest, self.rotation)
        return known[step]

    def _plain(self, key: tuple[int, int, int], matrix: Tensor, target: float, like: Any) -> Any:
        """An encoded diagonal, turned back by its giant step; None if it is zero."""
        if key in self.encoded:
            return self.encoded[key]
        layout, offset = self.layouts[key[0]], key[2]
        diagonal, made = layout.diagonal(matrix, offset), None
        if bool(diagonal.any()):
            turned = diagonal.roll(offset // layout.baby * layout.baby).tolist()
            made = self.ring.encode(turned, target / like.scale, like)
            made = None if made.is_zero() else made  # too small for the scale: SEAL refuses it
        if made is None or 8 * self.plan.ring * self.plan.levels * len(self.encoded) < _KEPT:
            self.encoded[key] = made
        return made
