#!/usr/bin/env bash
# Create, once, a test environment with torch but without a GPU and its 2.5 GB of CUDA libraries. Print its Python.
# Needs gcc and binutils. For tests only: for training, install torch normally.
set -euo pipefail

version=2.15.0
here=$(cd "$(dirname "$0")" && pwd)
target=${XDG_CACHE_HOME:-$HOME/.cache}/levada/torch-$version
python=${PYTHON:-python3}

# Only one process may create it.
mkdir -p "$(dirname "$target")"
exec 9>"$target.lock"
flock 9

if [ ! -e "$target/ready" ]; then
    for tool in gcc readelf; do
        command -v "$tool" >/dev/null || { echo "torch-env: $tool is missing; install gcc and binutils" >&2; exit 1; }
    done
    echo "torch-env: creating $target (downloads about 550 MB, once)" >&2
    rm -rf "$target"
    "$python" -m venv "$target"
    # All dependencies of torch except CUDA; --no-deps keeps pip from installing the rest.
    "$target/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps "torch==$version" \
        filelock==3.20.0 fsspec==2025.10.0 jinja2==3.1.6 markupsafe==3.0.4 mpmath==1.3.0 networkx==3.5 numpy==2.4.6 \
        sympy==1.14.0 typing-extensions==4.15.0
    "$target/bin/python" "$here/torch_stubs.py" "$target"
    "$target/bin/python" -W error -c 'import torch, torch.distributed as d; assert d.is_gloo_available()'
    touch "$target/ready"
fi
echo "$target/bin/python"
