# Every target sets itself up (deploy/setup.sh, in .venv); ARGS are passed on:
#   make demo ARGS="--rounds 5 --json"
#   make test ARGS="tests/protocol -k topics"

BIN := .venv/bin
ARGS ?=
.DEFAULT_GOAL := help
.PHONY: help demo test test-all check docs format lock audit bench bench-peers screenshots wheel clean run-env dev-env

help: ## Show the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: run-env ## Run a whole federation on this machine
	@$(BIN)/fedagent demo $(ARGS)

test: dev-env ## Run the tests, four at a time: some wait while others compute
	@$(BIN)/pytest $(or $(ARGS),-n 4 --dist worksteal -m "not nightly")

test-all: dev-env docs ## Run every test: networks, browser, services, documents, 20 seeds
	@$(BIN)/pytest $(or $(ARGS),-n 4 --dist worksteal --seeds 20)

check: dev-env ## Check format, lint, types and layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: dev-env ## Build the site of the documents (dist/site/index.html)
	@$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs dist/site $(ARGS)

format: dev-env ## Format the code and fix what ruff can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: dev-env ## Pin and hash what CI installs, anew (deploy/ci.lock)
	@sh deploy/lock.sh

audit: dev-env ## Look the locked dependencies up in a database of advisories
	@$(BIN)/python deploy/audit.py

bench: dev-env ## Measure every figure of the documents
	@$(BIN)/python -m bench $(ARGS)

bench-peers: dev-env ## Measure other frameworks side by side
	@$(BIN)/python -m bench.peers $(ARGS)

screenshots: dev-env ## Take the pictures of the live page for the documents (needs Chromium)
	@$(BIN)/python -m bench.screens

wheel: ## Build the wheel that a device installs
	@sh deploy/setup.sh wheel

clean: ## Remove what was made, .venv aside
	@rm -rf dist fedagent-demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

run-env:
	@sh deploy/setup.sh run

dev-env:
	@sh deploy/setup.sh dev
