#!/usr/bin/env bash
# Installs into a scratch folder, moves that elsewhere and uses it; builds a program against it; makes the Debian package and uses what is in it.
# Usage: bash tests/install/install.sh BUILD_FOLDER (in which everything is built)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(cd "$1" && pwd)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/sparscale-install-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
unset SPARSCALE_DATA SPARSCALE_CACHE

cmake --install "$build" --prefix "$scratch/first" > "$scratch/log"
mv "$scratch/first" "$scratch/moved"
prefix=$scratch/moved
sparscale=$prefix/bin/sparscale

# Its data are those beside it, not those of the source: a profile that is taken away is gone.
"$sparscale" list profiles | grep -q '^cpu-epyc-zen5-1t '
"$sparscale" list profiles | grep -q '^v100-modelled '
mv "$prefix/share/sparscale/kernels/profiles/v100-modelled.json" "$scratch/"
if "$sparscale" list profiles | grep -q '^v100-modelled '; then echo "profiles come from elsewhere"; exit 1; fi
mv "$scratch/v100-modelled.json" "$prefix/share/sparscale/kernels/profiles/"
for what in platforms sparsifiers collectives experiments traces; do [ -n "$("$sparscale" list $what)" ]; done
"$sparscale" check first-figure --out "$scratch/none" | grep -q '^runs: 96 (0 finished'
cat > "$scratch/e.json" << 'JSON'
{"schema_version": 1, "name": "installed", "trace": "digits-cnn-8w", "sparsifier": ["dense", "topk"], "density": 0.01, "workers": [2, 16],
 "iterations": 2, "platform": "crossbar-100g", "profile": "cpu-epyc-zen5-1t"}
JSON
"$sparscale" run "$scratch/e.json" --out "$scratch/out" --no-figures > /dev/null 2>&1
[ "$(wc -l < "$scratch/out/results.csv")" = 13 ]
if grep -q "$build\|first" "$scratch/out/experiment.json"; then echo "a path in the experiment"; exit 1; fi
# reproduce.sh needs nothing but the program.
SPARSCALE=$sparscale bash "$scratch/out/reproduce.sh" "$scratch/again" 2> /dev/null | grep -q "is the same, byte by byte"
python3 -m json.tool "$prefix/share/sparscale/schemas/experiment.schema.json" > /dev/null
[ -s "$prefix/share/man/man1/sparscale.1" ]
[ -s "$prefix/share/doc/sparscale/experiments.md" ]
echo "installed: works where it was moved to"

# Completion, as bash would ask for it.
complete_words() {
  bash -c 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sparscale; printf "%s\n" "${COMPREPLY[@]}"' _ \
    "$prefix/share/bash-completion/completions/sparscale" "$@"
}
complete_words sparscale che | grep -qx check
complete_words sparscale run x.json --st | grep -qx -- --stage
complete_words sparscale run --stage re | grep -qx replays
complete_words sparscale list sp | grep -qx sparsifiers
complete_words sparscale trace im | grep -qx import
[ -z "$(cd "$scratch" && complete_words sparscale check --stag)" ]
if command -v zsh > /dev/null; then zsh -n "$prefix/share/zsh/vendor-completions/_sparscale"; fi
if command -v fish > /dev/null; then
  fish --no-execute "$prefix/share/fish/vendor_completions.d/sparscale.fish"
  fish -c "source $prefix/share/fish/vendor_completions.d/sparscale.fish; complete -C 'sparscale run --stage re'" | grep -q '^replays'
fi
if command -v man > /dev/null; then man -l --warnings "$prefix/share/man/man1/sparscale.1" 2> "$scratch/man.log" | grep -q 'sparscale run'; [ ! -s "$scratch/man.log" ]; fi
echo "completion and manual page: work"

cmake -S "$here/consumer" -B "$scratch/consumer" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release > "$scratch/log" || { cat "$scratch/log"; exit 1; }
cmake --build "$scratch/consumer" > "$scratch/log" 2>&1 || { tail -30 "$scratch/log"; exit 1; }
[ "$(SPARSCALE_DATA="$prefix/share/sparscale" "$scratch/consumer/consumer")" = 696 ]  # 2 workers x trunc(0.01 x 34862)
echo "find_package(sparscale): a program of its own builds and replays"

if command -v dpkg-shlibdeps > /dev/null; then
  (cd "$build" && cpack -G DEB -B "$scratch/package" > "$scratch/log" 2>&1) || { cat "$scratch/log"; exit 1; }
  package=$(echo "$scratch"/package/*.deb)
  dpkg-deb -f "$package" Depends | grep -q libsimgrid
  dpkg-deb -f "$package" Depends | grep -q libc6
  dpkg-deb -x "$package" "$scratch/root"
  "$scratch/root/usr/bin/sparscale" run "$scratch/e.json" --out "$scratch/packaged" --no-figures > /dev/null 2>&1
  cmp "$scratch/out/results.csv" "$scratch/packaged/results.csv"
  echo "package $(basename "$package"): depends on $(dpkg-deb -f "$package" Depends); gives the same results"
else
  echo "no dpkg-shlibdeps here: the package was not made"
fi
