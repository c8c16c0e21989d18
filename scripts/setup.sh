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

# What pip does now: the package that it fetches, or the last one that it put in place.
doing() {
    if grep -q '^Installing collected packages' "$log"; then
        ls -td "$venv"/lib/python*/site-packages/*.dist-info 2>/dev/null |
            awk 'NR == 1 { sub(".*/", ""); sub("-[^-]*$", ""); print "installed", $0 }'
    else
        awk '$1 ~ /^(Collecting|Downloading|Using|Building|Preparing)$/ { line = tolower($1) " " $2 } END { print line }' "$log"
    fi
}
install() {
    local last='' now
    "$venv/bin/python" -m pip --disable-pip-version-check install --progress-bar off --constraint constraints.txt "$@" \
        >"$log" 2>&1 &
    pip=$!
    while kill -0 "$pip" 2>/dev/null; do
        sleep 1
        now=$(doing || true)
        # Every change, and something every few seconds where nothing changes.
        if [ -n "$now" ] && [ "$now" != "$last" ] || [ $((SECONDS % 5)) = 0 ]; then
            echo "setup:   $now ($SECONDS s)" >&2
            last=$now
        fi
    done
    if ! wait "$pip"; then
        tail -n 20 "$log" >&2
        echo "setup: pip could not install it; what it said is in $log" >&2
        exit 1
    fi
}
log=$venv/install.log pip=
# What runs in the background does not hear Ctrl-C.
trap '[ -z "$pip" ] || kill "$pip" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM
echo "setup: installing Levada and its tools into $venv (some minutes the first time)" >&2
# The build tool first, so that it is pinned as everything else is.
install hatchling editables
install --no-build-isolation --editable '.[server,sim,plot,dask,postgres,gpu,dev]'

echo "$digest" > "$stamp"
echo "setup: done" >&2
