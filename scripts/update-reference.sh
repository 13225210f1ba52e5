#!/bin/sh
# Brings the references in docs/sparsifiers.md and docs/collectives.md up to date with what the program prints:
# scripts/update-reference.sh PATH-TO/sparscale
set -eu
program=${1:?usage: scripts/update-reference.sh PATH-TO/sparscale}
text=$(mktemp)
trap 'rm -f "$text" "$text.page"' EXIT
for what in sparsifiers collectives; do
  page=$(dirname "$0")/../docs/$what.md
  "$program" list "$what" >"$text"
  awk -v text="$text" '
    /^```text$/ { print; while ((getline line < text) > 0) print line; inside = 1; next }
    /^```$/ { inside = 0 }
    !inside { print }' "$page" >"$text.page"
  cat "$text.page" >"$page"
done
