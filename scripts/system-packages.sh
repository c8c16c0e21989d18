#!/usr/bin/env bash
# Print the Debian packages that Levada needs, one per line; with --install, install the missing ones.
set -euo pipefail

# Python packages are in pyproject.toml and constraints.txt.
packages=(
    make
    python3        # 3.11 or newer
    python3-venv
    # For tests only. The Kubernetes test bed also needs Go 1.26, which Debian 12 does not have: install it in /usr/local/go.
    binutils       # PyTorch without its CUDA libraries
    gcc
    iproute2       # network namespaces
    libc6-dev
    openssl        # keys of the Kubernetes test bed
    postgresql     # binaries; the tests start their own server
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
