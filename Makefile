# Every job sets up .venv first (.ci/setup; nothing to do once .venv/.ready is there). `make` alone lists the jobs.
#   make run ARGS="folder"          arguments for the app
#   make test PYTEST="-k reader"    arguments for pytest, in one process
#   make test WORKERS=4             as many processes that test (default: 2; each has ranks of its own, about 3 GB)
#   make test-torch TORCH=2.11.0    another torch, in an environment of its own (several GB)
#   make test-scripts SCRIPT_PYTHON=/path/to/python    with a torch of its own; nothing is installed there
#   make zoo ARGS="--only ddp --models mlp"    by parts of names; nothing is written then
#   make mutants DRAWN=0 ARGS="--of ddp"    breaks of the fixed list only; of one strategy or room
#   PYTHON, TORCH_INDEX             see .ci/setup
BIN := .venv/bin
ARGS ?=
PYTEST ?=
WORKERS ?= 2
DRAWN ?= 150
LANGUAGE ?= xx
LANGUAGES := app/rankdeck_app/languages
SEED ?= 20261122
# A whole suite is shared out, a part of it is soonest done by one.
ALL = $(if $(strip $(PYTEST)),,-n $(WORKERS) --dist worksteal)

.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help setup run test test-all test-torch test-scripts coverage lint format texts pages bench gpu mutants verify-breaks fuzz faults silent storms host-faults zoo clean distclean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

setup:
	@.ci/setup

run: setup ## set everything up and open the app
	@$(BIN)/rankdeck-app $(ARGS)

test: setup ## every test that needs no GPU and no more than seconds
	@$(BIN)/python -m pytest $(ALL) $(PYTEST)

test-all: setup ## the slow ones too, and those that need a GPU where there is one
	@$(BIN)/python -m pytest -m "" --timeout=1800 $(PYTEST)

test-torch: ## the engine's tests under another torch: TORCH=2.11.0; several GB to download
	@.ci/test-torch "$(TORCH)" $(PYTEST)

test-scripts: setup ## what is put into a person's process, in another Python: SCRIPT_PYTHON=/path/to/python
	@RANKDECK_SCRIPT_PYTHON="$(SCRIPT_PYTHON)" $(BIN)/python -m pytest -m "not gpu" tests/engine/observer \
		tests/engine/launch/test_scripts.py tests/e2e/test_scripts.py tests/e2e/test_other_environment.py $(PYTEST)

coverage: setup ## make test, with the lines that no test reached
	@$(BIN)/python -m pytest $(ALL) --cov --cov-report=term-missing:skip-covered $(PYTEST)

lint: setup ## style, types, and who imports whom
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy -p rankdeck -p rankdeck_app
	@$(BIN)/lint-imports

format: setup ## write the files as lint wants them
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

pages: setup ## the reference pages of the docs, from the schema and the commands
	@$(BIN)/python .ci/pages.py

texts: setup ## every text of the window, for translators: LANGUAGE=ko writes or brings up to date languages/rankdeck_ko.ts
	@mkdir -p $(LANGUAGES)
	@$(BIN)/python .ci/texts.py > .make/texts.py
	@{ find app/rankdeck_app engine/rankdeck -name '*.py' | sort; echo .make/texts.py; } > .make/texts.txt
	@$(BIN)/pyside6-lupdate @.make/texts.txt -tr-function-alias tr+=tr_noop,tr+=phrase -locations none -ts $(LANGUAGES)/rankdeck_$(LANGUAGE).ts
	@$(BIN)/pyside6-lrelease $(LANGUAGES)/rankdeck_$(LANGUAGE).ts

bench: setup ## training beside hand-written loops, launches beside torchrun's, the check before the first step, watched scripts, syncs, the dashboard, clicks, 5,000 runs listed, GPUs, plans (half an hour)
	@$(BIN)/python -m tests.bench.training
	@$(BIN)/python -m tests.bench.launching
	@$(BIN)/python -m tests.bench.verifying
	@$(BIN)/python -m tests.bench.sync
	@$(BIN)/python -m tests.bench.replay
	@$(BIN)/python -m tests.bench.replay --day
	@$(BIN)/python -m tests.bench.window
	@$(BIN)/python -m tests.bench.runs
	@$(BIN)/python -m tests.bench.telemetry
	@$(BIN)/python -m tests.bench.devices
	@$(BIN)/python -m tests.bench.planning
	@$(BIN)/python -m tests.bench.observing
	@$(BIN)/python -m tests.bench.remote

# No setup: a machine with a GPU may have no network, and its own Python has the torch that fits its driver.
gpu: ## what only a GPU can tell, in 20 minutes, written to docs/gpu.md; PYTHON=... has torch, ARGS="--dry-run"
	@$(or $(PYTHON),$(firstword $(wildcard $(BIN)/python) python3)) -m tests.gpu $(ARGS)

mutants: setup ## break one line of the engine at a time, and see which breaks no test sees (hours; goes on where it was)
	@[ $(DRAWN) -eq 0 ] || .venv-mutants/bin/python -c "import cosmic_ray" 2>/dev/null || \
		{ $(BIN)/python -m venv .venv-mutants && .venv-mutants/bin/pip install --quiet cosmic-ray==8.7.0; }
	@[ $(DRAWN) -eq 0 ] || .venv-mutants/bin/python tests/mutants/draw.py $(DRAWN) $(SEED) .make/mutants/drawn.json
	@$(BIN)/python -m tests.mutants.run $(ARGS)

verify-breaks: setup ## breaks that the check before the first step finds, and right runs (ten minutes); ARGS="--only ring"
	@$(BIN)/python -m tests.verify_breaks $(ARGS)
	@$(BIN)/python -m tests.verify_breaks --right $(ARGS)

fuzz: setup ## readers and commands on damaged runs (hours; goes on where it was); ARGS="--examples 1000 --cache FOLDER"
	@$(BIN)/python -m tests.fuzz --cache .make/fuzz $(ARGS)

faults: setup ## faults of every kind in real runs, and healthy ones, written to docs/reliability.md (hours; goes on where it was)
	@$(BIN)/python -m tests.faults --trials 588 --healthy 200 --cache .make/faults --page docs/reliability.md $(ARGS)

silent: setup ## scripts that are silently wrong and healthy ones, what is reported written to docs/findings.md (an hour; goes on where it was)
	@$(BIN)/python -m tests.silent --cache .make/silent --write $(ARGS)

storms: setup ## runs killed again and again, to the last bit, written to docs/reliability.md (an hour; goes on where it was)
	@$(BIN)/python -m tests.faults --storms 100 --cache .make/faults --page docs/reliability.md $(ARGS)
	@$(BIN)/python -m tests.faults.queue_storms

host-faults: setup ## faults of runs over three hosts, written to docs/reliability-hosts.md (an hour; goes on where it was; as root)
	@$(BIN)/python -m tests.hosts --cache .make/host-faults --page docs/reliability-hosts.md $(ARGS)

zoo: setup ## every kind of model, loss, optimizer and data under every strategy, written to docs/equality.md (hours; goes on where it was)
	@$(BIN)/python -m tests.zoo $(ARGS)

clean: ## remove what builds and checks left, keep .venv
	rm -rf build dist htmlcov .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find engine app tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove .venv and other environments too
	rm -rf .venv .venv-torch-* .venv-mutants .make
