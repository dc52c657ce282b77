# SPDX-License-Identifier: Apache-2.0
# A thin front: meson builds and tests, the scripts do the rest. `make help` lists the targets.
PREFIX ?= /usr/local
DESTDIR ?=
FUZZ_SECONDS ?= 10
DEMO_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help deps build test test-asan test-ubsan test-tsan test-clang test-upstream fuzz-smoke lint bench demo \
	demo-tokens install clean

help:
	@echo 'make demo         build, then move a real KV cache between processes of other shapes and check every byte'
	@echo 'make demo-tokens  the same, then let the model go on from the moved cache (downloads 93 MB of weights)'
	@echo 'make test         build with gcc and run every test'
	@echo 'make test-asan    every test under AddressSanitizer and LeakSanitizer'
	@echo 'make test-ubsan   every test under UndefinedBehaviorSanitizer'
	@echo 'make test-tsan    every test under ThreadSanitizer'
	@echo 'make test-clang   build with clang and run the unit tests'
	@echo 'make test-upstream  install the published Mooncake engine and vLLM (7 GB), run beside them in both roles'
	@echo 'make fuzz-smoke   run each fuzz target for FUZZ_SECONDS ($(FUZZ_SECONDS)) seconds'
	@echo 'make lint         check the rules of the house'
	@echo 'make bench        measure, as lines of JSON'
	@echo 'make build        build the library and the command in build/'
	@echo 'make install      install under PREFIX ($(PREFIX)), below DESTDIR when given'
	@echo 'make deps         install the Debian packages that building and testing need'
	@echo 'make clean        remove what was built'
	@echo 'All of them first install the Debian packages that are missing, saying which (KVF_DEPS=no: do not).'

deps:
	@scripts/install-deps.sh test

build:
	@scripts/install-deps.sh build
	@scripts/build.sh build -Dtests=false

test:
	@scripts/install-deps.sh test
	@scripts/run-tests.sh gcc

test-asan:
	@scripts/install-deps.sh test
	@scripts/run-tests.sh asan

test-ubsan:
	@scripts/install-deps.sh test
	@scripts/run-tests.sh ubsan

test-tsan:
	@scripts/install-deps.sh test
	@scripts/run-tests.sh tsan

test-clang:
	@scripts/install-deps.sh test clang
	@scripts/run-tests.sh clang

test-upstream:
	@scripts/install-deps.sh upstream
	@scripts/build.sh build-upstream/build tests/mooncake/mooncake_host tests/oracle/answer_vllm src/cli/kvferry
	@scripts/test-upstream.sh build-upstream/build mooncake
	@scripts/test-upstream.sh build-upstream/build vllm

fuzz-smoke:
	@scripts/install-deps.sh fuzz
	@scripts/fuzz-smoke.sh $(FUZZ_SECONDS)

lint:
	@scripts/install-deps.sh test
	@scripts/build.sh build -Dtests=false
	@scripts/lint --build build

bench:
	@scripts/install-deps.sh bench
	@scripts/build.sh build -Dtests=false
	@scripts/bench.sh build

demo:
	@scripts/install-deps.sh build
	@scripts/build.sh build -Dtests=false src/cli/kvferry
	@build/src/cli/kvferry demo --data examples/data $(DEMO_ARGS)

demo-tokens:
	@scripts/install-deps.sh tokens
	@scripts/build.sh build -Dtests=false src/cli/kvferry
	@scripts/demo-tokens.sh build/src/cli/kvferry

install:
	@scripts/install-deps.sh build
	@scripts/install.sh "$(PREFIX)" "$(DESTDIR)"

clean:
	rm -rf build build-*
