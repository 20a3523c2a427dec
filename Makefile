# tokenmill: every target sets up what it needs (a virtual environment in .venv) and works on a machine
# that has only Python 3.11+ and make. `make help` lists the targets and their settings.

PYTHON ?= python3# makes the virtual environment; 3.11 or newer
VENV ?= .venv
TORCH ?= torch# what pip installs for PyTorch; see docs/commands.md for a build without CUDA

TRAIN ?=
VAL ?=
TOKENIZER ?=
VOCAB_SIZE ?=
OUT ?= data
WORKERS ?=
NAME ?=
CORPUS ?=
ARGS ?=

# With READY_PYTHON=/path/to/python that environment is used as it is and nothing is installed (the tests do this).
ifdef READY_PYTHON
run := $(READY_PYTHON)
else
run := $(VENV)/bin/python
formats := $(VENV)/.formats
dev := $(VENV)/.dev
torch := $(VENV)/.torch
docs := $(VENV)/.docs
all := $(VENV)/.all
bench_peers := $(VENV)/.bench
client_envs := $(patsubst tests/clients/%.txt,$(VENV)/clients/%/.ready,$(sort $(wildcard tests/clients/*.txt)))
endif

prefix := $(if $(NAME),$(NAME)_)
# $(call each,--train,a b) is `--train 'a' --train 'b'`. One path that exists with its spaces stays whole.
each = $(if $(2),$(if $(shell test -e '$(2)' && echo whole),$(1) '$(2)',$(foreach path,$(2),$(1) '$(path)')))

# All tests of a file run in one process, which makes once what they share; tests/conftest.py has the order of files.
pytest := -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# pip must not run twice at once in one environment.
.NOTPARALLEL:
.PHONY: help preprocess train test test-all test-clients torture fuzz coverage lint bench docs clean

help:
	@echo 'make preprocess   text -> $$OUT/tokenizer.json, train.bin, val.bin (without TRAIN: text that Python ships with)'
	@echo '                    TRAIN=paths  VAL=paths (none: 1 % of TRAIN)  TOKENIZER=tokenizer.json (none: one is trained)'
	@echo '                    VOCAB_SIZE=n  OUT=data  WORKERS=n  NAME=tinystories  ARGS="any option of tokenmill build"'
	@echo 'make train        a small GPT on $$OUT/train.bin (built first if missing); ARGS="any option of examples/train_gpt.py"'
	@echo 'make test         the tests, without PyTorch and Hugging Face'
	@echo 'make test-all     the tests, with PyTorch and Hugging Face'
	@echo 'make test-clients exports read by the programs they are for, in an environment each; ARGS="-k olmo"'
	@echo 'make torture      builds that are killed 200 times and more, and end in the same bytes; ARGS="--builds 1000"'
	@echo 'make fuzz         damaged and hostile files, for an hour; ARGS="--minutes 5"'
	@echo 'make coverage     the lines of the kernels that their tests reach, uncompiled'
	@echo 'make lint         ruff and mypy'
	@echo 'make bench        tokenmill beside other tokenizers; CORPUS=paths  ARGS="any option of python -m benchmarks"'
	@echo 'make docs         this documentation as a site, in site/'
	@echo 'make clean        removes the virtual environment, the site and caches; outputs stay'
	@echo
	@echo 'PYTHON=python3.12 chooses the interpreter; TORCH="torch --index-url URL" where PyTorch comes from.'

build_options = --out '$(OUT)' \
  $(call each,--train,$(TRAIN)) \
  $(call each,--val,$(VAL)) \
  $(if $(TOKENIZER),--tokenizer '$(TOKENIZER)') \
  $(if $(VOCAB_SIZE),--vocab-size '$(VOCAB_SIZE)') \
  $(if $(WORKERS),--workers '$(WORKERS)') \
  $(if $(NAME),--name '$(NAME)')

preprocess: $(formats)
	$(run) -m preprocess build $(strip $(build_options) $(ARGS))

# ARGS are the training loop's here: the corpus is built with its defaults, if it is not there.
train: $(torch)
	@test -e '$(OUT)/$(prefix)train.json' || $(MAKE) preprocess ARGS=
	$(run) examples/train_gpt.py $(strip --data '$(OUT)' $(if $(NAME),--name '$(NAME)') $(ARGS))

test: $(dev)
	$(run) $(pytest) $(ARGS)

test-all: $(all)
	$(run) $(pytest) $(ARGS)

test-clients: $(dev) $(client_envs)
	TOKENMILL_CLIENTS='$(VENV)/clients' $(run) -m pytest -n 2 -ra tests/interop/test_clients.py $(ARGS)

torture: $(dev)
	$(run) tests/support/torture.py $(ARGS)

fuzz: $(dev)
	$(run) tests/support/fuzz.py $(ARGS)

coverage: $(dev)
	NUMBA_DISABLE_JIT=1 $(run) -m coverage run -m pytest -q tests/kernels/test_kernels_*.py
	$(run) -m coverage report --show-missing

lint: $(dev)
	$(run) -m ruff check .
	$(run) -m mypy

bench: $(bench_peers)
	$(run) -m benchmarks $(strip $(call each,--corpus,$(CORPUS)) $(ARGS))

docs: $(docs)
	NO_MKDOCS_2_WARNING=1 $(run) -m mkdocs build --strict --quiet $(ARGS)

clean:
	rm -rf '$(VENV)' site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Set-up. A stamp stands for what is installed; it is made again only when pyproject.toml changes.

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'tokenmill needs Python 3.11 or newer, and $(PYTHON) is not: name one with make PYTHON=python3.12' >&2; exit 1; }
	@$(PYTHON) -m venv '$(VENV)' || \
	  { rm -rf '$(VENV)'; echo 'no virtual environment could be made; on Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }

install = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check

# What an installation has beside the packages themselves.
$(VENV)/.formats: extras := formats
$(VENV)/.dev: extras := dev
$(VENV)/.docs: extras := docs
$(VENV)/.bench: extras := bench,formats
$(VENV)/.formats $(VENV)/.dev $(VENV)/.docs $(VENV)/.bench: $(VENV)/bin/python pyproject.toml
	@echo 'setting up $(VENV) (once)' >&2
	@$(install) --editable '.[$(extras)]'
	@touch '$@'

# PyTorch goes first and by itself, so that the build which TORCH asks for is the one that stays.
$(VENV)/.torch: $(VENV)/bin/python pyproject.toml
	@echo 'setting up $(VENV) (once)' >&2
	@$(install) $(TORCH)
	@$(install) --editable '.[torch]'
	@touch '$@'

$(VENV)/.all: $(VENV)/.dev $(VENV)/.torch
	@$(install) --editable '.[dev,torch,hf,chat,formats,plot,ray,remote,interop,view,browser,docs]'
	@touch '$@'

# The programs of docs/clients.md exclude one another's libraries. One that cannot be installed has its tests skipped.
$(VENV)/clients/%/.ready: tests/clients/%.txt | $(VENV)/bin/python
	@echo 'setting up $(VENV)/clients/$* (once)' >&2
	@mkdir -p '$(VENV)/clients'
	@$(PYTHON) -m venv --clear '$(VENV)/clients/$*'
	@if '$(VENV)/clients/$*/bin/python' -m pip install --quiet --disable-pip-version-check \
	  --requirement '$<' 2>'$(VENV)/clients/$*/pip.log'; then touch '$@'; \
	else echo '$< could not be installed; its tests are skipped. pip said:' >&2; \
	  grep . '$(VENV)/clients/$*/pip.log' | tail -n 1 >&2; fi
