"""Does a quadratic network help on this table? The comparison behind `quadric compare`."""

from quadric.sklearn.compare.differences import Difference as Difference
from quadric.sklearn.compare.differences import corrected_difference as corrected_difference
from quadric.sklearn.compare.models import Contender as Contender
from quadric.sklearn.compare.models import Plan as Plan
from quadric.sklearn.compare.models import parse_neurons as parse_neurons
from quadric.sklearn.compare.report import Comparison as Comparison
from quadric.sklearn.compare.run import Options as Options
from quadric.sklearn.compare.run import check_table as check_table
from quadric.sklearn.compare.run import compare as compare
from quadric.sklearn.compare.sources import load_source as load_source
