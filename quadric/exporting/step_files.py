"""A translation network as two ONNX files: the encoder, and one step of the decoder.

The encoder takes `source`, token numbers (sentences, tokens) filled up with 0. It gives `mask`,
which is False at the padding, and the decoder's keys and values of the source. The step takes
`tokens`, the newest token of each beam (sentences, beams), the mask, the keys and values of the
source and those of the earlier tokens (sentences, beams, heads, tokens, size; no tokens at the
first step). It gives the logits of the next token and the keys and values of the next step. All
sizes but those of the network are free.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from quadric.exporting.checking import TOLERANCES, checked_difference
from quadric.exporting.folding import FoldingReport
from quadric.exporting.onnx_file import OPSET, open_session, run_session, write_onnx
from quadric.exporting.pipeline import copied, with_onnx_forms
from quadric.support.extras import require
from quadric.support.writing import whole_file


class Encoder(nn.Module):
    """The part of a network that reads the source."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, source: Tensor) -> tuple[Tensor, ...]:
        """The mask, and keys and values one after the other."""
        memory: Any = self.network.encode(source)
        return (memory.mask, *(tensor for pair in memory.keys_values for tensor in pair))


class Step(nn.Module):
    """One step of the decoder."""

    def __init__(self, network: Any, memory: Any) -> None:
        super().__init__()
        self.network = network
        self.memory = memory

    def forward(
        self, tokens: Tensor, mask: Tensor, memory: list[Tensor], past: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """The logits, and the past of the next step, with a dimension for the beams."""
        beams = tokens.shape[1]
        rows = [tensor.flatten(0, 1) for tensor in past]
        logits, after = self.network.step(tokens, _pairs(rows), self.memory(_pairs(memory), mask))
        kept = (tensor.unflatten(0, (-1, beams)) for pair in after for tensor in pair)
        return (logits, *kept)


def _pairs(tensors: list[Tensor]) -> tuple[tuple[Tensor, Tensor], ...]:
    return tuple(zip(tensors[::2], tensors[1::2], strict=True))


@dataclass(frozen=True)
class StepFiles:
    """The two files of a network."""

    encoder: Path  # path of the encoder
    step: Path  # path of the decoder's step

    @classmethod
    def beside(cls, path: Path) -> StepFiles:
        """The files for `model.onnx`: `model-encoder.onnx` and `model-step.onnx`."""
        return cls(*(path.with_name(f"{path.stem}-{part}.onnx") for part in ("encoder", "step")))

    @property
    def size(self) -> int:
        """Bytes of both."""
        return self.encoder.stat().st_size + self.step.stat().st_size


def export_steps(network: Any, path: Path, opset: int = OPSET) -> StepFiles:
    """Writes a translation network as ONNX files, checked against the network."""
    require("onnx", "the export of a translation network")
    plain, network = network, with_onnx_forms(copied(network), FoldingReport())
    source, tokens = torch.tensor([[5, 6, 7, 2], [4, 2, 0, 0]]), torch.tensor([[1] * 3] * 2)
    with torch.no_grad():
        memory = network.encode(source)
        past: Any = network.empty_past(6)
        for _ in range(2):  # so that there is a past
            _, past = network.step(tokens, past, memory)
    seen = [tensor for pair in memory.keys_values for tensor in pair]
    before = [tensor.unflatten(0, (2, 3)) for pair in past for tensor in pair]
    free = Dim.DYNAMIC
    shapes = {"tokens": {0: free, 1: free}, "mask": {0: free, 3: free}}
    lists: dict[str, Any] = {
        "memory": [{0: free, 2: free}] * len(seen),
        "past": [{0: free, 1: free, 3: free}] * len(before),
    }
    step = Step(network, type(memory))
    files = StepFiles.beside(path)
    with whole_file(files.step) as place:  # the encoder moves along
        made = StepFiles(place.with_name(files.encoder.name), place)
        inputs = (tokens, memory.mask, seen, before)
        read = {"source": {0: free, 1: free}}
        write_onnx(Encoder(network), (source,), read, made.encoder, opset, network)
        write_onnx(step, inputs, shapes | lists, made.step, opset, network)
        _compare(copied(plain), made)
    return files


class OnnxNetwork:
    """The files of `export_steps` in ONNX Runtime, as `beam_search` takes a network."""

    def __init__(self, files: StepFiles) -> None:
        self.encoder, self.decoder = open_session(files.encoder), open_session(files.step)
        keys = [value for value in self.decoder.get_inputs() if value.name.startswith("past")]
        self.past_shape = int(keys[0].shape[2]), int(keys[0].shape[4])
        self.count = len(keys)

    def encode(self, source: Tensor) -> _Memory:
        """Reads source sentences."""
        return _Memory(run_session(self.encoder, [source]))

    def empty_past(self, rows: int) -> tuple[tuple[Tensor, Tensor], ...]:
        """Keys and values of no tokens."""
        heads, size = self.past_shape
        return _pairs([torch.empty(rows, heads, 0, size)] * self.count)

    def step(self, tokens: Tensor, past: Any, memory: _Memory) -> tuple[Tensor, Any]:
        """Takes one token per beam and gives the logits of the next."""
        shape = tokens.shape
        rows = [tensor.unflatten(0, shape) for pair in past for tensor in pair]
        logits, *after = run_session(self.decoder, [tokens, *memory.tensors, *rows])
        return logits, _pairs([tensor.flatten(0, 1) for tensor in after])


@dataclass(frozen=True)
class _Memory:
    tensors: list[Tensor]

    def select(self, index: Tensor) -> _Memory:
        """The memory of some of the sentences."""
        return _Memory([tensor[index] for tensor in self.tensors])


@torch.no_grad()
def _compare(network: Any, files: StepFiles) -> None:
    """Takes a few steps with both, at sizes that no example had, one of them with padding."""
    theirs = OnnxNetwork(files)
    draw = torch.Generator().manual_seed(0)
    for sentences, beams, length in ((1, 1, 1), (3, 4, 7)):
        source = torch.randint(3, 9, (sentences, length), generator=draw)
        source[-1, 4:] = 0  # a shorter sentence, filled up
        both = [(one, one.encode(source)) for one in (network, theirs)]
        pasts = [one.empty_past(sentences * beams) for one, _ in both]
        for _ in range(3):
            tokens = torch.randint(3, 9, (sentences, beams), generator=draw)
            steps = [
                one.step(tokens, past, memory)
                for (one, memory), past in zip(both, pasts, strict=True)
            ]
            (ours, _), (other, _) = steps
            pasts = [past for _, past in steps]
            limit = TOLERANCES[torch.float32]
            checked_difference([ours], [other], limit, sentences, "ONNX Runtime")
