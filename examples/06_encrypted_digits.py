"""Digits classified while they are encrypted: a network of squares is a polynomial.

Homomorphic encryption (CKKS) adds and multiplies numbers that it cannot read; it has no ReLU. A
network of shared neurons without activations needs nothing else. A layer z + S z^2 is followed by a
linear map W: W z + (W S) z^2. So each layer takes two of the few multiplications in a row that a
ciphertext allows: the square, and the map.

Expected: 96.9 % of the digits right; 20 of 20 encrypted predictions are the plain ones, an output
differs by at most 0.2; some seconds a picture on one core.
    pip install tenseal
    python examples/06_encrypted_digits.py        # or fewer pictures: ... 3
"""

import sys
import time

import tenseal
import torch
from torch.nn import functional as F

import quadric
from quadric.data import digits
from quadric.layers import QuadraticLayer

data = digits.load()
train, test = (data.normalization(x).flatten(1) for x in (data.train_images, data.test_images))
sizes = {"in_features": 64, "hidden": (24, 24), "out_features": 10, "activation": "none"}
model = quadric.models.create("mlp", "shared", rank=4, seed=0, **sizes)
optimizer = torch.optim.Adam(quadric.param_groups(model, lr=1e-2, quadratic_lr=1e-3))
torch.manual_seed(0)
for _ in range(30):
    for rows in torch.randperm(len(train)).split(64):
        optimizer.zero_grad()
        F.cross_entropy(model(train[rows]), data.train_labels[rows]).backward()
        optimizer.step()
plain = model(test).detach()
print(f"plain: {(plain.argmax(1) == data.test_labels).float().mean():.1%} of the digits right")
# Each layer: the map of what comes in, and of its squares. A last number, always 1, holds biases.
layers, mixing = [], None
for layer in (m for m in model.children() if hasattr(m, "weight")):
    linear = F.pad(torch.cat([layer.weight, layer.bias[:, None]], 1).detach(), (0, 0, 0, 1))
    linear[-1, -1] = 1
    layers.append((linear, None if mixing is None else F.pad(layer.weight @ mixing, (0, 1, 0, 1))))
    if isinstance(layer, QuadraticLayer):
        mixing = layer.blocks.matrix(layer.effective_eigenvalues().detach())
# The client has the keys. Five multiplications in a row, 28 bits each.
bits = [38, 28, 28, 28, 28, 28, 38]
context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=bits)
context.global_scale = 2**28
context.generate_galois_keys()
same, count, begin = 0, int(sys.argv[1]) if len(sys.argv) > 1 else 20, time.perf_counter()
for i in range(count):
    z = tenseal.ckks_vector(context, [*test[i].tolist(), 1.0])  # the server cannot read this
    for linear, squares in layers:
        mapped = z.mm(linear.T.tolist())
        z = mapped if squares is None else mapped + z.square().mm(squares.T.tolist())
    same += int(torch.tensor(z.decrypt()[:-1]).argmax() == plain[i].argmax())
print(f"encrypted: {same} of {count} predictions are the plain ones")
print(f"{(time.perf_counter() - begin) / count:.1f} s a picture")
