#!/bin/sh
# Brings the reference in docs/sparsifiers.md up to date with what the program prints: scripts/update-reference.sh PATH-TO/sparscale
set -eu
program=${1:?usage: scripts/update-reference.sh PATH-TO/sparscale}
page=$(dirname "$0")/../docs/sparsifiers.md
text=$(mktemp)
trap 'rm -f "$text" "$text.page"' EXIT
"$program" list sparsifiers >"$text"
awk -v text="$text" '
  /^```text$/ { print; while ((getline line < text) > 0) print line; inside = 1; next }
  /^```$/ { inside = 0 }
  !inside { print }' "$page" >"$text.page"
cat "$text.page" >"$page"
