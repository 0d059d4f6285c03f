"""Solve differential equations with small networks, and write what came out.

    python tools/evidence_equations.py                        # goes on where it was
    python tools/evidence_equations.py --only burgers         # one equation
    python tools/evidence_equations.py --summary              # the table alone

It also draws docs/images/equation_*.png, of the linear network by Levenberg-Marquardt.

Five equations, networks of tanh and of quadratic neurons with no more parameters than the linear
one, and three solvers on the same residuals at the same points: Levenberg-Marquardt
(`least_squares`), LBFGS (torch, strong Wolfe, 50 vectors) and Adam (1e-3, falling by a cosine).
Each has the same processor seconds on one thread. The error is the root of the mean square beside
the solution, as a share of the solution's. Solutions: by formula; Burgers by Cole and Hopf's with
Gauss-Hermite nodes; Allen-Cahn by a spectral solver in this file. A seed draws network and points.
`constant` is the relative error of an unknown constant.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence_runs import parser_of, read_piece, write_piece
from torch import Tensor, nn
from torch.func import grad, hessian

from quadric.layers import make_layer
from quadric.solve import Field, Term, least_squares
from quadric.solve.terms import TermProblem
from quadric.solve.unknowns import Unknowns
from quadric.support.texttable import markdown_table

ROOT = Path(__file__).resolve().parent.parent
ARMS = ("linear", "shared", "square", "qres", "eigen", "glu")
SOLVERS = ("lm", "lbfgs", "adam")
PI = math.pi
VISCOSITY = 0.01 / PI


class Network(nn.Module):
    """Layers of a neuron with tanh; a shape around them makes what holds by construction."""

    def __init__(
        self,
        arm: str,
        width: int,
        depth: int,
        features: Callable[[Tensor], Tensor],
        shape: Callable[[Tensor, Tensor], Tensor],
        constant: float | None,
    ) -> None:
        super().__init__()
        inputs = features(torch.zeros(1, 2)).shape[1]
        layers: list[nn.Module] = []
        for i in range(depth):
            layers.append(make_layer(nn.Linear, width if i else inputs, width, neuron=arm))
            layers.append(nn.Identity() if arm == "glu" else nn.Tanh())
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))
        self.features, self.shape = features, shape
        if constant is not None:
            self.constant = nn.Parameter(torch.tensor(constant))

    def forward(self, x: Tensor) -> Tensor:
        """The field at points."""
        return self.shape(x, self.layers(self.features(x)))


@dataclass(frozen=True)
class Equation:
    """An equation, its network and its solution."""

    width: int
    depth: int
    terms: Callable[[], list[Term]]
    exact: Callable[[], tuple[Tensor, Tensor]]  # points, values
    title: str
    axes: tuple[str, str]
    features: Callable[[Tensor], Tensor] = lambda x: x
    shape: Callable[[Tensor, Tensor], Tensor] = lambda x, out: out
    constant: tuple[float, float] | None = None  # the true one, where it starts
    seconds: float = 60.0

    def network(self, arm: str, seed: int) -> Network:
        """The widest network with no more parameters than the linear one."""
        start = None if self.constant is None else self.constant[1]

        def made(arm: str, width: int) -> Network:
            torch.manual_seed(seed)
            return Network(arm, width, self.depth, self.features, self.shape, start).double()

        budget, width = size(made("linear", self.width)), self.width
        while size(made(arm, width)) > budget:
            width -= 1
        return made(arm, width)


def size(model: nn.Module) -> int:
    """The number of parameters."""
    return sum(p.numel() for p in model.parameters())


def uniform(count: int, *ranges: tuple[float, float]) -> Tensor:
    """Points in a box, spread evenly (Sobol), another draw for each seed."""
    engine = torch.quasirandom.SobolEngine(len(ranges), True, int(torch.randint(2**31, ())))
    low, high = torch.tensor(ranges, dtype=torch.float64).T
    return low + engine.draw(count, dtype=torch.float64) * (high - low)


def grid(*axes: Tensor) -> Tensor:
    """All points of a grid."""
    return torch.cartesian_prod(*axes)


def line(start: float, end: float, count: int) -> Tensor:
    """Numbers at equal distances."""
    return torch.linspace(start, end, count, dtype=torch.float64)


def border(count: int, low: float, high: float) -> Tensor:
    """Points on the border of a square."""
    side = line(low, high, count)
    sides = torch.cat([torch.stack([side * 0 + end, side], 1) for end in (low, high)])
    return torch.cat([sides, sides.flip(1)])


def _poisson() -> list[Term]:
    def inside(u: Field, x: Tensor) -> Tensor:
        return hessian(u)(x).diagonal().sum() + 2 * PI**2 * (PI * x).sin().prod()

    inner = line(0, 1, 26)[1:-1]
    return [Term(inside, grid(inner, inner)), Term(lambda u, x: u(x), border(30, 0, 1), 100)]


def _waves(low: float, a: float, b: float) -> tuple[Tensor, Tensor]:
    points = grid(line(low, 1, 101), line(low, 1, 101))
    return points, (a * PI * points[:, 0]).sin() * (b * PI * points[:, 1]).sin()


def _helmholtz() -> list[Term]:
    def inside(u: Field, x: Tensor) -> Tensor:
        wave = (PI * x[0]).sin() * (4 * PI * x[1]).sin()
        return hessian(u)(x).diagonal().sum() + u(x) - (1 - 17 * PI**2) * wave

    points = uniform(1200, (-1, 1), (-1, 1))
    return [Term(inside, points), Term(lambda u, x: u(x), border(40, -1, 1), 1000)]


def _burgers_points(count: int) -> Tensor:
    """Two of three near x = 0, where the front is .006 wide."""
    points = uniform(count, (0, 1), (-1, 1))
    near = torch.arange(count) % 3 > 0
    points[near, 1] = points[near, 1] ** 5
    return points


def _burgers() -> list[Term]:
    def inside(u: Field, x: Tensor) -> Tensor:
        slope = grad(u)(x)
        return slope[0] + u(x) * slope[1] - VISCOSITY * hessian(u)(x)[1, 1]

    return [Term(inside, _burgers_points(3000))]


def _inverse_burgers() -> list[Term]:
    def inside(u: Field, x: Tensor) -> Tensor:
        slope, viscosity = grad(u)(x), u.parameters["constant"] / PI
        return slope[0] + u(x) * slope[1] - viscosity * hessian(u)(x)[1, 1]

    data = _burgers_points(200)
    seen = burgers(data)
    joined = torch.cat([data, seen[:, None]], 1)
    return [
        Term(inside, _burgers_points(3000)),
        Term(lambda u, x: u(x[:2]) - x[2], joined, 10),
    ]


def burgers(points: Tensor) -> Tensor:
    """u_t + u u_x = nu u_xx from -sin(pi x), by the formula of Cole and Hopf."""
    nodes, weights = np.polynomial.hermite.hermgauss(200)
    t, x = points[:, :1], points[:, 1:2]
    y = x - (4 * VISCOSITY * t).sqrt() * torch.from_numpy(nodes)
    logs = -(PI * y).cos() / (2 * PI * VISCOSITY) + torch.from_numpy(weights).log()
    part = logs.softmax(1)
    return -(part * (PI * y).sin()).sum(1)


def _burgers_exact() -> tuple[Tensor, Tensor]:
    points = grid(line(0, 1, 101), line(-1, 1, 401))
    return points, burgers(points)


def _allen_cahn() -> list[Term]:
    def inside(u: Field, x: Tensor) -> Tensor:
        value = u(x)
        return grad(u)(x)[0] - 1e-4 * hessian(u)(x)[1, 1] - 5 * (value - value**3)

    def start(u: Field, x: Tensor) -> Tensor:
        return u(x) - x[1] ** 2 * (PI * x[1]).cos()

    first = torch.stack([torch.zeros(200, dtype=torch.float64), line(0, 1, 200)], 1)
    return [Term(inside, uniform(2400, (0, 1), (0, 1))), Term(start, first, 100)]


def _allen_cahn_exact() -> tuple[Tensor, Tensor]:
    """By Fourier modes and ETDRK4 (Kassam and Trefethen 2005): 1,024 of them, 2,000 steps."""
    count, steps = 1024, 2000
    x = -1 + 2 * torch.arange(count, dtype=torch.float64) / count
    waves = PI * torch.fft.fftfreq(count, 1 / count, dtype=torch.float64)
    h, linear = 1 / steps, 5 - 1e-4 * waves**2
    roots = torch.exp(1j * PI * (torch.arange(1, 33, dtype=torch.float64) - 0.5) / 32)
    z = h * linear[:, None] + roots
    e, half = (h * linear).exp(), (h * linear / 2).exp()
    q = h * (((z / 2).exp() - 1) / z).mean(1).real
    f1 = h * ((-4 - z + z.exp() * (4 - 3 * z + z**2)) / z**3).mean(1).real
    f2 = h * ((2 + z + z.exp() * (-2 + z)) / z**3).mean(1).real
    f3 = h * ((-4 - 3 * z - z**2 + z.exp() * (4 - z)) / z**3).mean(1).real

    def push(v: Tensor) -> Tensor:
        return torch.fft.fft(-5 * torch.fft.ifft(v).real ** 3)

    v = torch.fft.fft(x**2 * (PI * x).cos())
    kept = [torch.fft.ifft(v).real]
    for step in range(1, steps + 1):
        n = push(v)
        a = half * v + q * n
        na = push(a)
        b = half * v + q * na
        nb = push(b)
        c = half * a + q * (2 * nb - n)
        v = e * v + n * f1 + 2 * (na + nb) * f2 + push(c) * f3
        if step % 20 == 0:
            kept.append(torch.fft.ifft(v).real)
    right = slice(count // 2, None, 4)
    return grid(line(0, 1, 101), x[right]), torch.stack(kept)[:, right].flatten()


def _front(x: Tensor, out: Tensor) -> Tensor:
    """Starts at -sin(pi x) and stays 0 at the ends."""
    t, x = x[:, 0:1], x[:, 1:2]
    return (1 - x**2) * t * out - torch.sin(PI * x)


EQUATIONS: dict[str, Equation] = {
    "poisson": Equation(
        20, 2, _poisson, lambda: _waves(0, 1, 1), "Poisson", ("x", "y"), seconds=20
    ),
    "helmholtz": Equation(
        24, 2, _helmholtz, lambda: _waves(-1, 1, 4), "Helmholtz", ("x", "y"), seconds=40
    ),
    "burgers": Equation(
        18, 3, _burgers, _burgers_exact, "Burgers", ("t", "x"), shape=_front
    ),
    "allen-cahn": Equation(
        18, 3, _allen_cahn, _allen_cahn_exact, "Allen-Cahn", ("t", "x"),
        features=lambda x: torch.cat([2 * x[:, 0:1] - 1, torch.cos(PI * x[:, 1:2])], 1),
    ),
    "inverse-burgers": Equation(
        18, 3, _inverse_burgers, _burgers_exact, "Burgers, viscosity unknown", ("t", "x"),
        shape=_front, constant=(0.01, 0.02),
    ),
}  # fmt: skip


def _first_order(model: Network, terms: list[Term], solver: str, seconds: float) -> int:
    """Adam or LBFGS on the same residuals, as quick as ours; returns the steps."""
    unknowns = Unknowns(model)
    problem = TermProblem(unknowns, terms)
    problem.hasten()
    u = unknowns.start().requires_grad_()
    begin, calls = time.process_time(), 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = problem.residuals(u).square().mean()
        loss.backward()
        return loss

    optimizer: torch.optim.Optimizer
    if solver == "adam":
        optimizer = torch.optim.Adam([u], lr=1e-3)
    else:
        optimizer = torch.optim.LBFGS(
            [u], max_iter=20, history_size=50, line_search_fn="strong_wolfe",
            tolerance_grad=0, tolerance_change=0,
        )  # fmt: skip
    while (share := (time.process_time() - begin) / seconds) < 1:
        for group in optimizer.param_groups if solver == "adam" else ():
            group["lr"] = 1e-3 * (1 + math.cos(PI * share)) / 2
        before = calls
        optimizer.step(closure)
        if calls == before + 1 and solver == "lbfgs":  # its line search has ended
            break
    unknowns.write(u.detach())
    return calls


def measure(name: str, arm: str, solver: str, seed: int) -> dict[str, Any]:
    """One network: its error, the seconds, and how it went."""
    equation = EQUATIONS[name]
    seconds, model = equation.seconds, equation.network(arm, seed)
    torch.manual_seed(seed)
    terms = equation.terms()
    begin = time.process_time()
    if solver == "lm":
        fit = least_squares(
            model, terms=terms, regularization=None, max_steps=10**6, tolerance=1e-3,
            callback=lambda _: time.process_time() - begin > seconds,
        )  # fmt: skip
        steps = fit.steps
    else:
        steps = _first_order(model, terms, solver, seconds)
    took = time.process_time() - begin
    points, values = equation.exact()
    with torch.no_grad():
        away = model(points)[:, 0] - values
    result = {
        "equation": name, "arm": arm, "solver": solver, "seed": seed, "params": size(model),
        "seconds": round(took, 1), "steps": steps, "error": float(away.norm() / values.norm()),
    }  # fmt: skip
    if equation.constant is not None:
        result["constant"] = abs(float(model.constant.detach()) / equation.constant[0] - 1)
    if (arm, solver, seed) == ("linear", "lm", 0):
        draw(name, points, values, away, result)
    return result


def draw(name: str, points: Tensor, values: Tensor, away: Tensor, run: Mapping[str, Any]) -> None:
    """The field and what it is off."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    equation = EQUATIONS[name]
    shape = [len(points[:, i].unique()) for i in (0, 1)]
    box = [*points[:, 0].aminmax(), *points[:, 1].aminmax()]
    figure, axes = plt.subplots(1, 2, figsize=(8, 2.9), layout="constrained")
    for place, field, color in (
        (axes[0], values + away, "RdBu_r"),
        (axes[1], away.abs(), "viridis"),
    ):
        shown = place.imshow(
            field.reshape(shape).T, origin="lower", aspect="auto", cmap=color,
            extent=[float(end) for end in box],
        )  # fmt: skip
        figure.colorbar(shown, ax=place)
        place.set(xlabel=equation.axes[0], ylabel=equation.axes[1])
    axes[0].set_title(f"{equation.title}: u by {run['params']} parameters", fontsize=10)
    axes[1].set_title(
        f"distance to the solution ({run['error']:.1e}, {run['seconds']:.0f} s)", fontsize=10
    )
    figure.savefig(ROOT / "docs" / "images" / f"equation_{name}.png", dpi=100)
    plt.close(figure)


def equations_table(results: Path) -> str:
    """The errors of each equation by network and solver: geometric means over seeds."""
    runs = read_piece(results / "equations.json")["fits"]
    rows = []
    for name, equation in EQUATIONS.items():
        for arm in ARMS:
            own = [run for run in runs if (run["equation"], run["arm"]) == (name, arm)]
            if not own:
                continue
            cells = []
            for solver in SOLVERS:
                logs = [math.log10(run["error"]) for run in own if run["solver"] == solver]
                mean = f"{10 ** (sum(logs) / len(logs)):.1e}" if logs else "–"
                spread = f" ({10 ** min(logs):.0e}–{10 ** max(logs):.0e})" if len(logs) > 1 else ""
                cells.append(mean + spread)
            lm = [run for run in own if run["solver"] == "lm"]
            seconds = f"{sum(run['seconds'] for run in lm) / len(lm):.0f}" if lm else "–"
            rows.append([equation.title, f"`{arm}`", own[0]["params"], *cells, seconds, len(lm)])
    header = ["equation", "neuron", "parameters", "LM", "LBFGS", "Adam", "s, LM", "seeds, LM"]
    note = (
        "Relative errors: geometric means over seeds, in brackets the lowest and the highest. At "
        "most 60 processor seconds on one thread of a busy machine for each fit (Poisson 20, "
        "Helmholtz 40). Made by `python tools/evidence_equations.py`."
    )
    return f"{markdown_table(header, rows, 'llrrrrrr')}\n\n{note}"


def speed(rounds: int = 15) -> list[dict[str, Any]]:
    """Milliseconds of residuals and Jacobian of Poisson, by torch.func and by jets, width 20."""
    found: list[dict[str, Any]] = []
    for arm in ARMS:
        torch.manual_seed(0)
        same = lambda x: x  # noqa: E731
        model = Network(arm, 20, 2, same, lambda x, out: out, None).double()
        unknowns = Unknowns(model)
        problem, took = TermProblem(unknowns, EQUATIONS["poisson"].terms()), {}
        for way in ("func", "jets"):
            if way == "jets":
                problem.hasten()
            times = []
            for _ in range(rounds):
                begin = time.process_time()
                for _ in problem.blocks(unknowns.start()):
                    pass
                times.append(1e3 * (time.process_time() - begin))
            took[way] = round(min(times), 2)
        found.append({"arm": arm, "params": size(model), **took})
    return found


def speed_table(results: Path) -> str:
    """What second derivatives cost, as multiples of linear."""
    data = read_piece(results / "equations.json")["speed"]
    base = data[0]
    rows = [
        [f"`{row['arm']}`", row["params"], row["func"], row["jets"],
         *(f"{row[way] / base[way]:.2f}" for way in ("func", "jets"))]
        for row in data
    ]  # fmt: skip
    header = ["neuron", "parameters", "ms, torch.func", "ms, jets", "torch.func, linear = 1",
              "jets, linear = 1"]  # fmt: skip
    note = (
        "Residuals and all their derivatives by the weights: 576 points with a Laplacian and 120 "
        "on the border, two layers of width 20 whatever they cost. Processor time, the best of 15, "
        "on one thread of a busy machine. Made by `python tools/evidence_equations.py --speed`."
    )
    return f"{markdown_table(header, rows, 'lrrrrr')}\n\n{note}"


def _work(seeds: int) -> list[tuple[str, str, str, int]]:
    """What is to be done, the most telling first."""
    first = [(n, arm, "lm", 0) for n in EQUATIONS for arm in ARMS[:2]]
    first += [(n, arm, "lm", 0) for n in EQUATIONS for arm in ARMS[2:4]]
    first += [(n, "linear", solver, 0) for n in EQUATIONS for solver in SOLVERS[1:]]
    rest = [(n, arm, "lm", s) for s in range(seeds) for n in EQUATIONS for arm in ARMS]
    rest += [(n, "shared", solver, 0) for n in EQUATIONS for solver in SOLVERS[1:]]
    return list(dict.fromkeys(first + rest))


def main() -> None:
    """Runs what is missing."""
    parser = parser_of(__doc__, "results/equations.json")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=[*EQUATIONS], nargs="*", default=[*EQUATIONS])
    parser.add_argument("--add", type=Path, nargs="*", help="take runs from other such files")
    parser.add_argument("--speed", action="store_true", help="time the derivatives alone")
    parser.add_argument("--arms", choices=ARMS, nargs="*", default=[*ARMS])
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.summary:
        print(equations_table(given.out.parent))
        return
    if given.speed:
        _write(given.out, [], speed=speed())
        return
    if given.add:
        _write(given.out, [run for path in given.add for run in read_piece(path)["fits"]])
        return
    for work in _work(given.seeds):
        wanted = work[0] in given.only and work[1] in given.arms
        if wanted and work not in map(_key, _read(given.out)["fits"]):
            run = measure(*work)
            print(json.dumps(run), flush=True)
            _write(given.out, [run])


def _key(run: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells one run from another."""
    return tuple(run[name] for name in ("equation", "arm", "solver", "seed"))


def _read(path: Path) -> dict[str, Any]:
    """What was measured so far."""
    data = read_piece(path) if path.exists() else {}
    return {"fits": data.get("fits", []), "speed": data.get("speed", [])}


def _write(path: Path, runs: list[dict[str, Any]], **more: Any) -> None:
    """Adds runs that are not there yet."""
    data = _read(path)
    known = set(map(_key, data["fits"]))
    new = [run for run in runs if _key(run) not in known]
    write_piece(path, {**data, "fits": [*data["fits"], *new], **more}, "numpy")


if __name__ == "__main__":
    main()
