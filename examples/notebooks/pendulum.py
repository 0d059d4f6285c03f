# %% [markdown]
# # A pendulum's law, from noisy readings
#
# A pendulum with friction was swung a few times. A sensor on it gave its angle, its speed and its
# acceleration, with noise, and the temperature, which does not matter. Which law do the readings
# follow, how sure is each number, and does it hold where nothing was measured?
#
# The readings are simulated: the acceleration is −(g/l) sin(angle) − b speed, with g/l = 12.26 (a
# length of 0.8 m) and b = 0.35.

# %%
import matplotlib.pyplot as plt
import numpy as np
from scipy.integrate import solve_ivp

from quadric.discover import formulas
from quadric.sklearn import QuadraticRegressor

GRAVITY_BY_LENGTH, FRICTION = 9.81 / 0.8, 0.35
draw = np.random.default_rng(0)


def swing(acceleration, start: float, times: np.ndarray) -> np.ndarray:
    """The angle over time, released from an angle at rest; rows of angle and speed."""

    def slope(_: float, state: np.ndarray) -> list[float]:
        return [state[1], float(acceleration(state[None])[0])]

    return solve_ivp(slope, (0, times[-1]), [start, 0.0], t_eval=times, method="RK23").y.T


def truth(states: np.ndarray) -> np.ndarray:
    return -GRAVITY_BY_LENGTH * np.sin(states[:, 0]) - FRICTION * states[:, 1]


# %% [markdown]
# Five swings from at most 1.5 radians, 120 readings each, 2 % noise in the acceleration.

# %%
times = np.linspace(0, 6, 120)
states = np.concatenate([swing(truth, start, times) for start in (-1.5, -0.9, 0.6, 1.2, 1.5)])
temperature = draw.normal(20, 2, len(states))
readings = np.column_stack([states, temperature])
acceleration = truth(states)
acceleration = acceleration + 0.02 * acceleration.std() * draw.normal(size=len(states))

# %%
found = formulas(
    readings, acceleration, names=["angle", "speed", "temperature"], target="acceleration"
)
print(found)

# %% [markdown]
# The temperature is not in it. Each number has its standard error; the truth is 12.26 and 0.35.

# %%
for c in found.formula.coefficients:
    print(f"{c.term:12} {c.value:8.4f} ± {c.standard_error:.4f}")

# %% [markdown]
# ## Where nothing was measured
#
# The law is asked for a swing from 2.9 radians, nearly upright: twice as far as any reading. A
# network learned from the same readings.

# %%
network = QuadraticRegressor((32, 32), neuron="linear", solver="adam", members=1, random_state=0)
network.fit(readings[:, :2], acceleration)


def law(states: np.ndarray) -> np.ndarray:
    return found.predict(np.column_stack([states, np.full(len(states), 20.0)]))


far = {
    name: swing(function, 2.9, times)[:, 0]
    for name, function in (("truth", truth), ("formula", law), ("network", network.predict))
}
for name in ("formula", "network"):
    print(f"{name}: wrong by {np.abs(far[name] - far['truth']).max():.3f} radians at most")

# %%
figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
axes.plot(times, far["truth"], color="0.7", linewidth=5, label="truth")
axes.plot(times, far["formula"], color="C0", label="formula")
axes.plot(times, far["network"], color="C3", linestyle="--", label="network")
axes.axhspan(-1.5, 1.5, color="0.95", zorder=0)
axes.set(xlabel="seconds", ylabel="angle (radians); gray: what was measured")
axes.legend()
plt.show()
