"""Client and server: real encryption against the plain network, and what strangers may send."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("tenseal")

from quadric.encrypted import (
    Client,
    Plan,
    RangeWarning,
    Server,
    Square,
    compile,
    load_client,
    load_server,
    prepare,
)
from quadric.encrypted.diagonals import layouts, spread
from quadric.encrypted.messages import _HEAD, _MAGIC, VERSION, pack, unpack
from quadric.encrypted.seal import dump
from quadric.errors import FileError, InputError
from tests.encrypted.networks import convolutional, inputs, perceptron

Pair = tuple[Client, Server]


@pytest.fixture(scope="module", params=["one", "many"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return compile(perceptron(), inputs(), packing=request.param)


@pytest.fixture(scope="module")
def small() -> Pair:
    return compile(perceptron(), inputs(), packing="many", tolerance=0.1)


@pytest.mark.parametrize("packing", ["one", "many"])
@pytest.mark.parametrize("depth", [1, 2])
def test_decrypted_answers_are_the_networks(packing: str, depth: int) -> None:
    model, x = perceptron(depth=depth), inputs()
    prepared = prepare(model, x, packing=packing)
    client, server = compile(prepared)
    found = client.decrypt(server.run(client.encrypt(x[:3])))
    wrong = (found - model(x[:3]).detach()).abs().max()
    # No worse than was expected, and not so good that the expectation says nothing.
    assert prepared.error / 100 < float(wrong) < 2 * prepared.error
    assert prepared.error < 1e-3 * prepared.ranges[-1]


@pytest.mark.parametrize("sizes", [(484, 128, 10), (20, 7, 30, 3), (3, 8, 1), (5, 5), (64, 64, 2)])
@pytest.mark.parametrize("slots", [512, 4096])
def test_diagonals_are_the_matrix(sizes: tuple[int, ...], slots: int) -> None:
    """In plain numbers: rotations, products and sums of slots give each stage's product."""
    draw, count = torch.Generator().manual_seed(0), len(sizes) - 1
    parts: list[Any] = [(0, 0), 1, (1,) * count, (False,) * count, sizes, 0, 1.0, 1.0, (), ()]
    plan = Plan("one", 2 * slots, *parts)
    right = torch.randn(1, sizes[0], generator=draw)
    value = spread(right, plan)[0]
    for layout, before, after in zip(layouts(plan), sizes, sizes[1:], strict=False):
        matrix = torch.randn(after, before, generator=draw) / before**0.5
        turned = [layout.diagonal(matrix, i) * value.roll(-i) for i in range(layout.offsets)]
        value = torch.stack(turned).sum(0)
        for step in layout.sums:
            value = value + value.roll(-step)
        right = right @ matrix.T
        torch.testing.assert_close(value[:after], right[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("packing", ["one", "many"])
def test_convolutions_under_encryption(packing: str) -> None:
    model, x = convolutional(), torch.randn(20, 2, 8, 8)
    client, server = compile(model, x, packing=packing)
    found = client.decrypt(server.run(client.encrypt(x[:2])))
    torch.testing.assert_close(found, model(x[:2]).detach(), rtol=0, atol=3e-3)


def test_weights_need_not_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    client, server = compile(perceptron(), inputs())
    request = client.encrypt(inputs(1))
    kept = client.decrypt(server.run(request))
    assert server._arithmetic.encoded
    monkeypatch.setattr("quadric.encrypted.arithmetic._KEPT", 0)
    server._arithmetic.encoded.clear()
    assert torch.equal(client.decrypt(server.run(request)), kept)
    assert not server._arithmetic.encoded


def test_more_pictures_than_slots(small: Pair) -> None:
    client, server = small
    x = inputs(client.plan.slots + 3)
    answers = client.decrypt(server.run(client.encrypt(x / x.abs().max())))
    expected = perceptron()(x / x.abs().max()).detach()
    torch.testing.assert_close(answers, expected, rtol=0, atol=0.1)


def test_a_row_of_zeros_is_no_obstacle() -> None:
    model = perceptron()
    with torch.no_grad():
        model[-1].weight[1] = 0
    client, server = compile(model, inputs(), packing="many", tolerance=0.1)
    found = client.decrypt(server.run(client.encrypt(inputs())))
    assert float((found - model(inputs()).detach()).abs().max()) < 0.1


def test_files_of_both_ends(pair: Pair, tmp_path: Path) -> None:
    client, server = pair
    (tmp_path / "own").touch(0o644)
    client.save(tmp_path / "own")
    server.save(tmp_path / "other")
    client.save(tmp_path / "new")
    assert stat.S_IMODE(os.stat(tmp_path / "new").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "own").st_mode) == 0o600
    again, there = load_client(tmp_path / "own"), load_server(tmp_path / "other")
    x = inputs(2)
    expected = perceptron()(x).detach()
    for mine, theirs in ((again, server), (client, there)):
        found = mine.decrypt(theirs.run(mine.encrypt(x)))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-2)
    with pytest.raises(InputError, match="got a server's file: give a client's file"):
        load_client(tmp_path / "other")
    with pytest.raises(FileError, match="cannot read"):
        load_server(tmp_path / "nothing")


def test_the_servers_file_holds_no_secret_key(pair: Pair, tmp_path: Path) -> None:
    client, server = pair
    server.save(tmp_path / "server")
    client.save(tmp_path / "client")
    _, facts, parts = unpack((tmp_path / "server").read_bytes(), "server's file", largest=2**34)
    assert "key" not in facts
    ring = server._arithmetic.ring
    kinds = set()
    for part in parts:
        for kind in ("SecretKey", "RelinKeys", "GaloisKeys"):
            with contextlib.suppress(InputError):
                ring.load(kind, part)
                kinds.add(kind)
    assert kinds == ({"RelinKeys", "GaloisKeys"} if server.plan.needs_keys else set())
    # The same look finds the key where it is.
    _, _, (secret,) = unpack((tmp_path / "client").read_bytes(), "client's file")
    assert ring.load("SecretKey", secret) is not None
    assert dump(client._key) not in (tmp_path / "server").read_bytes()


def test_files_whose_parts_are_not_their_plan_s(small: Pair, tmp_path: Path) -> None:
    for end, kind in zip(small, ("client's file", "server's file"), strict=True):
        end.save(tmp_path / "file")
        name, facts, parts = unpack((tmp_path / "file").read_bytes(), kind)
        load = load_client if kind == "client's file" else load_server
        wrong = [(facts, parts[:-1]), (facts | {"more": 1}, parts)]
        wrong += [(facts, [*parts[:-1], b"12345678" * 7])] * (load is load_server)
        for changed in wrong:
            (tmp_path / "wrong").write_bytes(pack(kind, name, *changed))
            with pytest.raises(InputError, match="must hold what its plan says"):
                load(tmp_path / "wrong")


def test_an_answer_opens_with_its_own_key_alone() -> None:
    prepared = prepare(perceptron(), inputs(), packing="many", tolerance=0.1)
    (alice, server), (bob, _) = compile(prepared), compile(prepared)
    answer = server.run(alice.encrypt(inputs(4)))
    with pytest.raises(InputError, match="for other keys or another network"):
        bob.decrypt(answer)
    _, facts, parts = unpack(answer, "answer")
    forged = pack("answer", bob.model, facts, parts)
    with pytest.warns(RangeWarning, match="overflowed"):
        assert not torch.allclose(bob.decrypt(forged), alice.decrypt(answer), atol=1)


@pytest.mark.parametrize("packing", ["one", "many"])
def test_an_overflow_is_announced(packing: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Square(), nn.Linear(4, 1), Square(), nn.Linear(1, 1))
    for parameter in model.parameters():
        nn.init.constant_(parameter, float(parameter.dim() > 1))
    model.requires_grad_(False)
    client, server = compile(model, torch.ones(8, 4), packing=packing, tolerance=0.01)
    fine = client.decrypt(server.run(client.encrypt(torch.full((1, 4), 1.1))))
    assert float(fine) == pytest.approx(float(model(torch.full((1, 4), 1.1))), rel=0.1)
    with pytest.warns(RangeWarning, match="inputs are more than 1.41 times"):
        request = client.encrypt(torch.full((1, 4), 1.5))  # 5 times the output
    with pytest.warns(RangeWarning, match="an output is more than 2 times"):
        client.decrypt(server.run(request))


def cut(data: bytes) -> bytes:
    return data[:-1]


HEADER = b'{"kind":"request","model":"","facts":{},"lengths":[1e999]}'


def sealed(header: bytes) -> bytes:
    """A message with the right checksum of any header."""
    return _HEAD.pack(_MAGIC, VERSION, len(header), sha256(header).digest()) + header


def flipped(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "damaged bytes"),
        (flipped, "damaged bytes"),
        (lambda data: b"", "0 bytes, outside of"),
        (lambda data: b"x" * 1000, "got other bytes"),
        (lambda data: data[:8] + b"\x07\x00" + data[10:], "version 7"),
        (lambda data: "text", "got str: give bytes"),
        (lambda data: sealed(b"[" * 200_000), "a header that is none"),
        (lambda data: sealed(HEADER), "a header that is none"),
    ],
)
def test_damaged_requests_get_one_clear_error(small: Pair, damage: object, message: str) -> None:
    client, server = small
    with pytest.raises(InputError, match=message):
        server.run(damage(client.encrypt(inputs(2))))  # type: ignore[operator]


def test_requests_are_bounded_and_counted(small: Pair) -> None:
    client, server = small
    request = client.encrypt(inputs(2))
    with pytest.raises(InputError, match="bytes, outside of"):
        server.run(request, largest=1000)
    model, _, parts = unpack(request, "request")
    for facts in ({"count": 0}, {"count": 10**9}, {"count": "two"}, {}):
        with pytest.raises(InputError, match="a ciphertext for every number"):
            server.run(pack("request", model, facts, parts))


def test_ciphertexts_of_another_make_are_refused(small: Pair) -> None:
    client, server = small
    model, facts, parts = unpack(client.encrypt(inputs(2)), "request")
    # Another scale; no ciphertext; other parameters; an answer sent as a request.
    other, _ = compile(perceptron(), inputs(), packing="one")
    (foreign,) = unpack(other.encrypt(inputs(1)), "request")[2]
    answered = unpack(server.run(client.encrypt(inputs(2))), "answer")[2][0]
    finer = client._ring.encode([0.5] * client.plan.slots, 2.0 ** (client.plan.scale + 1))
    for wrong, message in (
        (dump(client._encryptor.encrypt_symmetric(finer)), "level and scale of its place"),
        (b"garbage", "SEAL refuses"),
        (foreign, "SEAL refuses"),
        (answered, "level and scale of its place"),
    ):
        with pytest.raises(InputError, match=message):
            server.run(pack("request", model, facts, [wrong, *parts[1:]]))


def test_inputs_out_of_range_are_refused(pair: Pair) -> None:
    client, _ = pair
    for wrong, message in (
        (100 * inputs(2), "at most 4 times as large"),
        (inputs(2) * float("nan"), "at most 4 times as large"),
        (inputs(2)[:, :5], r"tensor of shape \(N, 12\), N >= 1, got \(2, 5\)"),
        (inputs(0), "must be a tensor"),
        (inputs(2).tolist(), "got list"),
    ):
        with pytest.raises(InputError, match=message):
            client.encrypt(wrong)


def test_another_backend_is_refused() -> None:
    with pytest.raises(InputError, match='backend must be "tenseal"'):
        compile(perceptron(), inputs(), backend="rot13")
    with pytest.raises(InputError, match="give calibration"):
        compile(perceptron())


def test_a_plain_import_does_not_load_tenseal() -> None:
    code = "import sys, quadric; quadric.encrypted.check; assert 'tenseal' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
