# %% [markdown]
# # A first neuron and its surface
#
# One quadratic neuron tells the inside of a circle from the outside. One linear neuron cannot.

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
# ## Where it is positive
#
# The color of a place says what the neuron answers there, the color of a point what is right. A
# linear neuron cuts the plane along a line, the quadratic one along a curve.

# %%
line = torch.linspace(-3, 3, 200)
x, y = torch.meshgrid(line, line, indexing="xy")
grid = torch.stack((x.flatten(), y.flatten()), 1)
layers = {"linear": linear, "quadratic": neuron}
with torch.no_grad():
    values = {name: layer(grid)[:, 0].reshape(x.shape) for name, layer in layers.items()}

figure, row = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
for axes, (name, value) in zip(row, values.items(), strict=True):
    axes.contourf(x, y, value, levels=[-1e9, 0, 1e9], colors=["#0072B2", "#D55E00"], alpha=0.25)
    axes.scatter(points[:, 0], points[:, 1], c=inside, cmap="coolwarm", s=6)
    axes.set(title=name, xlabel="$x_1$", ylabel="$x_2$", aspect="equal", xlim=(-3, 3), ylim=(-3, 3))
plt.show()

# %% [markdown]
# ## Its surface
#
# The same two neurons from the side: the height is y. The linear one is a plane. The quadratic one
# is a bowl upside down, a quadric. Where they cross zero (black) is the border of the last picture.

# %%
figure = plt.figure(figsize=(8, 4), layout="constrained")
for place, (name, value) in enumerate(values.items(), start=1):
    axes = figure.add_subplot(1, 2, place, projection="3d")
    axes.plot_surface(x, y, value, cmap="viridis", alpha=0.8)
    axes.contour(x, y, value, levels=[0], colors="black", linewidths=2)
    axes.set(title=name, xlabel="$x_1$", ylabel="$x_2$")
    axes.view_init(elev=30, azim=60)
plt.show()

# %% [markdown]
# ## What it learned
#
# `to_dense` gives the neuron as x'Mx + w'x + b. Both eigenvalues of M are negative and nearly the
# same, and w is small: so y is positive inside a circle around zero, of radius √(−b / eigenvalue).
# The circle that made the data has the radius √1.2.

# %%
M, w, b = neuron.to_dense()
eigenvalues = torch.linalg.eigvalsh(M[0])
print("eigenvalues of M:", [f"{value:.2f}" for value in eigenvalues])
print("w:", [f"{value:.2f}" for value in w[0]], " b:", f"{b[0]:.2f}")
print(f"radius: {(-b[0] / eigenvalues.mean()).sqrt():.3f}, of the data {1.2**0.5:.3f}")

# %% [markdown]
# [What is a quadratic neuron?](../neuron.md) derives it, and a
# [law and its couplings](law_couplings.md) reads larger networks in the same way.
