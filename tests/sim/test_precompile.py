"""`levada precompile`."""

import subprocess
import sys


def test_precompile_without_numba_names_the_extra() -> None:
    script = "import sys; sys.modules['numba'] = None; from levada.cli.main import main; sys.exit(main(['precompile']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "levada precompile needs the extra 'sim'" in done.stderr
