#!/bin/bash
# A MariaDB that AppArmor confines, under the shaper, in a guest that boots systemd: the packages plimsoll and plimsoll-shape are installed, the server
# runs by the examples that the package brings, and AppArmor denies nothing of it.
# usage: packaging/test-shape.sh [--profile NAME]     (root; needs qemu-system-x86_64, mmdebstrap, cpio)
set -euo pipefail
cd "$(dirname "$0")/.."
profile=(--profile release)
[ "${1:-}" = --profile ] && profile=(--profile "$2")
work=target/package-guest-shape
mkdir -p "$work"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
packaging/build.sh "${profile[@]}" plimsoll plimsoll-shape-shim
cp "target/debian/plimsoll_$version-1_amd64.deb" "$work/plimsoll.deb"
cp "target/debian/plimsoll-shape_$version-1_amd64.deb" "$work/plimsoll-shape.deb"
source packaging/systemd-guest.sh
words="apparmor=1 security=apparmor" systemd_guest "$work" 4096 mariadb-server,apparmor,libgcc-s1 packaging/guest-test-shape.sh \
    "$work/plimsoll.deb" "$work/plimsoll-shape.deb"
