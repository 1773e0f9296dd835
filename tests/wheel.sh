#!/bin/bash
# Installs the wheel of target/wheels into a fresh environment, checks its stubs, and runs its tests against nodes of a program.
#
# usage: tests/wheel.sh PLIMSOLL
set -euo pipefail
cd "$(dirname "$0")/.."
plimsoll=$(realpath "${1:?usage: tests/wheel.sh PLIMSOLL}")
wheel=(target/wheels/plimsoll-*.whl)
[ -e "${wheel[0]}" ] && [ ${#wheel[@]} = 1 ] || { echo "target/wheels has no wheel, or several: make wheel"; exit 1; }
python3 -m venv --clear target/wheel-test
bin=$PWD/target/wheel-test/bin
"$bin/pip" install --quiet mypy pytest "${wheel[0]}"
cd bindings/python # where no plimsoll can be imported but the installed one
"$bin/stubtest" plimsoll._plimsoll
"$bin/mypy" --no-error-summary -p plimsoll
PLIMSOLL=$plimsoll "$bin/pytest" -q -p no:cacheprovider tests
