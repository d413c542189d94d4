"""Planted bugs of POP consumption. The histories must find each: this proves that they would find a real one."""

from __future__ import annotations

from gantry_broker.broker import clock
from gantry_broker.broker.pop import expiry, finding, log, order, records, service, state

from tests.simulation.mutants import Edit, Mutant

MUTANTS = tuple(
    Mutant(number, name, (Edit(module, before, after),))
    for number, (name, module, before, after) in enumerate(
        (
            (
                "answers_before_replication", log,
                "(lambda status, waiting=waiters: self._notify(waiting, status)) if waiters else None",
                "self._notify(waiters, SendStatus.SEND_OK)",
            ),
            (
                "record_before_copies", log,
                "puts.append(self._record(self.changes.take()))", "puts.insert(0, self._record(self.changes.take()))",
            ),
            ("half_batch_is_forgotten", log, "self._finish_copied()\n", "pass\n"),
            (
                "acknowledgements_are_not_replayed", records,
                "state.finish_bits(queue, base, bits)\n    elif", "pass\n    elif",
            ),
            ("only_one_of_a_batch_is_written", records, "change += (at, word)", "change += (at, word & -word)"),
            ("batches_of_any_delivery", service, "done = queue.delivered_bits(start, bits, pop_ms)", "done = bits"),
            ("renewals_are_not_replayed", records, "state.renew(queue, *change[2:])", "pass"),
            ("parts_without_renewals", state, "moved.append((offset, *queue.moved[offset]))", "pass"),
            (
                "whole_state_without_order", records,
                "if order is not None:\n                    changes", "if False:\n                    changes",
            ),
            ("base_behind_the_first_part", log, "= stored.queue_offset", "= stored.queue_offset + 1"),
            (
                "renewed_messages_expire", state,
                "if offset not in queue.moved:\n                        expired",
                "if True:\n                        expired",
            ),
            (
                "handles_of_any_delivery", service,
                "matches = queue.is_delivered(handle.offset, handle.pop_ms)", "matches = True",
            ),
            (
                "order_is_not_blocked", finding,
                "if order is not None and order.blocks(request.attempt_id, taken.now_ms):", "if False:",
            ),
            (
                "reset_keeps_what_is_in_flight", state,
                "self._forget(queue)\n        queue.restart(next_offset)", "queue.next = next_offset",
            ),
            (
                "deletion_drops_nothing", service,
                'if topic in names or group in members or f"{topic}@{group}" in keys:', "if False:",
            ),
            ("expiry_without_copy", expiry, "puts.append(put)\n                size", "size"),
            ("attempts_do_not_count", expiry, "counts=not item.suspended", "counts=False"),
            ("committed_offset_is_the_next_pop", log, "low = queue.lowest()", "low = queue.next"),
            (
                "retry_arrivals_wake_nobody", service,
                "or (topic != popped and request.order):", "or topic != popped:",
            ),
            (
                "a_new_leaders_clock_goes_back", clock,
                "self._ahead_ms = max(latest_ms - self._clock.unix_ms(), 0)", "self._ahead_ms = 0",
            ),
            ("the_clock_goes_back", clock, "if now < self._last_ms - SET_BACK_MS:", "if False:"),
            (
                "a_copied_message_expired_at_no_time", log,
                "self.changes.expire(queue, offset, queue.visible_ms(offset))", "self.changes.finish(queue, offset)",
            ),
            (
                "acknowledged_messages_leave_the_order", order,
                "self.acked.add(offset)\n", "self.remove(bisect_left(self.offsets, offset))\n",
            ),
            ("whole_state_without_acknowledgements_of_an_order", records, "if order.acked:", "if False:"),
            ("filtered_messages_block", finding, "changes.advance(queue, at)\n            taken.more", "taken.more"),
        ),
        1,
    )
)  # fmt: skip
