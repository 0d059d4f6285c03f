"""Fine-tune a converted vision transformer with the Trainer of transformers, on the 8x8 digits.

A small linear ViT is trained, made quadratic, and trained on: all of it, then the squares alone.
Each time a control without squares is trained on in the same way.

Expected: 0.80 of the test digits, linear. With all weights trained on, 0.91 with squares and 0.91
without: at this rate the squares stay unused (share 0.000). With the weights frozen they are: 0.82
by the squares alone (4,800 numbers), 0.80 by the biases alone (810). Takes a minute.
    python examples/03_finetune_vit.py
"""

import argparse
import copy
import tempfile

import torch
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import quadric

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=float, default=8)
epochs = parser.parse_args().epochs
torch.manual_seed(0)
pictures, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
pictures = (pictures / 16).float().view(-1, 1, 8, 8)
pairs = zip(pictures[:1400], labels[:1400], strict=True)
samples = [{"pixel_values": picture, "labels": label} for picture, label in pairs]


def train(model: torch.nn.Module, groups: list[dict], what: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = {"use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
        settings |= {"num_train_epochs": epochs, "per_device_train_batch_size": 32}
        optimizer, arguments = torch.optim.AdamW(groups), TrainingArguments(folder, **settings)
        Trainer(model, arguments, train_dataset=samples, optimizers=(optimizer, None)).train()
    with torch.no_grad():
        right = model.eval()(pictures[1400:]).logits.argmax(1) == labels[1400:]
    print(f"{what}: {right.float().mean():.3f}")


size = {"hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
input_size = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10}
linear = ViTForImageClassification(ViTConfig(**size, intermediate_size=80, **input_size))
train(linear, [{"params": linear.parameters(), "lr": 5e-4}], "linear")
quadratic, adapter, control, biases = (copy.deepcopy(linear) for _ in range(4))

train(control, [{"params": control.parameters(), "lr": 5e-4}], "trained on, linear")
print(quadric.convert_(quadratic))
groups = quadric.param_groups(quadratic, lr=5e-4)
train(quadratic, groups, "trained on, quadratic")
print(f"quadratic share: {quadric.quadratic_share(quadratic, [pictures[1400:]]).mean:.3f}")

quadric.convert_(adapter, neuron="shared")
train(adapter, quadric.param_groups(adapter, 5e-4, 2e-2, only="quadratic"), "squares alone")
chosen = [p for name, p in biases.named_parameters() if name.endswith("bias")]
train(biases, [{"params": chosen, "lr": 1e-2}], "biases alone")
