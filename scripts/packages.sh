# Sourced by the other scripts: installs the Debian or Ubuntu packages that are missing, and says which.
# shellcheck shell=bash

sparscale_install_packages() {
  local package missing=()
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    echo "All packages are there."
    return
  fi
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "These packages are missing and neither root nor sudo is at hand: ${missing[*]}" >&2; return 1; }
    as_root=(sudo)
  fi
  echo "Installing: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# What builds and runs the program, and what its tests need besides.
sparscale_build_packages=(g++ cmake ninja-build git ca-certificates libsimgrid-dev nlohmann-json3-dev libvalijson-dev libcli11-dev libssl-dev libboost-dev
  libbenchmark-dev python3 python3-numpy python3-matplotlib)
sparscale_test_packages=(catch2 zlib1g-dev)

# Configures and builds in Release; prints the log only when it fails.
sparscale_build() {
  local directory=$1 log
  shift
  log=$(mktemp)
  echo "Building in $directory (Release) ..."
  if ! { cmake -S . -B "$directory" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@" && cmake --build "$directory"; } >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    return 1
  fi
  grep -E '^-- sparscale:' "$log" || true
  rm -f "$log"
}
