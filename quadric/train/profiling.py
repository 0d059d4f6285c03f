"""`quadric train --profile`: where the time of a training step goes, operator by operator."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.profiler import profile, schedule

from quadric.support.writing import whole_file, write_text
from quadric.train.directory import RunDirectory

# Steps: left out, warming up, measured.
SKIPPED, WARMING, MEASURED = 2, 1, 10
ROWS = 40


class Profile(Callback):
    """Measures a few of the first steps that are trained, and writes what they cost."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.profiler: profile | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the profiler, in the first process."""
        if trainer.is_global_zero:
            steps = int(trainer.estimated_stepping_batches) - trainer.global_step
            skipped = min(SKIPPED, max(0, steps - WARMING - 1))
            measured = max(1, min(MEASURED, steps - WARMING - skipped))
            self.profiler = profile(
                schedule=schedule(wait=skipped, warmup=WARMING, active=measured, repeat=1),
                on_trace_ready=self._write,
            )
            self.profiler.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Counts a step."""
        if self.profiler is not None:
            self.profiler.step()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stops the profiler."""
        if self.profiler is not None:
            self.profiler.stop()
            self.profiler = None

    def _write(self, done: profile) -> None:
        operators = done.key_averages()
        own = "self_cpu_time_total"
        if any(row.self_device_time_total > row.self_cpu_time_total for row in operators):
            own = "self_device_time_total"
        table = operators.table(sort_by=own, row_limit=ROWS)
        write_text(self.directory.path / "profile.txt", table)
        with whole_file(self.directory.path / "trace.json") as partial:
            done.export_chrome_trace(str(partial))
