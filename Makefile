# Needs make and Python 3.11 or later; everything else is put into .venv and .tools of this clone.
# make PYTHON=/path/to/python3 ... chooses another Python for a .venv that is not there yet.
.POSIX:

PYTHON =
ARGS =
PATHS = src tests scripts examples benchmarks

help:
	@echo "make demo    the main job, shown on this machine in about a minute"
	@echo "make test    all tests; ARGS='-k name' selects"
	@echo "make chaos-long  kill, freeze and cut for hours; ARGS='--only campaign --seed 7' selects"
	@echo "make check   format, lint, types, import contracts, lock, generated files"
	@echo "make fix     format, and mend what the linter can"
	@echo "make sim     the simulation: SEED=7 tells that seed's story, without it sixty are tried"
	@echo "make sim-long  ten thousand seeds, in some hours"
	@echo "make machines-long  thousands of stories of the state machines; ARGS='--stories 100 logs'"
	@echo "make bench   what jobd costs on this machine, in about a quarter of an hour"
	@echo "make docs    write the generated files"
	@echo "make pictures  the README's picture and transcript, from real runs"
	@echo "make lock    write the requirement locks; ARGS=--upgrade takes newer versions"
	@echo "make tools   programs from npm that some tests need, into .tools"
	@echo "make clean   remove .venv, .tools and caches"

demo: .venv/.runtime
	.venv/bin/job demo --directory .demo

# Most tests wait for processes: three at a time keep two cores busy. A file stays with one of them.
test: .venv/.dev
	@failed=0; \
	.venv/bin/python -m pytest -m serial $(ARGS) || [ $$? -eq 5 ] || failed=1; \
	.venv/bin/python -m pytest -n 3 --dist loadfile -m "not serial" $(ARGS) \
		|| { [ $$? -eq 5 ] && [ -n "$(ARGS)" ]; } || failed=1; \
	exit $$failed

chaos-long: .venv/.dev
	.venv/bin/python scripts/chaos_long.py $(ARGS)

# The comparisons come first: nothing has been written yet that could hide a difference.
check: .venv/.dev
	.venv/bin/python scripts/check_lock.py
	.venv/bin/python scripts/check_words.py
	.venv/bin/python scripts/generate.py --check
	.venv/bin/python -m ruff format --check --quiet $(PATHS)
	.venv/bin/python -m ruff check --quiet $(PATHS)
	.venv/bin/lint-imports --no-logo
	.venv/bin/python -m mypy

# One seed's story, line by line; without SEED sixty of them.
sim: .venv/.dev
	PYTHONPATH=tests .venv/bin/python -m simulation $${SEED:+--seed $$SEED} $(ARGS)

# Hours. ARGS="--seeds 0..99999" tells others.
sim-long: .venv/.dev
	PYTHONPATH=tests .venv/bin/python -m simulation --seeds 0..9999 --jobs "$$(getconf _NPROCESSORS_ONLN)" --progress $(ARGS)

bench: .venv/.runtime
	@for program in submit cycle queries many arrays submit_to_start recovery true_jobs output idle stdio cli tool_call process_start store logs versus_jobd estimates dispatch scheduling; do \
		echo; .venv/bin/python benchmarks/$$program.py || exit 1; \
	done

machines-long: .venv/.dev
	cd tests && ../.venv/bin/python -m support.machines $(ARGS)

fix: .venv/.dev
	.venv/bin/python -m ruff check --fix --quiet $(PATHS)
	.venv/bin/python -m ruff format --quiet $(PATHS)

docs: .venv/.dev
	.venv/bin/python scripts/generate.py

pictures: .venv/.dev
	.venv/bin/python scripts/pictures.py

lock: .venv/.dev
	.venv/bin/python scripts/lock.py $(ARGS)

tools: .tools/.installed

clean:
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

.venv/.runtime: requirements.lock pyproject.toml scripts/environment.sh
	@PYTHON=$(PYTHON) sh scripts/environment.sh requirements.lock
	@touch $@

.venv/.dev: .venv/.runtime requirements-dev.lock
	@PYTHON=$(PYTHON) sh scripts/environment.sh requirements-dev.lock
	@touch $@

.tools/.installed: tools/package.json tools/package-lock.json tools/install.sh
	@sh tools/install.sh
	@touch $@

.PHONY: help demo test sim sim-long chaos-long machines-long check bench fix docs pictures lock tools clean
