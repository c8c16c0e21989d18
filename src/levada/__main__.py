"""`python -m levada` does what the command `levada` does."""

import sys

from levada.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
