#!/usr/bin/env bash
# Create the virtual environment and install Levada in it: setup.sh VENV STAMP INPUT…
# Does nothing if the stamp contains the digest of the inputs.
set -euo pipefail

venv=$1 stamp=$2
shift 2
digest=$(cat "$@" | cksum)

if [ -x "$venv/bin/levada" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$digest" ]; then
    touch "$stamp"
    exit 0
fi

# Print the first Python that is new enough and has venv; $PYTHON is tried first. Each candidate is started, because
# version managers leave names on the path that do not start.
find_python() {
    local candidate without_venv=
    for candidate in ${PYTHON-} python3.13 python3.12 python3.11 python3; do
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

# uv is several times as fast as pip; pip is the fallback.
uv=$(command -v uv || true)
if [ -n "${PIP_INDEX_URL-}" ]; then export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX-$PIP_INDEX_URL}; fi
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    echo "setup: creating $venv with $("$python" --version)" >&2
    if [ -z "$uv" ] || ! "$uv" venv --quiet --clear --seed --python "$("$python" -c 'import sys; print(sys.executable)')" "$venv"; then
        "$python" -m venv --clear "$venv"
    fi
fi

# Print the current action of the installer: the package that it fetches, or the last one that it installed.
doing() {
    if grep -q '^Installing collected packages' "$log"; then
        ls -td "$venv"/lib/python*/site-packages/*.dist-info 2>/dev/null |
            awk 'NR == 1 { sub(".*/", ""); sub("-[^-]*.dist-info$", ""); print "installed", $0 }'
    else
        awk '$1 ~ /^(Collecting|Downloading|Building|Preparing)$/ { line = tolower($1) " " $2 } END { print line }' "$log"
    fi
}
# Run a command in the background and print its progress.
watched() {
    local last='' now
    "$@" >"$log" 2>&1 &
    installer=$!
    while kill -0 "$installer" 2>/dev/null; do
        sleep 0.5
        now=$(doing || true)
        # Print every change, and at least one line every 5 s.
        if [ -n "$now" ] && [ "$now" != "$last" ] || [ $((SECONDS - said)) -ge 5 ]; then
            echo "setup:   $now ($SECONDS s)" >&2
            last=$now said=$SECONDS
        fi
    done
    wait "$installer"
}
with_pip() {
    watched "$venv/bin/python" -m pip --disable-pip-version-check install --progress-bar off --constraint constraints.txt "$@"
}
install() {
    if [ -n "$uv" ]; then
        if watched "$uv" pip install --python "$venv/bin/python" --constraint constraints.txt "$@"; then
            return
        fi
        echo "setup: uv failed, trying pip: $(grep -v '^ ' "$log" | tail -n 1)" >&2
        uv=
    fi
    if ! with_pip "$@"; then
        tail -n 20 "$log" >&2
        echo "setup: pip failed; see $log" >&2
        exit 1
    fi
}
log=$venv/install.log installer='' said=0
# Background processes do not get Ctrl-C.
trap '[ -z "$installer" ] || kill "$installer" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM
echo "setup: installing Levada and its tools into $venv (1 minute the first time)" >&2
if [ -z "$uv" ] && { [ -x "$venv/bin/uv" ] || with_pip uv; } && "$venv/bin/uv" --version >/dev/null 2>&1; then
    uv=$venv/bin/uv
fi
# The build tool first, so that its version is pinned too.
install hatchling editables
install --no-build-isolation --editable '.[all,dev,docs]'

echo "$digest" > "$stamp"
echo "setup: done in $SECONDS s" >&2
