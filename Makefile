# Needs make and Python 3.11 or newer. Everything else, PostgreSQL included, is
# installed into .venv; `make test ARGS="-k retry"` hands ARGS to pytest. Only
# Chromium is the system's: root gets it from apt, anybody else is told.

PYTHON ?= python3
VENV ?= .venv
DIST ?= dist
PYTEST = $(VENV)/bin/python -m pytest
PIP = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint format types bench peers year chaos docs pictures build release clean
.DELETE_ON_ERROR:

demo: $(VENV)/demo.stamp
	$(VENV)/bin/python -m example_app

# Three processes, as half of the tests wait for others. What failed beside others is tried once more alone: many tests
# have workers, servers and kills of their own, and few machines have processors for all of them. Both are shown.
test: $(VENV)/test.stamp
	@$(VENV)/bin/python -m tests.browser.chromium
	$(PYTEST) --numprocesses 3 --dist loadfile $(ARGS) || $(PYTEST) --last-failed --last-failed-no-failures none $(ARGS)

lint: $(VENV)/dev.stamp
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

format: $(VENV)/dev.stamp
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

types: $(VENV)/dev.stamp
	$(VENV)/bin/mypy $(ARGS)

bench: $(VENV)/test.stamp
	$(VENV)/bin/python -m benchmarks $(ARGS)

# Other engines are fetched from PyPI, each into an environment of its own beside the caches of other programs.
peers: $(VENV)/test.stamp
	$(VENV)/bin/python -m benchmarks.peers $(ARGS)

# A simulated year; the tables and pictures of docs/growth.md are made anew.
year: $(VENV)/test.stamp
	$(VENV)/bin/python -m benchmarks.year --into docs $(ARGS)

chaos: $(VENV)/test.stamp
	$(VENV)/bin/python -m chaos $(ARGS)

# The reference from the code, then the site in site/; a broken link ends it.
docs: $(VENV)/docs.stamp
	$(VENV)/bin/python docs/generate.py
	$(VENV)/bin/zensical build --clean --strict

pictures: $(VENV)/test.stamp
	@$(VENV)/bin/python -m tests.browser.chromium
	$(VENV)/bin/python docs/screenshots.py

# The sdist, and from it the wheel.
build: $(VENV)/dev.stamp
	$(VENV)/bin/python -m build --outdir $(DIST)

# Everything a release must pass, then both files in dist/, looked at. Uploading them is left to whoever may.
release: lint test docs
	rm -rf $(DIST)
	$(MAKE) build
	$(VENV)/bin/python .ci/wheel.py $(DIST)/*.whl
	PYTHON=$(PYTHON) .ci/smoke $(DIST)/*.whl

clean:
	rm -rf $(VENV) $(DIST) site

# One stamp for each dependency group: pip runs again only when pyproject.toml
# is newer than the stamp.
$(VENV)/%.stamp: pyproject.toml | $(VENV)/pyvenv.cfg
	$(PIP) --editable . --group $*
	@touch $@

# `--group` needs pip 25.1, newer than what comes with Python 3.11.
$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=/path/to/python" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
