"""`python -m polyopt` is the command `polyopt`."""

from __future__ import annotations

import sys

from polyopt.cli import main

if __name__ == "__main__":
    sys.exit(main())
