"""Entry point of `python -m levada`, the same as the command `levada`."""

import sys

from levada.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
