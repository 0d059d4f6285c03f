# make demo       what quadratic neurons are good for, in about a minute
# make test       every test but the slow ones
# make test-slow  the slow ones
# make lint       ruff and mypy
# make docs       the documentation site into site/
# make package    wheel and sdist into dist/, installed in an empty environment and tried
# make notebooks  run the notebooks again, and write their pages for the site
# make results    every table of README.md and docs/, and report.html, from results/
# make readme     the demo's numbers and pictures into results/, docs/ and README.md
# make clean      removes the virtual environment, caches and builds (runs/ stays)
#
# Nothing has to be done before: each target makes .venv and installs what it needs, once. A stamp in
# .venv says that an install is done; it is done again when pyproject.toml or constraints.txt changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Test processes; each pays the import of torch, so more than a few do not help.
JOBS ?= auto
# The layers' own tests, which run once more on the fused kernels.
KERNEL_TESTS := tests/layers/test_contract.py tests/layers/test_eigen.py tests/test_functional.py

.PHONY: demo test test-slow lint docs notebooks package results readme clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed-demo
	$(BIN)/quadric demo

test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --maxprocesses=8 --dist=loadfile
	@if $(BIN)/python -c "import quadric; raise SystemExit(not quadric.use_kernels())"; then \
		OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --kernels $(KERNEL_TESTS); \
	else \
		echo "no C++ compiler: the layers were not tested once more on the fused kernels"; \
	fi

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow --timeout=3600

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'the site is in site/: open site/index.html'

package: $(VENV)/.installed-dev
	$(BIN)/python tools/package.py

notebooks: $(VENV)/.installed-dev
	$(BIN)/python tools/notebooks.py

results: $(VENV)/.installed-dev
	@for part in laws tables polynomial; do \
		$(BIN)/python tools/evidence_$$part.py --summary || exit 1; \
	done
	$(BIN)/python tools/results_summary.py
	$(BIN)/python tools/readme_tables.py
	$(BIN)/python tools/docs_pictures.py
	$(BIN)/python tools/gallery.py
	@if ls results/images/*.json results/translation/*.json > /dev/null 2>&1; then \
		$(BIN)/quadric report $(wildcard results/images results/translation) -o report.html --title 'Published runs'; \
	fi

readme: demo
	mkdir -p results docs/images
	cp runs/demo/demo.json results/demo.json
	cp runs/demo/boundaries.png runs/demo/laws.png docs/images/
	$(BIN)/python tools/readme_tables.py

clean:
	rm -rf $(VENV) site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find quadric tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 10) and "quadric needs Python 3.10 or newer, $(PYTHON) is %d.%d: make PYTHON=python3.11 ..." % v[:2])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-torch: constraints.txt tools/install_torch.py | $(BIN)/python
	@$(BIN)/python tools/install_torch.py
	@touch $@

$(VENV)/.installed-demo: pyproject.toml $(VENV)/.installed-torch
	@echo 'installing quadric and what its demo needs'
	@$(PIP) -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.installed-torch
	@echo 'installing quadric with all extras and the development tools'
	@$(PIP) -c constraints.txt -e '.[all,dev]'
	@touch $@ $(VENV)/.installed-demo
