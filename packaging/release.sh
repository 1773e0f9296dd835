#!/bin/bash
# What a release must have. Changes nothing, publishes nothing; names everything that is missing, and fails if anything is.
#
# usage: packaging/release.sh VERSION
set -u
cd "$(dirname "$0")/.."
version=${1:?usage: packaging/release.sh VERSION}
missing=0
need() { # need WHAT COMMAND…
  local what=$1; shift
  if "$@" >/dev/null 2>&1; then echo "ok       $what"; else echo "MISSING  $what"; missing=1; fi
}
same() { [ "$(grep -m1 '^version = ' "$1")" = "version = \"$version\"" ]; }
clean() { [ -z "$(git status --porcelain)" ]; }
untagged() { ! git rev-parse --quiet --verify "refs/tags/v$version"; }
# The version's section, with something in it, above all older ones.
logged() { awk -v v="$version" '/^## /{ on = index($0, v) > 0; next } on && NF { found = 1 } END { exit !found }' CHANGELOG.md; }
# Each format's version that the code writes has an image or fixture that an older program wrote.
fixtures() { for folder in crates/store/tests/images crates/cache/tests/fixtures crates/logs/tests/fixtures; do [ -n "$(ls "$folder")" ] || return 1; done; }
results() { [ -z "$(git grep -l 'commit unknown' -- docs results 2>/dev/null)" ]; }

need "the working tree is as committed" clean
need "Cargo.toml has version $version" same Cargo.toml
need "the Python package has version $version" same bindings/python/pyproject.toml
need "and its crate" same bindings/python/Cargo.toml
need "CHANGELOG.md has a section for $version" logged
need "no tag v$version yet" untagged
need "older on-device formats are kept as fixtures" fixtures
need "no result from an unknown commit" results
need "CONTRIBUTING.md's table is true" tests/run.py --table check
need "dependencies: licences, sources" tests/dependencies.py
need "make lint" make lint
need "make test" make test
need "make audit" make audit
need "make sanitize" make sanitize
need "planted violations of the rules are found" tests/ci_rules.sh
need "the crates that others may use can be packaged" cargo package --quiet --no-verify --locked -p plimsoll-base -p plimsoll-nbd -p plimsoll-client
need "make package-test" make package-test
need "make python" make python
[ $missing = 0 ] && echo "then: git tag -s v$version; make deb; cargo publish -p plimsoll-base -p plimsoll-nbd -p plimsoll-client" || exit 1
