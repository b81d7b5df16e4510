SHELL := /bin/bash
.DEFAULT_GOAL := help
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS := -s -w -X github.com/bowline-k8s/bowline/version.Version=$(VERSION) -X github.com/bowline-k8s/bowline/version.Commit=$(COMMIT)

.PHONY: help build image lab crio demo demo-down test test-full unit race machine generate hostile fuzz verify quickstart-timed conformance conformance-kubelet twin monitoring storm suites vm bench bench-crio bench-api bench-pool clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/bowline
	@. hack/build-lib.sh && CGO_ENABLED=0 build . ./cmd/bowline bin/bowline -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'

image: ## bin/image: an OCI image from scratch for amd64 and arm64, without Docker (PUSH=registry/name:tag pushes it)
	go -C hack/image run . -root $(CURDIR) -out $(CURDIR)/bin/image -version '$(VERSION)' $(if $(PUSH),-push '$(PUSH)')

lab: ## build the lab's programs and install the Debian packages it needs
	hack/build-lab.sh

crio: ## build CRI-O for the lab's hosts (bowline-lab up --runtime crio; BOWLINE_LAB_RUNTIME=crio for the tests)
	@hack/build-crio.sh

demo: ## a cluster on this machine, two nodes run by Bowline, an application on them
	@hack/demo.sh

demo-down: ## remove the demo
	@hack/demo-down.sh

test: ## what a change must pass: unit tests, race detector, real containerds and clusters (docs/tests.md)
	@hack/test.sh

test-full: ## the same, with the whole suite over SSH and the whole kill matrix (some hours)
	@hack/test.sh --full

unit: ## the tests that need nothing but Go
	@hack/test.sh unit

race: ## the packages with goroutines, under the race detector
	@hack/test.sh race

machine: ## the tests that need root: real containerd, real cluster
	@hack/test.sh machine

generate: ## generate code and manifests: from api/ (deepcopy functions, the CRD) and the chart (deploy/kubernetes)
	hack/generate.sh
	hack/manifests.sh

hostile: build lab ## one hostile host among healthy ones: what it costs the process and the others (about ten minutes)
	BOWLINE_E2E=1 BOWLINE_BIN=$(CURDIR)/bin/bowline go test -v -count=1 -timeout 40m ./test/hostile/

fuzz: ## every fuzz target, one after the other (FUZZTIME=10m each; FUZZ=regexp of targets)
	@hack/fuzz.sh

verify: ## format, vet, staticcheck, import rules, generated files
	hack/verify.sh

quickstart-timed: ## the quickstart, timed, in a lab
	@hack/quickstart.sh

conformance: build lab ## Kubernetes' own e2e suite against our node (HOST=local|ssh SET= FOCUS= SKIP=); docs/conformance.md
	hack/conformance.sh -node '$(or $(HOST),local)' -set '$(or $(SET),nodeconformance)' -focus '$(FOCUS)' -skip '$(SKIP)'

conformance-kubelet: build lab ## the same as a baseline on a real kubelet
	hack/conformance.sh -node kubelet -set '$(or $(SET),nodeconformance)' -focus '$(FOCUS)' -skip '$(SKIP)'

twin: build lab ## the same manifests on two kubelets and on our node (HOST=local|ssh), compared; docs/conformance.md
	hack/twin.sh '$(or $(HOST),local)'

vm: build lab ## what needs systemd, disks or NFS, on a virtual machine with an emulated processor (about half an hour)
	BOWLINE_VM=1 BOWLINE_BIN=$(CURDIR)/bin/bowline go test -v -count=1 -timeout 120m ./test/vm

monitoring: build lab ## metrics-server, an autoscaler and Prometheus with the mixin's queries against a local and a remote node (twenty minutes)
	hack/monitoring-build.sh
	BOWLINE_E2E=1 BOWLINE_MONITORING=$(or $(MONITORING),10m) BOWLINE_BIN=$(CURDIR)/bin/bowline go test -v -count=1 -timeout 60m ./test/monitoring

storm: build lab ## a full node churned, struck and killed for ten minutes (HOST=local|ssh, STORM=10m)
	BOWLINE_E2E=1 BOWLINE_E2E_HOST='$(or $(HOST),local)' BOWLINE_STORM=$(or $(STORM),10m) BOWLINE_BIN=$(CURDIR)/bin/bowline \
		go test -v -count=1 -timeout 60m -run TestStorm ./test/storm

suites: ## the long suites that a release needs, one after the other, on a quiet machine (about three hours)
	hack/suites.sh

bench: build lab ## one table: Bowline, the kubelet and the bare CRI side by side
	hack/bench.sh

bench-crio: build lab crio ## the same on a host with CRI-O, without the bare CRI
	BOWLINE_BENCH_OUT=docs/bench-crio.md hack/bench.sh -runtime crio

bench-api: build lab ## a node's requests to the API server, compared with a kubelet's
	BOWLINE_BENCH_OUT=docs/bench-api.md hack/bench.sh -only api

bench-pool: build lab ## cost of one process with 200 hosts (about twenty minutes)
	CGO_ENABLED=0 go build -o bin/scale ./test/scale
	bin/scale -bowline bin/bowline -out docs/bench-pool.md

clean: ## remove what was built here
	rm -rf bin
