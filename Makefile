# `make` alone lists what there is. Each target installs what it needs and is not there yet; see scripts/need.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Builds and tools live outside the repository, so that a fresh clone is quick and the tree stays clean.
SANDGATE_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sandgate
SANDGATE_TOOLS := $(SANDGATE_CACHE)/tools
CARGO_TARGET_DIR ?= $(SANDGATE_CACHE)/target

# What runs in a sandbox and beside it are static binaries, for the machine they are built on.
MUSL_TARGET := $(shell uname -m)-unknown-linux-musl
SANDGATE_RUNTIME_BIN := $(CARGO_TARGET_DIR)/$(MUSL_TARGET)/release/sandgate-runtime
SANDGATE_MONITOR_BIN := $(CARGO_TARGET_DIR)/$(MUSL_TARGET)/release/sandgate-monitor

export SANDGATE_TOOLS CARGO_TARGET_DIR MUSL_TARGET SANDGATE_RUNTIME_BIN SANDGATE_MONITOR_BIN
export CC_$(subst -,_,$(MUSL_TARGET)) := musl-gcc
export PATH := $(SANDGATE_TOOLS)/bin:$(PATH)
export PYTHONPYCACHEPREFIX := $(SANDGATE_CACHE)/pycache
export RUFF_CACHE_DIR := $(SANDGATE_CACHE)/ruff

# Passed on: `make test ARGS=name_of_a_test`, `make run ARGS=--help`.
ARGS ?=
SOAK_SECONDS ?= 600
FUZZ_SECONDS ?= 60
# Long inputs from the start: what is interesting is behind many operations and whole tar headers.
FUZZ_ARGS := -len_control=0 -max_len=2048

NEED := ./scripts/need
say = @printf '==> %s\n' '$(1)' >&2

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: build ## Build everything and run the server in the foreground
	@exec $(CARGO_TARGET_DIR)/release/sandgate-server $(ARGS)

.PHONY: build
build: runtime ## Build server, command line, runtime and monitor
	cargo build --release --locked -p sandgate-server -p sandgate

PREFIX ?= /usr/local
DESTDIR ?=
.PHONY: install
install: build ## Install binaries, man pages, completions and the systemd unit below PREFIX (/usr/local)
	install -D -t $(DESTDIR)$(PREFIX)/bin $(CARGO_TARGET_DIR)/release/sandgate-server $(CARGO_TARGET_DIR)/release/sandgate \
		$(SANDGATE_RUNTIME_BIN) $(SANDGATE_MONITOR_BIN)
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/systemd/system deploy/systemd/sandgate-server.service
	mkdir -p $(DESTDIR)$(PREFIX)/share/man/man1
	$(CARGO_TARGET_DIR)/release/sandgate man $(DESTDIR)$(PREFIX)/share/man/man1
	mkdir -p $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions zsh/site-functions fish/vendor_completions.d)
	$(CARGO_TARGET_DIR)/release/sandgate completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/sandgate
	$(CARGO_TARGET_DIR)/release/sandgate completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_sandgate
	$(CARGO_TARGET_DIR)/release/sandgate completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/sandgate.fish

.PHONY: runtime
runtime: ## Build the runtime and the monitor, two static binaries
	@$(NEED) rust musl
	cargo build --release --locked -p sandgate-runtime -p sandgate-monitor --target $(MUSL_TARGET)
	@echo $(SANDGATE_RUNTIME_BIN)

.PHONY: test
test: runtime ## Run all tests, against the real binaries
	@$(NEED) buf perl strace valgrind pytest dcode cluster helm agent-sandbox-sdk peers python-runtime
	@./scripts/test $(ARGS)

.PHONY: test-cluster
test-cluster: runtime ## Run all tests that need a Kubernetes, also those of faults, drivers, chart and rights
	@$(NEED) venv pytest cluster helm agent-sandbox-sdk
	cargo build --locked -p sandgate-server -p sandgate
	cargo test --locked -p sandgate-kubernetes-tests --test '*' --no-run
	@RUST_TEST_THREADS=6 ./scripts/cluster with \
		cargo test --locked --offline -p sandgate-kubernetes-tests --test '*' --no-fail-fast -- $(ARGS)

.PHONY: soak
soak: runtime ## Do random things to fifty sandboxes for SOAK_SECONDS (600), while the server is killed and connections are cut
	cargo build --locked -p sandgate-server
	SANDGATE_SOAK_SECONDS=$(SOAK_SECONDS) cargo test --locked -p sandgate-tests --test soak -- --nocapture $(ARGS)

.PHONY: cluster
cluster: runtime ## Bring up a real Kubernetes of one node to test with
	@$(NEED) venv cluster
	@./scripts/cluster up

.PHONY: cluster-down
cluster-down: ## End it
	@./scripts/cluster down

.PHONY: check
check: check-fmt check-proto check-gen check-clippy check-docs check-deny check-python check-deploy ## Run all checks that are no tests

.PHONY: check-fmt
check-fmt: ## Check the format of Rust code
	$(call say,format)
	@$(NEED) rust
	@cargo fmt --all --check

.PHONY: check-proto
check-proto: ## Check the contract: lint, format, nothing released is broken
	$(call say,contract)
	@$(NEED) buf
	@buf lint
	@buf format --diff --exit-code
	@./scripts/breaking

.PHONY: check-gen
check-gen: ## Check that committed generated code is fresh
	$(call say,generated code)
	@$(NEED) pytest
	@./scripts/gen --check

.PHONY: check-clippy
check-clippy: ## Run clippy, warnings denied
	$(call say,clippy)
	@$(NEED) rust
	@cargo clippy --workspace --all-targets --locked -- -D warnings
	@# Those on a cluster are no targets unless they are asked for.
	@cargo clippy --workspace --test '*' --locked -- -D warnings

.PHONY: check-docs
check-docs: ## Build the Rust docs, warnings denied
	$(call say,docs)
	@$(NEED) rust
	@RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --workspace --locked

# Advisories are left out: their database is no package, and a check must not turn red by itself.
.PHONY: check-deny
check-deny: ## Check dependencies: licences, bans, sources
	$(call say,dependencies)
	@$(NEED) rust deny
	@cargo deny --locked check --hide-inclusion-graph bans licenses sources

.PHONY: check-python
check-python: ## Check Python code: format, lint, types
	$(call say,Python)
	@$(NEED) pytest
	@cd clients/python && $(SANDGATE_TOOLS)/pytest/bin/ruff check --quiet
	@cd clients/python && $(SANDGATE_TOOLS)/pytest/bin/ruff format --quiet --check
	@cd clients/python && $(SANDGATE_TOOLS)/pytest/bin/pyright --pythonpath $(SANDGATE_TOOLS)/pytest/bin/python

.PHONY: check-deploy
check-deploy: ## Check the chart, and that the manifests rendered from it are fresh
	$(call say,chart)
	@$(NEED) helm
	@./deploy/render --check

.PHONY: manifests
manifests: ## Render the plain manifests from the chart
	@$(NEED) helm
	@./deploy/render

.PHONY: gen
gen: ## Write the generated code of the other languages
	@$(NEED) pytest
	@./scripts/gen

# With ARGS nothing is written, unless they say so: a page with a part of the figures would replace the whole.
.PHONY: bench
bench: build ## Measure against this machine and against the peers; writes docs/benchmarks.md
	@$(NEED) peers sshd python-runtime pytest
	cargo build --release --locked -p sandgate-bench
	@$(CARGO_TARGET_DIR)/release/sandgate-bench $(or $(ARGS),--out docs)

.PHONY: bench-smoke
bench-smoke: runtime ## Do a little of all that is measured, to see that it works
	@$(NEED) peers python-runtime pytest
	cargo build --locked -p sandgate-server -p sandgate
	cargo test --locked -p sandgate-bench --test smoke -- --nocapture

.PHONY: bench-cluster
bench-cluster: build ## Measure on a Kubernetes, against kubectl and the Python SDKs; writes docs/benchmarks-cluster.md
	@$(NEED) venv pytest cluster agent-sandbox-sdk kubectl langchain-k8s
	cargo build --release --locked -p sandgate-bench
	@./scripts/cluster with $(CARGO_TARGET_DIR)/release/claims $(or $(ARGS),--out docs)

.PHONY: counts
counts: build ## Count the instructions of the hot paths anew; writes bench/counts.json
	@$(NEED) valgrind
	SANDGATE_WRITE_COUNTS=1 SANDGATE_TEST_SERVER_BIN=$(CARGO_TARGET_DIR)/release/sandgate-server \
		cargo test --locked -p sandgate-tests --test counts

.PHONY: bench-python
bench-python: build ## Compare two streams at a time with one, in the Python client
	@$(NEED) pytest
	@PYTHONPATH=clients/python/src SANDGATE_SERVER_BIN=$(CARGO_TARGET_DIR)/release/sandgate-server \
		$(SANDGATE_TOOLS)/pytest/bin/python clients/python/tools/bench.py $(ARGS)

.PHONY: fuzz
fuzz: ## Fuzz paths and tar entries, each for FUZZ_SECONDS (60)
	@$(NEED) rust nightly cxx fuzz
	cargo +nightly fuzz run --fuzz-dir runtime/files/fuzz paths -- -max_total_time=$(FUZZ_SECONDS) $(FUZZ_ARGS)
	cargo +nightly fuzz run --fuzz-dir runtime/files/fuzz tar_entries -- -max_total_time=$(FUZZ_SECONDS) $(FUZZ_ARGS)

.PHONY: clean
clean: ## Remove what was built (installed tools stay)
	cargo clean
