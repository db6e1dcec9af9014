# Each target makes .venv when it is missing or when pyproject.toml changed: the demo with what the
# package needs, all others with the tools of development, too.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready

.PHONY: demo test lmms clients fuzz mutants soak serve-soak siege faults check docs sbom release test-oldest test-python format pair reader bench clean

demo: $(INSTALLED)
	$(BIN)/draftlens demo

# Some hundred tests start a process, which reads bytecode sooner than it compiles. Workers that live
# for all of the tests load every library and grow to several GiB, and pytest-xdist hangs after the
# loss of one, so there are two runs, which end with the loss of a worker.
TEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0
test: $(READY)
	$(TEST) tests/e2e tests/exact
	$(TEST) tests/unit tests/device tests/faults tests/mutants

# Random calls with fresh seeds; EXAMPLES=20000 for a long run.
EXAMPLES ?= 3000
fuzz: $(READY)
	DRAFTLENS_FUZZ_EXAMPLES=$(EXAMPLES) OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -o timeout=0 tests/exact/test_fuzz.py tests/exact/test_document_fuzz.py

# The test with lmms-eval, whose requirements (av below 16, one version of wandb) need an environment
# of their own.
lmms:
	$(PYTHON) -m venv .venv-lmms
	.venv-lmms/bin/python -m pip install --quiet -e ".[dev]" -e "lab[lmms]"
	OMP_NUM_THREADS=1 .venv-lmms/bin/pytest tests/e2e/lab/test_lmms.py

# The clients whose requirements (an older openai, rich below 15, a whole torch) need an environment of their own.
clients: $(READY)
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python -m pip install --quiet instructor litellm guidellm mineru-vl-utils "docling-slim[convert-core,format-pdf]" torch transformers
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/e2e/serve/test_other_clients.py

mutants: $(READY)
	$(BIN)/python tests/mutants/run.py --jobs 2

# 500 answers of every kind in one process, whose memory, descriptors and threads must not grow.
soak: $(READY)
	PYTHONPATH=. OMP_NUM_THREADS=1 $(BIN)/python tests/faults/soak.py

# 10,000 requests of 64 clients to a server: 2,000 answers are compared, clients leave, bodies are malformed, decoders die.
serve-soak: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.serve_soak
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.serve_limits

# 300 silent connections, 100 kills of decoders, 1,000 streams and 500 odd requests at the same time.
siege: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.serve_soak --siege

# About 1,400 malformed inputs, of which each is answered or refused in one line.
faults: $(READY)
	PYTHONPATH=.:tests:tests/exact OMP_NUM_THREADS=1 $(BIN)/python -W ignore tests/faults/run.py

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	MYPYPATH=benchmarks:tests:lab $(BIN)/mypy benchmarks/*.py benchmarks/*_parts
	$(BIN)/lint-imports

# The site in build/docs; a dead link between pages is an error. The tests look at links, too.
docs: $(READY)
	$(BIN)/python -m pip install --quiet -e ".[docs]"
	$(BIN)/typer draftlens.cli.app utils docs --name draftlens --title "Command line" --output docs/cli.md
	$(BIN)/sphinx-build -q -W --keep-going -c docs . build/docs

# What a server needs at a release, in dist/: a lock of its requirements with the hashes of the wheels for this
# platform, and the SBOM (CycloneDX) of them; and the same of `draftlens[all]`, the laboratory included. The tools have an environment
# of their own. `pip install --require-hashes -r` takes a lock.
LOCK := dist/requirements-serve.txt
LOCK_OF_ALL := dist/requirements-all.txt
sbom:
	test -x .venv-release/bin/python || $(PYTHON) -m venv .venv-release
	.venv-release/bin/python -m pip install --quiet cyclonedx-bom
	mkdir -p dist
	.venv-release/bin/python -m pip install --quiet --dry-run --ignore-installed --report dist/report.json ".[serve,documents]"
	.venv-release/bin/python recipes/lock.py dist/report.json > $(LOCK)
	.venv-release/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --output-file dist/sbom.json $(LOCK)
	.venv-release/bin/python -m pip install --quiet --dry-run --ignore-installed --report dist/report.json ".[serve,documents]" ./lab
	.venv-release/bin/python recipes/lock.py dist/report.json > $(LOCK_OF_ALL)
	.venv-release/bin/cyclonedx-py requirements --pyproject lab/pyproject.toml --output-reproducible --output-file dist/sbom-all.json $(LOCK_OF_ALL)

# Both wheels and their sources in dist/, with the SBOM, and `release.json`: versions, megabytes and seconds of the commands in an
# environment of their own. Nothing is signed or uploaded.
# BEFORE="--before torch==..." installs these requirements first, such as a build of torch for CPUs.
release: $(READY)
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	cd lab && ../$(BIN)/python -m hatchling build -d ../dist
	$(MAKE) sbom
	$(BIN)/python -m recipes.release dist $(BEFORE)

# Some of the tests with the lowest version of each requirement that has a lower bound, in an environment of their own.
OLDEST := .venv-oldest/bin/python
SOME := -e ".[serve,documents]" pytest pytest-timeout hypothesis scipy jsonschema-rs
SOME_TESTS := tests/exact/test_callers_generate.py tests/exact/test_matrix.py tests/exact/test_hub.py tests/unit/core
test-oldest: $(READY)
	mkdir -p build
	$(BIN)/python -m recipes.release.oldest > build/oldest.txt
	test -x $(OLDEST) || $(PYTHON) -m venv .venv-oldest
	$(OLDEST) -m pip install --quiet -c build/oldest.txt $(SOME)
	OMP_NUM_THREADS=1 $(OLDEST) -m pytest $(SOME_TESTS)

# The same and the tests of media by another Python, with the newest versions that it takes: make test-python PYTHON=python3.13
OTHER := .venv-$(notdir $(PYTHON))/bin/python
test-python:
	test -x $(OTHER) || $(PYTHON) -m venv .venv-$(notdir $(PYTHON))
	$(OTHER) -m pip install --quiet $(SOME)
	OMP_NUM_THREADS=1 $(OTHER) -m pytest $(SOME_TESTS) tests/unit/media

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pair: $(READY)
	$(BIN)/python -m recipes.pair

reader: $(READY)
	$(BIN)/python -m recipes.reader

bench: $(READY)
	$(BIN)/python benchmarks/engine.py

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e .
	touch $(INSTALLED)

$(READY): $(INSTALLED) lab/pyproject.toml
	$(BIN)/python -m pip install --quiet -e ".[dev]" -e lab
	touch $(READY)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
