from __future__ import annotations

from tests.support.store_fixtures import quick_dir as quick_dir
