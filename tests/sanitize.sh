#!/bin/bash
# Runs what has unsafe code, or shares memory, under the address and the thread sanitizer: tests/sanitize.sh [address|thread]
# The stable toolchain has the sanitizers' runtimes; RUSTC_BOOTSTRAP allows the flag. The standard library isn't instrumented: what
# it does to memory is only seen where it is inlined, and the thread sanitizer sees pthreads, not the library's own locks.
# Not run: the shim within servers and the C client, whose hosts would have to be built with the sanitizer, too.
set -eu
cd "$(dirname "$0")/.."
export RUSTC_BOOTSTRAP=1
target=x86_64-unknown-linux-gnu
for sanitizer in ${@:-address thread}; do
  export RUSTFLAGS="-Zsanitizer=$sanitizer" CARGO_TARGET_DIR="$PWD/target/sanitize-$sanitizer"
  case $sanitizer in
    address)
      cargo test --target $target -p plimsoll-shape --lib --test hostile
      cargo test --target $target -p plimsoll-node --lib engine::
      cargo test --target $target -p plimsoll-store --test fuzz_smoke
      ;;
    thread)
      cargo test --target $target -p plimsoll-shape --lib segment::
      ;;
  esac
done
