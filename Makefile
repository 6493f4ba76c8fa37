# Three commands: make demo, make test, make bench. Each uses a virtual environment of its own.
PYTHON ?= python3
CONSTRAINTS := --constraint constraints.txt

.PHONY: demo test bench clean

demo: .venv-demo/done
	.venv-demo/bin/gpuload demo

# torch comes first: without it, something else might bring in a CUDA build of several gigabytes.
.venv-demo/done: pyproject.toml constraints.txt $(wildcard csrc/* gpuload/*.py gpuload/*/*)
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/pip install --quiet $(CONSTRAINTS) torch
	.venv-demo/bin/pip install --quiet $(CONSTRAINTS) '.[demo]'
	touch $@

# What a GPU needs, in 0.45 GB: enough to import, to look at, and to compile kernels without one.
GPU := cupy-cuda13x kvikio-cu13 libkvikio-cu13 rapids-logger cuda-pathfinder nvidia-cuda-nvrtc nvidia-cufile

# Tests read the brains that nilearn ships. Nothing of it is imported, and so nothing that it needs.
DATA := nilearn

# A fresh environment every time, the built wheel in it, and the tests run from another directory.
test:
	rm -rf .venv-test
	$(PYTHON) -m venv .venv-test
	.venv-test/bin/pip install --quiet $(CONSTRAINTS) torch
	.venv-test/bin/pip install --quiet $(CONSTRAINTS) '.[demo,dev]'
	.venv-test/bin/pip install --quiet $(CONSTRAINTS) --no-deps $(GPU) $(DATA)
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .
	.venv-test/bin/mypy
	cd tests && ../.venv-test/bin/python -m pytest -q -n auto --dist worksteal

bench: .venv-bench/done
	.venv-bench/bin/python -m bench.run all

.venv-bench/done: pyproject.toml constraints.txt bench/requirements.txt $(wildcard csrc/* gpuload/*.py gpuload/*/*)
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install --quiet $(CONSTRAINTS) torch
	.venv-bench/bin/pip install --quiet $(CONSTRAINTS) .
	.venv-bench/bin/pip install --quiet --no-deps --requirement bench/requirements.txt
	touch $@

clean:
	rm -rf .venv-demo .venv-test .venv-bench build dist
