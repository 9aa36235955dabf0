"""`python -m conceptors`."""

import sys

from conceptors.cli import main

if __name__ == "__main__":
    sys.exit(main())
