"""Running a comparison: times, ratios, memory, and the report that says them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch._dynamo

from quadric.bench.cases import Case
from quadric.bench.memory import peak_bytes
from quadric.exporting.timing import interleaved
from quadric.ops import native as kernels
from quadric.support import provenance
from quadric.support.texttable import text_table

INFERENCES = 3
"""Runs of an inference for one of a training step: it is shorter, so noise weighs more."""

AT_LEAST = 10.0
"""Seconds of timing of a group below which more runs follow than were asked for."""

_FACTS = ("group", "neuron", "rank", "path", "format", "dtype")

Rounds = list[dict[str, list[float]]]
"""For each round the seconds of all runs, by case."""


@dataclass(frozen=True)
class BenchReport:
    """Rows of a comparison; prints as a table.

    Attributes:
        rows: one dictionary per case: what it is, best and median seconds, ratios to linear.
        repeats: how often each case was timed in a round.
        rounds: how often the whole comparison was made.
        keeps_memory: whether freed memory stayed with the process.
    """

    rows: list[dict[str, Any]]
    repeats: int
    rounds: int = 1
    keeps_memory: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The report with where it comes from, for JSON."""
        return {"kind": "bench", **vars(self), **provenance.stamp()}

    def __str__(self) -> str:
        header = ["neuron", "path", "format", "dtype", "training", "inference", "in turn", "memory"]
        header += ["spread over rounds"] if self.rounds > 1 else []
        lines = []
        for group in dict.fromkeys(row["group"] for row in self.rows):
            cells = [self._cells(row) for row in self.rows if row["group"] == group]
            lines += [group, text_table(header, cells, "llllrrrrr"[: len(header)]), ""]
        runs = self.repeats * self.rounds
        lines.append(
            f"Ratios to the linear one: best of {runs} training steps and {INFERENCES * runs} "
            "inferences each, or more of short ones; runs are interleaved.\n"
            "training, inference: against linear in its better memory format; in turn: medians of "
            "the ratios within one turn.\n"
            "memory: peak of a training step, by the allocator's own record. "
            "Compiled is compared with compiled."
        )
        if self.keeps_memory:
            lines.append("Freed memory stayed with the process, so that no run waited for pages.")
        return "\n".join(lines)

    def _cells(self, row: dict[str, Any]) -> list[str]:
        rank = f" k={row['rank']}" if row["rank"] is not None else ""
        cells = [row["neuron"] + rank, row["path"], row["format"] or "-", row["dtype"]]
        cells += [f"{row['training']:.3f}", f"{row['inference']:.3f}"]
        cells.append(f"{row['training_turns']:.3f}/{row['inference_turns']:.3f}")
        cells.append("-" if row["memory"] is None else f"{row['memory']:.3f}")
        if self.rounds > 1:
            spread = (row["training_rounds"], row["inference_rounds"])
            cells.append(" / ".join(f"{min(r):.3f}-{max(r):.3f}" for r in spread))
        return cells


def run(
    cases: Sequence[Case],
    repeats: int = 20,
    memory: bool = True,
    tick: Callable[[], object] = lambda: None,
    rounds: int = 1,
    at_least: float = 0.0,
) -> BenchReport:
    """Times all cases, group by group; those of one path are interleaved with the linear ones."""
    rows: list[dict[str, Any]] = []
    before = kernels.active()
    # Networks of one class share a limit of compilations, beyond which torch runs them uncompiled.
    limit = torch._dynamo.config.recompile_limit
    torch._dynamo.config.recompile_limit = max(limit, 4 * len(cases))
    try:
        for group in _groups(cases):
            rows += _run_group(group, repeats, memory, tick, rounds, at_least)
    finally:
        kernels.use_kernels(before)
        torch._dynamo.config.recompile_limit = limit
    return BenchReport(rows, repeats, rounds)


def timed_together(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases of a group whose runs are interleaved: those of one path, with their linear ones.

    The fewer there are, the closer in time are both sides of a ratio.
    """
    found: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        if case.neuron != "linear":
            found.setdefault((case.kind, case.path), []).append(case)
    return [_bases(own[0], cases) + own for own in found.values()] or [list(cases)]


def timed_runs(cases: Sequence[Case], repeats: int, rounds: int) -> int:
    """How often `run` calls its `tick`."""
    timed = sum(len(some) for group in _groups(cases) for some in timed_together(group))
    return timed * ((INFERENCES + 1) * repeats + 2) * rounds


def expected_seconds(cases: Sequence[Case], repeats: int, rounds: int) -> float:
    """About how long `run` takes, from one run of each case after one to warm up."""
    total, before = 0.0, kernels.active()
    for group in _groups(cases):
        once = [0.0, 0.0]
        for case in (case for some in timed_together(group) for case in some):
            case.switch()
            for i, work in enumerate((case.training_step, case.forward)):
                work()
                start = time.perf_counter()
                work()
                once[i] += time.perf_counter() - start
        runs = (repeats + 1, INFERENCES * repeats + 1)
        # Short runs are repeated, but at most ten times as often.
        total += sum(max(n * t, min(AT_LEAST, 10 * n * t)) for n, t in zip(runs, once, strict=True))
    kernels.use_kernels(before)
    return total * rounds


def _groups(cases: Sequence[Case]) -> list[list[Case]]:
    names = dict.fromkeys(case.group for case in cases)
    return [[case for case in cases if case.group == name] for name in names]


def _bases(case: Case, cases: Sequence[Case]) -> list[Case]:
    """The linear cases that a case is compared with: compiled with compiled."""
    return [c for c in cases if c.neuron == "linear" and c.kind == case.kind]


def _run_group(
    cases: list[Case],
    repeats: int,
    memory: bool,
    tick: Callable[[], object],
    rounds: int,
    at_least: float,
) -> list[dict[str, Any]]:
    prepare = {case.name: case.switch for case in cases}
    together = timed_together(cases)
    count = sum(map(len, together))
    times: list[dict[str, Rounds]] = [{"training": [], "inference": []} for _ in together]
    for _ in range(rounds):
        for some, found in zip(together, times, strict=True):
            share = at_least * len(some) / count
            steps = {case.name: case.training_step for case in some}
            found["training"].append(interleaved(steps, repeats, prepare, tick, share))
            passes = {case.name: case.forward for case in some}
            more = INFERENCES * repeats
            found["inference"].append(interleaved(passes, more, prepare, tick, share))
    peaks: dict[str, int] = {}
    for case in cases if memory else ():
        case.switch()
        case.clear()  # what is released within would count against the peak
        peaks[case.name] = peak_bytes(case.training_step)
    rows: dict[str, dict[str, Any]] = {}
    for some, found in zip(together, times, strict=True):
        for case in some:
            # The linear ones are timed with those of several paths: of them the first counts.
            if case.name in rows:
                continue
            bases, peak = _bases(case, cases), peaks.get(case.name)
            least = [peaks[c.name] for c in bases if c.format == case.format and peaks]
            rows[case.name] = {
                **{k: getattr(case, k) for k in _FACTS},
                "peak_memory_bytes": peak,
                "memory": peak / min(least) if peak and least else None,
            }
            for kind, of_rounds in found.items():
                rows[case.name] |= _ratios(kind, of_rounds, case, bases)
    return [rows[case.name] for case in cases]


def _ratios(kind: str, rounds: Rounds, case: Case, bases: Sequence[Case]) -> dict[str, Any]:
    """Times of a case and its ratios to the linear ones."""
    bests = [{name: min(runs) for name, runs in each.items()} for each in rounds]
    best = {name: min(each[name] for each in bests) for name in bests[0]}
    base = min((c.name for c in bases), key=lambda name: best[name])
    pairs = [pair for each in rounds for pair in zip(each[case.name], each[base], strict=True)]
    return {
        f"{kind}_seconds": best[case.name],
        f"{kind}_median_seconds": statistics.median(own for own, _ in pairs),
        f"{kind}_runs": len(pairs),
        f"{kind}_linear_seconds": best[base],
        kind: best[case.name] / best[base],
        f"{kind}_rounds": [e[case.name] / min(e[c.name] for c in bases) for e in bests],
        # Within one turn: a machine that is slow for a while slows both down.
        f"{kind}_turns": statistics.median(own / other for own, other in pairs),
    }
