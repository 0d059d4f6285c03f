# %% [markdown]
# # A law and its couplings
#
# Small networks learn laws from samples. Then we ask what they found: which columns depend on each
# other, and what is the formula?

# %%
import torch
from torch import nn

import quadric
from quadric import analysis
from quadric.data import load

table = load("law:kinetic-energy", train_size=4000, test_size=1000)
scale = table.standardization()
print(table.input_names, "→", table.target_name)


# %% [markdown]
# ## Fit it
#
# The law is m (v² + u² + w²) / 2. The network does not know it. It has two layers and SiLU, and
# takes columns of mean 0 and deviation 1. The linear one is wider, so that it has more parameters.


# %%
def fit(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int = 2000) -> nn.Module:
    optimizer = torch.optim.Adam(quadric.param_groups(model, lr=5e-3))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randint(len(x), (256,))
        optimizer.zero_grad()
        (model(x[rows]) - y[rows]).square().mean().backward()
        optimizer.step()
        schedule.step()
    return model.eval()


train = scale.inputs(table.train_inputs), scale.targets(table.train_targets)
test = scale.inputs(table.test_inputs), scale.targets(table.test_targets)
for neuron, width in (("linear", 20), ("shared", 16)):
    torch.manual_seed(0)
    options = {} if neuron == "linear" else {"rank": 4}
    network = nn.Sequential(
        quadric.make_layer(nn.Linear, 4, width, neuron=neuron, **options),
        nn.SiLU(),
        quadric.make_layer(nn.Linear, width, width, neuron=neuron, **options),
        nn.SiLU(),
        nn.Linear(width, 1),
    )
    fit(network, *train)
    with torch.no_grad():
        error = (network(test[0]) - test[1]).square().mean().sqrt()
    size = sum(p.numel() for p in network.parameters())
    print(f"{neuron}: {size} parameters, error {error:.4f} of the target's deviation")

# %% [markdown]
# ## Which columns does it couple?
#
# The mixed second derivative of the output says how far the effect of one column depends on
# another. The law couples the mass with each speed, and no speed with another. The last network is
# the shared one:

# %%
found = analysis.analyze(network, table)
for pair in found["couplings"]["pairs"]:
    names = " × ".join(pair["columns"])
    print(
        f"{names}  whole network {pair['total']:6.2f} J   quadratic forms {pair['strength']:5.2f} J"
    )

# %%
analysis.figures.couplings(found, width=7)

# %% [markdown]
# The whole network has it right: three strong pairs, all with the mass. The quadratic forms do a
# part of that, and the activations the rest. The diagonal is the bend along one column: strong for
# the three speeds, which the law squares. It does not square the mass, so what the network bends
# there is its error.
#
# ## The formula
#
# A network without activations is a polynomial. `to_sympy` multiplies it out. Here is the power of
# a motor, voltage times current minus half the square of the speed, with a little noise:

# %%
torch.manual_seed(0)
columns = torch.rand(2000, 3) * 4
voltage, current, speed = columns.T
power = voltage * current - 0.5 * speed**2 + 0.05 * torch.randn(2000)

motor = nn.Sequential(quadric.make_layer(nn.Linear, 3, 8, neuron="shared", rank=4), nn.Linear(8, 1))
fit(motor, columns, power[:, None], steps=3000)
formula = analysis.to_sympy(motor, names=["voltage", "current", "speed"], digits=2)
print(formula)

# %% [markdown]
# The large factors are those of the law, 1 and −0.5. What is left over is small, and comes from the
# noise. The same numbers as couplings, the mean factor of each product:

# %%
names = ["voltage", "current", "speed"]
for entry in analysis.analyze(motor, columns, names=names)["couplings"]["pairs"]:
    print(f"{' × '.join(entry['columns']):17} {entry['coefficient']:+.3f}")
