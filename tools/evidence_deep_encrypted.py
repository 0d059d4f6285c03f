"""CIFAR-10 by polynomial networks of ten levels: which cures help, and what encryption gives.

    python tools/evidence_deep_encrypted.py cures CIFAR     # short runs, one cure at a time
    python tools/evidence_deep_encrypted.py train CIFAR     # the recipe, and ReLU, shorter
    python tools/evidence_deep_encrypted.py real CIFAR      # simulated on all, encrypted on a few
    python tools/evidence_deep_encrypted.py all CIFAR       # one after the other

CIFAR is a folder with CIFAR-10, in its Python or its binary version. Results go to
results/encrypted/, the networks to the folder. What is there is not done again: delete it first.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from evidence_runs import run_cells, write_piece
from results_summary import ROOT
from torch import Tensor, nn

import quadric
from quadric import encrypted, models
from quadric import train as trainer
from quadric.data import cifar
from quadric.data.images import CropFlip, ImageData
from quadric.models.activations import Hermite
from quadric.support.provenance import peak_memory

RESULTS = ROOT / "results" / "encrypted"
EPOCHS, BATCH, RATE, DECAY, HELD, PICTURES = 4, 128, 4e-3, 0.05, 5000, 20_000
TEMPERATURE, WIDTH = 4.0, 0.5
RUNS = {"hermite": 16, "relu": 12}
"""The activations of the long runs, and their epochs."""
CALIBRATION, KEPT, TESTED, PICTURES_ENCRYPTED = 500, 0.95, 1000, 1


def load(folder: str | Path) -> ImageData:
    """CIFAR-10 of either version."""
    folder = Path(folder)
    binary = folder / "cifar-10-batches-bin"
    if not binary.is_dir():
        return cifar.load(cifar.CIFAR10, folder)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    files = [(binary / f"{name}.bin").read_bytes() for name in names]
    records = [torch.frombuffer(bytearray(f), dtype=torch.uint8).view(-1, 3073) for f in files]
    images = [part[:, 1:].reshape(-1, 3, 32, 32) for part in records]
    labels = [part[:, 0].long() for part in records]
    own = cifar.CIFAR10
    return ImageData(
        *(own.name, torch.cat(images[:-1]), torch.cat(labels[:-1]), images[-1], labels[-1]),
        *(own.mean, own.std, own.class_names, CropFlip()),
    )


class Parabola(nn.Module):
    """x² with the linear term kept: a x² + b x, the numbers learned for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(
            torch.tensor([0.5, 0.5])[:, None, None, None].repeat(1, width, 1, 1)
        )

    def forward(self, z: Tensor) -> Tensor:
        own: Tensor = (self.weights[0] * z + self.weights[1]) * z
        return own


class Slide(nn.Module):
    """From ReLU to another activation, by a share that training moves from 0 to 1."""

    def __init__(self, kind: Callable[[int], nn.Module], width: int) -> None:
        super().__init__()
        self.own, self.share = kind(width), 0.0

    def forward(self, z: Tensor) -> Tensor:
        made: Tensor = self.own(z)
        return made if self.share >= 1 else self.share * made + (1 - self.share) * z.relu()


def acting(make: Callable[[int], nn.Module]) -> nn.Module:
    """The network with other activations behind its BatchNorms."""
    model = models.create("cnn5", width=WIDTH, activation="none")
    for name, module in list(model.named_children()):
        if isinstance(module, nn.BatchNorm2d):
            model.set_submodule(name.replace("bn", "act"), make(module.num_features))
    return model


def sliding(kind: Callable[[int], nn.Module]) -> nn.Module:
    """The network on its way from ReLU to another activation."""
    return acting(functools.partial(Slide, kind))


@dataclass(frozen=True)
class Arm:
    """A network, and how it is trained."""

    make: Callable[[], nn.Module]
    clip: str = "all"
    penalty: float = 0.0
    teacher: bool = False
    rate: float = 1.0  # a factor of the rate of all
    first: float = 0.0  # the share of the epochs in which a ReLU network is trained, the teacher


def _neuron(neuron: str, **options: Any) -> Callable[[], nn.Module]:
    return functools.partial(
        models.create, "cnn5", neuron=neuron, width=WIDTH, activation="none", **options
    )


_hermite = functools.partial(models.create, "cnn5", width=WIDTH, activation="hermite")
_square = functools.partial(models.create, "cnn5", width=WIDTH, activation="square")
ARMS = {
    "ReLU": Arm(functools.partial(models.create, "cnn5", width=WIDTH)),
    "x², no cure": Arm(_square, clip="none"),
    "x², gradient clipped": Arm(_square),
    "x², clipped tensor by tensor": Arm(_square, clip="each"),
    "x², range penalty": Arm(_square, penalty=0.01),
    "x², BatchNorm per degree": Arm(_hermite),
    "a x² + b x": Arm(functools.partial(acting, Parabola)),
    "a x² + b x, from the ReLU network": Arm(functools.partial(sliding, Parabola), teacher=True),
    "square": Arm(_neuron("square")),
    "shared": Arm(_neuron("shared", rank=8)),
    "eigen": Arm(_neuron("eigen", rank=9)),
    "x², clipped, a tenth of the rate": Arm(_square, rate=0.1),
    "BatchNorm per degree, range penalty": Arm(_hermite, penalty=0.01),
    "half the time ReLU, then a x² + b x": Arm(
        functools.partial(sliding, Parabola), teacher=True, first=0.5
    ),
    "half the time ReLU, then BatchNorm per degree": Arm(
        functools.partial(sliding, Hermite), teacher=True, first=0.5
    ),
    "half the time ReLU, then convert_": Arm(
        functools.partial(models.create, "cnn5", width=WIDTH), teacher=True, first=0.5
    ),
}


def clip_(model: nn.Module, how: str) -> None:
    """Clips gradients: their norm at one; or each tensor's at a tenth of the tensor's own norm."""
    if how == "all":
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    elif how == "each":  # Brock et al. 2021
        for p in model.parameters():
            if p.grad is not None:
                most = 0.1 * p.detach().norm().clamp(min=1e-2)
                p.grad.mul_((most / p.grad.norm().clamp(min=1e-12)).clamp(max=1))


def fit(
    arm: Arm,
    model: nn.Module,
    data: ImageData,
    images: Tensor,
    labels: Tensor,
    teacher: nn.Module | None,
    share: float = 1.0,
) -> None:
    """One cycle of AdamW."""
    draw = torch.Generator().manual_seed(0)
    augment = CropFlip()
    rate = arm.rate * RATE
    groups = quadric.param_groups(model, lr=rate, quadratic_lr=rate)
    optimizer = torch.optim.AdamW(groups, weight_decay=DECAY)
    steps = round(share * EPOCHS * (len(images) // BATCH))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [g["lr"] for g in groups], steps)
    beyond: list[Tensor] = []
    if arm.penalty:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.register_forward_hook(
                    lambda m, x, y: beyond.append((y.abs() - 3).relu().square().mean())
                )
    slides = [m for m in model.modules() if isinstance(m, Slide)]
    for step in range(steps):
        if step % (len(images) // BATCH) == 0:
            order = torch.randperm(len(images), generator=draw)
        chosen = order[step % (len(images) // BATCH) * BATCH :][:BATCH]
        x = data.normalization(augment(images[chosen], draw))
        x = x.contiguous(memory_format=torch.channels_last)
        for slide in slides:
            slide.share = min(1.0, 2 * step / steps)
        beyond.clear()
        outputs = model(x)
        loss = F.cross_entropy(outputs, labels[chosen])
        if beyond:
            loss = loss + arm.penalty * torch.stack(beyond).sum()
        if teacher is not None:
            with torch.no_grad():
                right = teacher(x)
            soft = F.kl_div(
                (outputs / TEMPERATURE).log_softmax(1),
                (right / TEMPERATURE).softmax(1),
                reduction="batchmean",
            )
            loss = 0.5 * loss + 0.5 * TEMPERATURE**2 * soft
        optimizer.zero_grad()
        loss.backward()
        if not torch.isfinite(loss):
            return
        clip_(model, arm.clip)
        optimizer.step()
        schedule.step()


def right_share(model: nn.Module, data: ImageData, images: Tensor, labels: Tensor) -> float:
    """The share of pictures that are told right."""
    with torch.no_grad():
        outputs = [model(data.normalization(part)) for part in images.split(1000)]
    return float((torch.cat(outputs).argmax(1) == labels).double().mean())


def cures(folder: Path, file: Path) -> None:
    """Trains every arm once; judged by pictures held out of the training part."""
    data = load(folder)
    images, labels = data.train_images, data.train_labels
    settings = {
        "epochs": EPOCHS,
        "batch": BATCH,
        "rate": RATE,
        "decay": DECAY,
        "held_out": HELD,
        "pictures": PICTURES,
    }

    def measured(name: str) -> dict[str, Any]:
        arm, begin = ARMS[name], time.process_time()
        torch.manual_seed(0)
        model, teacher = arm.make(), None
        own = images[HELD:][:PICTURES], labels[HELD:][:PICTURES]
        if arm.teacher:
            teacher = ARMS["ReLU"].make().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            if arm.first:
                fit(ARMS["ReLU"], teacher, data, *own, None, arm.first)
            else:
                teacher.load_state_dict(torch.load(folder / "relu.pt"))
            teacher.eval()
            model.load_state_dict(teacher.state_dict(), strict=False)
        if name.endswith("convert_"):
            batch = data.normalization(own[0][:1000])
            quadric.convert_(model, activations="polynomial", example_inputs=batch)
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        fit(arm, model, data, *own, teacher, 1 - arm.first)
        model.eval()
        if name == "ReLU":
            torch.save(model.state_dict(), folder / "relu.pt")
        return {
            "params": sum(p.numel() for p in model.parameters()),
            "accuracy": right_share(model, data, images[:HELD], labels[:HELD]),
            "cpu_seconds": time.process_time() - begin,
        }

    run_cells(file, "rows", ("arm",), [(name,) for name in ARMS], measured, {"settings": settings})


def train(folder: Path, file: Path) -> None:
    """Trains the recipe, and the same network with ReLU."""
    rows = []
    code = {"code": [__file__], "dataset": f"{Path(__file__).stem}:load"}
    more: dict[str, Any] = {"dataset_options": {"folder": str(folder.resolve())}, **code}
    for activation, epochs in RUNS.items():
        own = {"activation": activation, "epochs": epochs, **more}
        found = trainer.run("cifar10-encrypted", run_dir=folder / activation, **own).values
        names = ("params", "test_accuracy", "test_loss", "seconds")
        rows.append({"activation": activation, "epochs": epochs} | {n: found[n] for n in names})
        write_piece(file, {"rows": rows})


def real(folder: Path, file: Path) -> None:
    """Simulates the encryption of the whole test set, and encrypts the first pictures of it."""
    data = load(folder)
    model = ARMS["x², BatchNorm per degree"].make()
    quadric.load_(model.eval(), folder / "hermite" / "weights.safetensors")
    images, labels = data.normalization(data.test_images[:TESTED]), data.test_labels[:TESTED]
    seen = data.normalization(data.train_images[:CALIBRATION])
    with torch.no_grad():
        plain = torch.cat([model(part) for part in images.split(1000)])
        most = model(seen).abs().amax(1)
    # One picture with an enormous output would leave no bits for the others.
    prepared = encrypted.prepare(model, seen[most <= most.quantile(KEPT)])
    plan = prepared.plan
    simulated = torch.cat([prepared.simulate(part) for part in images.split(1000)])
    facts: dict[str, Any] = {
        "tested": len(images),
        "largest_calibration_output": float(most.max()),
        "plain_accuracy": _share(plain, labels),
        "simulated_accuracy": _share(simulated, labels),
        "predictions_that_differ": int((simulated.argmax(1) != plain.argmax(1)).sum()),
        "outputs_out_of_range": int((plain.abs().amax(1) > 4 * plan.output_range).sum()),
        "largest_output": float(plain.abs().max()),
        "range": plan.output_range,
        "expected_error": prepared.error,
        "server_keys": plan.key_bytes,
        "plan": plan.to_dict(),
    }
    write_piece(file, facts, "tenseal")
    print(facts, flush=True)
    client, server = encrypted.compile(prepared)
    outputs, wall, cpu = [], 0.0, 0.0
    for picture in images[:PICTURES_ENCRYPTED].split(1):
        request = client.encrypt(picture)
        begin, used = time.perf_counter(), time.process_time()
        answer = server.run(request)
        wall, cpu = wall + time.perf_counter() - begin, cpu + time.process_time() - used
        outputs.append(client.decrypt(answer))
        found = torch.cat(outputs)
        count = len(found)
        more = {
            "pictures": count,
            "same_predictions": int((found.argmax(1) == plain[:count].argmax(1)).sum()),
            "right": int((found.argmax(1) == labels[:count]).sum()),
            "largest_error": float((found - plain[:count]).abs().max()),
            "seconds_a_picture": wall / count,
            "cpu_seconds_a_picture": cpu / count,
            "request": len(request),
            "answer": len(answer),
            "peak_memory": peak_memory(),
        }
        write_piece(file, {**facts, **more}, "tenseal")
        print(more, flush=True)


def _share(outputs: Tensor, labels: Tensor) -> float:
    return float((outputs.argmax(1) == labels).double().mean())


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("cures", "train", "real", "all"))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    if given.what in ("cures", "all"):
        cures(given.folder, RESULTS / "cures.json")
    if given.what in ("train", "all"):
        train(given.folder, RESULTS / "cifar10_training.json")
    if given.what in ("real", "all") and not (RESULTS / "cifar10.json").exists():
        real(given.folder, RESULTS / "cifar10.json")


if __name__ == "__main__":
    main()
