"""`python -m gantry_broker.broker`."""

import sys

from gantry_broker.starting import importing

with importing():
    from gantry_broker.broker.process import main

sys.exit(main())
