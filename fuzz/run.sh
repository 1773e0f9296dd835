#!/bin/bash
# Runs every libFuzzer target for SECONDS each (default 300): fuzz/run.sh [SECONDS]
set -eu
cd "$(dirname "$0")/.."
command -v cargo-fuzz >/dev/null || cargo install cargo-fuzz --locked
for target in nbd_handshake nbd_transmission shape_walkers; do
  mkdir -p "fuzz/corpus/$target"
  cargo fuzz run --sanitizer none "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
    -max_total_time="${1:-300}" -max_len=4096
done
