#!/usr/bin/env bash
# Makes the virtual environment and installs Levada in it: setup.sh VENV STAMP INPUT…
# Does nothing when the stamp already holds the digest of the inputs.
set -euo pipefail

venv=$1 stamp=$2
shift 2
digest=$(cat "$@" | cksum)

if [ -x "$venv/bin/levada" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$digest" ]; then
    touch "$stamp"
    exit 0
fi

# The first Python that is new enough and can make environments. It must start: a version manager leaves names on the
# path that do not.
find_python() {
    local candidate without_venv=
    for candidate in python3.13 python3.12 python3.11 python3; do
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            echo "$candidate"
            return
        fi
        without_venv=$candidate
    done
    if [ -n "$without_venv" ]; then
        echo "setup: $without_venv has no venv module; install it, e.g. with: scripts/system-packages.sh --install" >&2
    else
        echo "setup: no Python 3.11 or newer found; install one, e.g. with: scripts/system-packages.sh --install" >&2
    fi
    return 1
}

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    echo "setup: making $venv with $("$python" --version)" >&2
    "$python" -m venv --clear "$venv"
fi

install() {
    "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --constraint constraints.txt "$@"
}
echo "setup: installing Levada and its tools into $venv (a minute or two the first time)" >&2
# The build tool first, so that it is pinned as everything else is.
install hatchling editables
install --no-build-isolation --editable '.[fast,sim,plot,dask,postgres,gpu,dev]'

echo "$digest" > "$stamp"
echo "setup: done" >&2
