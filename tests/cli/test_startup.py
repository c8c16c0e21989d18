"""Starting `levada` imports nothing heavy: verbs that only print must answer at once."""

import subprocess
import sys

import pytest

HEAVY = ["numpy", "scipy", "highspy", "numba", "pydantic", "polars", "httpx", "rich", "yaml", "msgspec", "asyncio",
         "matplotlib", "multiprocessing"]  # fmt: skip

# Prints the imported heavy modules on stderr after the output of the verb.
PROBE = f"""
import sys
from levada.cli.main import main
code = main(sys.argv[1:])
loaded = [name for name in {HEAVY!r} if name in sys.modules]
sys.exit("heavy imports: " + ", ".join(loaded) if loaded else code)
"""


@pytest.mark.parametrize(
    "arguments",
    ["--help", "--version", "policy --help", "policy ls", "policy ls -o json", "policy describe dragon", "version",
     "completion bash", "sim --help", "sim sweep --help", "sim plot --help", "sim trace --help", "bench --help",
     "metrics --help", "metrics ls", "metrics ls -o json", "metrics dashboard"],
)  # fmt: skip
def test_start_up_is_light(arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments.split()], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
