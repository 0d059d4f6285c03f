"""From a table to a law: formulas with error bars, from short to exact."""

from quadric.discover.door import formulas as formulas
from quadric.discover.result import Formula as Formula
from quadric.discover.result import Formulas as Formulas
