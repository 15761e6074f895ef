# Two commands: `make compare` and `make test`. Both make .venv when it is absent or outdated.
PYTHON ?= python3
BIN := .venv/bin
# pins hold for the build environment too, of which pip reads the second
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(PIP_CONSTRAINT)
# keep compiled modules and tests, which each process of the tests would otherwise compile anew
unexport PYTHONDONTWRITEBYTECODE

.PHONY: native compare studio test test-all lint quick test-avx2 test-settings test-sanitized test-kernels test-hf test-newest mutants bench bench-layers bench-mechanisms bench-edge check-cuda docs types wheels format fuzz models

compare: .venv/.ready
	$(BIN)/suffice compare $(ARGS) || case $$? in 10|11|12) ;; *) exit 1 ;; esac

# the page, on this machine alone; ARGS="--results runs --checkpoints runs"
studio: .venv/.studio
	$(BIN)/suffice studio $(ARGS)

test: .venv/.tests
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

# the core, the tools, and the packages that stand beside it
SIBLINGS := $(patsubst %/pyproject.toml,%,$(wildcard */pyproject.toml))
test-all: .venv/.tests
	$(BIN)/python -m pytest -n auto --dist worksteal tests suffice tools $(SIBLINGS) $(ARGS)

# linters, the layers of imports, types of the code that users read, and the site
lint: .venv/.tests
	$(BIN)/python -m pytest -m lint tests/meta tests/docs $(ARGS)

# the fast half: the numbers of the layer and of its axes, without compiling
QUICK := $(addprefix tests/,definitions encoders patterns positions kernels mixing memory presets ops \
	layers spec utils acceptance product/test_conformance.py) $(wildcard tests/test_*.py)
quick: .venv/.tests
	$(BIN)/python -m pytest -n auto --dist worksteal --ignore tests/layers/test_compile.py $(QUICK) $(ARGS)

# the same numbers as a processor without AVX-512 computes them, by torch's kernels and by ours; one
# without AVX2 says so
NUMERIC := $(QUICK) tests/quantise tests/generate/test_backend.py \
	$(addprefix tests/models/test_,native_decoder.py packed.py)
test-avx2: .venv/.tests
	$(BIN)/python -m tests.settings --only avx2 --ignore tests/layers/test_compile.py $(NUMERIC) $(ARGS)

# the suite six times: the best instructions, AVX2, portable kernels, one core, busy cores, python -O
test-settings: .venv/.tests
	$(BIN)/python -m tests.settings $(ARGS)

# one seeded bug at a time, and whether the tests catch it; ARGS="--list", ARGS="--only verdict";
# bugs by rule, sampled: ARGS="--systematic --sample 300 --seed 1 --minutes 40"
mutants: .venv/.tests
	$(BIN)/python -m tools.mutants $(ARGS)

# random and damaged input for every reader, pattern and kernel: a minute for each part, seeds
# printed; ARGS="--part requests --seconds 600", ARGS="--part specs --seed 7 --cases 1"
fuzz: .venv/.tests
	$(BIN)/python -m tools.fuzz $(ARGS)

# transformers' own tests of models: a source tree of the installed version, of git or of PyPI
test-hf: .venv/.tests
	$(BIN)/python -m pip install --quiet --disable-pip-version-check parameterized
	$(BIN)/python -m tests.hf.upstream "$(TRANSFORMERS_SRC)" $(ARGS)

# the numeric half and what stands on other libraries, against their newest versions: also those above
# the bounds of pyproject.toml, so that a bound is raised only to a version that was run
NEWEST := transformers numpy pandas onnxruntime torch
test-newest: export PIP_CONSTRAINT :=
test-newest: export PIP_BUILD_CONSTRAINT :=
test-newest:
	test -x build/newest/bin/python || $(PYTHON) -m venv build/newest
	build/newest/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	build/newest/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager -e . $(SIBLINGS:%=-e ./%) --group test
	build/newest/bin/python -m pip install --quiet --upgrade $(NEWEST)
	build/newest/bin/python -m pip list
	build/newest/bin/python -m pytest -n auto --dist worksteal --ignore tests/layers/test_compile.py \
		$(NUMERIC) $(addprefix tests/,hf data text export convert/sources) $(ARGS)

# the kernels of the source tree, after a change of suffice/csrc
native:
	cmake -S . -B build/native -DCMAKE_BUILD_TYPE=Release
	cmake --build build/native --parallel
	install build/native/_kernels.so suffice/ops/native/  # not cp: programs may run the old one

# the tests of native code on kernels that check addresses and undefined behaviour; what torch and
# Python keep to the end is no leak of ours
NATIVE_TESTS := tests/ops/native tests/quantise tests/layers/test_packed.py \
	$(addprefix tests/ops/,test_native.py test_native_scan.py test_native_decode.py test_native_recurrence.py) \
	tests/layers/test_read.py tests/layers/test_recurrence.py \
	$(addprefix tests/models/test_,native_decoder.py native_unsupported.py packed.py packed_fuzz.py) \
	tests/generate/test_backend.py
test-sanitized: .venv/.tests
	cmake -S . -B build/sanitized -DSUFFICE_SANITIZE=ON
	cmake --build build/sanitized --parallel
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so.6)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	SUFFICE_KERNELS=$(CURDIR)/build/sanitized/_kernels.so \
	$(BIN)/python -m pytest --capture=sys $(NATIVE_TESTS) $(ARGS)

# the kernels without torch, on this processor and on those that qemu and wine imitate; builds for
# others need `ziglang`; ARGS="--only cortex-a72 --rounds 5"
test-kernels:
	$(PYTHON) -m tests.native.run $(ARGS)

bench: bench-layers bench-mechanisms

bench-layers: .venv/.tests
	$(BIN)/python -m benchmarks.layers $(ARGS)

bench-mechanisms: .venv/.peers
	$(BIN)/python -m benchmarks.mechanisms $(ARGS)

bench-edge: .venv/.peers
	$(BIN)/python -m benchmarks.edge $(ARGS)

# released models, 176 MB, which some tests and benchmarks read: checked, kept in the user's cache
models: .venv/.tests
	$(BIN)/python -m benchmarks.models

# what only a GPU can show, in minutes; without one it says what it would do. ARGS="--device cpu"
check-cuda: .venv/.tests
	$(BIN)/python -m benchmarks.cuda $(ARGS)

# the pages that are made from docstrings, then the site, in build/site
docs: .venv/.tests
	$(BIN)/python -m docs.build
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# pyright (with its own node) on the package and the examples
types: .venv/.tests
	$(BIN)/basedpyright $(ARGS)

# wheels of every platform and the source distribution, in dist; ARGS="--only win_amd64"
wheels: build/tools/.ready
	PATH="$(CURDIR)/build/tools/bin:$$PATH" build/tools/bin/python packaging/wheels.py $(ARGS)

build/tools/.ready: packaging/requirements.txt
	$(PYTHON) -m venv build/tools
	build/tools/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

format: .venv/.tests
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

SOURCES := pyproject.toml $(wildcard */pyproject.toml) constraints.txt CMakeLists.txt $(shell find suffice/csrc -type f)
# `compare` needs the package alone, `studio` that and its page
.venv/.ready: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

.venv/.studio: .venv/.ready studio/pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ./studio
	touch $@

# not after .ready: the kernels would be compiled twice; pip of Python 3.11 knows no groups
.venv/.tests: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet -e . $(SIBLINGS:%=-e ./%) --group test
	touch .venv/.ready .venv/.studio $@

.venv/.peers: .venv/.tests
	$(BIN)/python -m pip install --quiet -e . --group test --group bench
	touch .venv/.ready .venv/.tests $@
