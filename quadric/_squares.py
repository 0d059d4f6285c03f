"""The add of weighted squares, on the output of a linear map: forward and backward as plain
functions.

`EigenSquares` is the paper's neuron. Channels are neuron by neuron, `[y_0, f_01 … f_0k, y_1, …]`,
and each y receives `sum_j lambda_j f_j^2` of its own features. `SharedSquares` is our own step
beyond it: the channels of a group of k are features for each other, `z_i + sum_j L_ij z_j^2`.

Both are written three times over: `plain` is the formula, differentiable and never in place, the
truth for the other two; `forward_` and `backward` are what the autograd function in `_autograd.py`
runs. Squares are accumulated in float32 where the output is half precision, so that only the result
has to fit the dtype.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from quadric import _dense, kernels


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which squares are summed: float32 for the half precisions, else the dtype
    itself.
    """
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _cut(tensor: Tensor, dim: int, start: int, end: int, step: int = 1) -> Tensor:
    """A view of every `step`-th element from `start` to `end` along one dimension."""
    index = [slice(None)] * tensor.dim()
    index[dim] = slice(start, end, step)
    return tensor[tuple(index)]


def _per_channel(values: Tensor, shape: tuple[int, ...], trailing: int) -> Tensor:
    """Eigenvalues in `shape`, with `trailing` dimensions of size one behind for broadcasting."""
    return values.reshape(shape + (1,) * trailing)


def _left(
    bias: Tensor | None, out: Tensor, shape: kernels.Layout | None, dim: int
) -> Tensor | None:
    """The bias if the kernels add it, else None, and `out` has it."""
    if bias is None or (shape is not None and shape[2] == 1):
        return bias
    out.add_(_per_channel(bias.to(out.dtype), (-1,), -1 - dim))
    return None


def _backward_by_rows(
    grad: Tensor, kept: Tensor, eigenvalues: Tensor, plan: _dense.Plan | None, dim: int
) -> tuple[Tensor, Tensor] | None:
    """The gradients as matrix products of an output that lies in rows, if that can be done."""
    if plan is None or grad.dtype != kept.dtype:
        return None
    if grad.stride() != kept.stride():
        grad = torch.empty_like(kept).copy_(grad)
    result = torch.empty_like(kept)
    g, x, r = (_dense.as_rows(tensor, dim) for tensor in (grad, kept, result))
    sums = _dense.backward(g, x, eigenvalues.to(kept.dtype), plan, r)
    return None if sums is None else (result, sums.to(eigenvalues.dtype))


@dataclass(frozen=True)
class Finish:
    """What follows the squares in inference, to be computed in the same pass.

    Attributes:
        shift: is added to each channel, or None.
        relu: whether a ReLU comes last.
        scale: multiplies each channel first, or None.
    """

    shift: Tensor | None = None
    relu: bool = False
    scale: Tensor | None = None

    def __call__(self, out: Tensor, dim: int) -> Tensor:
        """The formula, with `dim` the channel dimension counted from the end."""
        if self.scale is not None:
            out = out * _per_channel(self.scale.to(out.dtype), (-1,), -1 - dim)
        if self.shift is not None:
            out = out + _per_channel(self.shift.to(out.dtype), (-1,), -1 - dim)
        return out.relu() if self.relu else out

    def apply_(self, out: Tensor, dim: int) -> None:
        """The same in place."""
        if self.scale is not None:
            out.mul_(_per_channel(self.scale.to(out.dtype), (-1,), -1 - dim))
        if self.shift is not None:
            out.add_(_per_channel(self.shift.to(out.dtype), (-1,), -1 - dim))
        if self.relu:
            out.relu_()


NOTHING = Finish()


@dataclass(frozen=True)
class EigenSquares:
    """The squares of the eigen neuron on an output laid out neuron by neuron.

    `dim` is the channel dimension counted from the end, `groups` the number of convolution groups,
    inside each of which the split into neurons starts anew.
    """

    rank: int
    dim: int = -1
    groups: int = 1
    kind: ClassVar[str] = "eigen"

    def widest(self, channels: int) -> int:
        """The number of channels of the widest neuron."""
        return min(self.rank + 1, channels // self.groups)

    def table(self, channels: int) -> kernels.Table:
        """The neurons as the kernels take them."""
        return _table(self, channels)

    def neuron_ranks(self, channels: int) -> tuple[int, ...]:
        """The rank of each neuron of a layer with `channels` outputs, in channel order."""
        full, rest = divmod(channels // self.groups, self.rank + 1)
        group = (self.rank,) * full + ((rest - 1,) if rest else ())
        return group * self.groups

    def num_eigenvalues(self, channels: int) -> int:
        """One per feature channel: all channels but the y of each neuron."""
        return channels - self.groups * -(-(channels // self.groups) // (self.rank + 1))

    def feature_mask(self, channels: int) -> list[bool]:
        """For each channel, whether it is a feature (True) or the y of a neuron (False)."""
        mask: list[bool] = []
        for rank in self.neuron_ranks(channels):
            mask += [False] + [True] * rank
        return mask

    def _split(self, out: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Views: the y that have features, the features of the full neurons, those of the smaller
        last one.

        Shapes, with the channel dimension C replaced: (groups, neurons), (groups, full, rank),
        (groups, rest).
        """
        dim = out.dim() + self.dim
        step = self.rank + 1
        grouped = out.unflatten(dim, (self.groups, -1)) if self.groups > 1 else out.unsqueeze(dim)
        size = int(grouped.shape[dim + 1])
        full, rest = divmod(size, step)
        end = size if rest > 1 else full * step
        ys = _cut(grouped, dim + 1, 0, end, step)
        features = last = None
        if full:
            block = _cut(grouped, dim + 1, 0, full * step).unflatten(dim + 1, (full, step))
            features = _cut(block, dim + 2, 1, step)
        if rest > 1:
            last = _cut(grouped, dim + 1, full * step + 1, size)
        return ys, features, last

    def _coefficients(
        self, eigenvalues: Tensor, channels: int, trailing: int
    ) -> tuple[Tensor, Tensor]:
        """Eigenvalues of the full neurons (groups, full, rank, 1…) and of the last one (groups,
        rest, 1…).
        """
        grouped = eigenvalues.reshape(self.groups, -1)
        full = channels // self.groups // (self.rank + 1)
        cut = full * self.rank
        features = _per_channel(grouped[:, :cut], (self.groups, full, self.rank), trailing)
        last = _per_channel(grouped[:, cut:], (self.groups, int(grouped.shape[1]) - cut), trailing)
        return features, last

    def sums(self, out: Tensor, eigenvalues: Tensor) -> Tensor:
        """The weighted squares of every neuron that has features: (groups, neurons) in place of the
        channels.
        """
        dtype = accumulation_dtype(out.dtype)
        dim = out.dim() + self.dim
        _, features, last = self._split(out)
        channels = int(out.shape[dim])
        lam, lam_last = self._coefficients(eigenvalues.to(dtype), channels, -1 - self.dim)
        parts = []
        if features is not None:
            f = features.to(dtype)
            parts.append((f * f * lam).sum(dim + 2))
        if last is not None:
            f = last.to(dtype)
            parts.append((f * f * lam_last).sum(dim + 1, keepdim=True))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim + 1)

    def has_features(self, channels: int) -> bool:
        """Whether any channel is a feature: a layer with one output a group is linear."""
        return self.num_eigenvalues(channels) > 0

    def plain(self, out: Tensor, eigenvalues: Tensor) -> Tensor:
        """The formula: differentiable to any order, traceable, and never in place."""
        dim = out.dim() + self.dim
        if not self.has_features(int(out.shape[dim])):
            # The eigenvalues are an empty tensor here: keep them in the graph, so that they get a
            # gradient.
            return out + eigenvalues.sum().to(out.dtype)
        if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
            return self._traced(out, eigenvalues)
        ys = self._split(out)[0]
        sums = self.sums(out, eigenvalues)
        new = (ys.to(sums.dtype) + sums).to(out.dtype)
        grouped = out.unflatten(dim, (self.groups, -1))
        size = int(grouped.shape[dim + 1])
        end = min(size, (int(new.shape[dim + 1]) - 1) * (self.rank + 1) + 1)
        mixed = torch.slice_scatter(grouped, new, dim + 1, 0, end, self.rank + 1)
        return mixed.flatten(dim, dim + 1)

    def _traced(self, out: Tensor, eigenvalues: Tensor) -> Tensor:
        """The formula for a compiler that fuses loops: all neurons alike, no slices, no
        concatenation.

        The last neuron is padded to full rank, a mask tells y from features, so that one loop sums
        and one adds.
        """
        dim = out.dim() + self.dim
        dtype = accumulation_dtype(out.dtype)
        step, trailing = self.rank + 1, -1 - self.dim
        size = int(out.shape[dim]) // self.groups
        neurons = -(-size // step)
        after = (0, 0) * trailing
        grouped = out.unflatten(dim, (self.groups, size))
        padded = torch.nn.functional.pad(grouped, (*after, 0, neurons * step - size))
        blocks = padded.unflatten(dim + 1, (neurons, step)).to(dtype)
        lam = eigenvalues.to(dtype).reshape(self.groups, -1)
        lam = torch.nn.functional.pad(lam, (0, neurons * self.rank - lam.shape[1]))
        lam = torch.nn.functional.pad(lam.unflatten(1, (neurons, self.rank)), (1, 0))
        is_y = torch.arange(step, device=out.device).reshape(step, *(1,) * trailing) == 0
        features = torch.where(is_y, 0, blocks)
        sums = (features * features * lam.reshape(*lam.shape, *(1,) * trailing)).sum(
            dim + 2, keepdim=True
        )
        mixed: Tensor = (blocks + torch.where(is_y, sums, 0)).to(out.dtype)
        return mixed.flatten(dim + 1, dim + 2).narrow(dim + 1, 0, size).flatten(dim, dim + 1)

    def forward(self, out: Tensor, eigenvalues: Tensor, bias: Tensor | None = None) -> Tensor:
        """The sum with the squares, as a new tensor, outside autograd. `out` gets a bias first."""
        shape = kernels.layout(out, self.dim)
        bias = _left(bias, out, shape, self.dim)
        if shape is not None:
            result = torch.empty_like(out)
            table = self.table(out.shape[self.dim])
            kernels.forward(self.kind, out, result, eigenvalues, table, shape, bias=bias)
            return result
        result = torch.empty_like(out).copy_(out)
        self.forward_(result, eigenvalues)
        return result

    def forward_(
        self,
        out: Tensor,
        eigenvalues: Tensor,
        finish: Finish = NOTHING,
        bias: Tensor | None = None,
    ) -> None:
        """Adds a bias and the squares to `out` in place, and what follows them. Without either the
        features stay as they are.
        """
        channels = out.shape[self.dim]
        shape = kernels.layout(out, self.dim)
        bias = _left(bias, out, shape, self.dim)
        if shape is not None:
            table = self.table(channels)
            after = (finish.shift, finish.relu, finish.scale)
            kernels.forward(self.kind, out, out, eigenvalues, table, shape, *after, bias)
            return
        if self.has_features(channels):
            self._add_(out, eigenvalues)
        finish.apply_(out, self.dim)

    def _add_(self, out: Tensor, eigenvalues: Tensor) -> None:
        channels = out.shape[self.dim]
        plan = _plan(self, channels) if _dense.in_rows(out, self.dim) else None
        if plan is None:
            self._add_slices_(out, eigenvalues)
            return
        if eigenvalues.dtype != out.dtype:
            eigenvalues = eigenvalues.to(out.dtype)
        done = _dense.add_to_some_(out, eigenvalues, plan, self.dim)
        if done * channels < out.numel():
            left = _dense.as_rows(out, self.dim)[done:]
            replace(self, dim=-1)._add_slices_(left, eigenvalues)

    def _add_slices_(self, out: Tensor, eigenvalues: Tensor) -> None:
        ys = self._split(out)[0]
        sums = self.sums(out, eigenvalues)
        if sums.dtype == out.dtype:
            ys.add_(sums)
        else:
            ys.copy_(ys.to(sums.dtype) + sums)

    def backward(
        self,
        grad: Tensor,
        out: Tensor,
        eigenvalues: Tensor,
        need_eigenvalues: bool,
        overwrite: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of the linear map's output and of the eigenvalues. Only the features in `out`
        are read; `grad` is written to only if it may be (`overwrite`).

        With y = y1 + sum lambda_j f_j^2: df_j = g_j + 2 lambda_j f_j g_y and dlambda_j = sum g_y
        f_j^2.
        """
        if not self.has_features(out.shape[self.dim]):
            return grad, torch.zeros_like(eigenvalues)
        shape = kernels.layout(out, self.dim)
        if shape is not None:
            table = self.table(out.shape[self.dim])
            given = (grad, out, eigenvalues, table, shape)
            return kernels.backward(self.kind, *given, overwrite=overwrite)[:2]
        if _dense.in_rows(out, self.dim):
            plan = _plan(self, out.shape[self.dim])
            found = _backward_by_rows(grad, out, eigenvalues, plan, self.dim)
            if found is not None:
                return found
        dtype = accumulation_dtype(out.dtype)
        dim = out.dim() + self.dim
        result = grad.clone()
        g_ys, g_features, g_last = self._split(result)
        _, features, last = self._split(out)
        lam, lam_last = self._coefficients(eigenvalues.to(dtype), out.shape[dim], -1 - self.dim)
        full = features.shape[dim + 1] if features is not None else 0
        pieces: list[Tensor] = []
        if features is not None and g_features is not None:
            g_y = g_ys.narrow(dim + 1, 0, full).unsqueeze(dim + 2).to(dtype)
            pieces.append(
                self._feature_grads(g_features, g_y, features.to(dtype), lam, dim, need_eigenvalues)
            )
        if last is not None and g_last is not None:
            g_y = g_ys.narrow(dim + 1, full, 1).to(dtype)
            pieces.append(
                self._feature_grads(g_last, g_y, last.to(dtype), lam_last, dim, need_eigenvalues)
            )
        if not need_eigenvalues:
            return result, None
        return result, torch.cat(pieces, 1).flatten().to(eigenvalues.dtype)

    def _feature_grads(
        self,
        g_features: Tensor,
        g_y: Tensor,
        f: Tensor,
        lam: Tensor,
        dim: int,
        need_eigenvalues: bool,
    ) -> Tensor:
        """Adds 2 lambda f g_y to the features' gradient in place; returns sum g_y f^2 as (groups,
        eigenvalues).
        """
        product = g_y * f
        if need_eigenvalues:
            kept = range(dim, f.dim() + 1 + self.dim)  # groups (, full), rank
            others = [d for d in range(f.dim()) if d not in kept]
            weighted = product * f
            g_lam = weighted.sum(others) if others else weighted
        else:
            g_lam = lam.new_empty(0)
        product.mul_(lam).mul_(2)
        if product.dtype == g_features.dtype:
            g_features.add_(product)
        else:
            g_features.copy_(g_features.to(product.dtype) + product)
        return g_lam.flatten(1) if need_eigenvalues else g_lam


@dataclass(frozen=True)
class SharedSquares:
    """The squares of the shared neuron: every channel of a group of `rank` is a feature for all of
    them.
    """

    rank: int
    dim: int = -1
    groups: int = 1
    kind: ClassVar[str] = "shared"

    def widest(self, channels: int) -> int:
        """The number of channels of the widest group."""
        return min(self.rank, channels // self.groups)

    def table(self, channels: int) -> kernels.Table:
        """The groups as the kernels take them."""
        return _table(self, channels)

    def group_sizes(self, channels: int) -> tuple[int, ...]:
        """The size of each group of outputs that share their features, in channel order."""
        full, rest = divmod(channels // self.groups, self.rank)
        return ((self.rank,) * full + ((rest,) if rest else ())) * self.groups

    def num_eigenvalues(self, channels: int) -> int:
        """A square matrix for each group."""
        full, rest = divmod(channels // self.groups, self.rank)
        return self.groups * (full * self.rank * self.rank + rest * rest)

    def _matrices(self, eigenvalues: Tensor, channels: int) -> tuple[Tensor, Tensor]:
        """Eigenvalues of the full groups (groups, full, rank, rank) and of the last ones (groups,
        1, rest, rest).
        """
        grouped = eigenvalues.reshape(self.groups, -1)
        full, rest = divmod(channels // self.groups, self.rank)
        cut = full * self.rank * self.rank
        return (
            grouped[:, :cut].reshape(self.groups, full, self.rank, self.rank),
            grouped[:, cut:].reshape(self.groups, 1 if rest else 0, rest, rest),
        )

    def matrix(self, eigenvalues: Tensor, channels: int) -> Tensor:
        """All groups as one block-diagonal (channels, channels) matrix."""
        blocks: list[Tensor] = []
        start = 0
        for size in self.group_sizes(channels):
            blocks.append(eigenvalues[start : start + size * size].reshape(size, size))
            start += size * size
        matrix: Tensor = torch.block_diag(*blocks)
        return matrix

    def _blocks(self, out: Tensor) -> list[Tensor]:
        """Views of the full groups (groups, full, rank) and of the last ones (groups, 1, rest)."""
        dim = out.dim() + self.dim
        grouped = out.unflatten(dim, (self.groups, -1)) if self.groups > 1 else out.unsqueeze(dim)
        size = int(grouped.shape[dim + 1])
        full, rest = divmod(size, self.rank)
        blocks = []
        if full:
            block = _cut(grouped, dim + 1, 0, full * self.rank)
            blocks.append(block.unflatten(dim + 1, (full, self.rank)))
        if rest:
            blocks.append(_cut(grouped, dim + 1, full * self.rank, size).unsqueeze(dim + 1))
        return blocks

    def _mix(self, values: Tensor, matrices: Tensor, transpose: bool = False) -> Tensor:
        """Each group's matrix times its channels: values (…, groups, blocks, s, *spatial)."""
        if transpose:
            matrices = matrices.transpose(-1, -2)
        spatial = -1 - self.dim
        if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
            # A compiler fuses this sum into the loops around it; a matrix product it would not.
            wide = matrices.reshape(*matrices.shape, *(1,) * spatial)
            return (wide * values.unsqueeze(self.dim - 1)).sum(self.dim)
        if self.dim == -1:
            return torch.einsum("...gbj,gbij->...gbi", values, matrices)
        flat = values.flatten(-spatial) if spatial > 1 else values
        return torch.matmul(matrices, flat).reshape(values.shape)

    def _active(self, eigenvalues: Tensor, channels: int) -> list[Tensor]:
        return [m for m in self._matrices(eigenvalues, channels) if m.shape[1]]

    def mixed(self, out: Tensor, eigenvalues: Tensor) -> Tensor:
        """L z^2 for every channel, in the dtype of accumulation."""
        dtype = accumulation_dtype(out.dtype)
        dim = out.dim() + self.dim
        mats = self._active(eigenvalues.to(dtype), int(out.shape[dim]))
        parts = []
        for block, matrix in zip(self._blocks(out), mats, strict=True):
            z = block.to(dtype)
            parts.append(self._mix(z * z, matrix).flatten(dim + 1, dim + 2))
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts, dim + 1)
        return mixed.flatten(dim, dim + 1)

    def plain(self, out: Tensor, eigenvalues: Tensor) -> Tensor:
        """The formula: differentiable to any order, traceable, and never in place."""
        mixed = self.mixed(out, eigenvalues)
        return (out.to(mixed.dtype) + mixed).to(out.dtype)

    def forward(self, out: Tensor, eigenvalues: Tensor, bias: Tensor | None = None) -> Tensor:
        """The sum with the mixed squares, as a new tensor, outside autograd. `out` gets a bias
        first.
        """
        shape = kernels.layout(out, self.dim)
        bias = _left(bias, out, shape, self.dim)
        if shape is not None:
            result = torch.empty_like(out)
            table = self.table(out.shape[self.dim])
            kernels.forward(self.kind, out, result, eigenvalues, table, shape, bias=bias)
            return result
        if not _dense.in_rows(out, self.dim):
            return self.plain(out, eigenvalues)
        result = torch.empty_like(out)
        self._add_by_rows(out, eigenvalues, result)
        return result

    def forward_(
        self,
        out: Tensor,
        eigenvalues: Tensor,
        finish: Finish = NOTHING,
        bias: Tensor | None = None,
    ) -> None:
        """Replaces `out`, with a bias, by its sum with the mixed squares, and what follows, in
        place.
        """
        shape = kernels.layout(out, self.dim)
        bias = _left(bias, out, shape, self.dim)
        if shape is not None:
            table = self.table(out.shape[self.dim])
            after = (finish.shift, finish.relu, finish.scale)
            kernels.forward(self.kind, out, out, eigenvalues, table, shape, *after, bias)
            return
        if _dense.in_rows(out, self.dim):
            self._add_by_rows(out, eigenvalues, out)
        else:
            self._add_slices_(out, eigenvalues)
        finish.apply_(out, self.dim)

    def _add_by_rows(self, out: Tensor, eigenvalues: Tensor, result: Tensor) -> None:
        """Writes the sum of an output that lies in rows with its mixed squares into `result`."""
        plan = _plan(self, out.shape[self.dim])
        assert plan is not None
        rows, results = (_dense.as_rows(tensor, self.dim) for tensor in (out, result))
        done = _dense.add_to_all(rows, eigenvalues.to(out.dtype), plan, results)
        if done < len(rows):
            results[done:].copy_(replace(self, dim=-1).plain(rows[done:], eigenvalues))

    def _add_slices_(self, out: Tensor, eigenvalues: Tensor) -> None:
        dtype = accumulation_dtype(out.dtype)
        mats = self._active(eigenvalues.to(dtype), out.shape[self.dim])
        for block, matrix in zip(self._blocks(out), mats, strict=True):
            z = block.to(dtype)
            mixed = self._mix(z * z, matrix)
            if dtype == out.dtype:
                block.add_(mixed)
            else:
                block.copy_(z + mixed)

    def backward(
        self,
        grad: Tensor,
        linear: Tensor,
        eigenvalues: Tensor,
        need_eigenvalues: bool,
        overwrite: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of the linear map's output z and of the eigenvalues. `grad` is written to only
        if it may be (`overwrite`).

        With y = z + L z^2: dz_j = g_j + 2 z_j sum_i L_ij g_i and dL_ij = sum g_i z_j^2.
        """
        shape = kernels.layout(linear, self.dim)
        if shape is not None:
            table = self.table(linear.shape[self.dim])
            given = (grad, linear, eigenvalues, table, shape)
            return kernels.backward(self.kind, *given, overwrite=overwrite)[:2]
        if _dense.in_rows(linear, self.dim):
            plan = _plan(self, linear.shape[self.dim])
            found = _backward_by_rows(grad, linear, eigenvalues, plan, self.dim)
            if found is not None:
                return found
        dtype = accumulation_dtype(linear.dtype)
        dim = linear.dim() + self.dim
        result = torch.empty_like(grad)
        pieces: list[Tensor] = []
        mats = self._active(eigenvalues.to(dtype), linear.shape[dim])
        blocks = zip(
            self._blocks(linear), self._blocks(grad), self._blocks(result), mats, strict=True
        )
        for z_block, g_block, r_block, matrix in blocks:
            z, g = z_block.to(dtype), g_block.to(dtype)
            if need_eigenvalues:
                pieces.append(self._outer(g, z * z, dim))
            back = self._mix(g, matrix, transpose=True).mul_(z).mul_(2)
            r_block.copy_(back.add_(g))
        if not need_eigenvalues:
            return result, None
        return result, torch.cat([p.flatten(1) for p in pieces], 1).flatten().to(eigenvalues.dtype)

    def _outer(self, g: Tensor, squares: Tensor, dim: int) -> Tensor:
        """sum over everything but the channels of g_i z_j^2: (groups, blocks, s, s)."""
        moved = [t.movedim((dim, dim + 1, dim + 2), (0, 1, 2)) for t in (g, squares)]
        # A single vector has no other dimension to sum over.
        left, right = (t.flatten(3) if t.dim() > 3 else t.unsqueeze(-1) for t in moved)
        return torch.matmul(left, right.transpose(-1, -2))


Squares = EigenSquares | SharedSquares


def backward_with_bias(
    squares: Squares,
    grad: Tensor,
    kept: Tensor,
    eigenvalues: Tensor,
    need_eigenvalues: bool,
    overwrite: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """`squares.backward`, and the gradient of a bias that was added with the squares."""
    shape = kernels.layout(kept, squares.dim)
    if shape is not None:
        table = squares.table(shape[1])
        given = (grad, kept, eigenvalues, table, shape)
        found = kernels.backward(squares.kind, *given, bias=True, overwrite=overwrite)
        assert found[2] is not None
        return found[0], found[1], found[2]
    both = squares.backward(grad, kept, eigenvalues, need_eigenvalues, overwrite)
    return *both, sum_of_bias(both[0])


def sum_of_bias(grad: Tensor) -> Tensor:
    """The gradient of a bias of a dense map from that of its output."""
    return grad.reshape(-1, grad.shape[-1]).sum(0)


# A layer asks for it at every call, when the processor's caches are full of other things: every
# Python function that has to be fetched counts.
@functools.lru_cache(maxsize=1024)
def _table(squares: Squares, channels: int) -> kernels.Table:
    if isinstance(squares, EigenSquares):
        return kernels.eigen_table(squares.neuron_ranks(channels))
    return kernels.shared_table(squares.group_sizes(channels))


@functools.lru_cache(maxsize=1024)
def _plan(squares: Squares, channels: int) -> _dense.Plan | None:
    if isinstance(squares, EigenSquares):
        return _dense.eigen_plan(squares.neuron_ranks(channels))
    return _dense.shared_plan(squares.group_sizes(channels))
