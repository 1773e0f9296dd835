#!/bin/bash
# Runs what maps memory or has unsafe code under the address sanitizer: tests/sanitize.sh
# The stable toolchain has the sanitizer's runtime; RUSTC_BOOTSTRAP allows the flag. The standard library isn't instrumented: what it
# does to memory is only seen where it is inlined.
# Not run: the shim within servers and the C client, whose hosts would have to be built with the sanitizer, too; the thread sanitizer,
# which needs a standard library that is built with it (crates/shape/tests/model.rs runs the orders of the shaper's steps).
set -eu
cd "$(dirname "$0")/.."
export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" CARGO_TARGET_DIR="$PWD/target/sanitize"
target=x86_64-unknown-linux-gnu
cargo test --target $target -p plimsoll-shape --lib --test hostile --test killed
# A pool that is dropped with requests in its ring leaks their buffers on purpose: the kernel may still write to them. Only tests do that.
ASAN_OPTIONS=detect_leaks=0 cargo test --target $target -p plimsoll-node --lib engine::
