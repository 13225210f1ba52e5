#!/usr/bin/env bash
# The first figure in one command, on a bare Debian 12 or Ubuntu 24.04: installs what is missing, builds, runs the sweep, draws.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/packages.sh
sparscale_install_packages "${sparscale_build_packages[@]}"
sparscale_build build/demo -DSPARSCALE_TESTS=OFF -DSPARSCALE_BENCHMARKS=OFF
exec build/demo/sparscale run experiments/first-figure.json --out results/first-figure "$@"
