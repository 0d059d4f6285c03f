# %% [markdown]
# # Convert a vision transformer
#
# A small ViT of the transformers library, trained on the 8×8 digits of scikit-learn, is made
# quadratic without losing anything, and trained on. The linear network is trained on as well:
# that is the control.

# %%
import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

import quadric

digits = load_digits()
x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
y = torch.tensor(digits.target)
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
test, train_rows = order[:400], order[400:]


def train(model: nn.Module, epochs: int, lr: float) -> None:
    optimizer = torch.optim.AdamW(quadric.param_groups(model, lr=lr))
    generator = torch.Generator().manual_seed(1)
    for _ in range(epochs):
        for rows in train_rows[torch.randperm(len(train_rows), generator=generator)].split(64):
            optimizer.zero_grad()
            model(pixel_values=x[rows], labels=y[rows]).loss.backward()
            optimizer.step()


@torch.no_grad()
def report(name: str, model: nn.Module) -> None:
    output = model(pixel_values=x[test], labels=y[test])
    right = (output.logits.argmax(1) == y[test]).float().mean()
    print(f"{name:24} test loss {output.loss:.3f}, {right:.1%} right")


# %%
torch.manual_seed(0)
config = ViTConfig(
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=96,
    image_size=8,
    patch_size=2,
    num_channels=1,
    num_labels=10,
)
linear = ViTForImageClassification(config)
train(linear, epochs=8, lr=2e-3)
report("linear", linear)

# %% [markdown]
# ## Convert
#
# The report lists every layer, and why a layer was left alone. The network gives the same numbers
# as before.

# %%
quadratic = copy.deepcopy(linear)
print(quadric.convert_(quadratic, neuron="shared", include=r".*\.mlp\.fc[12]"))
with torch.no_grad():
    same = torch.equal(linear(x[test]).logits, quadratic(x[test]).logits)
print("same output:", same)

# %% [markdown]
# ## Train on, both

# %%
for name, model in (("linear, trained on", linear), ("shared, trained on", quadratic)):
    train(model, epochs=6, lr=1e-3)
    report(name, model)

# %%
print(quadric.quadratic_share(quadratic, [x[test]]))

# %% [markdown]
# The quadratic share says how much of each layer's variation comes from the squares: here next to
# nothing, and both networks end at about the same accuracy. A short fine-tuning on an easy task
# leaves the curvature little to do.
