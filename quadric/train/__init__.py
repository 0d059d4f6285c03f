"""Training: recipes, runs and their results. The only place that imports lightning.

    import quadric.train

    result = quadric.train.run("digits", neuron="eigen", epochs=3)
    quadric.train.sweep("digits", neuron=["linear", "eigen"], seeds=3)
    model = quadric.train.load(result.path)
    frame = quadric.train.results("runs")

These functions are in `api`; the commands of the command line call them. `recipe` and `catalog` say
what a run is, `directory` where it is kept, `runner` trains one, `grid` many, `evaluation` tests
one. Only `step`, `callbacks`, `loggers`, `checkpoint_plugin`, `profiling` and `loop` import
lightning, which takes seconds: reading a recipe or a result does not.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quadric.train.api import Result as Result
    from quadric.train.api import load as load
    from quadric.train.api import results as results
    from quadric.train.api import run as run
    from quadric.train.api import sweep as sweep
    from quadric.train.evaluation import evaluate as evaluate
    from quadric.train.translating import translator as translator
else:
    _HOMES = {name: "api" for name in ("Result", "load", "results", "run", "sweep")}
    _HOMES |= {"evaluate": "evaluation", "translator": "translating"}
    __all__ = sorted(_HOMES)

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'quadric.train' has no attribute {name!r}")
        from quadric.support.extras import require

        require("train", f"quadric.train.{name}")
        return getattr(_import_module(f"quadric.train.{_HOMES[name]}"), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})
