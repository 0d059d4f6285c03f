"""How eigenvalues start.

Zero is the default everywhere: a fresh layer then computes exactly what the linear layer computes,
while the gradient of the eigenvalues, sum g_y f^2, is not zero, so they learn from the first step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from quadric.errors import InputError

EigenvalueInit = str | Callable[[Tensor], object]


def random_sign_(eigenvalues: Tensor, magnitude: float = 0.1) -> Tensor:
    """Fills with `magnitude` times a random sign: curvature from the start, up and down alike."""
    with torch.no_grad():
        signs = torch.randint(0, 2, eigenvalues.shape, device=eigenvalues.device)
        return eigenvalues.copy_((2 * signs - 1) * magnitude)


_STARTS: dict[str, Callable[[Tensor], object]] = {
    "zeros": nn.init.zeros_,
    "random_sign": random_sign_,
}


def check_eigenvalue_init(start: EigenvalueInit) -> EigenvalueInit:
    """Returns `start` if it names a start or is a function that fills a tensor, else raises."""
    if callable(start) or (isinstance(start, str) and start in _STARTS):
        return start
    raise InputError(
        f"eigenvalue_init must be one of {', '.join(map(repr, _STARTS))} or a function that fills "
        "a tensor in place, "
        f"got {start!r}: choose one of these"
    )


def eigenvalues_(eigenvalues: Tensor, start: EigenvalueInit) -> Tensor:
    """Fills eigenvalues in place by the start of that name, or by the given function."""
    function = _STARTS[start] if isinstance(start, str) else start
    with torch.no_grad():
        function(eigenvalues)
    return eigenvalues
