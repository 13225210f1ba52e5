#!/bin/sh
# run.sh TEST.py: runs a test with the first interpreter that has PyTorch (with its distributed part) and numpy; exit status 77 (skipped)
# when there is none.
for python in ${SPARSCALE_PYTHON:-} python3 /usr/bin/python3; do
  if "$python" -c 'import numpy, torch.distributed as d; assert d.is_gloo_available() if hasattr(d, "is_gloo_available") else d.is_available()' 2>/dev/null; then
    exec "$python" -B "$@"
  fi
done
echo "skipped: no Python interpreter here has PyTorch and numpy" >&2
exit 77
