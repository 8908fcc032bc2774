# make demo | make test: everything from a bare checkout. The virtual environment is made on first use.
#
#   PYTHON  the interpreter to make the environment with (3.11 or later)
#   VENV    where the environment is, or is made
#   LATEST  the environment with the newest torch and transformers, which test-latest makes
#   WORKERS processes that run the tests; each takes about 1.5 GB of memory
#   ARGS    more options of pytest for test, test-latest and test-vllm: --full takes all

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 3
RUN := $(VENV)/bin/python
READY := $(VENV)/.requirements-installed
LATEST := .venv-latest

.PHONY: help build build-cuda lint test test-full latest test-latest vllm test-vllm test-vllm-now demo release ratios bench-rocm bench-cuda sanitize-cuda cuda-toolchain clean

help:
	@echo "make demo    set everything up, then decode text with a Llama on the kernels (about a minute once set up)"
	@echo "make test    set everything up, then run the tests: of many cases few that meet every value. make test-full runs all"
	@echo "make test-vllm   vLLM for a CPU into the environment, then the tests of its plugin in real engines. On an NVIDIA GPU"
	@echo "             they run there, on the vLLM that VENV has: $(VENV)/bin/pip install vllm ./integrations/vllm"
	@echo "make test-latest   an environment of the newest torch and transformers (requirements-latest.txt), and the tests of"
	@echo "             models, operators, Hub and README in it; make latest raises the pins first"
	@echo "make lint    the style of the Python and C++ sources (ruff, clang-format)"
	@echo "make build   compile the CPU variant into build/; on an NVIDIA GPU the CUDA variant too"
	@echo "make build-cuda   compile the CUDA variant, on any machine"
	@echo "make release ARGS=..."
	@echo "             build and check what this machine can, and say what would be published; ARGS=--upload does it"
	@echo "make ratios  the CPU operators against torch and memory, checked against their bounds (on an idle machine)"
	@echo "make bench-rocm VENV=ENV ARGS=..."
	@echo "             on an MI300X or MI350: build the ROCm variant, time it beside published figures. ENV is an"
	@echo "             environment of yours with torch for ROCm, kernels and ninja; nothing is installed into it"
	@echo "make bench-cuda ARGS=..."
	@echo "             on an NVIDIA GPU: build the CUDA variant, time it beside torch; ARGS=--check holds it to its bounds"
	@echo "make sanitize-cuda   on an NVIDIA GPU: the CUDA kernels under compute-sanitizer's four tools"
	@echo "make clean   remove what the build made"

# The stamp is written last: an interrupted installation goes on at the next call.
$(READY): requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) must be Python 3.11 or later; make PYTHON=python3.12 ... picks another" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "no virtual environment: install the venv module (Debian and Ubuntu: python3-venv)" >&2; exit 1; }
	$(RUN) -m pip install --disable-pip-version-check -q -r requirements.txt
	@touch $@

# cuda where torch sees an NVIDIA GPU. For recipes alone: torch is there once the environment is. Importing it takes
# seconds, so it is asked only where the driver's device is (/dev/dxg on WSL).
BACKEND = $(if $(wildcard /dev/nvidiactl /dev/dxg),$(shell $(RUN) scripts/load.py),cpu)

build: $(READY)
	@$(RUN) scripts/build.py --backend cpu
	@if [ "$(BACKEND)" = cuda ]; then $(MAKE) --no-print-directory build-cuda; fi

build-cuda: cuda-toolchain
	@$(RUN) scripts/build.py --backend cuda

# The worked example is a package of its own.
lint: $(READY)
	@$(RUN) -m ruff check
	@$(RUN) -m ruff format --check
	@git ls-files '*.cpp' '*.h' '*.cu' '*.hip' ':!examples/increment' | xargs -r $(VENV)/bin/clang-format --dry-run -Werror

# On a GPU the package's own tests run twice: on its variant, with all others, and on the CPU's.
PYTEST = $(RUN) -m pytest -n $(WORKERS) --dist worksteal

test: build
	@$(PYTEST) $(ARGS)
	@if [ "$(BACKEND)" = cuda ]; then $(PYTEST) --backend cpu $(ARGS); fi

# All tests, and by the newest versions and in vLLM's engines those that depend on them. What passed is recorded: make test
# leaves groups of tests whose inputs have not changed (tests/selection.py).
test-full:
	@$(MAKE) --no-print-directory test test-latest ARGS="--full $(ARGS)"
	@$(RUN) -m tests.selection
	@$(MAKE) --no-print-directory test-vllm ARGS="--full $(ARGS)"
	@$(RUN) -m tests.selection vLLM

# What users install is newer than what vLLM takes. The library is the one that `build` made.
$(LATEST)/.requirements-installed: requirements-latest.txt
	@$(PYTHON) -m venv $(LATEST)
	$(LATEST)/bin/python -m pip install --disable-pip-version-check -q -r requirements-latest.txt
	@touch $@

latest:
	@$(PYTHON) -m venv $(LATEST)
	$(LATEST)/bin/python scripts/latest.py
	@touch $(LATEST)/.requirements-installed

# What another torch can break of operators: graphs and their fakes, gradients, the conversion of arguments.
OF_TORCH = $(wildcard $(addprefix tests/operators/test_,contract_*.py compile.py odd_calls.py))

test-latest: build $(LATEST)/.requirements-installed
	@$(LATEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS) tests/models tests/hub $(OF_TORCH) \
		tests/package/test_documents.py tests/test_kernels_ci.py

# vLLM without a GPU, and the plugin, in the same environment. On a GPU vLLM and the plugin are the user's to install:
# $(VENV)/bin/pip install vllm ./integrations/vllm
VLLM := $(VENV)/.vllm-installed

$(VLLM): $(READY) integrations/vllm/install_cpu.py
	$(RUN) integrations/vllm/install_cpu.py
	@touch $@

vllm: $(VLLM)

test-vllm: build
	@if [ -z "$(ARGS)" ] && $(RUN) -m tests.selection --left vLLM; then \
		echo "left: vLLM, as nothing that it depends on has changed since it passed (tests/selection.py)"; \
		else $(MAKE) --no-print-directory test-vllm-now; fi

test-vllm-now:
	@if [ "$(BACKEND)" = cpu ]; then $(MAKE) --no-print-directory vllm; else $(RUN) -c 'import vllm, rocm_fp8_vllm' || \
		{ echo "on a GPU: $(VENV)/bin/pip install vllm ./integrations/vllm" >&2; exit 1; }; fi
	@$(RUN) -m pytest -n 2 --dist loadfile $(ARGS) integrations/vllm/tests

demo: build
	@$(RUN) -m examples.demo $(ARGS)

release: $(READY) cuda-toolchain
	@$(RUN) scripts/release.py $(ARGS)

ratios: build
	@$(RUN) -m benchmarks measure cpu --check

# Not $(READY): requirements.txt would put a CUDA build of torch in the place of the environment's own.
bench-rocm: export ROCM_PATH ?= $(wildcard /opt/rocm)
bench-rocm:
	@test -x $(RUN) || { echo "no $(RUN): make bench-rocm VENV=ENV, with torch for ROCm in ENV" >&2; exit 1; }
	@$(RUN) -c 'import sys, torch; sys.exit(torch.version.hip is None and "$(RUN): its torch is no build for ROCm")'
	@$(RUN) scripts/rocm_toolchain.py >&2
	@$(RUN) scripts/build.py --backend rocm >&2
	@$(RUN) -m benchmarks measure rocm $(ARGS)

bench-cuda: $(READY)
	@$(MAKE) --no-print-directory build-cuda >&2
	@$(RUN) -m benchmarks measure cuda $(ARGS)

# compute-sanitizer comes with an installed CUDA. What torch's kernels write must count as initialised, so that initcheck
# watches those as well. racecheck is not asked about the large GEMMs, those of experts included: it does not follow an
# mbarrier at which one lane arrives for its warp, after __syncwarp, and names what the other lanes read and wrote
# (docs/journal/verification.md). Of mla_decode it names accesses with a barrier of all their threads between them.
# synccheck is not asked about mla_decode: two warpgroups meet at a named barrier from instructions of their own each, as PTX
# allows, and the tool takes them for divergent threads.
OURS := --kernel-name kernel_substring=rocm_fp8
sanitize-cuda: build-cuda
	@for options in "memcheck $(OURS)" "racecheck $(OURS)" "synccheck $(OURS)" initcheck; do \
		for cases in "" --gemms --experts --mx --mla; do \
			case "$$options$$cases" in racecheck*--gemms|racecheck*--experts|racecheck*--m*|synccheck*--mla) continue;; esac; \
			echo $$options $$cases; \
			compute-sanitizer --error-exitcode 9 --tool $$options $(RUN) -m tests.gpu.cuda_sanitizer_cases $$cases || exit 1; \
		done; \
	done

# nvcc from the package index, for builds of the CUDA variant; an installed CUDA that CUDA_HOME names goes first.
cuda-toolchain: $(READY)
	@$(RUN) scripts/cuda_toolchain.py >&2

clean:
	rm -rf build demo-output examples/increment/build
