# %% [markdown]
# # Your table, from the file to ONNX
#
# A file is compared, fitted and shipped as an ONNX network that takes the columns as they are.
#
# The file here holds 3,000 results of a simulation: the force on a charge in an electric and a
# magnetic field. Put your own in its place.

# %%
import numpy as np
import onnxruntime
import pandas as pd
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import cross_val_score, train_test_split

import quadric
from quadric.data import load
from quadric.sklearn import QuadraticRegressor, compare

law = load("law:lorentz", train_size=3000)
table = pd.DataFrame(law.train_inputs.numpy(), columns=law.input_names)
table["force"] = law.train_targets.numpy()
table.to_csv("table.csv", index=False)
print(table.head(3).to_string(float_format="%.2f"))

# %% [markdown]
# ## Does a quadratic network help?
#
# `compare` fits networks of equal size on the same folds, and other models beside them. It is also
# a command, `quadric compare table.csv --target force`. Three folds and one start make it short:

# %%
print(compare("table.csv", target="force", folds=3, seeds=1))

# %% [markdown]
# The shared network has less than half the error of the linear one, on each of the folds less. But
# three folds and one start are too few for an interval. With the defaults `compare` does call it
# clear, on [more samples of this law](../compare.md#what-it-said-known-tables). The force is a
# smooth function without noise, full of products: that is where quadratic neurons help. With noise
# on top, nothing of the gain is left:

# %%
noise = np.random.default_rng(0).normal(scale=0.3 * table["force"].std(), size=len(table))
table.assign(force=table["force"] + noise).to_csv("noisy.csv", index=False)
print(compare("noisy.csv", target="force", folds=3, seeds=1, baselines=False).verdict())

# %% [markdown]
# ## Fit it
#
# The estimator takes the frame as it is, and works wherever scikit-learn's do. `compare` trains one
# network longer, with `learning_rate="adaptive"`; the estimator is the mean of four:

# %%
frame = pd.read_csv("table.csv")
inputs, target = frame.drop(columns="force"), frame["force"]
for model in (QuadraticRegressor(random_state=0), HistGradientBoostingRegressor(random_state=0)):
    scores = cross_val_score(model, inputs, target, cv=3, scoring="neg_root_mean_squared_error")
    print(f"{type(model).__name__:29} error {-scores.mean():.2f} ± {scores.std():.2f}")

# %% [markdown]
# ## Ship it
#
# `to_torch` gives a network that takes the columns in their own units, and NaN for a hole.
# `export_onnx` writes it, runs the file and compares.

# %%
learned, tested, learned_target, tested_target = train_test_split(inputs, target, random_state=0)
model = QuadraticRegressor(random_state=0).fit(learned, learned_target)
rows = tested.to_numpy()
report = quadric.export_onnx(model.to_torch(), "table.onnx", torch.from_numpy(rows[:5]))
print(report)

# %% [markdown]
# The file needs neither Quadric nor torch:

# %%
session = onnxruntime.InferenceSession("table.onnx")
(answer,) = session.run(None, {session.get_inputs()[0].name: rows})
print("largest difference to predict:", np.abs(answer.ravel() - model.predict(tested)).max())
error = np.sqrt(np.mean((answer.ravel() - tested_target) ** 2))
print(f"error on new rows: {error:.2f}, where the force varies by {tested_target.std():.2f}")
