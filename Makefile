# make demo | make test: everything from a bare checkout. The virtual environment is made on first use.
#
#   PYTHON  the interpreter to make the environment with (3.11 or later)
#   VENV    where the environment is, or is made

PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.requirements-installed

.PHONY: help build test demo ratios clean

help:
	@echo "make demo    set everything up, then decode text with a Llama on the kernels (about a minute once set up)"
	@echo "make test    set everything up, then run the tests"
	@echo "make build   compile the CPU variant into build/"
	@echo "make ratios  the CPU operators against torch and memory, checked against their bounds (on an idle machine)"
	@echo "make clean   remove what the build made"

# The stamp is written last: an interrupted installation goes on at the next call.
$(READY): requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) must be Python 3.11 or later; make PYTHON=python3.12 ... picks another" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "no virtual environment: install the venv module (Debian and Ubuntu: python3-venv)" >&2; exit 1; }
	$(RUN) -m pip install --disable-pip-version-check -q -r requirements.txt
	@touch $@

build: $(READY)
	@$(RUN) scripts/build.py --backend cpu

test: build
	@$(RUN) -m pytest tests

demo: build
	@$(RUN) examples/demo.py $(ARGS)

ratios: build
	@$(RUN) benchmarks/cpu_ratios.py --check

clean:
	rm -rf build demo-output examples/increment/build
