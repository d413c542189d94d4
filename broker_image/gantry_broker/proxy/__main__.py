"""`python -m gantry_broker.proxy`."""

import sys

from gantry_broker.starting import importing

with importing():
    from gantry_broker.proxy.process import main

sys.exit(main())
