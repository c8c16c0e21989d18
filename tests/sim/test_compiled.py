"""Kernels are compiled ahead where that is possible."""

import subprocess
import sys


def test_without_numba_there_is_nothing_to_do_and_nothing_to_say() -> None:
    script = "import sys; sys.modules['numba'] = None; from levada.sim.compiled import main; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
