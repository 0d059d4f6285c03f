# %% [markdown]
# # A resonance, with error bars
#
# 500 measurements of a driven oscillator: frequency, damping, and the amplitude with a noise of 1 %
# of its deviation. A small network learns the amplitude in seconds, knows how large the noise is,
# and says how sure it is of each prediction.

# %%
import time

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from quadric.sklearn import QuadraticRegressor


def amplitude(frequency, damping):
    return 1 / np.hypot(1 - frequency**2, damping * frequency)


draw = np.random.default_rng(0)
table = pd.DataFrame(
    {"frequency": draw.uniform(0.2, 2, 500), "damping": draw.uniform(0.2, 0.6, 500)}
)
truth = amplitude(table["frequency"], table["damping"])
noise = 0.01 * truth.std()
table["amplitude"] = truth + noise * draw.normal(size=len(table))
table.head()

# %% [markdown]
# ## Fit
#
# Two hidden layers of 10 neurons. Adam alone stops far above the noise; `solver="lm"` goes on with
# Levenberg-Marquardt. Linear neurons, with the same solver and some more parameters, do better
# here: the gain comes from the solver. Four members lower the error further, and know how far they
# lie apart. Seconds are those of one core.

# %%
X, y = table[["frequency", "damping"]], table["amplitude"]
new = pd.DataFrame(
    {"frequency": draw.uniform(0.2, 2, 2000), "damping": draw.uniform(0.2, 0.6, 2000)}
)
new_truth = amplitude(new["frequency"], new["damping"])

models = {}
for neuron, hidden, solver, members in (
    ("shared", (10, 10), "adam", 1),
    ("shared", (10, 10), "lm", 1),
    ("linear", (16, 16), "lm", 1),
    ("shared", (10, 10), "lm", 4),
):
    model = QuadraticRegressor(
        hidden, neuron=neuron, solver=solver, members=members, random_state=0
    )
    start = time.process_time()
    model.fit(X, y)
    seconds = time.process_time() - start
    models[neuron, solver, members] = model
    error = np.sqrt(np.mean((model.predict(new) - new_truth) ** 2)) / noise
    print(
        f"{members} {neuron}, {solver}: {model.n_parameters_} parameters, {seconds:.1f} s, "
        f"error {error:.2f} times the noise"
    )

# %% [markdown]
# ## Error bars
#
# `predict(..., return_std=True)` gives the standard deviation of a new measurement, noise included.
# If it is right, 90 % of fresh measurements lie within 1.645 of them. Here it is somewhat too
# large: the few rows that were held out show more than the noise.

# %%
model = models["shared", "lm", 4]
mean, std = model.predict(new, return_std=True)
fresh = new_truth + noise * draw.normal(size=len(new))
inside = np.mean(np.abs(fresh - mean) < 1.645 * std)
print(f"{inside:.1%} of 2,000 fresh measurements lie in their intervals of 90 %")
print(f"noise: {noise:.4f}, error bars: {np.median(std):.4f} (median)")

# %%
line = pd.DataFrame({"frequency": np.linspace(0.05, 2.6, 300), "damping": 0.25})
mean, std = model.predict(line, return_std=True)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.plot(line["frequency"], amplitude(**line), "k--", lw=1, label="the law")
left.plot(line["frequency"], mean, label="the network")
left.fill_between(line["frequency"], mean - 2 * std, mean + 2 * std, alpha=0.25, label="2 std")
near = np.abs(table["damping"] - 0.25) < 0.02
left.plot(table["frequency"][near], y[near], ".", color="0.4", label="measured, damping .23–.27")
left.axvspan(2, 2.6, color="0.93", zorder=0)
left.axvspan(0.05, 0.2, color="0.93", zorder=0)
left.set(xlabel="frequency", ylabel="amplitude", title="gray: outside of the data", ylim=(-1, 5))
left.legend(frameon=False, fontsize=8)
right.semilogy(line["frequency"], std / noise)
right.axvspan(2, 2.6, color="0.93", zorder=0)
right.axvspan(0.05, 0.2, color="0.93", zorder=0)
right.set(xlabel="frequency", ylabel="error bar / noise", title="it grows where nothing is known")
plt.show()

# %% [markdown]
# ## Residuals
#
# What is left should be noise: no pattern over the inputs, and in units of the error bars a normal
# distribution. It is narrower here, as the error bars are somewhat too large.

# %%
mean, std = model.predict(X, return_std=True)
residual = (y - mean) / std
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
left.plot(table["frequency"], residual, ".", ms=3)
left.axhline(0, color="k", lw=0.5)
left.set(xlabel="frequency", ylabel="residual / error bar")
bins = np.linspace(-4, 4, 33)
right.hist(residual, bins, density=True)
right.plot(bins, np.exp(-(bins**2) / 2) / np.sqrt(2 * np.pi), "k--", lw=1)
right.set(xlabel="residual / error bar", title="dashed: the normal distribution")
plt.show()
print(f"deviation {residual.std():.2f}, largest {np.abs(residual).max():.1f}")

# %% [markdown]
# The noise here is equally strong everywhere. Where it is not, one level for all is wrong: see
# [least squares](../least_squares.md#error-bars).
