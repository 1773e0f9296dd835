#!/bin/bash
# The packages' life in a guest that boots systemd (QEMU, no KVM needed): installed, started, reloaded, upgraded with dirty data in a
# write-back cache, a downgrade refused, stopped, removed, purged.
# usage: packaging/test.sh [--profile NAME]     (root; needs qemu-system-x86_64, mmdebstrap, cpio, lintian)
set -euo pipefail
cd "$(dirname "$0")/.."
profile=(--profile release)
[ "${1:-}" = --profile ] && profile=(--profile "$2")
work=target/package-guest
mkdir -p "$work"

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
# The program of both is the same: what differs is the package's version.
packaging/build.sh "${profile[@]}" --deb-version "$version-1" plimsoll
# cargo-deb keeps one version of a package in a folder.
cp "target/debian/plimsoll_$version-1_amd64.deb" "$work/old.deb"
packaging/build.sh "${profile[@]}" --deb-version "$version-2" plimsoll
lintian --fail-on error --suppress-tags-from-file packaging/lintian-suppressed "target/debian/plimsoll_$version-2_amd64.deb"

source packaging/systemd-guest.sh
cp "target/debian/plimsoll_$version-2_amd64.deb" "$work/new.deb"
systemd_guest "$work" 3072 libnbd-bin,libgcc-s1 packaging/guest-test.sh "$work/old.deb" "$work/new.deb"
