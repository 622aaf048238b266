# Lumen: `make book` builds the course, `make test` proves it. `make help` lists the rest.
# Variables: PYTHON (which Python makes .venv), TORCH_INDEX (another index for torch, e.g. PyTorch's CPU wheels),
# CHROMIUM (the browser for the tests), PORT (for serve), JOBS (test processes).

PYTHON ?= python3
PORT   ?= 8000
JOBS   ?= 2
PY     := .venv/bin/python
TOOLS  := book/tools

# Tests share the cores between JOBS processes, so each computes with one thread.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --dist loadfile
# A cell's limit ends what hangs; on a machine with ten other jobs the slowest takes minutes and is no failure.
EACH   := -p no:cacheprovider --nbval-current-env --nbval-cell-timeout 1800
NBVAL  := $(PYTEST) $(EACH)
QUIET  := TQDM_DISABLE=1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help env proof-env book test lint unit notebook-tests browser-tests lab serve notebooks checkpoints bench \
        bench-long publish test-gpu clean

help: ## this list
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | column -t -s '|' 2>/dev/null || sed -n 's/^\([a-z-]*\):.*## /  \1: /p' Makefile

env:
	@command -v $(PYTHON) >/dev/null 2>&1 || { printf '\nNo Python called "$(PYTHON)".\n  Cure: install Python 3.11 or newer (on Debian: apt-get install python3 python3-venv), or name one: make PYTHON=python3.12 book\n\n'; exit 1; }
	@$(PYTHON) $(TOOLS)/environment.py

proof-env:
	@command -v $(PYTHON) >/dev/null 2>&1 || $(MAKE) --no-print-directory env
	@$(PYTHON) $(TOOLS)/environment.py --proof

book: env ## set up .venv, build the HTML with warnings as errors, say where to open it
	@echo "== book: HTML from the stored notebooks, warnings are errors"
	@$(PY) $(TOOLS)/build_book.py

test: proof-env lint unit notebook-tests book browser-tests ## everything CI proves, in the same environment
	@echo "== test: all of it passed"

lint:
	@echo "== lint: ruff, format, mypy, who imports whom"
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -c "from importlinter.cli import lint_imports_command as run; run()" --no-logo --no-cache

unit:
	@echo "== unit: the package, the tools, the generated files"
	@$(PYTEST) -m "not gpu and not browser" tests

# Solutions: strict, every output compared but those of cells tagged nbval-ignore-output; a verdict that is not RIGHT
# is an error. Chapters: must run; only the cells tagged nbval-check-output are compared.
notebook-tests:
	@echo "== notebooks: solutions strictly, chapters run from top to bottom"
	@if ls solutions/*.ipynb >/dev/null 2>&1; then \
	  $(QUIET) LUMEN_STRICT=1 $(NBVAL) --nbval --nbval-sanitize-with tests/book/sanitize.cfg solutions; fi
	@if ls chapters/*.ipynb >/dev/null 2>&1; then $(QUIET) $(NBVAL) --nbval-lax chapters; fi

browser-tests:
	@echo "== browser: every page, wide and narrow, light and dark, no other network"
	@CHROMIUM="$$($(PY) $(TOOLS)/environment.py --browser)" $(PY) -m pytest -m browser tests/browser

lab: env ## JupyterLab on the notebooks
	@echo "== lab: JupyterLab; start with chapters/ or exercises/"
	@$(PY) -m jupyter lab

serve: book ## the built book on http://127.0.0.1:8000 (PORT=...)
	@echo "== serve: http://127.0.0.1:$(PORT) (stop with Ctrl-C)"
	@$(PY) -m http.server $(PORT) --bind 127.0.0.1 --directory book/_build/html

notebooks: env ## sync text and notebooks, run what changed, regenerate exercises, map and badge rows
	@echo "== notebooks: sync, run what changed, regenerate"
	@$(PY) $(TOOLS)/notebooks.py
	@$(PY) $(TOOLS)/make_exercises.py
	@$(PY) $(TOOLS)/coursemap.py

checkpoints: env ## train the shipped checkpoints again (long on a CPU; resumes)
	@echo "== checkpoints: training what lumen/checkpoints ships"
	@$(PY) -m lumen.train.gptlite
	@$(PY) -m lumen.train.uptrain shipped

# More than ten minutes each, as their first lines say.
LONG       := fewer_kv_heads load_test smaller_cache window_sinks
BENCH_LONG := $(LONG:%=benchmarks/%.py)
BENCH      := $(filter-out $(BENCH_LONG),$(wildcard benchmarks/*.py))

bench: env ## ours against Hugging Face, in one run on this machine
	@echo "== bench: interleaved, medians and ratios"
	@for script in $(BENCH); do echo "-- $$script"; $(PY) "$$script" || exit 1; done
	@echo "== left out, more than ten minutes each: $(LONG). make bench-long runs them"

bench-long: env ## the measurements that take longer than ten minutes each
	@echo "== bench-long: an hour and a half, $(LONG)"
	@for script in $(BENCH_LONG); do echo "-- $$script"; $(PY) "$$script" || exit 1; done

publish: env ## on a quiet machine: calibrate, measure, execute all notebooks, write the README's figures
	@echo "== publish: everything measured and executed here (ARGS=--evidence runs the benchmarks, too)"
	@$(PY) $(TOOLS)/publish.py $(ARGS)

test-gpu: env ## on a CUDA machine: gpu-marked tests, every solution strictly, every chapter
	@echo "== test-gpu: LUMEN_DEVICE=cuda"
	@$(PY) -c "import sys, torch; torch.cuda.is_available() or sys.exit('No CUDA device was found by torch. Cure: run this on a GPU machine with a CUDA build of torch.')"
	@LUMEN_DEVICE=cuda $(PY) -m pytest -m gpu tests || [ $$? -eq 5 ]
	@$(QUIET) LUMEN_DEVICE=cuda LUMEN_STRICT=1 $(PY) -m pytest $(EACH) --nbval \
	  --nbval-sanitize-with tests/book/sanitize.cfg solutions
	@$(QUIET) LUMEN_DEVICE=cuda $(PY) -m pytest $(EACH) --nbval-lax chapters

clean: ## remove the built book, caches and screenshots (not .venv, not downloaded models)
	@echo "== clean: book/_build, caches, shots"
	@rm -rf book/_build shots build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
