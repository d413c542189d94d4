"""Planted bugs of the archive. The tests must find each: this proves that they would find a real one."""

from __future__ import annotations

from gantry_broker.archive import archiver, chain, segment, upload

from tests.simulation.mutants import Edit, Mutant

MUTANTS = tuple(
    Mutant(rule, name, (Edit(module, before, after),))
    for rule, name, module, before, after in (
        (
            1, "what_is_not_confirmed_is_uploaded", upload,
            "limit = min(view.confirmed, segment_end)\n    if pending", "limit = segment_end\n    if pending",
        ),
        (2, "a_member_that_is_behind_goes_on", upload, "if state.end > view.confirmed:", "if False:"),
        (
            2, "a_member_of_an_earlier_epoch_cuts", upload,
            "if view.epochs[-1].epoch < state.epochs[-1].epoch:", "if False:",
        ),
        (2, "another_log_goes_on", archiver, "if False in agree and True not in agree:", "if False:"),
        (
            3, "a_new_log_undoes_all", archiver,
            "if isinstance(step, Begin) and state.parts and self._first_ms(view) > state.last_ms:", "if False:",
        ),
        (3, "what_was_undone_stays", upload, "if differs is not None:\n", "if False:\n"),
        (3, "the_last_difference_counts", upload, "return min(cuts)", "return max(cuts)"),
        (
            3, "an_archive_that_is_undone_goes_on", upload,
            "if differs is not None and differs <= state.start:", "if False:",
        ),
        (
            3, "epochs_that_only_the_archive_has", upload,
            "if local.get(epoch) != start and start >= log_start]", "if False]",
        ),
        (4, "gaps_are_not_written_down", upload, "return MarkGap(state.end, view.start)", "return Wait()"),
        (5, "nothing_is_merged", upload, "merge = _mergeable(state, view.segment_size, settings.part)", "merge = ()"),
        (5, "parts_around_a_gap_are_merged", upload, "and part.start == run[-1].end\n", ""),
        (5, "a_merged_part_is_too_large", upload, "            and size + part.end - part.start <= most\n", ""),
        (
            5, "a_merged_part_lies_in_two_segments", upload,
            "            and part.start // segment_size == run[0].start // segment_size\n", "",
        ),
        (
            5, "a_damaged_part_is_merged", upload,
            "whole = part is not None and part.name not in state.damaged", "whole = part is not None",
        ),
        (6, "the_window_has_no_first_moment", upload, "following.first_ms > horizon", "False"),
        (6, "young_records_go", upload, "part.last_ms > horizon", "False"),
        (6, "half_a_segment_goes", upload, "if following.start % state.segment_size == 0:", "if True:"),
        (6, "a_clock_that_is_ahead_prunes", upload, "now_ms - ahead_ms", "now_ms"),
        (
            6, "a_clock_that_is_ahead_cleans", archiver,
            "now_ms = self._clock_ms() - self._ahead_ms", "now_ms = self._clock_ms()",
        ),
        (6, "a_member_that_slept_cleans", archiver, "newest = self._state = self._group.load(state)", "newest = state"),
        (7, "what_the_disk_has_in_part_is_repaired", upload, "if view.start <= part.start and part.end", "if part.end"),
        (7, "nothing_is_repaired", archiver, "damaged = upload.repairable(state, view, frozenset(self._unreadable))",
            "damaged = None"),
        (7, "damage_is_not_written_down", archiver,
            "self._write(state, Change(damaged=tuple(sorted(names))), view, ())", "pass"),
        (
            8, "a_former_owner_writes", archiver,
            "if identity is not None and identity.uid != self._uid:\n            self._owner = None",
            "if False:\n            self._owner = None",
        ),
        (
            8, "one_token_opens_all_groups", chain,
            "if not (closed or accept_loss or (mine and", "if not (mine or closed or accept_loss or (mine and",
        ),
        (8, "entries_are_not_read_back", chain, "if written != data:", "if False:"),
        (8, "numbers_are_used_again", chain, "if self._is_forgotten(state.n):", "if False:"),
        (8, "half_an_object_counts", chain, "if self.size_of(name) != len(data):", "if False:"),
        (
            9, "checksums_are_not_compared", segment,
            "len(stored) != size or zlib.crc32(stored) != crc", "len(stored) != size",
        ),
    )
)  # fmt: skip
"""`rule`: of archive/upload.py; 8: one owner writes, each entry once; 9: the format."""
