"""``python -m volta``."""

import sys

from volta.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
