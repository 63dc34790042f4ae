# Shortcuts. Each one is a plain command that also works without make.

.DEFAULT_GOAL := help
TOOL := go tool -modfile=tools.mod
ARGS ?=

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.PHONY: build
build: ## bin/gobridge
	CGO_ENABLED=0 go build -trimpath -o bin/gobridge ./cmd/gobridge

.PHONY: test
test: ## every test, and what could not run; ARGS goes to go test
	go run ./internal/testall $(ARGS)

.PHONY: long
long: ## every test with its full counts: take an hour
	LONG=1 go run ./internal/testall -count=1 -timeout=90m $(ARGS)

.PHONY: lint
lint: ## gofumpt, vet, staticcheck, go fix: report only
	@out=$$($(TOOL) gofumpt -l .); test -z "$$out" || { echo "$$out"; exit 1; }
	go vet ./...
	$(TOOL) staticcheck ./...
	go fix -diff ./...

.PHONY: fmt
fmt: ## rewrite with gofumpt and go fix
	$(TOOL) gofumpt -w .
	go fix ./...

.PHONY: generate
generate: ## docs and schema that come from the code
	go generate ./...

.PHONY: examples
examples: build ## validate every example
	find examples -name '*.yaml' -exec bin/gobridge validate {} +

.PHONY: fuzz
fuzz: ## every fuzz target for a short while
	.ci/fuzz

.PHONY: bench
bench: ## Go benchmarks; compare runs with benchstat
	go test -run='^$$' -bench=. -benchmem $(ARGS) ./...

.PHONY: mutate
mutate: ## plant a fault for each of some promises; their tests have to fail
	go run ./internal/mutate $(ARGS)

.PHONY: chaos
chaos: ## random bridges under random faults: DURATION=10m SEED=17 PLANT=no-fsync
	CHAOS_DURATION=$(or $(DURATION),1m) CHAOS_SEED=$(or $(SEED),fresh) CHAOS_PLANT=$(PLANT) go test -v -count=1 -timeout=0 -run TestPromisesHoldInChaos ./chaos

.PHONY: vuln
vuln: ## known vulnerabilities; needs its database online
	$(TOOL) govulncheck ./...

.PHONY: ci
ci: ## what a change must pass
	.ci/run

.PHONY: clean
clean: ## remove what the targets built
	rm -rf bin
