"""Digits read by a server that cannot see them: two processes, and only bytes between them.

A network of square neurons without activations is a polynomial, all that homomorphic encryption can
compute. This process is the client and has the secret key. The server is another process, with the
network and no key that decrypts.

Expected: 95 % of the digits right; 20 of 20 encrypted predictions are the plain ones, in less than
half a second each on one core.
    pip install 'quadric[encrypted,train]'
    python examples/06_encrypted_digits.py        # or fewer pictures: ... 3
"""

import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Client, Listener

import torch
from torch import nn

import quadric
from quadric.data import digits

if sys.argv[1:2] == ["serve"]:  # the server's process
    server = quadric.encrypted.load_server(sys.argv[2])
    with Listener(("127.0.0.1", 0)) as listener:
        print(listener.address[1], flush=True)
        with listener.accept() as wire:
            wire.send_bytes(server.run(wire.recv_bytes()))
    sys.exit()

data, count = digits.load(), int((sys.argv[1:] or ["20"])[0])
train, test = (data.normalization(x).flatten(1) for x in (data.train_images, data.test_images))
torch.manual_seed(0)
square = quadric.make_layer(nn.Linear(64, 32), "square")
model = nn.Sequential(square, nn.BatchNorm1d(32), nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(300):
    rows = torch.randperm(len(train))[:256]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(train[rows]), data.train_labels[rows]).backward()
    optimizer.step()
plain = model.eval()(test).argmax(1)
print(f"plain: {(plain == data.test_labels).float().mean():.1%} of the digits right")
client, server = quadric.encrypted.compile(model, train[:500])
with tempfile.TemporaryDirectory() as folder:
    server.save(f"{folder}/server")
    command = [sys.executable, __file__, "serve", f"{folder}/server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        port, begin = int(process.stdout.readline()), time.perf_counter()
        with Client(("127.0.0.1", port)) as wire:
            wire.send_bytes(client.encrypt(test[:count]))
            answer = wire.recv_bytes()
same = int((client.decrypt(answer).argmax(1) == plain[:count]).sum())
print(f"encrypted: {same} of {count} predictions are the plain ones")
print(f"{(time.perf_counter() - begin) / count:.2f} s a picture")
