#!/bin/bash
# Runs every libFuzzer target for SECONDS each (default 300): fuzz/run.sh [SECONDS [TARGET...]]
set -eu
cd "$(dirname "$0")/.."
command -v cargo-fuzz >/dev/null || cargo install cargo-fuzz --locked
seconds="${1:-300}"
shift || true
all() { for f in fuzz/fuzz_targets/*.rs; do basename "$f" .rs; done; }
for target in ${@:-$(all)}; do
  # All trace readers begin with all traces that the readers' own tests have: one format's file is another's damaged one.
  seeds="fuzz/seeds/$target"
  case "$target" in trace_*) seeds=crates/trace/tests/seeds ;; esac
  mkdir -p "fuzz/corpus/$target"
  cargo fuzz run --sanitizer none "$target" "fuzz/corpus/$target" "$seeds" -- \
    -max_total_time="$seconds" -max_len=4096 -timeout=20
done
