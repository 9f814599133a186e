# Everything a clone needs; the work is done by scripts/.
PREFIX ?= /usr/local
.DEFAULT_GOAL := help
.PHONY: help setup build test demo docs bench-cpu site wheel format lint ci install clean

help:  ## this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup:  ## install the distribution packages that a build needs
	@scripts/setup build

build: setup  ## build/release: libsmla, the smla tool, the tests
	@scripts/build release

test:  ## build, then run every test
	@scripts/test release

demo:  ## a tour on this machine: what runs here, checked against the reference
	@scripts/demo

docs: build  ## renew what the documents take from the code
	@scripts/docs write

bench-cpu:  ## this library and its rivals on this machine's CPU
	@scripts/bench-cpu

site:  ## build/site/html: the documents as a web site
	@scripts/python_env
	@scripts/site

wheel:  ## dist/: the source archive and the wheel of the Python package
	@scripts/wheel

format:  ## format the sources
	@scripts/format

lint:  ## every style and structure check
	@scripts/setup ci
	@scripts/python_env
	@scripts/lint/run

ci:  ## what continuous integration runs
	@.ci/run

install: build  ## install to PREFIX (default /usr/local)
	@cmake --install build/release --prefix $(PREFIX)

clean:  ## remove build/
	@rm -rf build
