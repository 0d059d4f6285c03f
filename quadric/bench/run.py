"""Running a comparison: times, ratios, memory, and the report that says them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch._dynamo

from quadric import provenance
from quadric.bench.cases import Case
from quadric.bench.memory import peak_bytes
from quadric.bench.timing import interleaved
from quadric.ops import native as kernels

INFERENCES = 3
"""Runs of an inference for one of a training step: it is shorter, so noise weighs more."""

AT_LEAST = 10.0
"""Seconds of timing of a group below which more runs follow than were asked for."""


Rounds = list[dict[str, list[float]]]
"""For each round the seconds of all runs, by case."""


@dataclass(frozen=True)
class BenchReport:
    """Rows of a comparison; prints as a table.

    Attributes:
        rows: one dictionary a case: what it is, best and median seconds, ratios to linear.
        repeats: how often each case was timed in a round.
        rounds: how often the whole comparison was made.
        keeps_memory: whether freed memory stayed with the process (`allocator`).
    """

    rows: list[dict[str, Any]]
    repeats: int
    rounds: int = 1
    keeps_memory: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The report with where it comes from, for JSON."""
        return {
            "kind": "bench",
            "repeats": self.repeats,
            "rounds": self.rounds,
            "keeps_memory": self.keeps_memory,
            "rows": self.rows,
            "versions": provenance.versions(),
            "machine": provenance.machine(),
            "command": provenance.command(),
        }

    def write(self, path: Path) -> None:
        """Writes the report as strict JSON."""
        provenance.write_json(path, self.to_dict())

    def __str__(self) -> str:
        lines = []
        width = max([16, *(len(row["neuron"]) + 2 for row in self.rows)])
        header = (
            f"{'neuron':<{width}}{'path':<17}{'format':<15}{'dtype':<9}{'training':>9}{'inference':>11}"
            f"{'in turn':>15}{'own format':>15}{'memory':>8}"
        )
        for group in dict.fromkeys(row["group"] for row in self.rows):
            lines += [group, header]
            for row in self.rows:
                if row["group"] != group:
                    continue
                rank = f" k={row['rank']}" if row["rank"] is not None else ""
                own = f"{_ratio(row['training_own'])}/{_ratio(row['inference_own'])}"
                turns = f"{_ratio(row['training_turns'])}/{_ratio(row['inference_turns'])}"
                lines.append(
                    f"{row['neuron'] + rank:<{width}}{row['path']:<17}{row['format'] or '-':<15}"
                    f"{row['dtype']:<9}{_ratio(row['training']):>9}{_ratio(row['inference']):>11}"
                    f"{turns:>15}{own:>15}{_ratio(row['memory']):>8}"
                )
            lines.append("")
        if self.rounds > 1:
            lines += ["Spread of the ratios over the rounds:"]
            lines += [f"  {_label(row)}: {spread(row)}" for row in self.rows]
            lines.append("")
        runs = self.repeats * self.rounds
        lines.append(
            f"Ratios to the linear one: best of {runs} training steps and {INFERENCES * runs} "
            "inferences each, or more of short ones, taken in turn.\n"
            "training, inference: against linear in its better memory format; in turn: medians of "
            "the ratios within one turn;\n"
            "own format: training/inference against linear in the same one.\n"
            "memory: peak of a training step, by the allocator's own record. "
            "Compiled is compared with compiled, fused with folded."
        )
        if self.keeps_memory:
            lines.append("Freed memory stayed with the process, so that no run waited for pages.")
        return "\n".join(lines)


def _label(row: dict[str, Any]) -> str:
    words = (row["group"], row["neuron"], row["path"], row["format"], row["dtype"])
    return ", ".join(word for word in words if word)


def spread(row: dict[str, Any]) -> str:
    """Least and greatest ratio over the rounds, training / inference."""
    return " / ".join(
        f"{min(rounds):.3f}-{max(rounds):.3f}" if (rounds := row[f"{kind}_rounds"]) else "-"
        for kind in ("training", "inference")
    )


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def run(
    cases: Sequence[Case],
    repeats: int = 20,
    memory: bool = True,
    tick: Callable[[], object] = lambda: None,
    rounds: int = 1,
    at_least: float = 0.0,
) -> BenchReport:
    """Times all cases, group by group, in turn: those of one path with the linear ones.

    Args:
        cases: made by `layer_cases`, `network_cases` or `rank_cases`; linear ones must be among
            them.
        repeats: how many timed runs of each case.
        memory: also measure the peak memory of a training step.
        tick: called after each timed run, for a progress bar.
        rounds: how often to make the whole comparison: the spread of its ratios over the rounds
            says how far to trust them.
        at_least: seconds of training steps, and of inferences, below which a round of a group goes
            on.
    """
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
    """The cases of a group that take turns: those of one path, each time with the linear ones that
    they are compared with. The fewer take turns, the closer in time are both sides of a ratio.
    """
    found: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        if case.neuron != "linear":
            # A neuron of several maps is also compared with another way to write it.
            path = "plain" if case.path == "straightforward" else case.path
            found.setdefault((case.kind, case.dtype, path), []).append(case)
    together = [_bases(own[0], cases) + own for own in found.values()]
    timed = {case.name for some in together for case in some}
    alone = [case for case in cases if case.name not in timed]
    return [*together, alone] if alone else together


def timed_runs(cases: Sequence[Case], repeats: int, rounds: int) -> int:
    """How often `run` calls its `tick`."""
    turns = [some for group in _groups(cases) for some in timed_together(group)]
    inferred = sum(map(len, turns))
    trained = sum(not case.for_inference for some in turns for case in some)
    return (inferred * (INFERENCES * repeats + 1) + trained * (repeats + 1)) * rounds


def _groups(cases: Sequence[Case]) -> list[list[Case]]:
    names = dict.fromkeys(case.group for case in cases)
    return [[case for case in cases if case.group == name] for name in names]


def _bases(case: Case, cases: Sequence[Case]) -> list[Case]:
    """Compiled is measured against compiled, fused against folded, all else against the linear
    network as it is.
    """
    alike = [c for c in cases if (c.kind, c.dtype) == (case.kind, case.dtype)]
    return [c for c in alike if c.neuron == "linear"]


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
    inferred = sum(map(len, together))
    trained = sum(not case.for_inference for some in together for case in some)
    times: list[dict[str, Rounds]] = [{"training": [], "inference": []} for _ in together]
    for _ in range(rounds):
        for some, found in zip(together, times, strict=True):
            training = {case.name: case.training_step for case in some if not case.for_inference}
            share = at_least * len(training) / max(1, trained)
            found["training"].append(interleaved(training, repeats, prepare, tick, share))
            inference = {case.name: case.forward for case in some}
            share, more = at_least * len(inference) / inferred, INFERENCES * repeats
            found["inference"].append(interleaved(inference, more, prepare, tick, share))
    peaks: dict[str, int | None] = {}
    for case in cases:
        case.switch()
        case.clear()  # what is released within would count against the peak
        measured = memory and not case.for_inference
        peaks[case.name] = peak_bytes(case.training_step) if measured else None
    rows = []
    for case in cases:
        row: dict[str, Any] = {
            "group": case.group,
            "neuron": case.neuron,
            "rank": case.rank,
            "path": case.path,
            "format": case.format,
            "dtype": case.dtype,
            "peak_memory_bytes": peaks[case.name],
        }
        bases = _bases(case, cases)
        # The linear ones are timed with those of several paths: of them the first counts.
        at = next(i for i, some in enumerate(together) if any(c is case for c in some))
        for kind, all_rounds in times[at].items():
            row |= _ratios(kind, all_rounds, case, bases)
        own = [c for c in bases if c.format == case.format]
        held = [peaks[c.name] for c in own]
        row["memory"] = _divided(peaks[case.name], [h for h in held if h])
        rows.append(row)
    return rows


def _ratios(kind: str, rounds: Rounds, case: Case, bases: Sequence[Case]) -> dict[str, Any]:
    """Times of a case and its ratios to the linear ones; empty for a training that nobody does."""
    row: dict[str, Any] = {f"{kind}_seconds": None, f"{kind}_median_seconds": None}
    row |= {f"{kind}_linear_seconds": None, f"{kind}_runs": 0}
    row |= {f"{kind}{suffix}": None for suffix in ("", "_own", "_turns")}
    row |= {f"{kind}{suffix}_rounds": [] for suffix in ("", "_own")}
    if case.name not in rounds[0]:
        return row
    bests = [{name: min(runs) for name, runs in each.items()} for each in rounds]
    best = {name: min(each[name] for each in bests) for name in bests[0]}
    row[f"{kind}_seconds"] = best[case.name]
    row[f"{kind}_runs"] = sum(len(each[case.name]) for each in rounds)
    row[f"{kind}_median_seconds"] = statistics.median(
        seconds for each in rounds for seconds in each[case.name]
    )
    own = [c for c in bases if c.format == case.format]
    for suffix, against in (("", bases), ("_own", own)):
        row[f"{kind}{suffix}"] = _divided(best[case.name], [best[c.name] for c in against])
        row[f"{kind}{suffix}_rounds"] = [
            _divided(each[case.name], [each[c.name] for c in against]) for each in bests
        ]
    if bases:
        base = min(bases, key=lambda c: best[c.name])
        row[f"{kind}_linear_seconds"] = best[base.name]
        row[f"{kind}_turns"] = _median_of_turns(rounds, case.name, base.name)
    return row


def _median_of_turns(rounds: Rounds, name: str, base: str) -> float:
    """The median ratio of two cases within one turn, a few seconds: a machine that is fast for a
    while and slow for a while changes both."""
    pairs = [pair for each in rounds for pair in zip(each[name], each[base], strict=True)]
    return statistics.median(one / other for one, other in pairs)


def _divided(value: float | None, bases: Sequence[float | None]) -> float | None:
    known = [base for base in bases if base]
    return value / min(known) if value is not None and known else None
