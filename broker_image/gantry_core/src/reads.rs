//! Queue entries to the records that an answer gets.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

const ENTRY: usize = 20;
const BLANK_SIZE: i64 = 0x7FFF_FFFF;
/// Bytes of a record before its body, with IPv4 hosts.
const FIXED: usize = 88;
const V1: u32 = 0xDAA3_20A7;
const V6: i32 = 0x30;

fn int(data: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn long(data: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(data.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// Offset in the log and size of the record of each entry.
fn places(entries: &[u8]) -> impl Iterator<Item = (i64, i64)> + '_ {
    entries
        .chunks_exact(ENTRY)
        .map(|entry| (long(entry, 0).unwrap_or(-1), int(entry, 8).map_or(0, i64::from)))
}

#[pyfunction]
pub fn wanted_records(entries: &[u8], most_bytes: i64, oldest: i64, end: i64) -> (usize, i64, i64, i64) {
    let (mut count, mut first, mut last, mut total) = (0, 0, 0, 0);
    for (phys, size) in places(entries) {
        let stop = match phys.checked_add(size) {
            Some(stop) if stop <= end && size > 0 && size < BLANK_SIZE && phys >= oldest => stop,
            _ => break,
        };
        if count > 0 && (total + size > most_bytes || phys < last) {
            break;
        }
        if count == 0 {
            first = phys;
        }
        count += 1;
        last = stop;
        total += size;
    }
    (count, first, last, total)
}

/// The piece of `block` that a record is; None: it has not all of it.
fn within(block: &[u8], base: i64, phys: i64, size: i64) -> Option<&[u8]> {
    let at = usize::try_from(phys.checked_sub(base)?).ok()?;
    block.get(at..at.checked_add(usize::try_from(size).ok()?)?)
}

#[pyfunction]
pub fn near_records(
    entries: &[u8],
    count: usize,
    most_gap: i64,
    most_span: i64,
) -> Vec<(i64, i64, usize, i64)> {
    let mut pieces: Vec<(i64, i64, usize, i64)> = Vec::new();
    for (phys, size) in places(entries).take(count) {
        if let Some((start, span, records, total)) = pieces.last_mut() {
            let behind = phys
                .checked_sub(*start)
                .and_then(|at| Some((at.checked_sub(*span)?, at.checked_add(size)?)))
                .filter(|(gap, joined)| (0..=most_gap).contains(gap) && *joined <= most_span);
            if let Some((_, joined)) = behind {
                *span = joined;
                *records += 1;
                *total += size;
                continue;
            }
        }
        pieces.push((phys, size, 1, size));
    }
    pieces
}

#[pyfunction]
pub fn gather_records<'py>(
    py: Python<'py>,
    block: &[u8],
    base: i64,
    entries: &[u8],
    count: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let outside = || PyValueError::new_err("a record lies outside");
    let mut total = 0;
    for (phys, size) in places(entries).take(count) {
        total += within(block, base, phys, size).ok_or_else(outside)?.len();
    }
    PyBytes::new_with(py, total, |mut made| {
        for (phys, size) in places(entries).take(count) {
            let record = within(block, base, phys, size).ok_or_else(outside)?;
            let (here, rest) = made.split_at_mut(record.len());
            here.copy_from_slice(record);
            made = rest;
        }
        Ok(())
    })
}

/// Whether the record is the one of this place, queue and queue offset.
fn is_named(record: &[u8], phys: i64, topic: &[u8], queue_id: i32, number: i64) -> Option<bool> {
    let body = usize::try_from(int(record, 84)?).ok()?;
    let after = record.get(FIXED.checked_add(body)?..)?;
    let (length, rest) = after.split_first()?;
    Some(
        usize::try_from(int(record, 0)?).ok()? == record.len()
            && int(record, 4)? as u32 == V1
            && int(record, 12)? == queue_id
            && long(record, 20)? == number
            && long(record, 28)? == phys
            && int(record, 36)? & V6 == 0
            && usize::from(*length) == topic.len()
            && rest.starts_with(topic),
    )
}

fn is_whole(record: &[u8], phys: i64) -> Option<bool> {
    let body = usize::try_from(int(record, 84)?).ok()?;
    let end = FIXED.checked_add(body)?;
    let properties_at = end + 3 + usize::from(*record.get(end)?);
    let stated = record.get(properties_at - 2..properties_at)?;
    Some(
        usize::try_from(int(record, 0)?).ok()? == record.len()
            && int(record, 4)? as u32 == V1
            && long(record, 28)? == phys
            && int(record, 36)? & V6 == 0
            && usize::from(u16::from_be_bytes([stated[0], stated[1]])) == record.len() - properties_at
            && crc32fast::hash(&record[FIXED..end]) & 0x7FFF_FFFF == int(record, 8)? as u32,
    )
}

#[pyfunction]
pub fn records_named(data: &[u8], entries: &[u8], count: usize, topic: &[u8], queue_id: i32, number: i64) -> bool {
    let (mut at, mut number) = (0_i64, number);
    for (phys, size) in places(entries).take(count) {
        let record = match within(data, 0, at, size) {
            Some(record) => record,
            None => return false,
        };
        if !is_named(record, phys, topic, queue_id, number).unwrap_or(false) {
            return false;
        }
        at += size;
        number = number.wrapping_add(1);
    }
    true
}

#[pyfunction]
pub fn records_whole(data: &[u8], entries: &[u8], count: usize) -> bool {
    let mut at = 0_i64;
    for (phys, size) in places(entries).take(count) {
        match within(data, 0, at, size) {
            Some(record) if is_whole(record, phys).unwrap_or(false) => at += size,
            _ => return false,
        }
    }
    true
}
