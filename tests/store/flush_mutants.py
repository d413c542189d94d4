"""Planted bugs of the flush. The histories must find each: this proves that they would find a real one."""

from __future__ import annotations

from gantry_broker.store import async_sync, group_commit, store
from gantry_broker.store.log import commit_log

from tests.simulation.mutants import Edit, Mutant

MUTANTS = tuple(
    Mutant(11, name, (Edit(module, before, after),))
    for name, module, before, after in (
        (
            "reported_before_the_end", async_sync,
            "if self._call(*self._submit) == 1:\n",
            "if self._call(*self._submit) == 1:\n            self._loop.call_soon(self._done, None)\n",
        ),
        ("error_is_ignored", async_sync, "sync_failure(-result) if result < 0 else None", "None"),
        (
            "error_leaves_it_to_the_thread", group_commit,
            "self._flushed(self._async_point if error is None else None, error)",
            "self._flushed(self._async_point, None) if error is None else "
            "(self._worker.ident or self._worker.start(), self._wanted.put(True))",
        ),
        (
            "covers_what_came_later", group_commit,
            "self._flushed(self._async_point if error is None else None, error)",
            "log = self._store.log\n"
            "        self._flushed(FlushPoint(log.generation, log.end) if error is None else None, error)",
        ),
        (
            "counts_after_a_truncation", store,
            "if point.generation == self.log.generation and point.offset > state.flushed:",
            "if point.offset > state.flushed:",
        ),
        (
            "keeps_a_removed_file_open", commit_log,
            "opened.path != path or opened.generation != self.generation", "opened.path != path",
        ),
        ("only_the_last_segment", commit_log, "start < stop - stop % self.segment_size or self._new_names", "False"),
    )
)  # fmt: skip
