#!/usr/bin/env bash
# Prints the Debian packages that Levada needs, one per line; with --install, installs those that are missing.
set -euo pipefail

# The one list. Python packages are in pyproject.toml and constraints.txt.
packages=(
    make
    python3        # 3.11 or newer
    python3-venv
    # For tests alone.
    binutils       # PyTorch without its CUDA libraries
    gcc
    iproute2       # machines in network namespaces
    libc6-dev
    postgresql     # its programs; the tests start a server of their own
    util-linux     # setpriv
)

case "${1-}" in
    "") printf '%s\n' "${packages[@]}" ;;
    --install)
        missing=()
        for package in "${packages[@]}"; do
            dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
        done
        if [ "${#missing[@]}" -eq 0 ]; then
            echo "all system packages are installed" >&2
            exit 0
        fi
        as_root=()
        if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
        "${as_root[@]}" apt-get update -qq
        DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
        ;;
    *)
        echo "usage: ${0##*/} [--install]" >&2
        exit 2
        ;;
esac
