"""Convert GPT-2 and train its eigenvalues alone: an adapter of a few KB.

The model is built from a configuration (nothing is downloaded); with pretrained weights the lines
after `model = ` are the same. The head, which is tied to the embedding, stays linear.

Expected: the same logits before and after, +0.5 % parameters, the loss falls although not one
weight moves, and the adapter restores the model on top of the same weights. Takes 20 s.
    python examples/02_convert_gpt2.py
"""

import argparse
import copy
import os
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import quadric

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
steps = parser.parse_args().steps

torch.manual_seed(0)
size = {"n_embd": 120, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 128}
ends = {"bos_token_id": 0, "eos_token_id": 0}
model = GPT2LMHeadModel(GPT2Config(**size, **ends)).eval()
plain = copy.deepcopy(model)
text = torch.tensor([list(b"the quadric cuts its input space with a curved surface. ")])
before = model(text).logits

print(quadric.convert_(model))
print("largest change of a logit:", (model(text).logits - before).abs().max().item())

optimizer = torch.optim.Adam(
    quadric.param_groups(model, lr=0.0, quadratic_lr=0.02, only="quadratic")
)
for step in range(steps):
    loss = model(text, labels=text).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step in (0, steps - 1):
        print(f"step {step}: loss {loss.item():.3f}")

with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "adapter.safetensors")
    quadric.save(model, path, only="quadratic")
    print(f"adapter: {os.path.getsize(path):,} bytes")
    quadric.load_(plain, path)
print("restored:", torch.equal(plain(text).logits, model(text).logits))
