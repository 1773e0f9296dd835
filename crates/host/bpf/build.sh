#!/bin/sh
# Compiles the BPF programs beside their sources, or into the folder that is given. Needs clang, LLVM's tools and libbpf's headers.
# Each object has the digest of its source in a section: a test finds sources that were changed without a compilation.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here}
tool() { command -v "llvm-$1" || ls /usr/bin/llvm-"$1"-* 2>/dev/null | tail -1; }
strip=$(tool strip)
objcopy=$(tool objcopy)
digest=$(mktemp)
trap 'rm -f "$digest"' EXIT
for source in "$here"/*.bpf.c; do
    object=$out/$(basename "$source" .c).o
    (cd "$here" && clang -O2 -g -Wall -Wextra -Werror -Wno-unused-parameter -target bpf -mcpu=v3 -fdebug-prefix-map="$here"=. \
        -I"/usr/include/$(uname -m)-linux-gnu" -c "$(basename "$source")" -o "$object")
    "$strip" -g "$object"
    cat "$source" "$here/layout.h" | sha256sum | cut -d ' ' -f 1 > "$digest"
    "$objcopy" --add-section .source="$digest" "$object"
done
