#!/bin/bash
# Plants a violation of each rule that `make lint` and `make audit` check, in a copy of the tree, and fails if one isn't found. By
# packaging/release.sh, and by hand.
#
# usage: tests/ci_rules.sh [RULE…]
#
# Builds little: what is planted lies in small crates. Lints share a target directory, so that the second run takes seconds.
set -u
cd "$(dirname "$0")/.."
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/ci-rules}
git ls-files -z | xargs -0 cp -P --parents -t "$copy"
cd "$copy"
git init -q && git add -A && git -c user.name=x -c user.email=x commit -qm tree
wrong=0 chosen=("$@")

# rule NAME WORDS-OF-THE-FINDING PLANT COMMAND: clean before, found once planted, for the reason that it's there for.
rule() {
  local name=$1 words=$2 plant=$3 command=$4 said
  if [ ${#chosen[@]} -gt 0 ] && ! [[ " ${chosen[*]} " == *" $name "* ]]; then return; fi
  git checkout -q . && git clean -qfd
  if ! said=$(bash -c "$command" 2>&1); then
    echo "$name: FAILS WITHOUT A VIOLATION"; echo "$said" | tail -5; wrong=1; return
  fi
  bash -c "$plant"
  if said=$(bash -c "$command" 2>&1); then
    echo "$name: NOT FOUND"; wrong=1
  elif [[ "$said" != *"$words"* ]]; then
    echo "$name: FAILS FOR ANOTHER REASON"; echo "$said" | tail -5; wrong=1
  else
    echo "$name: found: $(grep -m1 -F -- "$words" <<<"$said")"
  fi
}

pure() { echo "cargo clippy -q --locked -p plimsoll-throttle -- -D warnings"; }
source=crates/throttle/src/lib.rs
rule format "Diff in" "echo 'fn  f(){}' >> $source" "cargo fmt --all --check"
rule locked "lock file" "sed -i 's/^tempfile = .*/tempfile = \"=3.19.0\"/' Cargo.toml" "cargo metadata --locked --offline --format-version 1"
rule arrows-layer "a layer knows no other layer" "sed -i 's/^\[dependencies\]/&\nplimsoll-sched.workspace = true/' crates/throttle/Cargo.toml" "tests/arrows.py"
rule arrows-contract "the contract knows no layer" "echo 'use plimsoll_cache::Cache;' >> crates/stack/src/stack.rs" "tests/arrows.py"
rule arrows-message "a layer knows no other layer" "echo 'fn planted(_: plimsoll_logs::LogsControl) {}' >> crates/cache/src/lib.rs" "tests/arrows.py"
rule arrows-engine "the engine knows no layer" "echo 'use super::super::parts::PARTS;' >> crates/node/src/engine/conn.rs" "tests/arrows.py"
rule arrows-http "domain doesn't know its HTTP" "echo 'use crate::http::Control;' >> crates/node/src/directory.rs" "tests/arrows.py"
rule errors "an error is a text" "echo 'fn planted() -> Result<(), String> { Ok(()) }' >> crates/node/src/plan.rs" "tests/errors.py"
rule licence "license" "sed -i 's/\"MIT\", //' tests/dependencies.py" "tests/dependencies.py"
rule bans "use one" "sed -i 's/\"syn\"//' tests/dependencies.py" "tests/dependencies.py"
rule source "not from" "sed -i 's/^REGISTRY = .*/REGISTRY = \"elsewhere\"/' tests/dependencies.py" "tests/dependencies.py"
rule words-predicate "begins with" "echo '/// Is it planted.
pub fn planted() {}' >> $source" "tests/words.py"
rule words-question "asks" "echo '// Why is it planted?' >> $source" "tests/words.py"
rule words-tests "begins with" "echo '/// Does it begin so.' >> crates/cache/tests/space.rs" "tests/words.py"
rule words-itself "its example" "sed -i 's/^PREDICATE = re.compile(/&\"x\" + /' tests/words.py" "tests/words.py"
rule unused "remove it" "sed -i 's/^\[dependencies\]/&\nlibc.workspace = true/' crates/throttle/Cargo.toml" "tests/unused.py"
rule shadows "hides the module" "touch bench/requests.py" "tests/shadows.py"
rule links "no file nowhere.md" "echo '[dead](nowhere.md)' >> docs/start.md" "tests/links.py"
rule messages "limits.rs" "sed -i 's/payload_time is shorter than/payload_time ends before/' crates/node/src/config/limits.rs" "tests/messages.py"
rule reference "configuration.md" "sed -i 's/connections_per_tenant: 6144/connections_per_tenant: 5000/' crates/node/src/config/limits.rs; sed -i 's/^connections_per_tenant = 6144/connections_per_tenant = 5000/' plimsoll.example.toml" "tests/reference.py --check"
rule example "its default is 5000" "sed -i 's/connections_per_tenant: 6144/connections_per_tenant: 5000/' crates/node/src/config/limits.rs" "tests/reference.py --check"
rule example-optional "the default 33" "sed -i 's/at the device .default: 32./at the device [default: 33]/' crates/node/src/config/pool.rs" "tests/reference.py --check"
rule reference-api "api.md" "echo planted >> docs/reference/api.md" "tests/reference.py --check"
rule anchors "no anchor #nowhere" "echo '[dead](start.md#nowhere)' >> docs/README.md" "tests/links.py"
rule summary "isn't in docs/SUMMARY.md" "cd docs/guides; echo '# Planted' > planted.md" "tests/links.py"
rule mentions "which isn't there" "echo '// docs/''guides/nowhere.md' >> $source" "tests/links.py"
rule messages-stale "no program has the message" "sed -i '0,/^\* \`/s//* \`planted words that nobody prints at all\`\n&/' docs/guides/troubleshoot.md" "tests/messages.py"
rule words-document "words: see" "echo 'This sentence is planted and goes on and on with many more words than twenty-five so that a reader who has not seen it loses the thread before its end.' >> docs/start.md" "tests/words.py"
rule pictures "stack.svg" "sed -i 's/<svg/<svg id=\"x\"/' docs/pictures/stack.svg" "docs/pictures/draw.py --check"
rule table "tests/suites.toml" "sed -i 's/^| base | nothing/| base | luck/' CONTRIBUTING.md" "tests/run.py --table check"
rule clock "disallowed method" "echo '/// Now.
pub fn planted() -> std::time::Instant { std::time::Instant::now() }' >> $source" "$(pure)"
rule thread "disallowed method" "echo '/// Waits.
pub fn planted() { std::thread::sleep(std::time::Duration::ZERO) }' >> $source" "$(pure)"
rule order "disallowed method" "echo '/// A map.
pub fn planted() -> std::collections::HashMap<u8, u8> { std::collections::HashMap::new() }' >> $source" "$(pure)"
rule order-default "disallowed type" "echo '/// A map.
pub fn planted() -> Vec<u8> { std::collections::HashSet::<u8>::default().into_iter().collect() }' >> $source" "$(pure)"
for crate in $(cd crates && ls -d */clippy.toml | sed 's,/.*,,'); do
  rule "pure-$crate" "disallowed method" "echo '/// Now.
pub fn planted() -> std::time::Instant { std::time::Instant::now() }' >> crates/$crate/src/lib.rs" "cargo clippy -q --locked -p plimsoll-$crate -- -D warnings"
done
rule warnings "missing documentation" "echo 'pub fn planted() {}' >> $source" "$(pure)"
rule documentation "unresolved link" "echo '/// [\`Nowhere\`]
pub fn planted() {}' >> $source" "RUSTDOCFLAGS=-Dwarnings cargo doc -q --locked -p plimsoll-throttle --no-deps"
exit $wrong
