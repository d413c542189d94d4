"""What all tests share: how generated cases are chosen."""

from __future__ import annotations

import os

from hypothesis import settings

# The same cases in every run, so that a red run is a change's doing. HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("explore", print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
