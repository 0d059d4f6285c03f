"""Burgers' equation by Levenberg-Marquardt, with the viscosity known and with it unknown.

u_t + u u_x = nu u_xx from u = -sin(pi x). In the second fit nu = 0.05 is found from 100 values of
the first one.

Expected: in about 15 seconds of one core, a mean square of 2e-7, and 0.05000.
    python examples/07_burgers.py
"""

import argparse
import math

import torch
from torch import Tensor, nn
from torch.func import grad, hessian

from quadric.solve import Field, Term, least_squares


class Front(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 1)]
        self.layers = nn.Sequential(*layers)
        self.viscosity = nn.Parameter(torch.tensor(0.05), requires_grad=False)

    def forward(self, p: Tensor) -> Tensor:
        t, x = p[:, 0:1], p[:, 1:2]
        return (1 - x**2) * t * self.layers(p) - torch.sin(math.pi * x)


def burgers(u: Field, p: Tensor) -> Tensor:
    slope = grad(u)(p)
    return slope[0] + u(p) * slope[1] - u.parameters["viscosity"] * hessian(u)(p)[1, 1]


def points(count: int) -> Tensor:
    return torch.rand(count, 2, dtype=torch.float64) * torch.tensor([1.0, 2.0]) - torch.tensor(
        [0, 1]
    )


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=150)
steps = parser.parse_args().steps
torch.manual_seed(0)
known = Front().double()
term = Term(burgers, points(800), draw=lambda: points(3000))  # others every 20 steps
fit = least_squares(known, terms=[term], regularization=None, max_steps=steps, progress=True)
print(f"known viscosity: mean square of the equation {fit.loss:.1e}, {fit.seconds:.0f} s")

seen = points(100)
with torch.no_grad():
    measured = torch.cat([seen, known(seen)], 1)  # t, x, u: values beside the points
unknown = Front().double()
unknown.viscosity.fill_(0.2).requires_grad_()
terms = [term, Term(lambda u, p: u(p[:2]) - p[2], measured, weight=10)]
fit = least_squares(unknown, terms=terms, regularization=None, max_steps=steps)
print(f"unknown viscosity, from 0.2: {float(unknown.viscosity.detach()):.5f}, {fit.seconds:.0f} s")
