# Everything a newcomer or CI runs. Each target makes its own virtual environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint format bench golden dashboards grafana-parts logs-report test-vllm test-image clean

## demo: serve a simulated node on http://127.0.0.1:10420 (no GPU needed)
demo: $(STAMP)
	$(BIN)/kvheadroom demo --web.listen-address 127.0.0.1:10420

## test: lint, types and every test that this machine has the parts for
test: lint
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

## bench: the figures in the README, as ratios measured in one run
bench: $(STAMP)
	$(BIN)/python -m bench

## golden: rewrite tests/golden from the catalogue; read the diff before you commit it
golden: $(STAMP)
	$(BIN)/kvheadroom metrics-doc --format surface > tests/golden/metric_surface.txt

## dashboards: rewrite dashboards/json and what deploy/ makes of rules and dashboards
dashboards: $(STAMP)
	$(BIN)/python -m dashboards.kvheadroom_dashboards
	$(BIN)/python -m deploy.generate

## grafana-parts: Grafana's own libraries, with which the tests draw the dashboards (Node 20, 500 MB)
grafana-parts:
	npm install --prefix tests/grafana --legacy-peer-deps --no-package-lock --no-audit --no-fund --silent

## logs-report: public startup logs whose printed memory does not make the printed tokens, and why
logs-report: $(STAMP)
	$(BIN)/python -m tests.unit.startup_capacity

## test-vllm: make a real vLLM on this CPU (4 minutes, 3.5 GB once), serve four tiny families and check gauges, allocations, discovery, headroom and preemptions against it
test-vllm: $(STAMP)
	$(BIN)/python -m pytest -m real_vllm tests/real_vllm

## test-image: build the container image without a Docker engine and run it (needs buildah and mmdebstrap)
test-image: $(STAMP)
	$(BIN)/python -m pytest -m image tests/deploy

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt pip
	$(BIN)/python -m pip install --quiet -c constraints.txt --group dev -e .
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
