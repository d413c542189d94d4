"""Gives each broker process a group of its own, so that a firewall knows its packets. Put this folder on PYTHONPATH."""

import json
import os
import sys

if "gantry_broker.broker" in sys.orig_argv and "--config" in sys.orig_argv:
    with open(sys.orig_argv[sys.orig_argv.index("--config") + 1]) as _file:
        os.setegid(int(os.environ["GANTRY_FIRST_GID"]) + json.load(_file)["member"])
