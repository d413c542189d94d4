//! Records of the log to queue entries and keys.

use crate::text::{hash_on, key_hash, Indexed};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::HashMap;

const FIXED: usize = 88;
const FILLER_MIN: i64 = 8;
const V1: u32 = 0xDAA3_20A7;
const V6: i32 = 0x30;
const TRANSACTION: i32 = 12;
const COMMIT: i32 = 8;
const ROLLBACK: i32 = 12;

fn int(data: &[u8], at: usize) -> i32 {
    data.get(at..at + 4)
        .and_then(|found| found.try_into().ok())
        .map_or(-1, i32::from_be_bytes)
}

fn long(data: &[u8], at: usize) -> i64 {
    data.get(at..at + 8)
        .and_then(|found| found.try_into().ok())
        .map_or(-1, i64::from_be_bytes)
}

struct Record<'a> {
    size: usize,
    queue_id: i32,
    number: i64,
    phys: i64,
    flags: i32,
    stored_ms: i64,
    topic: &'a str,
    properties: &'a str,
}

/// The plain record that `data` begins with, which lies at `phys` of the log; None: something is unusual.
fn plain(data: &[u8], phys: i64, segment_size: i64, check: bool) -> Option<Record<'_>> {
    if data.len() < FIXED + 4 {
        return None;
    }
    let (size, flags) = (int(data, 0), int(data, 36));
    let (queue_id, number) = (int(data, 12), long(data, 20));
    let length = usize::try_from(int(data, 84)).ok()?;
    if int(data, 4) as u32 != V1 || long(data, 28) != phys || flags & V6 != 0 {
        return None;
    }
    if queue_id < 0 || number < 0 || segment_size <= 0 {
        return None;
    }
    if i64::from(size) + FILLER_MIN > segment_size - phys.rem_euclid(segment_size) {
        return None;
    }
    let size = usize::try_from(size).ok()?;
    let data = data.get(..size)?;
    let body_end = FIXED + length;
    if body_end + 4 > size {
        return None;
    }
    let properties_at = body_end + 3 + usize::from(data[body_end]);
    if properties_at > size {
        return None;
    }
    let stated = u16::from_be_bytes([data[properties_at - 2], data[properties_at - 1]]);
    if usize::from(stated) != size - properties_at {
        return None;
    }
    if size > properties_at && data[size - 1] == 0 {
        return None;
    }
    if check && crc32fast::hash(&data[FIXED..body_end]) & 0x7FFF_FFFF != int(data, 8) as u32 {
        return None;
    }
    let topic = std::str::from_utf8(&data[body_end + 1..properties_at - 2]).ok()?;
    if topic.is_empty() || topic.contains('\0') {
        return None;
    }
    let properties = std::str::from_utf8(&data[properties_at..]).ok()?;
    Some(Record {
        size,
        queue_id,
        number,
        phys,
        flags,
        stored_ms: long(data, 56),
        topic,
        properties,
    })
}

struct Run<'a> {
    topic: &'a str,
    queue_id: i32,
    number: i64,
    next: i64,
    entries: Vec<u8>,
}

type Steps = Vec<(i64, u64)>;
type Found<'py> = (usize, Runs<'py>, Bound<'py, PyBytes>, i64, i64, Steps);
type Runs<'py> = Vec<(Bound<'py, PyBytes>, i32, i64, Bound<'py, PyBytes>)>;

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn plain_records<'py>(
    py: Python<'py>,
    data: &[u8],
    at: usize,
    base: i64,
    segment_size: i64,
    check: bool,
    others: Vec<String>,
    words: usize,
    most_keys: Option<usize>,
    before_ms: i64,
) -> Found<'py> {
    let mut at = at;
    let mut runs: Vec<Run<'_>> = Vec::new();
    let mut open: HashMap<(&str, i32), usize> = HashMap::new();
    let mut last: Option<usize> = None;
    let mut keys = Vec::new();
    let mut count = 0;
    let (mut first_ms, mut last_ms) = (0, before_ms);
    let mut steps = Vec::new();
    let (mut topic, mut seed) = ("", 0);
    while at < data.len() && most_keys.map_or(true, |most| count <= most) {
        let record = match plain(&data[at..], base + at as i64, segment_size, check) {
            Some(record) => record,
            None => break,
        };
        if record.topic != topic {
            if others.iter().any(|other| other == record.topic) {
                break;
            }
            topic = record.topic;
            seed = hash_on(hash_on(0, topic), "#");
        }
        let found = Indexed::of(record.properties, |_| true).unwrap_or_default();
        let kind = record.flags & TRANSACTION;
        if kind == 0 || kind == COMMIT {
            let again = last.filter(|index| {
                runs[*index].queue_id == record.queue_id && runs[*index].topic == record.topic
            });
            let known = again.or_else(|| open.get(&(record.topic, record.queue_id)).copied());
            let index = match known.filter(|index| runs[*index].next == record.number) {
                Some(index) => index,
                None => {
                    runs.push(Run {
                        topic: record.topic,
                        queue_id: record.queue_id,
                        number: record.number,
                        next: record.number,
                        entries: Vec::new(),
                    });
                    open.insert((record.topic, record.queue_id), runs.len() - 1);
                    runs.len() - 1
                }
            };
            last = Some(index);
            let run = &mut runs[index];
            let code = i64::from(hash_on(0, found.tags) as i32);
            run.entries.extend_from_slice(&record.phys.to_be_bytes());
            run.entries.extend_from_slice(&(record.size as i32).to_be_bytes());
            run.entries.extend_from_slice(&code.to_be_bytes());
            run.next = run.next.wrapping_add(1);
        }
        if most_keys.is_some() && kind != ROLLBACK {
            for key in found.words(words) {
                keys.extend_from_slice(&key_hash(seed, key).to_be_bytes());
                keys.extend_from_slice(&record.phys.to_be_bytes());
                keys.extend_from_slice(&record.stored_ms.to_be_bytes());
                count += 1;
            }
        }
        if record.stored_ms < last_ms {
            steps.push((record.phys, last_ms.abs_diff(record.stored_ms)));
        }
        last_ms = record.stored_ms;
        if first_ms == 0 {
            first_ms = last_ms;
        }
        at += record.size;
    }
    let made = runs
        .iter()
        .map(|run| {
            let topic = PyBytes::new(py, run.topic.as_bytes());
            (topic, run.queue_id, run.number, PyBytes::new(py, &run.entries))
        })
        .collect();
    (at, made, PyBytes::new(py, &keys), first_ms, last_ms, steps)
}
