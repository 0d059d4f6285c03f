"""Second-order least squares: fits that reach what a small network can, with error bars."""

from quadric.solve.choice import Choice as Choice
from quadric.solve.choice import choose_solver as choose_solver
from quadric.solve.door import error_bars as error_bars
from quadric.solve.door import least_squares as least_squares
from quadric.solve.fit import ErrorBars as ErrorBars
from quadric.solve.fit import LeastSquaresFit as LeastSquaresFit
from quadric.solve.frameworks import from_deepxde as from_deepxde
from quadric.solve.frameworks import from_pina as from_pina
from quadric.solve.levenberg import Progress as Progress
from quadric.solve.starts import ridge_start_ as ridge_start_
from quadric.solve.terms import Field as Field
from quadric.solve.terms import Term as Term
