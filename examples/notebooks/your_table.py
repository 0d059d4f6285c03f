# %% [markdown]
# # Your table, from the file to ONNX
#
# A table is fitted, compared with other models, and shipped as an ONNX file.

# %%
import numpy as np
import onnxruntime
import torch
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import quadric
from quadric.sklearn import QuadraticRegressor

X, y = make_friedman1(2000, noise=0.5, random_state=0)
X = X.astype(np.float32)

# %% [markdown]
# Friedman's function has a product, a square and three straight columns; five more columns mean
# nothing. Three folds each, R²:

# %%
models = {
    "linear network": QuadraticRegressor(neuron="linear", random_state=0),
    "shared network": QuadraticRegressor(neuron="shared", rank=4, random_state=0),
    "boosted trees": HistGradientBoostingRegressor(random_state=0),
    "MLPRegressor": make_pipeline(
        StandardScaler(),
        MLPRegressor(hidden_layer_sizes=(64, 64), early_stopping=True, random_state=0),
    ),
}
for name, model in models.items():
    scores = cross_val_score(model, X, y, cv=3)
    print(f"{name:15} {scores.mean():.3f} ± {scores.std():.3f}")

# %% [markdown]
# A noisy table tells another story. On diabetes no model is much better than another, and a
# quadratic network has no advantage:

# %%
for name, model in models.items():
    scores = cross_val_score(model, *load_diabetes(return_X_y=True), cv=3)
    print(f"{name:15} {scores.mean():.3f} ± {scores.std():.3f}")

# %% [markdown]
# ## Ship it
#
# `to_torch` gives a network that takes the columns in their own units. `export_onnx` writes it,
# runs the file and compares.

# %%
train_X, test_X, train_y, test_y = train_test_split(X, y, random_state=0)
model = models["shared network"].fit(train_X, train_y)
report = quadric.export_onnx(model.to_torch(), "friedman.onnx", torch.from_numpy(test_X[:5]))
print(report)

# %%
session = onnxruntime.InferenceSession("friedman.onnx")
(answer,) = session.run(None, {session.get_inputs()[0].name: test_X})
print("largest difference to predict:", np.abs(answer.ravel() - model.predict(test_X)).max())
