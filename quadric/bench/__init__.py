"""Speed and memory of quadratic layers and networks, as ratios to the linear ones."""

from quadric.bench.cases import Case as Case
from quadric.bench.cases import layer_cases as layer_cases
from quadric.bench.cases import network_cases as network_cases
from quadric.bench.comparison import BenchReport as BenchReport
from quadric.bench.comparison import compare as compare
