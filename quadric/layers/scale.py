"""The scale of a layer's eigenvalues, which lets them learn at the rate of the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from quadric.ops.torch_probes import is_recorded
from quadric.support.modules import check_not_distributed

if TYPE_CHECKING:
    from quadric.ops.blocks import Blocks

Self = TypeVar("Self", bound="ScaledEigenvalues")


class ScaledEigenvalues(nn.Module):
    """Eigenvalues that count times a number, which a batch sets."""

    rule: Any
    blocks: Blocks | None
    eigenvalues: Any
    effective_eigenvalues: Callable[[], Tensor]
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
        assert self.eigenvalue_scale is not None
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

    def fold_normalization_(self: Self) -> Self:
        """Replaces normalized eigenvalues by plain ones that compute the same function."""
        if getattr(self.rule, "normalize", False):
            with torch.no_grad():
                self.eigenvalues.copy_(self.effective_eigenvalues())
            self.eigenvalue_scale, self.awaits_scale = None, False
            self.rule = self.rule.with_options(**self.rule.options() | {"normalize": False})
        return self

    @torch.no_grad()
    def _measure_scale_(self, ready: Tensor) -> None:
        """Sets the scale by a batch of prepared inputs, if anything can be learned from it.

        Each batch before the first step of the optimizer replaces the one before: a forward pass
        that was only a trial does no harm. A compiled graph cannot ask, and takes the first.
        """
        compiling = torch.compiler.is_compiling()
        if torch.compiler.is_exporting() or ready.is_meta or (not compiling and is_recorded()):
            return
        if not compiling and bool(self.eigenvalue_scale != 1) and bool(self.eigenvalues.any()):
            self.awaits_scale = False
            return
        check_not_distributed()
        scale = self.rule.measured_scale(self, ready)
        if compiling or bool(scale > 0):
            self.use_scale_(scale)
            self.awaits_scale = not compiling

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **keywords: Any
    ) -> None:
        key = prefix + "eigenvalue_scale"
        if key in state_dict and self.eigenvalue_scale is None:
            self.eigenvalue_scale = torch.ones_like(state_dict[key], device=self.eigenvalues.device)
        elif self.eigenvalue_scale is not None and prefix + "eigenvalues" in state_dict:
            state_dict.setdefault(key, torch.ones(()))
        super()._load_from_state_dict(state_dict, prefix, *args, **keywords)
        if key in state_dict:
            self.awaits_scale = bool(self.eigenvalue_scale == 1)
