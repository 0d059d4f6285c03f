"""How lightning writes and reads checkpoints: by `checkpoints`, whatever its version."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.strategies import ModelParallelStrategy

from quadric.train import checkpoints
from quadric.train.directory import LAST, PREVIOUS

# Torch's own setting: with it, torch.load never unpickles.
ONLY_WEIGHTS = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


class Checkpoints(CheckpointIO):
    """Writes and reads the checkpoints of a run, in place of lightning."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Writes a checkpoint; the last one is kept until the next."""
        file = Path(path)
        kept = file.with_name(PREVIOUS) if file.name == LAST else None
        checkpoints.write(checkpoint, file, kept)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Reads a checkpoint without unpickling it, whatever lightning asks for."""
        return checkpoints.read(Path(path), map_location)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Removes a checkpoint."""
        Path(path).unlink(missing_ok=True)


class ShardedNetwork(ModelParallelStrategy):
    """Lightning's strategy; it reads checkpoints by itself, but without unpickling them."""

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Loads a checkpoint into the pieces of a network."""
        checkpoints.read(Path(checkpoint_path), "meta")  # refuses a damaged one
        before = os.environ.get(ONLY_WEIGHTS)
        os.environ[ONLY_WEIGHTS] = "1"  # lightning before 2.6 asks torch to unpickle
        try:
            return super().load_checkpoint(checkpoint_path)
        finally:
            del os.environ[ONLY_WEIGHTS]
            if before is not None:
                os.environ[ONLY_WEIGHTS] = before
