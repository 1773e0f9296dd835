#!/bin/sh
# Compiles the BPF programs beside their sources, or into the folder that is given. Needs clang, llvm-strip and libbpf's headers.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here}
strip=$(command -v llvm-strip || ls /usr/bin/llvm-strip-* 2>/dev/null | tail -1)
for source in "$here"/*.bpf.c; do
    object=$out/$(basename "$source" .c).o
    (cd "$here" && clang -O2 -g -Wall -Wextra -Werror -Wno-unused-parameter -target bpf -mcpu=v3 \
        -I"/usr/include/$(uname -m)-linux-gnu" -c "$(basename "$source")" -o "$object")
    "$strip" -g "$object"
done
