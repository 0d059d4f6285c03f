"""The scale of a layer's eigenvalues, which lets them learn at the rate of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quadric.ops.torch_probes import in_torch_func
from quadric.support.modules import check_not_distributed

if TYPE_CHECKING:
    from quadric.layers.neuron import Neuron
    from quadric.ops.blocks import Blocks


class ScaledEigenvalues(nn.Module):
    """Eigenvalues that count times a number, which a batch sets."""

    rule: Neuron
    blocks: Blocks | None
    eigenvalues: Any
    eigenvalue_scale: Tensor | None
    awaits_scale: bool
    """Whether forward passes with gradients still set the scale: until training moves it."""

    def await_scale_(self) -> None:
        """Lets the first batches of training set the scale, where the neuron has one."""
        if self.blocks is not None:
            self.drop_scale_()
            self.eigenvalue_scale = self.eigenvalues.detach().new_ones(())
            self.awaits_scale = True

    @torch.no_grad()
    def use_scale_(self, scale: Tensor) -> None:
        """Sets the scale. The layer computes what it computed before."""
        if self.eigenvalue_scale is None:
            self.await_scale_()
        # A layer may be called twice in one forward pass: what backward needs is left alone.
        if torch.compiler.is_compiling() or bool(self.eigenvalues.any()):
            self.eigenvalues.mul_(self.eigenvalue_scale / scale)
        self.eigenvalue_scale = scale.to(self.eigenvalues)
        self.awaits_scale = False

    @torch.no_grad()
    def drop_scale_(self) -> None:
        """Multiplies the scale into the eigenvalues, which then count as they are."""
        if self.eigenvalue_scale is not None:
            self.eigenvalues.mul_(self.eigenvalue_scale)
        self.eigenvalue_scale, self.awaits_scale = None, False

    @torch.no_grad()
    def _measure_scale_(self, ready: Tensor) -> None:
        """Sets the scale by a batch of prepared inputs, if anything can be learned from it.

        Each batch before the first step of the optimizer replaces the one before: a forward pass
        that was only a trial does no harm. A compiled graph cannot ask, and takes the first.
        """
        compiling = torch.compiler.is_compiling()
        if torch.compiler.is_exporting() or (not compiling and in_torch_func()):
            return
        if not compiling and bool(self.eigenvalue_scale != 1) and bool(self.eigenvalues.any()):
            self.awaits_scale = False
            return
        check_not_distributed()
        scale = self.rule.measured_scale(self, ready)  # type: ignore[arg-type]
        if compiling or bool(scale > 0):
            self.use_scale_(scale)
            self.awaits_scale = not compiling
