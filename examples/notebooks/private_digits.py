# %% [markdown]
# # Digits that the server cannot see
#
# A network of quadratic neurons without activation functions only adds and multiplies. That is all
# that homomorphic encryption can do: so a server can compute the network on numbers that it cannot
# read. Here both ends run in one notebook; [the page](../private_predictions.md) says what is
# protected, and `examples/06_encrypted_digits.py` has two processes.

# %%
import time

import torch
from torch import nn

import quadric
from quadric.data import digits

data = digits.load()
train, test = (data.normalization(x).flatten(1) for x in (data.train_images, data.test_images))


def trained(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*middle, nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(400):
        rows = torch.randperm(len(train))[:256]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(train[rows]), data.train_labels[rows]).backward()
        optimizer.step()
    model.eval()
    right = (model(test).argmax(1) == data.test_labels).float().mean()
    print(f"{right:.1%} of the test digits right")
    return model


relu = trained(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU())
square = quadric.make_layer(nn.Linear(64, 32), "square")
model = trained(square, nn.BatchNorm1d(32))

# %% [markdown]
# ## Can they be encrypted?
#
# The first cannot, and `check` says why. The second can. Nothing is encrypted yet.

# %%
print(quadric.encrypted.check(relu, train))
print(quadric.encrypted.check(model, train))

# %% [markdown]
# ## One answer soon
#
# `compile` makes keys and the two ends. What goes over the wire are bytes. A picture lies in one
# ciphertext, and the matrices are rotations and products of its slots.

# %%
client, server = quadric.encrypted.compile(model, train, packing="one")
request = client.encrypt(test[:3])
begin = time.perf_counter()
answer = server.run(request)
print(f"{(time.perf_counter() - begin) / 3:.2f} s a picture")
print(f"{len(request):,} bytes there, {len(answer):,} bytes back")
decrypted = client.decrypt(answer)
print("largest error", float((decrypted - model(test[:3])).abs().max()))
print("decrypted:", decrypted.argmax(1).tolist(), "right:", data.test_labels[:3].tolist())

# %% [markdown]
# ## Many answers cheaply
#
# Now each ciphertext holds one pixel of up to 4,096 pictures. All of them take as long as one.

# %%
client, server = quadric.encrypted.compile(model, train, packing="many")
request = client.encrypt(test)
begin = time.perf_counter()
answer = server.run(request)
seconds = time.perf_counter() - begin
decrypted, plain = client.decrypt(answer), model(test)
print(f"{seconds:.1f} s for {len(test)} pictures, in {client.plan.slots:,} slots")
print("predictions that differ:", int((decrypted.argmax(1) != plain.argmax(1)).sum()))

# %% [markdown]
# The server's part knows the network and no secret. Damaged or foreign messages are refused:

# %%
broken = request[:-1] + b"?"
try:
    server.run(broken)
except quadric.errors.InputError as error:
    print(error)
