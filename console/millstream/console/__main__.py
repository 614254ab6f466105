"""`python -m millstream.console`."""

import sys

from .main import main

sys.exit(main())
