"""Speed and memory of quadratic layers and networks, as ratios to the linear ones."""

from quadric.bench.cases import Case as Case
from quadric.bench.cases import layer_cases as layer_cases
from quadric.bench.cases import network_cases as network_cases
from quadric.bench.cases import rank_cases as rank_cases
from quadric.bench.cases import small_cases as small_cases
from quadric.bench.run import BenchReport as BenchReport
from quadric.bench.run import run as run
from quadric.bench.suite import suite_cases as suite_cases
from quadric.bench.suite import summary as summary
