#!/bin/sh
# Make a virtual environment with pytest if there is none, and run the tests in it: without arguments in two halves, side by side.
#   tests/run.sh [pytest arguments]      PYTHON=python3.13 tests/run.sh
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
venv=${MEMHOOK_TEST_VENV:-.venv}/$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if ! "$venv/bin/python" -c 'import pytest' 2>/dev/null; then
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check pytest
fi
[ $# = 0 ] || exec "$venv/bin/python" -m pytest -q "$@" tests

log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "The second half's output follows when both have ended."
MEMHOOK_SHARE=2/2 "$venv/bin/python" -m pytest -q tests >"$log" 2>&1 &
status=0
MEMHOOK_SHARE=1/2 "$venv/bin/python" -m pytest -q tests || status=$?
wait $! || status=$?
cat "$log"
exit "$status"
