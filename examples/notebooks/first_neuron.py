# %% [markdown]
# # A first neuron and its surface
#
# One quadratic neuron learns a ring. One linear neuron cannot.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import quadric

torch.manual_seed(0)
points = torch.randn(600, 2)
inside = (points.square().sum(1) < 1.2).float()

# %% [markdown]
# An eigen layer with three outputs at rank 2 is one neuron: y and its two features. We use y
# alone.


# %%
def train(layer: nn.Module) -> float:
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(layer(points)[:, 0], inside)
        loss.backward()
        optimizer.step()
    return ((layer(points)[:, 0] > 0).float() == inside).float().mean().item()


linear, neuron = nn.Linear(2, 1), quadric.QuadraticLinear(2, 3, rank=2)
print(f"linear    {train(linear):.0%} right")
print(f"quadratic {train(neuron):.0%} right")

# %% [markdown]
# ## What it learned
#
# `to_dense` gives the neuron as x'Mx + w'x + b. Both eigenvalues of M are negative, so y is
# positive inside an ellipse.

# %%
M, w, b = neuron.to_dense()
print("eigenvalues of M:", torch.linalg.eigvalsh(M[0]).tolist())
print("w:", w[0].tolist(), " b:", b[0].item())

# %%
line = torch.linspace(-3, 3, 200)
x, y = torch.meshgrid(line, line, indexing="xy")
grid = torch.stack((x.flatten(), y.flatten()), 1)
figure, row = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
for axes, (title, layer) in zip(row, [("linear", linear), ("quadratic", neuron)], strict=True):
    with torch.no_grad():
        value = layer(grid)[:, 0].reshape(x.shape)
    axes.contourf(x, y, value, levels=[-1e9, 0, 1e9], colors=["#0072B2", "#D55E00"], alpha=0.25)
    axes.scatter(points[:, 0], points[:, 1], c=inside, cmap="coolwarm", s=6)
    axes.set(title=title, xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
plt.show()
