"""The cache of compiled kernels is filled ahead where that is possible."""

import subprocess
import sys


def test_precompile_without_numba_says_what_to_install() -> None:
    script = "import sys; sys.modules['numba'] = None; from levada.cli.main import main; sys.exit(main(['precompile']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "extra `server` or `sim`" in done.stderr
