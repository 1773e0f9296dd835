#!/bin/bash
# Builds the Debian packages plimsoll, plimsoll-lab, plimsoll-shape and plimsoll-host into target/debian.
# usage: packaging/build.sh [--profile NAME] [--deb-version VERSION] [PACKAGE...]
set -euo pipefail
cd "$(dirname "$0")/.."
profile=release
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
deb_version=$version-1
while [ $# -gt 0 ]; do
    case $1 in
    --profile) profile=$2 && shift 2 ;;
    --deb-version) deb_version=$2 && shift 2 ;;
    *) break ;;
    esac
done
packages=("${@:-plimsoll}")
[ $# -gt 0 ] || packages=(plimsoll plimsoll-lab plimsoll-shape-shim plimsoll-host-c)
folder=$profile
[ "$profile" = dev ] && folder=debug

command -v cargo-deb >/dev/null || cargo install cargo-deb --version 3.8.0 --locked
PLIMSOLL_COMMIT=$(git rev-parse --short=12 HEAD)
[ -z "$(git status --porcelain --untracked-files=no)" ] || PLIMSOLL_COMMIT=$PLIMSOLL_COMMIT+
export PLIMSOLL_COMMIT PLIMSOLL_VERSION="$version ($PLIMSOLL_COMMIT)"
cargo build --profile "$profile" "${packages[@]/#/-p}"
# The package plimsoll-host has the library to preload too.
case " ${packages[*]} " in *" plimsoll-host-c "*) cargo build --profile "$profile" -p plimsoll-host-shim ;; esac
for program in plimsoll plimsoll-lab; do
    case " ${packages[*]} " in *" $program "*) ;; *) continue ;; esac
    rm -rf "target/package/$program"
    "target/$folder/$program" generate man "target/package/$program/man"
    "target/$folder/$program" generate completions "target/package/$program"
done
for package in "${packages[@]}"; do
    cargo deb --no-build --profile "$profile" --package "$package" --deb-version "$deb_version" --output target/debian/
done
