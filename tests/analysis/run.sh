#!/bin/sh
# run.sh TEST.py: runs a test with the first interpreter that has matplotlib and numpy; exit status 77 (skipped) when there is none.
for python in ${SPARSCALE_PYTHON:-} python3 /usr/bin/python3; do
  if "$python" -c 'import matplotlib, numpy' 2>/dev/null; then
    exec "$python" -B "$@"
  fi
done
echo "skipped: no Python interpreter here has matplotlib and numpy" >&2
exit 77
