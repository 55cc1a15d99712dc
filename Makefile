# Every target sets up what it needs; nothing has to be installed first but Python (>= 3.11).
# `make help` lists the targets.

PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(shell \
	$(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(p))))
VENV ?= .venv
RUN := $(VENV)/bin/python
# Databases tested side by side; 1 prints the tests as they run.
JOBS ?= 1
# The floors that promise their branch coverage, tests included.
COVERED := gnl_django/core/*,gnl_django/runs/*,gnl_django/queue/*,tests/*

# The MySQL driver is compiled: only where the server and the client's headers are installed.
MARIADB := $(shell PATH="$$PATH:/usr/sbin:/usr/local/sbin" command -v mariadbd 2>/dev/null)
MARIADB_HEADERS := $(shell command -v mariadb_config mysql_config 2>/dev/null; \
	pkg-config --exists mysqlclient libmariadb 2>/dev/null && echo yes)
comma := ,
EXTRAS := dev$(if $(MARIADB),$(if $(MARIADB_HEADERS),$(comma)mysql))
STAMP := $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))

.DEFAULT_GOAL := help
.PHONY: help install test chaos coverage lint format demo bench figures clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## the virtual environment (every target does this by itself)

$(STAMP): setup.cfg pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed (PYTHON=...)" >&2; exit 1; }
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV) || \
		{ echo "python -m venv failed (Debian: apt-get install python3-venv)" >&2; exit 1; }
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable ".[$(EXTRAS)]"
	@touch $@

test: $(STAMP) ## the whole suite on SQLite, PostgreSQL and MariaDB (JOBS=3: side by side; ARGS=...)
	$(RUN) -m tests.run --jobs $(JOBS) $(ARGS)

# Seconds of the storm of kills and times of each other fault, for each database.
SECONDS ?= 120
ROUNDS ?= 2

chaos: $(STAMP) ## the long fault runs on every database, with counts (SECONDS=120, ROUNDS=2)
	GNL_CHAOS_SECONDS=$(SECONDS) GNL_CHAOS_ROUNDS=$(ROUNDS) \
		$(RUN) -m tests.run --jobs $(JOBS) --marks "" -rfE \
		tests/chaos tests/model tests/conformance/test_load.py $(ARGS)

coverage: $(STAMP) ## branch coverage over the runs on all databases
	$(RUN) -m coverage erase
	$(RUN) -m tests.run --jobs $(JOBS) --coverage $(ARGS)
	$(RUN) -m coverage combine --quiet
	$(RUN) -m coverage report --skip-covered --show-missing
	$(RUN) -m coverage report --include="$(COVERED)" --fail-under=95 --format=total

lint: $(STAMP) ## ruff, mypy, import contracts, missing migrations
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports
	$(RUN) manage.py makemigrations --check --dry-run

format: $(STAMP) ## put the code into its form
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format

demo: $(STAMP) ## real work through the queue, with the admin beside it (ONCE=1, DB=postgres, DATABASE_URL)
	$(RUN) -m testproject.demo

# ONLY, PEERS: names of sections and of peers; SCALE: counts and seconds times this.
SCALE ?= 1

bench: $(STAMP) ## our figures beside the peers' (ALL=1, ONLY="drain latency", PEERS=.., SCALE=0.1)
	$(RUN) -m benchmarks --scale $(SCALE) $(if $(ALL),--all) $(if $(ONLY),--only "$(ONLY)") \
		$(if $(PEERS),--peers "$(PEERS)")

figures: $(STAMP) ## write the newest full run of bench into docs/benchmarks.md, with its picture
	$(RUN) -m benchmarks.publish $(RESULTS)

clean: ## remove the virtual environment and what the tools left
	rm -rf $(VENV) .tox .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
		.coverage .coverage.* htmlcov build dist *.egg-info .demo .bench db.sqlite3*
