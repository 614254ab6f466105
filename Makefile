# One command per task. Everything is installed into .venv, with versions pinned in constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := .[bench,connect,demo,docs,examples,http,index,metrics,pipelines,postgres,redis,spark,tls,dev]
# Bytecode is kept, whatever the environment says: else each process compiles every test anew.
export PYTHONDONTWRITEBYTECODE :=

COMPUTING := not real and not spark and not spark_faults
# Long tests that are alike take turns: a commit runs each fourth of them (tests/rotation.py).
ROTATE ?= 4
PYTEST = $(BIN)/python -m pytest -q --rotate $(ROTATE)
# Tests that start processes or Spark mostly wait. All are in these folders and files.
WAITING = tests/real $(shell grep -rlE 'pytest\.mark\.(real|spark)\b' tests --include='test_*.py' | grep -v '^tests/real/')

.PHONY: demo test test-versions test-fast test-spark-faults check docs bench sim mutants model clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e "$(EXTRAS)"
	touch $(STAMP)

demo: $(STAMP)  ## flights through three silos, fed by Spark
	$(BIN)/python -m examples.flights

test: $(STAMP)  ## each test, those that need a loop on both; then on other versions. ROTATE=1: all long tests
	$(PYTEST) -n 2 --maxschedchunk 8 --ignore=tests/real -m "$(COMPUTING)"
	$(PYTEST) -n 3 --dist loadgroup -m "real or spark" $(WAITING)
	MILLSTREAM_LOOP=uvloop $(PYTEST) -n 2 --maxschedchunk 8 --ignore=tests/real -m "$(COMPUTING)"
	tests/other_versions.sh

test-versions: $(STAMP)  ## tests on the other versions of Python that are installed; WHOLE=1: all of them
	tests/other_versions.sh

test-fast: $(STAMP)  ## the quick tests: no processes, no Spark, some of each long run
	$(BIN)/python -m pytest -q -n 2 --hypothesis-profile fast --ignore=tests/real \
		-m "$(COMPUTING) and not slow and not spare"

test-spark-faults: $(STAMP)  ## workers that die while a batch is written
	$(BIN)/python -m pytest -q -n 2 -m spark_faults tests/real

docs: $(STAMP)  ## the documentation site, in site/; a link that leads nowhere is an error
	$(BIN)/zensical build --clean --strict

check: docs  ## style, types, shape of the code, links of the documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/python -m pytest -q tests/test_shape.py tests/test_rooms.py tests/test_exports.py

bench: $(STAMP)  ## calls, streams and activation beside the limit, and the peers that are installed
	$(BIN)/python -m benchmarks calls
	$(BIN)/python -m benchmarks streams
	$(BIN)/python -m benchmarks activation

sim: $(STAMP)  ## clusters under simulated trouble: 100 seeds of each suite
	$(BIN)/python -m tests.sim --seeds 100 --jobs 2

mutants: $(STAMP)  ## faults planted in the cores: ROOM=turns for one room, SAMPLE=20 per module
	$(BIN)/python -m tests.mutants $(ROOM) --sample $(or $(SAMPLE),0) --jobs 2

model: $(STAMP)  ## every order of a ledger's messages within bounds; GROUPS=quick for the small ones
	$(BIN)/python -m tests.providers.ledger.model $(GROUPS)

clean:
	rm -rf $(VENV) $(VENV)-* site .cache
