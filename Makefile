# make demo   train on three simulated machines on this computer, and take them away again
# make check  lint, types, layers, and the quick tests of most pure modules
# make test   every check, and the tests of each promise: 15 minutes on two cores
# make test-all   every check and every test: 45 minutes
#
# Each makes its own environment in .venv, and makes it anew when pyproject.toml or constraints.txt change.
# PyPI's torch brings gigabytes of CUDA libraries on Linux; without an NVIDIA GPU, do without them:
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu

PYTHONS := python3 python3.13 python3.12 python3.11
TORCH_INDEX ?=
PYTEST_ARGS ?=
CORES := $(shell nproc 2> /dev/null || getconf _NPROCESSORS_ONLN)
# Tests wait more than they compute: one lane more than there are cores.
LANES ?= $(shell echo $$(($(CORES) + 1)))

# The folders whose tests start no process and wait for no clock.
CHECKED := $(addprefix tests/,fleet inventory planning test_architecture.py test_device_kinds.py test_documents.py test_facts.py test_faults_of_runs.py test_fold.py test_goals.py test_import_graph.py test_job_settings.py \
	simulation test_narration.py test_protocol.py test_run_fold.py test_session.py test_settings.py test_text.py \
	$(addprefix training/,checkpoint data server shared user_code/test_checks.py user_code/test_losses.py wire worker) \
	$(addprefix training/coordinator/,plan recovery reporting strategies test_background.py test_history.py test_main.py \
	test_model_size.py test_share_balancer.py))

# What takes longest of these; `make test` has it.
SLOW := $(addprefix tests/,fleet/install/test_bootstrap.py fleet/test_login_shells.py fleet/test_purge.py \
	simulation/test_simulation.py \
	$(addprefix training/worker/,device/test_memory_limit.py test_process_group.py test_stage.py test_stage_matrix.py))

RUN := .venv/bin
IN_LANES := -n $(LANES) --dist loadgroup --no-loadscope-reorder
PIP_INSTALL := $(RUN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
IS_FIT := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

# Where it is set, every process of the tests would compile the product and the tests anew.
unexport PYTHONDONTWRITEBYTECODE

# Lint takes one core, and tests wait more than they compute: it gets what they leave (`nice`), where they take minutes.
# What it says is printed once it ends.
beside_lint = { said=$$($(2) $(MAKE) --no-print-directory lint 2>&1); code=$$?; echo; echo "$$said"; exit $$code; } & lint=$$!; \
	$(1); tests=$$?; wait $$lint || { echo "lint failed: see above" >&2; exit 1; }; exit $$tests

.PHONY: help demo check test test-all lint format clean
.NOTPARALLEL:

help:
	@echo "make demo     train on three simulated machines on this computer (no configuration)"
	@echo "make check    lint, types, layers and the quick tests of most pure modules"
	@echo "make test     lint, types, layers and the tests of each promise"
	@echo "make test-all the same with the long tests"
	@echo "make lint     the same without the tests"
	@echo "make format   put the code into shape"
	@echo "make clean    remove .venv and all caches"

demo: .venv/for-use
	@$(RUN)/hetero-tui demo

test: .venv/for-development
	@echo "== pytest, without what is long, and lint beside it"
	@$(call beside_lint,$(RUN)/python -m pytest $(IN_LANES) --durations=15 -m "not long" $(PYTEST_ARGS),nice)

test-all: .venv/for-development
	@echo "== pytest, and lint beside it"
	@$(call beside_lint,$(RUN)/python -m pytest $(IN_LANES) --durations=15 $(PYTEST_ARGS),nice)

check: .venv/for-development
	@echo "== pytest, without Ray and without hosts, and lint beside it"
	@$(call beside_lint,$(RUN)/python -m pytest -q $(IN_LANES) $(CHECKED) \
		$(addprefix --ignore ,$(SLOW)) -m "not ray and not lab and not long" $(PYTEST_ARGS))

lint: .venv/for-development
	@echo "== ruff check"
	@$(RUN)/ruff check
	@echo "== ruff format --check"
	@$(RUN)/ruff format --check
	@echo "== mypy"
	@# What PYTHONPATH names mypy takes for installed packages, of which it reports no mistake.
	@PYTHONPATH= $(RUN)/mypy
	@echo "== lint-imports"
	@$(RUN)/lint-imports

format: .venv/for-development
	@$(RUN)/ruff check --fix
	@$(RUN)/ruff format

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist *.egg-info
	find hetero_tui remote_agent tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/for-use: pyproject.toml constraints.txt .venv/python
	@echo "Installing hetero-tui with Ray and PyTorch into .venv; the first time takes some minutes."
	@$(PIP_INSTALL) -e '.[node]'
	@touch $@

.venv/for-development: pyproject.toml constraints.txt .venv/python
	@echo "Installing hetero-tui with all that its tests need into .venv; the first time takes some minutes."
	@$(PIP_INSTALL) -e '.[node,data,dev]'
	@touch $@ .venv/for-use

.venv/python:
	@case "$$PWD" in *" "*) \
		echo "Ray starts no worker from a folder with a blank in its path: move $$PWD, please." >&2; exit 1;; esac
	@if .venv/bin/python -c '$(IS_FIT)' > /dev/null 2>&1; then touch $@; exit; fi; \
	for python in $(PYTHONS); do \
		if "$$python" -c '$(IS_FIT)' > /dev/null 2>&1; then \
			echo "Making .venv with $$("$$python" -c 'import sys; print(sys.executable, sys.version.split()[0])')."; \
			"$$python" -m venv --clear .venv && touch $@; \
			exit; \
		fi; \
	done; \
	echo "hetero-tui needs Python 3.11, 3.12 or 3.13 with its venv module; none of these is one: $(PYTHONS)." >&2; \
	echo "On Debian and Ubuntu: sudo apt install python3-venv. On macOS: brew install python@3.13." >&2; \
	exit 1
