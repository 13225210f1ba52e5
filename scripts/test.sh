#!/usr/bin/env bash
# Installs what is missing, builds in Release with warnings as errors, runs the fast tests. Arguments go to ctest: "-L slow" runs the slow ones.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/packages.sh
sparscale_install_packages "${sparscale_build_packages[@]}" "${sparscale_test_packages[@]}"
sparscale_build build/test -DSPARSCALE_WERROR=ON
selection=(-LE slow)
[ $# -eq 0 ] || selection=("$@")
ctest --test-dir build/test --output-on-failure -j "$(nproc)" "${selection[@]}"
