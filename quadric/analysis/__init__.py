"""What the neurons of a trained network learned: measured, drawn, and as a page.

`analyze` measures a run or a model; `figures` draws runs and analyses; `report` makes a page of
them; `to_sympy` writes a small network as a formula; `quadratic_forms` gives the eigenvectors of a
network of degree two. Measuring needs no training code, and nothing
here loads a plotting library before it draws.
"""

from quadric.analysis import figures as figures
from quadric.analysis.analyzing import Analysis as Analysis
from quadric.analysis.analyzing import analyze as analyze
from quadric.analysis.eigenvectors import QuadraticForms as QuadraticForms
from quadric.analysis.eigenvectors import quadratic_forms as quadratic_forms
from quadric.analysis.formula import to_sympy as to_sympy
from quadric.analysis.page import report as report
