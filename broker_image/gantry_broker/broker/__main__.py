"""`python -m gantry_broker.broker`."""

import sys

from .main import main

sys.exit(main())
