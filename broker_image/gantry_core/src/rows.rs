//! A block of the log to rows of places and to the buffers of Arrow columns.

use pyo3::buffer::{PyBuffer, ReadOnlyCell};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::borrow::Cow;
use std::collections::HashSet;

const COLUMNS: usize = 12;
const PROPERTIES: usize = 10;
/// Bytes of a record before its body, with IPv4 hosts.
const FIXED: usize = 88;
const V1: u32 = 0xDAA3_20A7;
const V2: u32 = 0xDAA3_20AB;
const BORN_V6: i32 = 0x10;
const STORE_V6: i32 = 0x20;
const NAME_END: u8 = 1;
const PIECE_END: u8 = 2;
/// Pairs of a record up to which comparing each with each is cheaper than a set.
const FEW: usize = 16;

fn int(data: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

fn long(data: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(data.get(at..at + 8)?.try_into().ok()?))
}

/// A block may be a mapped file, which others may write: each byte is read once, into memory of our own.
type Shared<'a> = &'a [ReadOnlyCell<u8>];

fn shared<'a>(py: Python<'a>, data: &'a PyBuffer<u8>) -> PyResult<Shared<'a>> {
    data.as_slice(py).ok_or_else(|| PyValueError::new_err("no plain buffer"))
}

fn copy(from: Shared<'_>, to: &mut Vec<u8>) {
    to.extend(from.iter().map(ReadOnlyCell::get));
}

/// Copies the record that begins at `at`. None: it is not all there.
fn take(data: Shared<'_>, at: usize, record: &mut Vec<u8>) -> Option<()> {
    record.clear();
    copy(data.get(at..at.checked_add(4)?)?, record);
    let size = usize::try_from(int(record, 0)?).ok()?;
    copy(data.get(at + 4..at.checked_add(size)?)?, record);
    Some(())
}

/// The row of a record that begins at `at`; None: it is not valid. `base`: where the block lies in the log.
fn row(record: &[u8], at: usize, base: Option<i64>, check: bool) -> Option<[i64; COLUMNS]> {
    let size = record.len();
    let magic = int(record, 4)? as u32;
    let phys = long(record, 28)?;
    if (magic != V1 && magic != V2) || base.map_or(false, |base| phys != base.wrapping_add(at as i64)) {
        return None;
    }
    let flags = int(record, 36)?;
    let moved = if flags & BORN_V6 != 0 { 12 } else { 0 };
    let body_at = FIXED + moved + if flags & STORE_V6 != 0 { 12 } else { 0 };
    let body_len = usize::try_from(int(record, body_at - 4)?).ok()?;
    let body_end = body_at + body_len;
    if body_end + 4 > size {
        return None;
    }
    let (topic_len, topic_at) = if magic == V2 {
        let length = u16::from_be_bytes([record[body_end], record[body_end + 1]]);
        (usize::from(length), body_end + 2)
    } else {
        (usize::from(record[body_end]), body_end + 1)
    };
    let properties_at = topic_at + topic_len + 2;
    if properties_at > size {
        return None;
    }
    let stated = u16::from_be_bytes([record[properties_at - 2], record[properties_at - 1]]);
    if usize::from(stated) != size - properties_at {
        return None;
    }
    if check && (crc32fast::hash(&record[body_at..body_end]) & 0x7FFF_FFFF) as i32 != int(record, 8)? {
        return None;
    }
    std::str::from_utf8(&record[topic_at..topic_at + topic_len]).ok()?;
    Some([
        at as i64,
        size as i64,
        i64::from(int(record, 12)?),
        long(record, 20)?,
        i64::from(flags),
        long(record, 56 + moved)?,
        (at + body_at) as i64,
        body_len as i64,
        (at + topic_at) as i64,
        topic_len as i64,
        (at + properties_at) as i64,
        (size - properties_at) as i64,
    ])
}

/// The slices of `data` that two columns of rows, `column` and the next one, name.
fn slices<'a>(
    data: Shared<'a>,
    rows: &'a [u8],
    column: usize,
) -> PyResult<impl Iterator<Item = PyResult<Shared<'a>>> + 'a> {
    let width = rows.len() / COLUMNS;
    if rows.len() % (8 * COLUMNS) != 0 || column + 1 >= COLUMNS {
        return Err(PyValueError::new_err("no rows of records"));
    }
    let begins = rows[column * width..][..width].chunks_exact(8);
    let lengths = rows[(column + 1) * width..][..width].chunks_exact(8);
    Ok(begins.zip(lengths).map(move |(at, length)| {
        let at = u64::from_le_bytes(at.try_into().unwrap_or_default()) as usize;
        let length = u64::from_le_bytes(length.try_into().unwrap_or_default()) as usize;
        at.checked_add(length)
            .and_then(|end| data.get(at..end))
            .ok_or_else(|| PyValueError::new_err("a row names bytes outside"))
    }))
}

/// Where a value of an Arrow column ends.
fn offset(end: usize) -> PyResult<i32> {
    i32::try_from(end).map_err(|_| PyValueError::new_err("over 2 GiB of values"))
}

/// Texts or bytes, as Arrow keeps them.
struct Values {
    offsets: Vec<u8>,
    data: Vec<u8>,
}

impl Values {
    fn new() -> Self {
        Values { offsets: vec![0; 4], data: Vec::new() }
    }

    fn end(&mut self) -> PyResult<()> {
        self.offsets.extend_from_slice(&offset(self.data.len())?.to_le_bytes());
        Ok(())
    }

    fn add_text(&mut self, value: &[u8]) -> PyResult<()> {
        match String::from_utf8_lossy(value) {
            Cow::Borrowed(text) => self.data.extend_from_slice(text.as_bytes()),
            Cow::Owned(text) => self.data.extend_from_slice(text.as_bytes()),
        }
        self.end()
    }

    fn made<'py>(&self, py: Python<'py>) -> Buffers<'py> {
        (PyBytes::new(py, &self.offsets), PyBytes::new(py, &self.data))
    }
}

type Buffers<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);
type Nullable<'py> = (usize, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);
type Rows<'py> = (usize, Bound<'py, PyBytes>, Buffers<'py>, Vec<Nullable<'py>>);
type Maps<'py> = (Bound<'py, PyBytes>, Buffers<'py>, Buffers<'py>);

#[pyfunction]
pub fn row_slices<'py>(py: Python<'py>, data: PyBuffer<u8>, rows: &[u8], column: usize) -> PyResult<Buffers<'py>> {
    let data = shared(py, &data)?;
    let mut ends = Vec::with_capacity(4 + rows.len() / (2 * COLUMNS));
    let mut end = 0;
    ends.extend_from_slice(&[0; 4]);
    for slice in slices(data, rows, column)? {
        end += slice?.len();
        ends.extend_from_slice(&offset(end)?.to_le_bytes());
    }
    let values = PyBytes::new_with(py, end, |mut rest| {
        for slice in slices(data, rows, column)? {
            let slice = slice?;
            let (room, after) = rest.split_at_mut(slice.len());
            for (to, from) in room.iter_mut().zip(slice) {
                *to = from.get();
            }
            rest = after;
        }
        Ok(())
    })?;
    Ok((PyBytes::new(py, &ends), values))
}

/// Name and value of each property.
fn pairs(properties: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    properties.split(|byte| *byte == PIECE_END).filter_map(|piece| {
        let at = piece.iter().position(|byte| *byte == NAME_END)?;
        Some((&piece[..at], &piece[at + 1..])).filter(|_| at > 0)
    })
}

/// The last value of a property.
fn value<'a>(properties: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut found = None;
    for piece in properties.split(|byte| *byte == PIECE_END) {
        if piece.len() > name.len() && piece[name.len()] == NAME_END && piece.starts_with(name) {
            found = Some(&piece[name.len() + 1..]);
        }
    }
    found
}

/// The values of one property.
struct Property<'a> {
    name: &'a [u8],
    count: usize,
    nulls: usize,
    valid: Vec<u8>,
    values: Values,
}

impl<'a> Property<'a> {
    fn new(name: &'a [u8]) -> Self {
        Property { name, count: 0, nulls: 0, valid: Vec::new(), values: Values::new() }
    }

    fn add(&mut self, properties: &[u8]) -> PyResult<()> {
        if self.count % 8 == 0 {
            self.valid.push(0);
        }
        let found = value(properties, self.name);
        if found.is_some() {
            self.valid[self.count / 8] |= 1 << (self.count % 8);
        } else {
            self.nulls += 1;
        }
        self.count += 1;
        self.values.add_text(found.unwrap_or_default())
    }

    fn made<'py>(&self, py: Python<'py>) -> Nullable<'py> {
        let (offsets, values) = self.values.made(py);
        (self.nulls, PyBytes::new(py, &self.valid), offsets, values)
    }
}

#[pyfunction]
pub fn record_rows<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    base: Option<i64>,
    stop: usize,
    check: bool,
    names: Vec<Bound<'py, PyBytes>>,
) -> PyResult<Rows<'py>> {
    let data = shared(py, &data)?;
    let mut record = Vec::new();
    let mut columns: [Vec<u8>; COLUMNS] = Default::default();
    let mut topics = Values::new();
    let mut properties: Vec<_> = names.iter().map(|name| Property::new(name.as_bytes())).collect();
    let mut at = 0;
    while at < stop {
        let found = match take(data, at, &mut record).and_then(|()| row(&record, at, base, check)) {
            Some(found) => found,
            None => break,
        };
        for (column, value) in columns.iter_mut().zip(found) {
            column.extend_from_slice(&value.to_le_bytes());
        }
        let [_, size, .., topic_at, topic_len, properties_at, _] = found.map(|number| number as usize);
        topics.data.extend_from_slice(&record[topic_at - at..][..topic_len]);
        topics.end()?;
        for property in &mut properties {
            property.add(&record[properties_at - at..])?;
        }
        at += size;
    }
    let rows = PyBytes::new(py, &columns.concat());
    Ok((at, rows, topics.made(py), properties.iter().map(|property| property.made(py)).collect()))
}

#[pyfunction]
pub fn row_properties<'py>(py: Python<'py>, data: PyBuffer<u8>, rows: &[u8], name: &[u8]) -> PyResult<Nullable<'py>> {
    let mut made = Property::new(name);
    let mut properties = Vec::new();
    for slice in slices(shared(py, &data)?, rows, PROPERTIES)? {
        properties.clear();
        copy(slice?, &mut properties);
        made.add(&properties)?;
    }
    Ok(made.made(py))
}

/// The pairs that count: the last one of each name, in their order.
fn last_of_each_name<'a>(all: &mut Vec<(&'a [u8], &'a [u8])>) {
    if all.len() <= FEW {
        let mut index = 0;
        while index < all.len() {
            if all[index + 1..].iter().any(|(name, _)| *name == all[index].0) {
                all.remove(index);
            } else {
                index += 1;
            }
        }
        return;
    }
    let mut seen: HashSet<&[u8]> = HashSet::new();
    all.reverse();
    all.retain(|(name, _)| seen.insert(name));
    all.reverse();
}

#[pyfunction]
pub fn row_maps<'py>(py: Python<'py>, data: PyBuffer<u8>, rows: &[u8]) -> PyResult<Maps<'py>> {
    let mut edges = vec![0; 4];
    let (mut names, mut values) = (Values::new(), Values::new());
    let mut count: i32 = 0;
    let mut properties = Vec::new();
    for slice in slices(shared(py, &data)?, rows, PROPERTIES)? {
        properties.clear();
        copy(slice?, &mut properties);
        let mut all = pairs(&properties).collect();
        last_of_each_name(&mut all);
        for (name, text) in &all {
            names.add_text(name)?;
            values.add_text(text)?;
            count += 1;
        }
        edges.extend_from_slice(&count.to_le_bytes());
    }
    Ok((PyBytes::new(py, &edges), names.made(py), values.made(py)))
}
