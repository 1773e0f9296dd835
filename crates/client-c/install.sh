#!/bin/bash
# Installs the C client: header, shared library by its soname, static library, pkg-config file.
#
# usage: crates/client-c/install.sh FOLDER PREFIX     FOLDER has what cargo built (target/release); DESTDIR goes before PREFIX
set -eu
here=$(cd "$(dirname "$0")" && pwd)
built=$1 prefix=$2 to=${DESTDIR:-}$2
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$here/../../Cargo.toml")
install -d "$to/lib/pkgconfig" "$to/include"
install -m 644 "$here/include/plimsoll.h" "$to/include/"
install -m 755 "$built/libplimsoll_client_c.so" "$to/lib/libplimsoll_client_c.so.$version"
ln -sf "libplimsoll_client_c.so.$version" "$to/lib/libplimsoll_client_c.so.0"
ln -sf libplimsoll_client_c.so.0 "$to/lib/libplimsoll_client_c.so"
install -m 644 "$built/libplimsoll_client_c.a" "$to/lib/"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" "$here/plimsoll-client.pc.in" >"$to/lib/pkgconfig/plimsoll-client.pc"
