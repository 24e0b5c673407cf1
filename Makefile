VENV ?= .venv
PYTHON ?= python3
PY = $(VENV)/bin/python

.PHONY: build
build:
	@flock .build.lock env QUINTLOG_BUILD=$${QUINTLOG_BUILD:-require} $(PY) setup.py -q build_ext --inplace
