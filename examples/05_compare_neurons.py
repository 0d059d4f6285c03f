"""Three neurons on handwritten digits, three seeds each: a pandas table and a figure.

The runs are kept in runs/, and finished ones are not trained again: a second start only draws.
Needs the extras train, tables and plots.

Expected: in a minute, test accuracies of 0.989, 0.988 and 0.988, each within 0.005 from seed to
seed: on digits the three do not differ.
    python examples/05_compare_neurons.py
"""

import sys

import pandas as pd

import quadric

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 20

runs = quadric.train.sweep("digits", neuron=["linear", "eigen", "shared"], seeds=3, epochs=epochs)

frame = quadric.train.results(runs)
print(frame.groupby("neuron")[["params", "test_accuracy", "test_loss"]].agg(["mean", "std"]))

curves = pd.concat([run.epochs.assign(neuron=run.recipe.neuron) for run in runs])
means = curves.pivot_table("test_loss", "epoch", "neuron")  # over the seeds
axes = means.plot(logy=True, ylabel="test loss, mean of three seeds")
axes.figure.savefig("neurons.png", dpi=150)
print("wrote neurons.png")
