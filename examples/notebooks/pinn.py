# %% [markdown]
# # A network that solves a differential equation
#
# A damped oscillator, u'' + 0.4 u' + 9 u = 0, u(0) = 1, u'(0) = 0, on 0 ≤ t ≤ 4. The network is
# asked to fulfill the equation at random points; it never sees the solution. Linear and shared
# neurons have about the same number of parameters (shared fewer).

# %%
import math

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import quadric

DAMPING, STIFFNESS, END = 0.4, 9.0, 4.0


def solution(t: Tensor) -> Tensor:
    slow = DAMPING / 2
    fast = math.sqrt(STIFFNESS - slow**2)
    return torch.exp(-slow * t) * (torch.cos(fast * t) + slow / fast * torch.sin(fast * t))


# %%
class Oscillator(nn.Module):
    """u(t) = 1 + t² N(t): the two starting conditions hold by construction."""

    def __init__(self, neuron: str, width: int) -> None:
        super().__init__()
        options = {} if neuron == "linear" else {"rank": 4}
        self.net = nn.Sequential(
            quadric.make_layer(nn.Linear, 1, width, neuron=neuron, **options),
            nn.Tanh(),
            quadric.make_layer(nn.Linear, width, width, neuron=neuron, **options),
            nn.Tanh(),
            nn.Linear(width, 1),
        )

    def forward(self, t: Tensor) -> Tensor:
        return 1 + t.square() * self.net(2 * t / END - 1)


def train(model: nn.Module, steps: int = 3000) -> float:
    optimizer = torch.optim.Adam(quadric.param_groups(model, lr=5e-3))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        t = (torch.rand(200, 1) * END).requires_grad_()
        u = model(t)
        (first,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), t, create_graph=True)
        optimizer.zero_grad()
        (second + DAMPING * first + STIFFNESS * u).square().mean().backward()
        optimizer.step()
        schedule.step()
    t = torch.linspace(0, END, 400)[:, None]
    with torch.no_grad():
        return ((model(t) - solution(t)).norm() / solution(t).norm()).item()


# %%
fitted = {}
for neuron, width in (("linear", 24), ("shared", 20)):
    for seed in range(3):
        torch.manual_seed(seed)
        model = Oscillator(neuron, width)
        size = sum(p.numel() for p in model.parameters())
        error = train(model)
        fitted.setdefault(neuron, model)
        print(f"{neuron}, {size} parameters, seed {seed}: relative error {error:.3f}")

# %%
t = torch.linspace(0, END, 400)[:, None]
figure, axes = plt.subplots(figsize=(8, 3.5), layout="constrained")
axes.plot(t, solution(t), "k", lw=3, alpha=0.3, label="solution")
with torch.no_grad():
    for (neuron, model), color in zip(fitted.items(), ("#0072B2", "#D55E00"), strict=True):
        axes.plot(t, model(t), color=color, ls="--", label=f"{neuron}, seed 0")
axes.set(xlabel="time t", ylabel="u(t)")
axes.legend(loc="upper right")
plt.show()

# %% [markdown]
# In the same number of steps linear networks find the solution from none of the three starts,
# shared ones from two, and come closer from the third. Both could be trained for longer, and a
# step of a shared network takes more time. `examples/04_helmholtz.py` compares them on an equation
# in two dimensions, with the time.
