//! Keys to the pieces of an index file.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::HashMap;

const KEY: usize = 20;
const SLOTS_AT: usize = 40;
const SLOT_CHANGE: usize = 8;

struct Key {
    hash: i32,
    phys: i64,
    stored_ms: i64,
}

fn keys(items: &[u8]) -> impl Iterator<Item = Key> + '_ {
    items.chunks_exact(KEY).map(|item| {
        let (hash, rest) = item.split_at(4);
        let (phys, stored) = rest.split_at(8);
        Key {
            hash: i32::from_be_bytes(hash.try_into().unwrap_or_default()),
            phys: i64::from_be_bytes(phys.try_into().unwrap_or_default()),
            stored_ms: i64::from_be_bytes(stored.try_into().unwrap_or_default()),
        }
    })
}

#[pyfunction]
pub fn key_times(items: &[u8]) -> PyResult<(i64, i64, i64, i64, bool)> {
    let mut times = keys(items).map(|key| key.stored_ms);
    let first = times.next().ok_or_else(|| PyValueError::new_err("no keys"))?;
    let (mut last, mut least, mut most, mut rising) = (first, first, first, true);
    for time in times {
        rising &= last <= time;
        least = least.min(time);
        most = most.max(time);
        last = time;
    }
    Ok((first, last, least, most, rising))
}

#[pyfunction]
pub fn index_entries<'py>(
    py: Python<'py>,
    items: &[u8],
    slots: PyBuffer<u8>,
    slot_count: u32,
    number: i32,
    begin_ms: i64,
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>, i32)> {
    let map = slots
        .as_slice(py)
        .ok_or_else(|| PyValueError::new_err("slots are no plain buffer"))?;
    if slot_count == 0 || map.len() < SLOTS_AT + 4 * slot_count as usize {
        return Err(PyValueError::new_err("slots do not fit their buffer"));
    }
    let mut changed: HashMap<u32, i32> = HashMap::with_capacity(items.len() / KEY);
    let mut entries = Vec::with_capacity(items.len());
    let mut used = 0;
    let mut own = number;
    for key in keys(items) {
        let slot = i64::from(key.hash).rem_euclid(i64::from(slot_count)) as u32;
        let older = match changed.insert(slot, own) {
            Some(older) => older,
            None => {
                let at = SLOTS_AT + 4 * slot as usize;
                let found = i32::from_be_bytes([
                    map[at].get(),
                    map[at + 1].get(),
                    map[at + 2].get(),
                    map[at + 3].get(),
                ]);
                if found <= 0 || found >= own {
                    used += 1;
                    0
                } else {
                    found
                }
            }
        };
        let seconds = key.stored_ms.saturating_sub(begin_ms).div_euclid(1000);
        let seconds = seconds.clamp(0, i64::from(i32::MAX)) as i32;
        entries.extend_from_slice(&key.hash.to_be_bytes());
        entries.extend_from_slice(&key.phys.to_be_bytes());
        entries.extend_from_slice(&seconds.to_be_bytes());
        entries.extend_from_slice(&older.to_be_bytes());
        own += 1;
    }
    let mut changes: Vec<(u32, i32)> = changed.into_iter().collect();
    changes.sort_unstable();
    let mut packed = Vec::with_capacity(changes.len() * SLOT_CHANGE);
    for (slot, newest) in changes {
        packed.extend_from_slice(&slot.to_be_bytes());
        packed.extend_from_slice(&newest.to_be_bytes());
    }
    Ok((PyBytes::new(py, &entries), PyBytes::new(py, &packed), used))
}

#[pyfunction]
pub fn set_slots(py: Python<'_>, slots: PyBuffer<u8>, changes: &[u8]) -> PyResult<()> {
    let map = slots
        .as_mut_slice(py)
        .ok_or_else(|| PyValueError::new_err("slots are no plain buffer"))?;
    for change in changes.chunks_exact(SLOT_CHANGE) {
        let (slot, newest) = change.split_at(4);
        let at = SLOTS_AT + 4 * u32::from_be_bytes(slot.try_into().unwrap_or_default()) as usize;
        let place = map
            .get(at..at + 4)
            .ok_or_else(|| PyValueError::new_err("slots do not fit their buffer"))?;
        for (cell, byte) in place.iter().zip(newest) {
            cell.set(*byte);
        }
    }
    Ok(())
}
