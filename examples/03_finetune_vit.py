"""Fine-tune a converted vision transformer with the Trainer of transformers, on the 8x8 digits.

A small ViT is trained as a linear network, then made quadratic where curvature promises most, and
trained on with the eigenvalues in a group of their own.

Expected: the conversion changes nothing, and the accuracy on the test digits rises from about 0.8
to about 0.9. Takes a minute.
    python examples/03_finetune_vit.py
"""

import argparse
import tempfile

import torch
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import quadric

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=float, default=8)
epochs = parser.parse_args().epochs

torch.manual_seed(0)
pictures, labels = load_digits(return_X_y=True)
pictures = torch.tensor(pictures / 16, dtype=torch.float32).view(-1, 1, 8, 8)
labels = torch.tensor(labels)
samples = [
    {"pixel_values": x, "labels": y} for x, y in zip(pictures[:1400], labels[:1400], strict=True)
]


def train(model: torch.nn.Module, groups: list[dict]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = {"use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
        settings |= {"num_train_epochs": epochs, "per_device_train_batch_size": 32}
        arguments = TrainingArguments(folder, **settings)
        optimizer = torch.optim.AdamW(groups)
        Trainer(model, arguments, train_dataset=samples, optimizers=(optimizer, None)).train()


def accuracy(model: torch.nn.Module) -> float:
    with torch.no_grad():
        answers = model.eval()(pictures[1400:]).logits.argmax(1)
    return (answers == labels[1400:]).float().mean().item()


size = {"hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
input_size = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10}
model = ViTForImageClassification(ViTConfig(**size, intermediate_size=80, **input_size))
train(model, [{"params": model.parameters(), "lr": 5e-4}])
print(f"linear: {accuracy(model):.3f}")

batch = {"pixel_values": pictures[:256], "labels": labels[:256]}
scores = quadric.sensitivity(model, lambda model, batch: model(**batch).loss, [batch])
print(quadric.convert_(model, include=scores.top(6)))
print(f"converted: {accuracy(model):.3f}")
train(model, quadric.param_groups(model, lr=5e-4, quadratic_lr=5e-4))
print(f"quadratic: {accuracy(model):.3f}")
