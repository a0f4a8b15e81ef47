"""`python -m chaos`. Every worker process imports this module again: it imports nothing for them."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from chaos.command import main

    sys.exit(main())
