# Each target sets up .venv by itself the first time and whenever pyproject.toml or constraints.txt changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WEB_READY := $(VENV)/.web-ready
DOCS_READY := $(VENV)/.docs-ready
AUDIT := .venv.audit

.PHONY: demo test test-web lint docs fuzz fuzz-short audit bench clean

demo: $(READY)
	$(BIN)/protoformer demo -o out

test: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal

test-web: $(WEB_READY)
	@command -v chromium >/dev/null || apt-get install -y chromium || \
		{ echo "make test-web drives chromium, which is not there and could not be installed: install it first" >&2; exit 1; }
	$(BIN)/pytest tests/web

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # with --quiet, warnings would not be counted

fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --count 20000 --seconds 600

fuzz-short: $(READY)
	$(BIN)/python -m tests.fuzz --count 20000 --seconds 60

# For a scheduled job: it asks PyPI for known vulnerabilities of every pinned version, so its answer changes with time.
audit:
	test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && $(AUDIT)/bin/python -m pip install --quiet 'pip-audit>=2.10,<3'; }
	$(AUDIT)/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip --progress-spinner off || \
		{ echo "make audit: a pinned version has a known vulnerability, or PyPI's list of them could not be asked; see above" >&2; exit 1; }

bench: $(READY)
	$(BIN)/python benchmarks/prototyping.py --json out/prototyping.json
	$(BIN)/python benchmarks/synthetic.py --scenes 50 --json out/synthetic.json
	$(BIN)/python benchmarks/training.py --steps 20 --set model.preset=tiny --set data.batch_size=2 --set "data.crop_size=[128, 160]" --json out/training.json
	$(BIN)/python benchmarks/inference.py --json out/inference.json
	$(BIN)/python benchmarks/flicker.py --json out/flicker.json
	$(BIN)/python benchmarks/long_clip.py --frames 50 150 300 --json out/long_clip.json
	$(BIN)/python benchmarks/prototype_regions.py --scenes 1 --removals 1 --json out/prototype_regions.json

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("protoformer needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(WEB_READY): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,web,webtest]'
	touch $@

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	touch $@

clean:
	rm -rf $(VENV) $(AUDIT) out site
