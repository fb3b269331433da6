"""`python -m kareus` is the `kareus` command."""

import sys

from kareus.cli.main import main

sys.exit(main())
