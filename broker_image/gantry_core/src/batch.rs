//! The body of a batch send to records, queue entries and keys.

use crate::text::{hash_on, key_hash, Indexed, PIECE_END};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

const HEAD: usize = 22;
/// Bytes of a record without body, topic field and properties, with IPv4 hosts.
const FIXED: usize = 90;
const FILLER_MIN: usize = 8;
const ENTRY: usize = 20;

pub struct Message<'a> {
    pub flag: i32,
    pub body: &'a [u8],
    pub properties: &'a [u8],
}

fn int(data: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

/// The messages of a batch's body; None for one that does not fit.
pub struct Messages<'a>(pub &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Option<Message<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let found = self.split();
        if found.is_none() {
            self.0 = &[];
        }
        Some(found)
    }
}

impl<'a> Messages<'a> {
    fn split(&mut self) -> Option<Message<'a>> {
        let data = self.0;
        let size = usize::try_from(int(data, 0)?).ok()?;
        let flag = int(data, 12)?;
        let length = usize::try_from(int(data, 16)?).ok()?;
        if size < HEAD || length > size - HEAD {
            return None;
        }
        let data = data.get(..size)?;
        let after = 20 + length;
        let properties = u16::from_be_bytes(data.get(after..after + 2)?.try_into().ok()?);
        if after + 2 + usize::from(properties) != size {
            return None;
        }
        self.0 = &self.0[size..];
        Some(Message {
            flag,
            body: &data[20..after],
            properties: &data[after + 2..],
        })
    }
}

/// Names of properties that make a message more than a plain one, by their lengths.
pub struct Special(Vec<Vec<String>>);

impl Special {
    pub fn new(names: Vec<String>) -> Self {
        let mut by_size: Vec<Vec<String>> = Vec::new();
        for name in names {
            if by_size.len() <= name.len() {
                by_size.resize(name.len() + 1, Vec::new());
            }
            by_size[name.len()].push(name);
        }
        Special(by_size)
    }

    pub fn has(&self, name: &str) -> bool {
        match self.0.get(name.len()) {
            Some(names) => names.iter().any(|special| special == name),
            None => false,
        }
    }
}

#[pyclass(frozen, module = "gantry_core")]
pub struct BatchRules {
    special: Special,
    suffix: usize,
    messages: usize,
    properties: usize,
    keys: usize,
    all_keys: usize,
}

#[pymethods]
impl BatchRules {
    #[new]
    fn new(
        special: Vec<String>,
        suffix: usize,
        messages: usize,
        properties: usize,
        keys: usize,
        all_keys: usize,
    ) -> Self {
        BatchRules {
            special: Special::new(special),
            suffix,
            messages,
            properties,
            keys,
            all_keys,
        }
    }

    /// (messages, index keys) of a plain batch; None for any other.
    fn check(&self, body: &[u8]) -> Option<(usize, usize)> {
        let mut count = 0;
        let mut keys = 0;
        for message in Messages(body) {
            let properties = message?.properties;
            count += 1;
            if count > self.messages || properties.contains(&0) {
                return None;
            }
            let joint = usize::from(!properties.is_empty() && properties.last() != Some(&PIECE_END));
            if properties.len() + joint + self.suffix > self.properties {
                return None;
            }
            let text = std::str::from_utf8(properties).ok()?;
            let found = Indexed::of(text, |name| !self.special.has(name))?;
            let words = found.words(usize::MAX).count();
            if words > self.keys + usize::from(!found.unique.is_empty()) {
                return None;
            }
            keys += words;
        }
        if count == 0 || keys > self.all_keys + count {
            return None;
        }
        Some((count, keys))
    }
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn batch_records<'py>(
    py: Python<'py>,
    body: &[u8],
    suffix: &[u8],
    topic: &str,
    magic: u32,
    queue_id: i32,
    number: i64,
    phys: i64,
    room: usize,
    room_min: usize,
    sys_flag: i32,
    born_ms: i64,
    born_host: [u8; 8],
    now_ms: i64,
    host: [u8; 8],
    keys: usize,
) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
    let wide = topic.len() > 127;
    let length = u16::try_from(topic.len()).map_err(|_| PyValueError::new_err("topic is too long"))?;
    let seed = hash_on(hash_on(0, topic), "#");
    let mut records = Vec::with_capacity(body.len() * 2 + 1024);
    let mut entries = Vec::with_capacity(1024);
    let mut hashes = Vec::with_capacity(1024);
    let (mut number, mut room) = (number, room);
    for message in Messages(body) {
        let message = message.ok_or_else(|| PyValueError::new_err("no plain batch"))?;
        let text = std::str::from_utf8(message.properties)
            .map_err(|_| PyValueError::new_err("no plain batch"))?;
        let found = Indexed::of(text, |_| true).unwrap_or_default();
        let joint = !text.is_empty() && !text.ends_with(PIECE_END as char);
        let properties = text.len() + usize::from(joint) + suffix.len();
        let stored = i16::try_from(properties).map_err(|_| PyValueError::new_err("no plain batch"))?;
        let size = FIXED + usize::from(wide) + 1 + topic.len() + message.body.len() + properties;
        if room < room_min || size + FILLER_MIN > room {
            return Ok(None);
        }
        let at = phys + records.len() as i64;
        let total = i32::try_from(size).map_err(|_| PyValueError::new_err("no plain batch"))?;
        records.extend_from_slice(&total.to_be_bytes());
        records.extend_from_slice(&magic.to_be_bytes());
        records.extend_from_slice(&(crc32fast::hash(message.body) & 0x7FFF_FFFF).to_be_bytes());
        records.extend_from_slice(&queue_id.to_be_bytes());
        records.extend_from_slice(&message.flag.to_be_bytes());
        records.extend_from_slice(&number.to_be_bytes());
        records.extend_from_slice(&at.to_be_bytes());
        records.extend_from_slice(&sys_flag.to_be_bytes());
        records.extend_from_slice(&born_ms.to_be_bytes());
        records.extend_from_slice(&born_host);
        records.extend_from_slice(&now_ms.to_be_bytes());
        records.extend_from_slice(&host);
        records.extend_from_slice(&[0; 12]);
        records.extend_from_slice(&(message.body.len() as u32).to_be_bytes());
        records.extend_from_slice(message.body);
        if wide {
            records.extend_from_slice(&length.to_be_bytes());
        } else {
            records.push(length as u8);
        }
        records.extend_from_slice(topic.as_bytes());
        records.extend_from_slice(&stored.to_be_bytes());
        records.extend_from_slice(text.as_bytes());
        if joint {
            records.push(PIECE_END);
        }
        records.extend_from_slice(suffix);
        let code = i64::from(hash_on(0, found.tags) as i32);
        entries.extend_from_slice(&at.to_be_bytes());
        entries.extend_from_slice(&total.to_be_bytes());
        entries.extend_from_slice(&code.to_be_bytes());
        for key in found.words(keys) {
            hashes.extend_from_slice(&key_hash(seed, key).to_be_bytes());
            hashes.extend_from_slice(&at.to_be_bytes());
            hashes.extend_from_slice(&now_ms.to_be_bytes());
        }
        number += 1;
        room -= size;
    }
    Ok(Some((
        PyBytes::new(py, &records),
        PyBytes::new(py, &entries),
        PyBytes::new(py, &hashes),
    )))
}

#[pyfunction]
pub fn entry_sizes(entries: &[u8]) -> Vec<i32> {
    entries
        .chunks_exact(ENTRY)
        .map(|entry| int(entry, 8).unwrap_or(0))
        .collect()
}

#[pyfunction]
pub fn message_ids(host: &str, entries: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut made = String::with_capacity((host.len() + 17) * (entries.len() / ENTRY));
    for entry in entries.chunks_exact(ENTRY) {
        if !made.is_empty() {
            made.push(',');
        }
        made.push_str(host);
        for byte in &entry[..8] {
            made.push(DIGITS[usize::from(byte >> 4)] as char);
            made.push(DIGITS[usize::from(byte & 15)] as char);
        }
    }
    made
}
