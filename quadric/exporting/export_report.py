"""What an export wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quadric.exporting.folding import FoldingReport


@dataclass(frozen=True)
class ExportReport:
    """An exported file and how it was checked.

    Attributes:
        path: the file.
        format: "onnx" or "pt2".
        size: bytes, data beside the file included.
        difference: the largest difference to the model, relative to its largest output.
        batch_sizes: the sizes at which that was measured.
        folding: which BatchNorms are folded into their layers.
        opset: the version of the operators, in an ONNX file.
        operators: the number of times that an ONNX file uses each operator.
    """

    path: Path
    format: str
    size: int
    difference: float
    batch_sizes: tuple[int, ...]
    folding: FoldingReport
    opset: int | None = None
    operators: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        facts = {k: v for k, v in vars(self).items() if k != "folding" and v not in (None, {})}
        kept, folded = dict(self.folding.kept), len(self.folding.folded)
        return facts | {"path": str(self.path), "folded": folded, "kept": kept}

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.batch_sizes))
        what = "ONNX" if self.format == "onnx" else "torch.export program"
        lines = [
            f"{self.path}: {what}" + (f", opset {self.opset}" if self.opset else ""),
            f"size {self.size:,} bytes",
            f"largest difference to the model {self.difference:.1e}, at batch sizes {sizes}",
        ]
        if self.folding.folded or self.folding.kept:
            lines.append(str(self.folding))
        return "\n".join(lines)
