# Every target makes the virtual environment itself when it is missing or older than what it is made from.
ifneq ($(shell uname -s),Linux)
$(error coldstart-adapter needs Linux (its processes rest on /proc, prctl and fallocate): run make in a Linux container)
endif

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CODE := $(wildcard adapter handlers examples tests scripts benchmarks fuzz infra)
FUZZ_SECONDS ?= 60

.PHONY: help demo test check format bench fuzz clean

help:
	@echo 'make demo    a real model, from an object store to right answers, with the time of every stage'
	@echo 'make test    the test suite'
	@echo 'make check   format, lint, types, layers'
	@echo 'make format  write the format and the fixes that lint can make'
	@echo 'make bench   measured starts, and streams beside other ways to bring a checkpoint'
	@echo 'make fuzz    attack the parsers for FUZZ_SECONDS (60) each'
	@echo 'make clean   remove what was made here, the virtual environment too'

$(READY): pyproject.toml constraints.txt scripts/make_venv.sh
	sh scripts/make_venv.sh $(VENV)
	touch $@

demo: $(READY)
	$(BIN)/python scripts/demo.py

test: $(READY)
	@sh scripts/install_chromium.sh
	$(BIN)/python -m pytest

check: $(READY)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/lint-imports --config pyproject.toml
	$(BIN)/mypy --strict $(CODE)
	@# verifytypes looks for the package with the first `python` on PATH, whatever --pythonpath says
	PATH="$(CURDIR)/$(BIN):$$PATH" pyright --verifytypes adapter --ignoreexternal

format: $(READY)
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

bench: $(READY)
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/stream.py

fuzz: $(READY)
	$(BIN)/python fuzz/run.py --seconds $(FUZZ_SECONDS)

clean:
	rm -rf $(VENV) .demo dist build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
