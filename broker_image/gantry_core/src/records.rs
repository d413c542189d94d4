//! Records of the log to queue entries and keys.

use crate::text::{hash_on, key_hash, Indexed};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::cell::RefCell;
use std::collections::HashMap;

const FIXED: usize = 88;
const FILLER_MIN: i64 = 8;
const V1: u32 = 0xDAA3_20A7;
const V2: u32 = 0xDAA3_20AB;
const BLANK: u32 = 0xCBD4_3194;
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

/// What a look at the records asks for.
struct Asked<'a> {
    base: i64,
    segment_size: i64,
    check: bool,
    others: &'a [String],
    words: usize,
    most_keys: Option<usize>,
    before_ms: i64,
}

/// What the plain records from an index on add.
struct Scan<'a> {
    at: usize,
    runs: Vec<Run<'a>>,
    keys: Vec<u8>,
    records: u64,
    first_ms: i64,
    last_ms: i64,
    low_ms: i64,
    high_ms: i64,
    steps: Steps,
}

/// `ARCHIVED`: entries have the store time as well, keys do not, and the span of store times is noted.
fn scan<'a, const ARCHIVED: bool>(data: &'a [u8], at: usize, asked: &Asked<'_>) -> Scan<'a> {
    let mut out = Scan {
        at,
        runs: Vec::new(),
        keys: Vec::new(),
        records: 0,
        first_ms: 0,
        last_ms: asked.before_ms,
        low_ms: 0,
        high_ms: 0,
        steps: Vec::new(),
    };
    let mut open: HashMap<(&str, i32), usize> = HashMap::new();
    let mut last: Option<usize> = None;
    let mut count = 0;
    let (mut topic, mut seed) = ("", 0);
    while out.at < data.len() && asked.most_keys.map_or(true, |most| count <= most) {
        let place = asked.base + out.at as i64;
        let record = match plain(&data[out.at..], place, asked.segment_size, asked.check) {
            Some(record) => record,
            None => break,
        };
        if record.topic != topic {
            if asked.others.iter().any(|other| other == record.topic) {
                break;
            }
            topic = record.topic;
            seed = hash_on(hash_on(0, topic), "#");
        }
        let found = Indexed::of(record.properties, |_| true).unwrap_or_default();
        let kind = record.flags & TRANSACTION;
        if kind == 0 || kind == COMMIT {
            let runs = &mut out.runs;
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
            if ARCHIVED {
                run.entries.extend_from_slice(&record.stored_ms.to_be_bytes());
            }
            run.next = run.next.wrapping_add(1);
        }
        if asked.most_keys.is_some() && kind != ROLLBACK {
            for key in found.words(asked.words) {
                out.keys.extend_from_slice(&key_hash(seed, key).to_be_bytes());
                out.keys.extend_from_slice(&record.phys.to_be_bytes());
                if !ARCHIVED {
                    out.keys.extend_from_slice(&record.stored_ms.to_be_bytes());
                }
                count += 1;
            }
        }
        if ARCHIVED {
            out.records += 1;
            out.high_ms = out.high_ms.max(record.stored_ms);
            if record.stored_ms != 0 && (out.low_ms == 0 || record.stored_ms < out.low_ms) {
                out.low_ms = record.stored_ms;
            }
        } else {
            if record.stored_ms < out.last_ms {
                out.steps.push((record.phys, out.last_ms.abs_diff(record.stored_ms)));
            }
            out.last_ms = record.stored_ms;
            if out.first_ms == 0 {
                out.first_ms = out.last_ms;
            }
        }
        out.at += record.size;
    }
    out
}

fn made<'py>(py: Python<'py>, runs: &[Run<'_>]) -> Runs<'py> {
    runs.iter()
        .map(|run| {
            let topic = PyBytes::new(py, run.topic.as_bytes());
            (topic, run.queue_id, run.number, PyBytes::new(py, &run.entries))
        })
        .collect()
}

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
    let others = &others;
    let found = scan::<false>(
        data,
        at,
        &Asked { base, segment_size, check, others, words, most_keys, before_ms },
    );
    let keys = PyBytes::new(py, &found.keys);
    (found.at, made(py, &found.runs), keys, found.first_ms, found.last_ms, found.steps)
}

thread_local! {
    /// A buffer's bytes: others may write it, so they are copied, into memory that is used again.
    static COPY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

type Archived<'py> = (usize, Runs<'py>, Bound<'py, PyBytes>, u64, i64, i64);

#[pyfunction]
pub fn archived_records<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    at: usize,
    base: i64,
    segment_size: i64,
    others: Vec<String>,
    words: usize,
) -> PyResult<Archived<'py>> {
    let asked = Asked {
        base,
        segment_size,
        check: true,
        others: &others,
        words,
        most_keys: Some(usize::MAX),
        before_ms: 0,
    };
    let look = |data: &[u8]| {
        let found = py.allow_threads(|| scan::<true>(data, at, &asked));
        let keys = PyBytes::new(py, &found.keys);
        (found.at, made(py, &found.runs), keys, found.records, found.low_ms, found.high_ms)
    };
    if let Ok(bytes) = data.downcast::<PyBytes>() {
        return Ok(look(bytes.as_bytes()));
    }
    let buffer = PyBuffer::<u8>::get(data)?;
    COPY.with(|copy| {
        let mut copy = copy.borrow_mut();
        copy.resize(buffer.item_count(), 0);
        buffer.copy_to_slice(py, &mut copy)?;
        Ok(look(&copy))
    })
}

#[pyfunction]
pub fn checked_records(
    data: &[u8],
    mut at: usize,
    base: i64,
    segment_size: i64,
    others: Vec<String>,
) -> (usize, u64, i64) {
    let (mut records, mut last_ms) = (0, 0);
    let mut topic = "";
    while at < data.len() {
        let record = match plain(&data[at..], base + at as i64, segment_size, true) {
            Some(record) => record,
            None => break,
        };
        if record.topic != topic {
            if others.iter().any(|other| other == record.topic) {
                break;
            }
            topic = record.topic;
        }
        records += 1;
        last_ms = record.stored_ms;
        at += record.size;
    }
    (at, records, last_ms)
}

#[pyfunction]
pub fn size_of_whole(data: &[u8], mut at: usize) -> usize {
    while at < data.len() && data.len() - at >= FILLER_MIN as usize {
        let size = match usize::try_from(int(data, at)) {
            Ok(size) if size >= FILLER_MIN as usize && size <= data.len() - at => size,
            _ => break,
        };
        if !matches!(int(data, at + 4) as u32, V1 | V2 | BLANK) {
            break;
        }
        at += size;
    }
    at
}
