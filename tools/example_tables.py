"""Four tables as people have them, made up: houses, churn, sensors and twelve kinds of beans.

    python tools/example_tables.py DIRECTORY

writes houses.csv, churn.csv, sensors.csv and beans.csv. `docs/compare.md` shows what
`quadric compare` says about them; the numbers are in results/compare/.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd


def houses(rows: int = 3_000) -> pd.DataFrame:
    """Categories, dates, holes, an identifier, units, and a skewed price."""
    draw = np.random.default_rng(1)
    towns = np.array(["Ashford", "Bellmere", "Corwen", "Dunmoor", "Eastly", "Farleigh", "Gorse"])
    level = np.array([1.0, 1.45, 0.8, 0.7, 1.2, 0.95, 0.6])
    town = draw.choice(7, rows, p=[0.25, 0.2, 0.15, 0.15, 0.1, 0.1, 0.05])
    area = draw.gamma(6, 18, rows) + 35
    lot = area * draw.gamma(3, 1.1, rows)
    built = 2023 - draw.gamma(2, 20, rows).round().clip(0, 150)
    sold = draw.integers(0, 5 * 365, rows)
    condition = draw.choice(["poor", "fair", "good", "new"], rows, p=[0.1, 0.4, 0.4, 0.1])
    energy = draw.integers(35, 100, rows)
    age = 2024 - built
    price = (
        2_400 * area * level[town] * (1 + 0.07 * sold / 365) * (1 + lot / 4_000)
        * np.exp(-0.006 * age + 0.00004 * age**2)
        * pd.Series(condition).map({"poor": 0.75, "fair": 1, "good": 1.1, "new": 1.3}).to_numpy()
        * (0.8 + 0.3 * energy / 100) * np.exp(draw.normal(0, 0.14, rows))
    )  # fmt: skip
    frame = pd.DataFrame(
        {
            "house_id": 10_000 + draw.permutation(rows),
            "town": towns[town],
            "area": [f"{value:.1f} m²" for value in area],
            "lot": lot.round(),
            "rooms": (area / 22 + draw.normal(0, 0.8, rows)).round().clip(1),
            "built": built,
            "condition": condition,
            "energy": [f"{value}%" for value in energy],
            "garage": draw.random(rows) < 0.6,
            "sold": (pd.Timestamp(2019, 1, 1) + pd.to_timedelta(sold, unit="D")).strftime(
                "%Y-%m-%d"
            ),
            "price": [f"${value:,.0f}" for value in price],
        }
    )
    frame.loc[draw.random(rows) < 0.12, "lot"] = np.nan
    frame.loc[draw.random(rows) < 0.08, "condition"] = None
    frame.loc[draw.random(rows) < 0.05, "built"] = np.nan
    return frame


def churn(rows: int = 6_000) -> pd.DataFrame:
    """Booleans, text, and 8 % of the customers who leave."""
    draw = np.random.default_rng(2)
    plan = draw.choice(["basic", "plus", "family", "student"], rows, p=[0.45, 0.3, 0.15, 0.1])
    months = draw.gamma(1.6, 18, rows).round().clip(0, 120)
    bill = pd.Series(plan).map({"basic": 15, "plus": 32, "family": 55, "student": 9}).to_numpy()
    bill = bill * draw.normal(1, 0.12, rows)
    calls = draw.poisson(0.5 + 1.2 * (draw.random(rows) < 0.15), rows)
    use = draw.lognormal(1.5, 0.9, rows)
    contract, paper = draw.random(rows) < 0.55, draw.random(rows) < 0.4
    change = use / np.exp(1.5) - bill / 25
    logit = -3.15 - 0.025 * months + 0.75 * calls - 1.3 * contract + 0.3 * paper
    logit += 0.35 * change**2 * ~contract + 0.9 * (plan == "student")
    frame = pd.DataFrame(
        {
            "customer": [f"C{value}" for value in draw.permutation(90_000)[:rows] + 10_000],
            "plan": plan,
            "region": draw.choice(["north", "south", "east", "west"], rows),
            "months": months,
            "bill": [f"${value:.2f}" for value in bill],
            "support_calls": calls,
            "use_gb": use.round(2),
            "contract": contract,
            "paper_bill": paper,
            "device": draw.choice(["phone A", "phone B", "tablet", "router", "other"], rows),
            "left": np.where(draw.random(rows) < 1 / (1 + np.exp(-logit)), "yes", "no"),
        }
    )
    frame.loc[draw.random(rows) < 0.06, "use_gb"] = np.nan
    return frame


def sensors(rows: int = 50_000) -> pd.DataFrame:
    """A machine that is measured every ten minutes, and drifts."""
    draw = np.random.default_rng(3)
    time = np.arange(rows)
    day, year = 2 * np.pi * time / 144, 2 * np.pi * time / 52_560

    def wander(scale: float, back: float) -> np.ndarray:
        steps = draw.normal(0, scale, rows)
        found = np.zeros(rows)
        for i in range(1, rows):
            found[i] = back * found[i - 1] + steps[i]
        return found

    outside = 12 + 9 * np.sin(year - 1.8) + 4 * np.sin(day - 2) + wander(0.25, 0.995)
    load = (0.6 + 0.3 * np.sin(day - 1.5) + wander(0.03, 0.98)).clip(0.05, 1.4)
    speed = 1_500 * load**0.5 + draw.normal(0, 15, rows)
    flow = 3 + 1.5 * load + wander(0.02, 0.99) + draw.normal(0, 0.05, rows)
    wear = wander(0.02, 0.9999) + time / rows * 4
    heat = 45 + 0.8 * outside + 30 * load**2 / flow + 3 * wear + draw.normal(0, 0.5, rows)
    stamp = pd.Timestamp(2023, 1, 1) + pd.to_timedelta(10 * time, unit="min")
    others = {f"vibration_{i}": (load * draw.gamma(2, 0.1, rows)).round(3) for i in range(1, 5)}
    return pd.DataFrame(
        {
            "time": stamp.strftime("%Y-%m-%d %H:%M"),
            "outside": outside.round(2),
            "load": load.round(3),
            "speed": speed.round(),
            "flow": flow.round(3),
            "pressure": (2 + 0.4 * flow + 0.2 * load + draw.normal(0, 0.05, rows)).round(3),
            **others,
            "bearing": heat.round(2),
        }
    )


def beans(rows: int = 6_000) -> pd.DataFrame:
    """Twelve classes of unequal size, told apart by shape and color."""
    draw = np.random.default_rng(4)
    size = np.linspace(1, 4, 12)
    kind = draw.choice(12, rows, p=size / size.sum())
    middle = draw.normal(0, 1.1, (12, 6))
    mixing = draw.normal(0, 0.55, (12, 6, 6)) + 0.4 * np.eye(6)
    shape = middle[kind] + np.einsum("nij,nj->ni", mixing[kind], draw.normal(0, 1, (rows, 6)))
    length = 9 * np.exp(0.12 * shape[:, 0])
    width = 6 * np.exp(0.1 * shape[:, 1])
    return pd.DataFrame(
        {
            "length": [f"{value:.2f} mm" for value in length],
            "width": [f"{value:.2f} mm" for value in width],
            "outline": (np.pi * (length + width) / 2 * np.exp(0.02 * shape[:, 2])).round(2),
            "weight": (0.004 * length * width**2 * np.exp(0.1 * shape[:, 3])).round(3),
            "red": (120 + 25 * shape[:, 4]).round(),
            "green": (110 + 18 * shape[:, 5] + 8 * shape[:, 4]).round(),
            "kind": [f"bean {chr(65 + value)}" for value in kind],
        }
    )


TABLES: dict[str, Callable[[], pd.DataFrame]] = {
    "houses": houses,
    "churn": churn,
    "sensors": sensors,
    "beans": beans,
}


def main() -> int:
    """Write the tables."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, make in TABLES.items():
        make().to_csv(directory / f"{name}.csv", index=False)
        print(directory / f"{name}.csv")
    return 0


if __name__ == "__main__":
    sys.exit(main())
