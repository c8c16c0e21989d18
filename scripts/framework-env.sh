#!/usr/bin/env bash
# Create, once, a test environment with a framework outside the project: framework-env.sh jax|tensorflow
# Print its Python.
set -euo pipefail

case "${1-}" in
    jax) package=jax==0.10.2 ;;
    tensorflow) package=tensorflow-cpu==2.21.0 ;;
    *)
        echo "usage: ${0##*/} jax|tensorflow" >&2
        exit 2
        ;;
esac
target=${XDG_CACHE_HOME:-$HOME/.cache}/levada/${package/==/-}

if [ ! -e "$target/ready" ]; then
    echo "framework-env: creating $target (downloads 150 to 350 MB, once)" >&2
    rm -rf "$target"
    "${PYTHON:-python3}" -m venv "$target"
    "$target/bin/python" -m pip --disable-pip-version-check install --quiet "$package"
    touch "$target/ready"
fi
echo "$target/bin/python"
