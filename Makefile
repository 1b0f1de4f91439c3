# One word, one command, the same for people and for .ci/run.  `make help` lists them.
#
# The environment (.venv) is made on first use and kept until pyproject.toml or constraints.txt
# change; .ci/venv does it and says what it fetches.  RUN=python3 uses an interpreter as it is instead.

export VENV ?= .venv
export PYTHON TORCH TORCH_INDEX

# pytest-xdist: as many workers as cores, each with one thread; more would only wait for each other
WORKERS ?= auto
# large tensors go back to the system at once, where glibc would keep several GB a worker
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 MALLOC_MMAP_THRESHOLD_=1048576
# more words for the command: make test ARGS='tests/store -x'
ARGS ?=

ifdef RUN
ENVIRONMENT :=
else
ENVIRONMENT := environment
RUN := $(VENV)/bin/python
endif

.DEFAULT_GOAL := help
.PHONY: help demo test test-standard test-gpu check bench clean environment

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(ENVIRONMENT) ## ask the packaged model about documents in several orders, on this CPU
	@$(RUN) -m hypic_sdk.cli demo $(ARGS)

test: $(ENVIRONMENT) ## the whole CPU suite
	@$(ONE_THREAD) $(RUN) -m pytest -n $(WORKERS) $(ARGS)

test-standard: ## LangChain's standard suites, agents and RAG examples, in an environment of their own
	@VENV=.venv-standard EXTRAS=server,agents,examples,standard bash .ci/venv
	@$(ONE_THREAD) .venv-standard/bin/python -m pytest -c tests/standard/pytest.ini tests/standard $(ARGS)

test-gpu: $(ENVIRONMENT) ## the tests marked gpu and multi_gpu; needs a CUDA device
	@$(RUN) -c 'import sys, torch; torch.cuda.is_available() or sys.exit("hypic: no CUDA device here, so no GPU test can run")'
	@$(RUN) -m pytest $$(grep -rlE 'mark\.(multi_)?gpu\b' tests --include='test_*.py') -m 'gpu or multi_gpu' --slow $(ARGS)

check: $(ENVIRONMENT) ## format, lint and types, without changing a file
	@failed=0; for tool in 'ruff format --check' 'ruff check' mypy; do $(RUN) -m $$tool || failed=1; done; exit $$failed

bench: $(ENVIRONMENT) ## measurements: time to first token by arm; make bench ARGS=--help lists more
	@$(RUN) -m hypic_sdk.cli bench $(or $(ARGS),reuse)

clean: ## remove the environment and every cache
	rm -rf .venv .venv-standard .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find hypic_sdk tests -name __pycache__ -type d -prune -exec rm -rf {} +

environment:
	@bash .ci/venv
