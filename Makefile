# Each target does its own set-up: git, make and Python 3.11 or later are all it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Modules are compiled once, by the first process that loads them: the tests start many.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test e2e check format docs site manifests lock image bench clean

demo: $(STAMP)
	$(BIN)/mig-manager demo

test: $(STAMP)
	$(BIN)/pytest -n auto --dist worksteal

# On a real control plane instead: MIG_MANAGER_E2E_KUBECONFIG=... $(BIN)/pytest tests/cluster tests/daemon
e2e: $(STAMP)
	at=$$(mktemp -d); $(BIN)/python -m mig_manager.simulation.control $$at/kubeconfig & plane=$$!; \
	trap 'kill $$plane; rm -r $$at' EXIT; until [ -s $$at/kubeconfig ]; do sleep 0.1; done; \
	MIG_MANAGER_E2E_KUBECONFIG=$$at/kubeconfig $(BIN)/pytest tests/daemon/test_runs.py

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	$(BIN)/python deploy/generate.py --check

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	$(BIN)/python docs/generate.py

# The documentation as a site, in build/site; a link that leads nowhere is an error.
site: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# What comes from the settings and from the Helm chart: parts of the chart, and the plain manifests.
manifests: $(STAMP)
	$(BIN)/python deploy/generate.py

# The newest versions of what the image holds, with the hashes of all their files, for any platform.
lock: $(STAMP)
	$(LOCK) pyproject.toml --output-file deploy/image/requirements.lock
	$(LOCK) deploy/image/build.in --output-file deploy/image/build.lock

LOCK = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'

IMAGE ?= mig-manager:$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' mig_manager/__init__.py)
image:
	docker build --tag $(IMAGE) .

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist *.egg-info

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "mig-manager needs Python 3.11 or later; this is " + sys.version.split()[0] + ". Set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'
	@touch $@
