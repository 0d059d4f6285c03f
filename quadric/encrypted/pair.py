"""The client, who has the secret key, and the server, who has the network: two ends of a wire."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quadric.encrypted.arithmetic import Many, One
from quadric.encrypted.checking import TOLERANCE, Prepared, prepare
from quadric.encrypted.diagonals import spread
from quadric.encrypted.messages import LARGEST, pack, unpack
from quadric.encrypted.parameters import HEADROOM, Plan
from quadric.encrypted.polynomial import Stage
from quadric.encrypted.seal import Ring, dump
from quadric.errors import FileError, InputError, described
from quadric.support.writing import whole_file

REQUEST, ANSWER, CLIENT, SERVER = "request", "answer", "client's file", "server's file"
_BEYOND = 2 ** (HEADROOM - 1)


class RangeWarning(UserWarning):
    """Inputs or an answer are far larger than on the calibration data: do not rely on it."""


class Client:
    """Encrypts inputs and decrypts answers: the only one who has the secret key.

    Made by `compile` or `load_client`.

    Attributes:
        plan: the parameters.
        model: the name that keys, network, requests and answers share.
    """

    def __init__(self, plan: Plan, model: str, key: Any, ring: Ring) -> None:
        self.plan, self.model, self._key, self._ring = plan, model, key, ring
        self._encryptor = ring.seal.Encryptor(ring.context, key)
        self._decryptor = ring.seal.Decryptor(ring.context, key)

    def encrypt(self, inputs: Tensor) -> bytes:
        """Encrypts a batch of inputs.

        Args:
            inputs: of any size; in the packing "many" it costs as much as the next multiple of
                `plan.slots`.

        Returns:
            A request for the server.

        Raises:
            InputError: if shape or range of the inputs are not those of the calibration data.
        """
        plan = self.plan
        if (
            not isinstance(inputs, Tensor)
            or inputs.shape[1:] != plan.input_shape
            or not len(inputs)
        ):
            shape = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
            wanted = ", ".join(["N", *map(str, plan.input_shape)])
            raise InputError(f"inputs must be a tensor of shape ({wanted}), N >= 1, got {shape}")
        rows = inputs.detach().cpu().flatten(1).double() / plan.input_range
        most = float(rows.abs().max()) * plan.input_range
        if not most <= _BEYOND * plan.input_range:  # also NaN
            raise InputError(
                f"inputs must be at most {_BEYOND} times as large as the calibration data's "
                f"{plan.input_range:.4g}, got {most:.4g}: normalize them in the same way"
            )
        # A square squares the factor by which its input is too large.
        safe = _BEYOND ** (0.5 ** sum(plan.squares))
        if most > safe * plan.input_range:
            warnings.warn(
                f"inputs are more than {safe:.3g} times as large as the calibration data's: behind "
                f"{sum(plan.squares)} squares in a row the arithmetic may overflow without a sign; "
                "calibrate with data like these",
                RangeWarning,
                stacklevel=2,
            )
        if plan.packing == "one":
            slots = list(spread(rows, plan))
        else:
            slots = [row for group in rows.split(plan.slots) for row in group.T]
        parts = [self._encrypted(values) for values in slots]
        return pack(REQUEST, self.model, {"count": len(rows)}, parts)

    def _encrypted(self, values: Tensor) -> bytes:
        plain = self._ring.encode(values.tolist(), 2.0**self.plan.scale)
        # Under the secret key: half of the ciphertext is then a seed.
        return dump(self._encryptor.encrypt_symmetric(plain))

    def decrypt(self, answer: bytes) -> Tensor:
        """Decrypts an answer of the server.

        Do not give the server what comes out: exact decrypted numbers let it find the key.

        Args:
            answer: what `Server.run` returned.

        Returns:
            The outputs in float32, close to those of the network.

        Raises:
            InputError: if the answer is damaged, or belongs to other keys.
        """
        plan = self.plan
        _, facts, parts = unpack(answer, ANSWER, self.model)
        count = _checked_count(facts, parts, plan, plan.sizes[-1])
        made = []
        for part in parts:
            plain = self._ring.seal.Plaintext()
            self._decryptor.decrypt(self._ring.ciphertext(part, None, (2, 3)), plain)
            made.append(torch.tensor(self._ring.encoder.decode_double(plain), dtype=torch.float64))
        slots = torch.stack(made)
        if plan.packing == "one":
            rows = slots[:, : plan.sizes[-1]]
        else:
            groups = slots.unflatten(0, (-1, plan.sizes[-1]))
            rows = groups.transpose(1, 2).flatten(0, 1)[:count]
        if not float(rows.abs().max()) <= _BEYOND / 2:  # what overflows may come back smaller
            warnings.warn(
                f"an output is more than {_BEYOND // 2} times the largest on the calibration "
                "data: the arithmetic may have overflowed; calibrate with data like these",
                RangeWarning,
                stacklevel=2,
            )
        return (rows * plan.output_range).float().reshape(-1, *plan.output_shape)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the client's file, which holds the secret key: nobody else may read it.

        Args:
            path: the file; on Unix only its owner can read it.
        """
        parts = [dump(self._key)]
        content = pack(CLIENT, self.model, self.plan.to_dict(), parts)
        with whole_file(path, private=True) as file:
            file.write_bytes(content)


class Server:
    """Computes answers to requests that it cannot read.

    Made by `compile` or `load_server`. It has the network and the keys for its arithmetic; none of
    them decrypts.

    Attributes:
        plan: the parameters.
        model: the name that keys, network, requests and answers share.
    """

    def __init__(self, plan: Plan, model: str, stages: Sequence[Stage], keys: list[bytes]) -> None:
        self.plan, self.model, self._keys, self._stages = plan, model, keys, tuple(stages)
        kind = One if plan.packing == "one" else Many
        self._arithmetic = kind(plan, self._stages, *keys)

    def run(self, request: bytes, *, largest: int = LARGEST) -> bytes:
        """Computes the answer to a request.

        Args:
            request: what `Client.encrypt` returned.
            largest: bytes above which a request is refused.

        Returns:
            The answer.

        Raises:
            InputError: if the request is damaged, too large, or of another client.
        """
        plan = self.plan
        _, facts, parts = unpack(request, REQUEST, self.model, largest)
        count = _checked_count(facts, parts, plan, plan.sizes[0])
        size = 1 if plan.packing == "one" else plan.sizes[0]
        answers: list[bytes] = []
        for first in range(0, len(parts), size):
            z: list[Any] = [
                self._arithmetic.ring.ciphertext(part, 2.0**plan.scale, (2,))
                for part in parts[first : first + size]
            ]
            for i in range(len(plan.squares)):
                z = self._arithmetic.stage(i, z)
            answers += map(dump, z)
        return pack(ANSWER, self.model, {"count": count}, answers)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the server's file: network and keys for its arithmetic, no secret key.

        Args:
            path: the file.
        """
        parts = list(self._keys)
        for stage in self._stages:
            for values in (stage.linear, stage.squares, stage.bias):
                parts.append(b"" if values is None else values.contiguous().numpy().tobytes())
        content = pack(SERVER, self.model, self.plan.to_dict(), parts)
        with whole_file(path) as file:
            file.write_bytes(content)


def _checked_count(facts: dict[str, Any], parts: list[bytes], plan: Plan, numbers: int) -> int:
    count = facts.get("count")
    groups = 0
    if isinstance(count, int) and count > 0:
        groups = count if plan.packing == "one" else -(-count // plan.slots) * numbers
    if groups != len(parts) or not isinstance(count, int):
        raise InputError(
            f"a message must hold a ciphertext for every number, got {len(parts)} for "
            f"{count!r} inputs: it was not made for this network"
        )
    return count


def compile(
    model: nn.Module | Prepared,
    example_inputs: Tensor | None = None,
    *,
    calibration: Tensor | None = None,
    backend: str = "tenseal",
    packing: str = "one",
    security: int = 128,
    tolerance: float = TOLERANCE,
) -> tuple[Client, Server]:
    """Makes new keys for a network, and the two ends that compute it under encryption.

    Args:
        model: the network, which stays as it is; or what `prepare` made of it.
        example_inputs: a batch of inputs.
        calibration: inputs such as will be encrypted, which set the ranges; by default the
            examples.
        backend: "tenseal", the only one so far.
        packing: "one" answer soon, or "many" answers cheaply.
        security: bits of security by the standard's table: 128, 192 or 256.
        tolerance: the largest expected error, relative to the largest output.

    Returns:
        The client with the secret key, and the server without it.

    Raises:
        InputError: if a part is no polynomial, or no parameters are large enough.
        MissingExtraError: if TenSEAL is not installed.

    Examples:
        >>> import quadric
        >>> model = nn.Sequential(quadric.QuadraticLinear(4, 8), nn.Linear(8, 2))
        >>> data = torch.randn(100, 4)
        >>> client, server = compile(model, data, packing="many")
        >>> answer = server.run(client.encrypt(data[:5]))
        >>> client.decrypt(answer).shape
        torch.Size([5, 2])
    """
    if backend != "tenseal":
        raise InputError(f'backend must be "tenseal", got {backend!r}: leave it out')
    if not isinstance(model, Prepared):
        data = example_inputs if calibration is None else calibration
        if data is None:
            raise InputError("compile needs inputs to set the ranges, got none: give calibration")
        options: dict[str, Any] = {"security": security, "tolerance": tolerance}
        model = prepare(model, data, packing=packing, **options)
    plan, name = model.plan, secrets.token_hex(16)
    ring = Ring(plan)
    key, *public = ring.keys()
    return Client(plan, name, key, ring), Server(plan, name, model.polynomial.stages, public)


def load_client(path: str | os.PathLike[str]) -> Client:
    """Reads the file of `Client.save`.

    Args:
        path: the file.

    Returns:
        The client.

    Raises:
        InputError: if the file is damaged, or another one.
    """
    name, facts, parts = unpack(_read(path), CLIENT)
    with described(f"a {CLIENT} must hold what its plan says", "write it again"):
        plan = _plan(facts, parts, CLIENT)
        ring = Ring(plan)
        return Client(plan, name, ring.load("SecretKey", parts[0]), ring)


def load_server(path: str | os.PathLike[str]) -> Server:
    """Reads the file of `Server.save`.

    Args:
        path: the file.

    Returns:
        The server.

    Raises:
        InputError: if the file is damaged, or another one.
    """
    name, facts, parts = unpack(_read(path), SERVER, largest=64 * LARGEST)
    with described(f"a {SERVER} must hold what its plan says", "write it again"):
        plan, numbers = _plan(facts, parts, SERVER), iter(parts[2:])
        stages = []
        for before, after in zip(plan.sizes, plan.sizes[1:], strict=False):
            shapes = ((after, before), (after, before), (after,))
            tensors: list[Any] = [_numbers(next(numbers), shape) for shape in shapes]
            stages.append(Stage(*tensors))
        return Server(plan, name, stages, parts[:2])


def _numbers(data: bytes, shape: tuple[int, ...]) -> Tensor | None:
    if not data:
        return None
    return torch.frombuffer(bytearray(data), dtype=torch.float64).reshape(shape)


def _plan(facts: dict[str, Any], parts: list[bytes], kind: str) -> Plan:
    """The plan of a file."""
    plan = Plan.from_dict(facts)
    wanted = 1 if kind == CLIENT else 2 + 3 * len(plan.squares)
    if len(parts) != wanted:
        raise InputError(f"it needs {wanted} parts, and has {len(parts)}")
    return plan


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"cannot read {path} ({error.strerror}): name a file of save") from None
