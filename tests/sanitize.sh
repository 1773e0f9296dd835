#!/bin/bash
# Runs what maps memory or has unsafe code under the address sanitizer, and what shares memory under the thread sanitizer.
# The stable toolchain has the sanitizer's runtime; RUSTC_BOOTSTRAP allows the flag. The standard library isn't instrumented: what it
# does to memory is only seen where it is inlined.
# Not run: the shim within servers and the C client, whose hosts would have to be built with the sanitizer, too.
set -eu
cd "$(dirname "$0")/.."
export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" CARGO_TARGET_DIR="$PWD/target/sanitize"
target=x86_64-unknown-linux-gnu
cargo test --target $target -p plimsoll-shape --lib --test hostile --test killed
# A pool that is dropped with requests in its ring leaks their buffers on purpose: the kernel may still write to them. Only tests do that.
# Left out: bounds of the thread's time, which an instrumented program takes several times as much of.
ASAN_OPTIONS=detect_leaks=0 cargo test --target $target -p plimsoll-node --lib engine:: -- --skip withdrawing

# The thread sanitizer doesn't see what channels and reference counts of the standard library order, as that isn't built with it. Reports
# whose place is there are left out. Orders of the steps of the shaper's lock: crates/shape/tests/model.rs.
export RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" CARGO_TARGET_DIR="$PWD/target/sanitize-thread"
log="$CARGO_TARGET_DIR/log"
mkdir -p "$CARGO_TARGET_DIR"
TSAN_OPTIONS=exitcode=0 cargo test --target $target -p plimsoll-shape --lib --test hostile 2>&1 | tee "$log"
[ "${PIPESTATUS[0]}" = 0 ] || exit 1
if grep '^SUMMARY: ThreadSanitizer' "$log" | grep -v ' /rustc/[0-9a-f]*/library/'; then
	echo "data races: see $log"
	exit 1
fi
