"""Convert a model of your own and train it on: the curvature grows where the linear one stalls.

A small network of linear layers learns products of its inputs. Converted, it computes exactly the
same function, and further training grows its eigenvalues. For comparison the linear network is
trained on as well.

Expected: "difference after conversion: 0.0", and in the end an error about half of the linear
network's. Takes half a minute.
    python examples/01_convert_your_model.py
"""

import argparse
import copy

import torch
from torch import nn

import quadric


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 20), nn.SiLU(), nn.Linear(20, 20), nn.SiLU())
        self.head = nn.Linear(20, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def train(model: nn.Module, steps: int) -> float:
    optimizer = torch.optim.Adam(quadric.param_groups(model, lr=3e-3))
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=500)
steps = parser.parse_args().steps

torch.manual_seed(0)
x = torch.rand(1000, 6) * 4 - 2
y = (x[:, :3] * x[:, 3:]).sum(1, keepdim=True)
linear = Net()
print(f"mean squared error before: {train(linear, steps):.5f}")

quadratic = copy.deepcopy(linear)
print(quadric.convert_(quadratic, neuron="shared", rank=4))
print("difference after conversion:", (quadratic(x) - linear(x)).abs().max().item())

print(f"trained on, linear:    {train(linear, steps):.5f}")
print(f"trained on, quadratic: {train(quadratic, steps):.5f}")
