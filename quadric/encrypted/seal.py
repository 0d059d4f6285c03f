"""The operations of CKKS as Microsoft SEAL has them, through TenSEAL's Python package.

SEAL reads and writes files only: a file in memory is used where the system has them, so that no
key reaches a disk.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from quadric.encrypted.parameters import Plan
from quadric.errors import InputError
from quadric.support.extras import load_extra


class Ring:
    """The parameters of a plan, as SEAL checks them, with its encoder and evaluator."""

    def __init__(self, plan: Plan) -> None:
        seal = load_extra("tenseal.sealapi", "quadric.encrypted", "encrypted")
        self.seal, self.plan = seal, plan
        parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
        parameters.set_poly_modulus_degree(plan.ring)
        parameters.set_coeff_modulus(seal.CoeffModulus.Create(plan.ring, list(plan.bits)))
        kinds = seal.SEC_LEVEL_TYPE
        names = {128: kinds.TC128, 192: kinds.TC192, 256: kinds.TC256}
        self.context = seal.SEALContext(parameters, True, names[plan.security])
        if not self.context.parameters_set():
            raise InputError(
                f"SEAL must accept the parameters, got {self.context.parameters_error_message()}: "
                "choose another packing, or a smaller network"
            )
        self.encoder = seal.CKKSEncoder(self.context)
        self.evaluator = seal.Evaluator(self.context)

    def keys(self) -> tuple[Any, bytes, bytes]:
        """New keys: the secret one, and the server's for products and rotations."""
        maker = self.seal.KeyGenerator(self.context)
        relin = rotation = b""
        if self.plan.needs_keys and any(self.plan.squares):
            relin = dump(maker.create_relin_keys())
        if self.plan.steps:
            # SEAL's rotation by a step is the Galois element 3^step.
            elements = [pow(3, step, 2 * self.plan.ring) for step in self.plan.steps]
            rotation = dump(maker.create_galois_keys(elements))
        return maker.secret_key(), relin, rotation

    def load(self, kind: str, data: bytes) -> Any:
        """An object of SEAL from bytes, checked by SEAL against the parameters."""
        made = getattr(self.seal, kind)()
        with _file(data) as path:
            try:
                made.load(self.context, path)
            except Exception as error:
                raise InputError(
                    f"a {kind} must fit the parameters, got bytes that SEAL refuses ({error}): it "
                    "is damaged, or belongs to other parameters"
                ) from None
        return made

    def ciphertext(self, data: bytes, scale: float | None, sizes: Sequence[int]) -> Any:
        """A ciphertext from a message, which must be as the plan has it at this place."""
        loaded = self.load("Ciphertext", data)
        fresh = loaded.parms_id() == self.context.first_parms_id()
        if loaded.size() not in sizes or (
            scale is not None and not (fresh and loaded.scale == scale)
        ):
            raise InputError(
                "a ciphertext must have the level and scale of its place, got another one: it "
                "was not made by the client of this network"
            )
        return loaded

    def encode(self, values: Any, scale: float, like: Any = None) -> Any:
        """A plaintext of one number for all slots, or of a list, at the level of a ciphertext."""
        plain = self.seal.Plaintext()
        where = () if like is None else (like.parms_id(),)
        self.encoder.encode(values, *where, scale, plain)
        return plain

    def sum_of_products(self, terms: Iterable[tuple[Any, Any]]) -> Any:
        """The sum of ciphertexts times plaintexts; None if there are none."""
        total, evaluator, part = None, self.evaluator, self.seal.Ciphertext()
        for ciphertext, plain in terms:
            if total is None:
                total = self.seal.Ciphertext()
                evaluator.multiply_plain(ciphertext, plain, total)
            else:
                evaluator.multiply_plain(ciphertext, plain, part)
                evaluator.add_inplace(total, part)
        return total

    def square(self, ciphertext: Any) -> Any:
        """A ciphertext of three polynomials."""
        made = self.seal.Ciphertext()
        self.evaluator.square(ciphertext, made)
        return made

    def rotated(self, ciphertext: Any, step: int, keys: Any) -> Any:
        """A ciphertext whose slot s holds what slot s + step held."""
        if not step:
            return ciphertext
        made = self.seal.Ciphertext()
        self.evaluator.rotate_vector(ciphertext, step, keys, made)
        return made


def dump(value: Any) -> bytes:
    """An object of SEAL as bytes."""
    with _file() as path:
        value.save(path)
        return Path(path).read_bytes()


@contextlib.contextmanager
def _file(data: bytes = b"") -> Iterator[str]:
    """A path for SEAL, in memory where the system has that, else in a folder of our own."""
    with contextlib.ExitStack() as stack:
        if hasattr(os, "memfd_create"):
            handle = os.memfd_create("quadric")
            stack.callback(os.close, handle)
            path = Path(f"/proc/self/fd/{handle}")
        else:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory()), "seal")
        if data:
            path.write_bytes(data)
        yield str(path)
