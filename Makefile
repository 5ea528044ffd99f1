# `make` lists what can be made.

PYTHON      ?= python3
VENV        ?= .venv
BIN         := $(VENV)/bin
FLOORS      := .venv-floors
SPARKS      := 3.5 4.0 4.1
RIVALS      := .venv-rivals
DOCS        := .venv-docs
RECIPES     := .venv-recipes
PIPELINE    := .venv-pipeline
SERVERS     := .servers
CI_SERVERS  := azurite fake_gcs
CORES       := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
JOBS        ?= $(shell n=$$((2 * $(CORES))); [ $$n -lt 4 ] && n=4; [ $$n -gt 8 ] && n=8; echo $$n)
PYTEST       = -m pytest -q -n $(JOBS) --dist loadgroup --costs
WITH_SPARK   = $$(grep -rl mark.spark tests --include='test_*.py' --exclude-dir=examples)
ON_FLOORS   := $(addprefix tests/,schema table file storage dataset snapshot expressions read write verbs maintenance keys row_updates upsert feed quarantine spark golden commit/test_manifest_stores_on_servers.py)
MARKED_FLOORS = $$(grep -rl mark.floors tests --include='test_*.py') tests/storage tests/commit
ON_EACH_SPARK := $(addprefix tests/spark/,sink jobs feed/test_changes_frame.py feed/test_followed_frames.py feed/test_spark_feed.py writer/test_lance_writer.py)
HISTORIES   := histories faults.store_histories faults.stateful_queries upsert.key_histories \
	oracle.column_histories
MINUTES     ?= 10
comma       := ,
# Where nothing that it is made of has changed, an environment is left as it is.
KEY          = $(shell { $(PYTHON) -V; cat pyproject.toml $(1); } 2>/dev/null | cksum | cut -d ' ' -f 1)
INSTALLED   := $(VENV)/.installed-$(call KEY)
on_floors    = $(FLOORS)-$(1)/.installed-$(call KEY,floors.txt floors/$(1).txt)
RIVALS_INSTALLED := $(RIVALS)/.installed-$(call KEY)
DOCS_INSTALLED := $(DOCS)/.installed-$(call KEY)
RECIPES_INSTALLED := $(RECIPES)/.installed-$(call KEY)
PIPELINE_INSTALLED := $(PIPELINE)/.installed-$(call KEY)
export SPARK_LOCAL_IP := 127.0.0.1
# The tests start hundreds of processes: each would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

# $(call environment,FOLDER,PACKAGES): uv installs several times as fast as pip, which stands in for it
define environment
	$(PYTHON) -m venv $(1)
	$(1)/bin/pip install -q --disable-pip-version-check 'uv>=0.8' && \
		$(1)/bin/uv pip install -q --python $(1)/bin/python $(2) || \
		$(1)/bin/pip install -q --disable-pip-version-check $(2)
	@rm -f $(1)/.installed*
	@touch $@
endef

.DEFAULT_GOAL := help

help: java-hint  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

demo: install java  ## the main job on real data: flights stream in, their changes stream out, a SIGKILL between
	$(BIN)/python examples/flights.py

pipeline: ASKED_SERVERS := kafka spark_kafka postgresql
pipeline: $(PIPELINE_INSTALLED) java servers  ## from a database to search: PostgreSQL, Kafka, Spark, a page; PIPELINE_ARGUMENTS="--kill-each"
	$(PIPELINE)/bin/python -m examples.pipeline $(PIPELINE_ARGUMENTS)

# PySpark is of the version for which tests/servers/spark_kafka/pom.xml has Spark's package for Kafka.
$(PIPELINE_INSTALLED):
	$(call environment,$(PIPELINE),-e '.[pipeline]' 'pyspark==4.2.0')

test: export KILL_ROUNDS := 1
test: java compiled  ## the tests, in a quarter of an hour; needs Python and Java, nothing else
	$(BIN)/python $(PYTEST) --quick

test-ci: export KILL_ROUNDS := 1
test-ci: test  ## what continuous integration runs: the tests, more of them, some on the oldest dependencies
	@$(MAKE) --no-print-directory -j 2 servers compiled-on-floors ASKED_SERVERS='$(CI_SERVERS)'
	$(BIN)/python $(PYTEST) --ci
	$(FLOORS)-$(lastword $(SPARKS))/bin/python $(PYTEST) --quick --ci -m floors $(MARKED_FLOORS)
	for each in $(SPARKS); do \
		$(FLOORS)-$$each/bin/python $(PYTEST) --quick -m spark $(ON_EACH_SPARK) || exit 1; \
	done

test-all: java  ## before a release: every test, and all that call dependencies once more on the oldest of them
	@$(MAKE) --no-print-directory -j 3 compiled servers compiled-on-floors
	$(BIN)/python $(PYTEST)
	$(MAKE) --no-print-directory test-floors
	$(MAKE) --no-print-directory test-recipes

test-floors: compiled-on-floors java servers  ## what calls dependencies, on the oldest of them; SPARKS="3.5" for one PySpark
	for each in $(SPARKS); do \
		$(FLOORS)-$$each/bin/python $(PYTEST) -m "not slow" $(ON_FLOORS) $(WITH_SPARK) || exit 1; \
	done

test-recipes: export RECIPES_REQUIRED := 1
test-recipes: ASKED_SERVERS := kafka spark_kafka
test-recipes: $(RECIPES_INSTALLED) java servers  ## the recipes of the documentation, its site, and the packages of a release
	$(RECIPES)/bin/python -m pytest -q -n 2 --dist loadgroup -m recipes tests/test_snippets.py tests/test_notebooks.py tests/site tests/neighbours tests/torch tests/engines

cluster-test: install java  ## streams on a cluster of Spark, whose machines share no directory and are killed
	$(BIN)/python -m pytest -q -m cluster --costs tests/cluster

docs: $(DOCS_INSTALLED)  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict
	@echo "Open site/index.html; for its search, serve it: $(DOCS)/bin/python -m mkdocs serve"

docs-release: export DOCS_VERSIONS := mike
docs-release: export PATH := $(CURDIR)/$(DOCS)/bin:$(PATH)
docs-release: $(DOCS_INSTALLED)  ## commit the documentation of VERSION=0.1 beside that of earlier releases, to the branch gh-pages
	NO_MKDOCS_2_WARNING=1 mike deploy --update-aliases $(VERSION) latest
	mike set-default latest

$(DOCS_INSTALLED):
	$(call environment,$(DOCS),-e '.[docs]')

# PySpark is of the version for which tests/servers/spark_kafka/pom.xml has Spark's package for Kafka.
$(RECIPES_INSTALLED):
	$(call environment,$(RECIPES),-e '.[dev$(comma)docs$(comma)recipes]' 'pyspark==4.2.0')

# What pytest imports is compiled once, rather than by each of its processes at the same time.
compiled: install
	@$(BIN)/python -m pytest -q --collect-only > $(VENV)/collected.txt || true

compiled-on-floors: $(foreach spark,$(SPARKS),$(call on_floors,$(spark)))
	@for each in $(SPARKS); do \
		$(FLOORS)-$$each/bin/python -m pytest -q --collect-only $(MARKED_FLOORS) > $(FLOORS)-$$each/collected.txt || true; \
	done

record-costs: install java servers  ## write down what tests cost, which decides how many cases `make test` runs
	RECORD_COSTS=1 $(BIN)/python $(PYTEST) --quick --ci

soak: export ALL_CASES := 1
soak: export KILL_ROUNDS := 30
soak: install java servers  ## the long proofs: all cases of all tests, 30 rounds of SIGKILL, and random histories
	$(MAKE) --no-print-directory test-all
	$(MAKE) --no-print-directory histories

histories: install java servers  ## random histories of tables and queries, MINUTES=10 of each kind
	@for each in $(HISTORIES); do \
		echo "$$each"; $(BIN)/python -m tests.$$each --minutes $(MINUTES) || exit 1; \
	done

mutants: install  ## how many of 300 mutations of the code the tests notice; MUTANTS="--number 50 upsert"
	$(BIN)/python scripts/mutants $(MUTANTS)

define floors_environment
$(call on_floors,$(1)):
	$$(call environment,$(FLOORS)-$(1),-e '.[$(if $(findstring numba,$(file < floors/$(1).txt)),fast$$(comma))tests]' -c floors.txt -c floors/$(1).txt)

endef
$(foreach spark,$(SPARKS),$(eval $(call floors_environment,$(spark))))

check-style: install  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: check-style  ## the fast door: format, lint, types, layers, and those of the tests that need no Spark
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadgroup --quick -m "not spark"

fix: install  ## format the code and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install java servers  ## ratios of speed against pylance and parquet, in one run
	$(BIN)/python -m benchmarks.files
	$(BIN)/python -m benchmarks.tables
	$(BIN)/python -m benchmarks.sink
	$(BIN)/python -m benchmarks.first_batches
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.small_commits
	$(BIN)/python -m benchmarks.quarantine
	$(BIN)/python -m benchmarks.long_life
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.key_bounds
	$(BIN)/python -m benchmarks.key_index
	$(BIN)/python -m benchmarks.slowly_changing
	$(BIN)/python -m benchmarks.derive
	$(BIN)/python -m benchmarks.wide_rows
	$(BIN)/python -m benchmarks.feed
	$(BIN)/python -m benchmarks.freshness
	$(BIN)/python -m benchmarks.fresh_indices
	$(BIN)/python -m benchmarks.filters
	$(BIN)/python -m benchmarks.driver_memory
	$(BIN)/python -m benchmarks.stores

bench-rivals: install java $(RIVALS_INSTALLED)  ## the same against Delta and Iceberg, on the PySpark that they have
	$(BIN)/python -m benchmarks.rivals --rivals-python $(RIVALS)/bin/python $(RIVALS_ARGUMENTS)
	$(RIVALS)/bin/python -m benchmarks.feed_in_spark

$(RIVALS_INSTALLED):
	$(call environment,$(RIVALS),-e '.[dev]' 'pyspark>=4.1$(comma)<4.2')

protos: install  ## generate lance_stream/_proto from protos/
	$(BIN)/python scripts/generate_protos.py

install: $(INSTALLED)  ## make the environment in .venv

$(INSTALLED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "lance-stream needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) -V). Set PYTHON=..."; exit 1; }
	$(call environment,$(VENV),-e '.[dev]')

servers:  ## install the servers of the tests in .servers: S3, Google, Azure and DynamoDB on this machine
	@$(PYTHON) scripts/install_servers.py $(SERVERS) $(ASKED_SERVERS)

java:
	@$(PYTHON) -I lance_stream/machine/java.py

java-hint:
	@$(PYTHON) -I lance_stream/machine/java.py --hint

clean:  ## remove environments, caches and what the demo made
	rm -rf $(VENV) $(FLOORS)-* $(RIVALS) $(DOCS) $(RECIPES) $(PIPELINE) .cluster site $(SERVERS) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache data spark-warehouse
	find checkpoints -mindepth 1 ! -name README.md -delete

.PHONY: help demo pipeline test test-ci test-all test-floors test-recipes cluster-test compiled compiled-on-floors docs docs-release record-costs check check-style fix bench bench-rivals soak histories mutants protos install servers java java-hint clean
