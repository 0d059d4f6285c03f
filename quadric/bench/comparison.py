"""Times, ratios and memory of quadratic cases beside the linear ones, and the report of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

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


@dataclass(frozen=True)
class BenchReport:
    """Rows of a comparison; prints as a table."""

    # One dictionary per case: what it is, best and median seconds, ratios to linear.
    rows: list[dict[str, Any]]
    repeats: int  # how often each case was timed in a round
    rounds: int = 1  # how often the whole comparison was made
    keeps_memory: bool = False  # whether freed memory stayed with the process

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


def timed_together(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases whose runs are interleaved: those of one group and path, with their linear ones.

    The fewer there are, the closer in time are both sides of a ratio. A compiled one is alone with
    its linear ones, because torch compiles only so many networks of one class.
    """
    quadratic: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        if case.neuron != "linear":
            alone = case.name if case.path == "compiled" else ""
            quadratic.setdefault((case.group, case.path, case.dtype, alone), []).append(case)
    groups = [
        [c for c in cases if c.neuron == "linear" and c.compared_as == own[0].compared_as] + own
        for own in quadratic.values()
    ]
    return groups or [list(cases)]


def timed_runs(cases: Sequence[Case], repeats: int, rounds: int) -> int:
    """How often `compare` calls its `tick`."""
    return sum(map(len, timed_together(cases))) * ((INFERENCES + 1) * repeats + 2) * rounds


def expected_seconds(cases: Sequence[Case], repeats: int, rounds: int) -> float:
    """About how long `compare` takes, from one run of each case after one to warm up."""
    before, compiling = kernels.active(), 0.0
    seconds: dict[tuple[str, str], float] = {}
    for case in (case for group in timed_together(cases) for case in group):
        case.switch()
        for kind, work in _works(case).items():
            begin = time.perf_counter()
            work()
            start = time.perf_counter()
            work()
            once = (time.perf_counter() - start) * (_runs(kind, repeats) + 1)
            compiling += start - begin if case.path == "compiled" else 0.0
            seconds[case.group, kind] = seconds.get((case.group, kind), 0.0) + once
    kernels.use_kernels(before)
    # Short runs are repeated, but at most ten times as often.
    timing = sum(max(once, min(AT_LEAST, 10 * once)) for once in seconds.values())
    return rounds * (timing + compiling)


def compare(
    cases: Sequence[Case],
    repeats: int = 20,
    memory: bool = True,
    tick: Callable[[], object] = lambda: None,
    rounds: int = 1,
    at_least: float = 0.0,
) -> BenchReport:
    """Times all cases; those of one path are interleaved with the linear ones."""
    before = kernels.active()
    groups = timed_together(cases)
    rounds_of: list[dict[str, list[dict[str, list[float]]]]] = [{} for _ in groups]
    try:
        for _ in range(rounds):
            for group, times in zip(groups, rounds_of, strict=True):
                beside = sum(len(each) for each in groups if each[0].group == group[0].group)
                for kind in ("training", "inference"):
                    if group[-1].path == "compiled":
                        torch.compiler.reset()
                    works = {case.name: _works(case)[kind] for case in group}
                    switches = {case.name: case.switch for case in group}
                    share = at_least * len(group) / beside
                    runs = interleaved(works, _runs(kind, repeats), switches, tick, share)
                    times.setdefault(kind, []).append(runs)
        peaks = {case.name: _peak(case) for case in cases} if memory else {}
    finally:
        kernels.use_kernels(before)
    rows: dict[str, dict[str, Any]] = {}
    for group, times in zip(groups, rounds_of, strict=True):
        bases = [case for case in group if case.neuron == "linear"]
        for case in group:
            if case.name in rows:  # a linear one, timed with those of another path too
                continue
            peak = peaks.get(case.name)
            least = [peaks[c.name] for c in bases if c.format == case.format and peaks]
            rows[case.name] = {
                **{name: getattr(case, name) for name in _FACTS},
                "peak_memory_bytes": peak,
                "memory": peak / min(least) if peak and least else None,
            }
            for kind, of_rounds in times.items():
                rows[case.name] |= _ratios(kind, of_rounds, case, bases)
    return BenchReport([rows[case.name] for case in cases], repeats, rounds)


def _works(case: Case) -> dict[str, Callable[[], object]]:
    return {"training": case.training_step, "inference": case.forward}


def _runs(kind: str, repeats: int) -> int:
    return repeats if kind == "training" else INFERENCES * repeats


def _peak(case: Case) -> int:
    """The peak memory of a training step, without that of compiling it."""
    case.switch()
    if case.path == "compiled":
        torch.compiler.reset()
        case.training_step()
    case.clear()  # what is released within would count against the peak
    return peak_bytes(case.training_step, case.device.type)


def _ratios(
    kind: str, rounds: list[dict[str, list[float]]], case: Case, bases: Sequence[Case]
) -> dict[str, Any]:
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
