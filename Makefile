# Two commands do all the set-up: `make demo` and `make test`. Each makes its own virtual environment.
PYTHON ?= python3
DEMO_TRACE ?= traces/fsdp2-nvlink-default
DEMO_PROFILE ?= traces/profiles/h200-nvlink.json
OUT ?= demo-out
# A CPU build is enough for the tests; name another requirement to test against another release.
TORCH ?= torch==2.13.0

.PHONY: demo test lint clean

demo: .venv/ready
	mkdir -p $(OUT)
	.venv/bin/kareus inspect $(DEMO_TRACE)
	.venv/bin/kareus solve $(DEMO_TRACE) --profile $(DEMO_PROFILE) --frontier $(OUT)/frontier.json -o $(OUT)/schedule.json
	.venv/bin/kareus simulate $(DEMO_TRACE) --profile $(DEMO_PROFILE) --schedule $(OUT)/schedule.json
	.venv/bin/kareus report $(DEMO_TRACE) --profile $(DEMO_PROFILE) --schedule $(OUT)/schedule.json --frontier $(OUT)/frontier.json -o $(OUT)/report.html --perfetto $(OUT)/step.perfetto.json
	@echo "schedule:   $(OUT)/schedule.json"
	@echo "report:     $(OUT)/report.html (open it in a browser)"
	@echo "timeline:   $(OUT)/step.perfetto.json (open it at ui.perfetto.dev)"

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install -q --disable-pip-version-check -e '.[solver]'
	touch $@

test: .venv-test/ready
	.venv-test/bin/python -m pytest $(PYTEST_ARGS)

lint: .venv-test/ready
	.venv-test/bin/ruff format --check .
	.venv-test/bin/ruff check .
	.venv-test/bin/mypy
	.venv-test/bin/lint-imports

# torch first and by itself, so that no other package's range pulls another build of it.
.venv-test/ready: pyproject.toml tests/requirements.txt
	$(PYTHON) -m venv .venv-test
	.venv-test/bin/python -m pip install -q --disable-pip-version-check '$(TORCH)'
	.venv-test/bin/python -m pip install -q --disable-pip-version-check -e '.[solver]' -r tests/requirements.txt
	touch $@

clean:
	rm -rf .venv .venv-test $(OUT)
