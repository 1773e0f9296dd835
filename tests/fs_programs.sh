#!/bin/bash
# Fetches what `make fs-programs` runs on a mount: PostgreSQL's and SQLite's own tests and zlib, of Debian's source packages.
# The system's list of sources stays as it is.
#
# usage: tests/fs_programs.sh FOLDER
set -euo pipefail
folder=$(mkdir -p "${1:?usage: tests/fs_programs.sh FOLDER}" && cd "$1" && pwd)
cd "$folder"

indexed=
# The upstream source of PACKAGE[=VERSION], unpacked into a folder.
unpack() {
    if [ -z "$indexed" ]; then
        mkdir -p apt/lists/partial
        # From where the system has its packages.
        apt-get indextargets --format \
            'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(REPO_URI) $(RELEASE) $(COMPONENT)' \
            'Created-By: Packages' 'Origin: Debian' | sort -u >apt/sources.list
        [ -s apt/sources.list ] || { echo "the system has no Debian packages' lists: run apt-get update" >&2; exit 1; }
        printf 'Dir::Etc::sourcelist "%s";\nDir::Etc::sourceparts "-";\nDir::State::lists "%s";\nAPT::Sandbox::User "root";\n' \
            "$folder/apt/sources.list" "$folder/apt/lists" >apt/conf
        APT_CONFIG=apt/conf apt-get update -qq
        indexed=1
    fi
    rm -rf download "$2"
    mkdir -p download "$2"
    (cd download && APT_CONFIG=../apt/conf apt-get source -qq --download-only --tar-only "$1")
    tar xf download/*.orig.tar.* -C "$2" --strip-components 1
    rm -r download
}

major=$(ls /usr/lib/postgresql | sort -n | tail -n 1)
version=$(dpkg-query -W -f '${Version}' "postgresql-$major")
# Its tests are those of the version that is installed.
if [ "$(cat postgresql/version 2>/dev/null)" != "$version" ]; then
    unpack "postgresql-$major=$version" postgresql-source
    # Only its headers: the package itself would bring a compiler.
    apt-get -qq -o APT::Sandbox::User=root download "postgresql-server-dev-$major=$version"
    dpkg -x postgresql-server-dev-*.deb postgresql-headers
    rm -rf postgresql-server-dev-*.deb postgresql
    mkdir postgresql
    mv postgresql-source/src/test/regress postgresql/regress
    ln -s "/usr/lib/postgresql/$major/bin" postgresql/bin
    ln -s "/usr/lib/postgresql/$major/lib/pgxs/src/test/regress/pg_regress" postgresql/pg_regress
    # What the tests load from one folder.
    cp "/usr/lib/postgresql/$major/lib/"{autoinc,refint}.so postgresql/regress
    include=$folder/postgresql-headers/usr/include/postgresql
    cc -O1 -fPIC -shared "-I$include/$major/server" -o regress.so postgresql/regress/regress.c
    mv regress.so postgresql/regress
    rm -r postgresql-source postgresql-headers
    echo "$version" >postgresql/version
fi

if [ ! -x sqlite/build/testfixture ]; then
    unpack sqlite3 sqlite
    mkdir sqlite/build
    # Its own build leaves out each fsync.
    (cd sqlite/build && CFLAGS=-O1 ../configure --quiet --disable-shared &&
        make TEMP_STORE="-DSQLITE_TEMP_STORE=1 -USQLITE_NO_SYNC" testfixture) >sqlite.log 2>&1 || { tail sqlite.log; exit 1; }
fi

if ! git -C zlib rev-parse --quiet --verify HEAD >/dev/null 2>&1; then
    unpack zlib zlib
    git -C zlib init --quiet
    git -C zlib add --all --force
    git -C zlib -c user.name=test -c user.email=test@example.org commit --quiet --message zlib
fi
chmod -R a+rX .
# PostgreSQL runs as a user of its own.
above=$folder
while [ "$above" != / ]; do
    above=$(dirname "$above")
    [[ $(stat -c %A "$above") == *[xt] ]] ||
        { echo "$above can't be entered by the user postgres: make fs-programs FS_TOOLS=FOLDER that all may enter" >&2; exit 1; }
done
