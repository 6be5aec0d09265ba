# Every target sets up what it needs: `make demo` and `make test` work in a fresh clone.
VENV := .venv
PY := $(VENV)/bin/python
STAMP = $(VENV)/.installed-$(1)

.PHONY: demo test test-slow bench clean

demo: $(call STAMP,data)
	$(VENV)/bin/hoarfrost train digits

test: $(call STAMP,dev)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check --quiet .
	$(VENV)/bin/mypy
	$(PY) -m pytest -n 2 --dist worksteal

test-slow: $(call STAMP,dev)
	$(PY) -m pytest -m slow

bench: $(call STAMP,bench)
	$(PY) -m benchmarks
	$(PY) -m benchmarks --styles

$(VENV)/bin/python:
	python3 -m venv $(VENV)

# One stamp per extra: installed anew when pyproject.toml changes.
$(VENV)/.installed-%: pyproject.toml | $(VENV)/bin/python
	$(PY) -m pip install --quiet --disable-pip-version-check -e '.[$*]'
	touch $@

clean:
	rm -rf $(VENV)
