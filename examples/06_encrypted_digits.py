"""Digits classified while they are encrypted: a network of squares is a polynomial.

Homomorphic encryption (CKKS) adds and multiplies numbers that it cannot read; it has no ReLU. A
network of shared neurons without activations needs nothing else. The client encrypts a picture, the
server runs the network on it without the key, the client decrypts ten numbers.

A layer z + S z^2 is followed by a linear map W: W z + (W S) z^2. So each layer takes two of the few
multiplications in a row that a ciphertext allows: the square, and the map.

Expected: 96.9 % of the digits right; 20 of 20 encrypted predictions are the plain ones, an output
differs by at most 0.2; some seconds a picture on one core.
    pip install tenseal
    python examples/06_encrypted_digits.py
"""

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quadric
from quadric.data import digits
from quadric.nn import QuadraticLayer

parser = argparse.ArgumentParser()
parser.add_argument("--pictures", type=int, default=20)
parser.add_argument("--epochs", type=int, default=30)
given = parser.parse_args()
try:
    import tenseal
except ImportError:
    raise SystemExit("skipped: this example needs TenSEAL, pip install tenseal") from None

data = digits.load()
train, test = (data.normalization(x).flatten(1) for x in (data.train_images, data.test_images))
model = quadric.models.create(
    "mlp", "shared", rank=4, seed=0,
    in_features=64, hidden=(24, 24), out_features=10, activation="none",
)  # fmt: skip
optimizer = torch.optim.Adam(quadric.param_groups(model, lr=1e-2, quadratic_lr=1e-3))
torch.manual_seed(0)
for _ in range(given.epochs):
    for rows in torch.randperm(len(train)).split(64):
        optimizer.zero_grad()
        F.cross_entropy(model(train[rows]), data.train_labels[rows]).backward()
        optimizer.step()
with torch.no_grad():
    plain = model(test)
accuracy = (plain.argmax(1) == data.test_labels).float().mean()
print(f"plain: {accuracy:.1%} of {len(test)} digits right, outputs up to {plain.abs().max():.0f}")


def polynomial(model: nn.Module) -> list[tuple[Tensor, Tensor | None]]:
    """Of each layer: the map of what comes in, and the map of its squares.

    A last number that is always 1 carries the biases.
    """
    parts, mixing = [], None
    for layer in (m for m in model.children() if hasattr(m, "weight")):
        weight, bias = layer.weight.detach(), layer.bias.detach()
        linear = F.pad(torch.cat([weight, bias[:, None]], 1), (0, 0, 0, 1))
        linear[-1, -1] = 1
        parts.append((linear, None if mixing is None else F.pad(weight @ mixing, (0, 1, 0, 1))))
        if isinstance(layer, QuadraticLayer):
            mixing = layer.blocks.matrix(layer.effective_eigenvalues().detach())
    return parts


layers = polynomial(model)
# The client: keys, and encrypted pictures. Five multiplications in a row, 28 bits each.
context = tenseal.context(
    tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[38, 28, 28, 28, 28, 28, 38]
)
context.global_scale = 2**28
context.generate_galois_keys()


def run_encrypted(picture: "tenseal.CKKSVector") -> "tenseal.CKKSVector":
    """The server: sums and products of what it cannot read."""
    z = picture
    for linear, squares in layers:
        mapped = z.mm(linear.T.tolist())
        z = mapped if squares is None else mapped + z.square().mm(squares.T.tolist())
    return z


same, worst, begin = 0, 0.0, time.perf_counter()
for i in range(given.pictures):
    encrypted = run_encrypted(tenseal.ckks_vector(context, [*test[i].tolist(), 1.0]))
    outputs = torch.tensor(encrypted.decrypt()[:-1])
    same += int(outputs.argmax() == plain[i].argmax())
    worst = max(worst, float((outputs - plain[i]).abs().max()))
seconds = (time.perf_counter() - begin) / max(1, given.pictures)
print(f"encrypted: {same} of {given.pictures} predictions are the plain ones")
print(f"largest difference of an output {worst:.3f}, {seconds:.1f} s a picture")
