//! The sends of one read: frames to records that lack only their place, records to their places, places to answers.

use crate::batch::Special;
use crate::json::Json;
use crate::signature::GIVEN;
use crate::text::{hash_on, key_hash, NAME_END, PIECE_END};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use pyo3::IntoPyObjectExt;
use std::borrow::Cow;
use std::collections::HashMap;

/// Bytes of a record without body, topic field and properties, with IPv4 hosts.
const FIXED: usize = 90;
const FILLER_MIN: usize = 8;
const ENTRY: usize = 20;
const ROW: usize = 19;
const PLACE: usize = 25;
const SEND: i32 = 10;
const SEND_V2: i32 = 310;
const V1: u32 = 0xDAA3_20A7;
const V2: u32 = 0xDAA3_20AB;
const TRANSACTION: i32 = 12;
const HOSTS: i32 = 0x30;
const MOST_STORED: usize = 0x7FFF;
const MOST_NAMES: usize = 1024;
const MOST_TOPIC: usize = 255;
const FIELDS: [&str; 14] = [
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch", "brokerName",
];
const LETTERS: [&str; 14] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n"];

fn int(data: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

fn short(data: &[u8], at: usize) -> Option<i16> {
    Some(i16::from_be_bytes(data.get(at..at + 2)?.try_into().ok()?))
}

/// The fields of a request, by their places among `FIELDS`.
#[derive(Default)]
struct Fields<'a> {
    values: [Option<Cow<'a, str>>; 14],
    user: Option<Cow<'a, str>>,
    token: Option<Cow<'a, str>>,
    signature: Option<Cow<'a, str>>,
    others: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// Whether a name came twice.
    twice: bool,
}

impl<'a> Fields<'a> {
    fn set(&mut self, code: i32, name: Cow<'a, str>, value: Cow<'a, str>) {
        let place = if code == SEND_V2 {
            match *name.as_bytes() {
                [letter @ b'a'..=b'n'] => Some(usize::from(letter - b'a')),
                _ => None,
            }
        } else {
            FIELDS.iter().position(|field| *field == name)
        };
        let field = match (place, &*name) {
            (Some(place), _) => &mut self.values[place],
            (None, "AccessKey") => &mut self.user,
            (None, "SecurityToken") => &mut self.token,
            (None, "Signature") => &mut self.signature,
            _ => return self.others.push((name, value)),
        };
        self.twice |= field.replace(value).is_some();
    }

    /// Appends the signature, and what it has to be one of; false: there is none, or another look has to decide.
    fn sign(&self, code: i32, body: &[u8], made: &mut Vec<u8>) -> bool {
        let given = match &self.signature {
            Some(given) if given.len() == GIVEN && !self.twice => given,
            _ => return false,
        };
        let begin = made.len();
        made.extend_from_slice(&[0; 4]);
        made.extend_from_slice(given.as_bytes());
        let own = self.user.iter().chain(&self.token); // Their names are before the short ones.
        if self.others.is_empty() && code == SEND_V2 {
            own.chain(self.values.iter().flatten()).for_each(|value| made.extend_from_slice(value.as_bytes()));
        } else {
            let mut all: Vec<(&str, &str)> = self.others.iter().map(|(name, value)| (&**name, &**value)).collect();
            all.extend(self.user.iter().map(|value| ("AccessKey", &**value)));
            all.extend(self.token.iter().map(|value| ("SecurityToken", &**value)));
            for (place, value) in self.values.iter().enumerate() {
                if let Some(value) = value {
                    all.push((if code == SEND_V2 { LETTERS[place] } else { FIELDS[place] }, value));
                }
            }
            all.sort_unstable();
            if all.windows(2).any(|pair| pair[0].0 == pair[1].0) {
                return false;
            }
            all.iter().for_each(|(_, value)| made.extend_from_slice(value.as_bytes()));
        }
        made.extend_from_slice(body);
        let size = (made.len() - begin - 4 - GIVEN) as u32;
        made[begin..begin + 4].copy_from_slice(&size.to_be_bytes());
        true
    }

    fn text(&self, place: usize) -> Option<&str> {
        self.values[place].as_deref()
    }

    /// A number as Java writes it, of `most` digits at most.
    fn number(&self, place: usize, most: usize) -> Option<i64> {
        let digits = self.text(place)?.as_bytes();
        if digits.is_empty() || digits.len() > most || (digits.len() > 1 && digits[0] == b'0') {
            return None;
        }
        digits.iter().try_fold(0, |value, digit| {
            if digit.is_ascii_digit() {
                Some(value * 10 + i64::from(digit - b'0'))
            } else {
                None
            }
        })
    }

    fn small(&self, place: usize) -> Option<i32> {
        self.number(place, 9).and_then(|value| i32::try_from(value).ok())
    }

    fn is_plain(&self) -> bool {
        let names = [0, 2, 13].iter().map(|place| self.text(*place).map_or(0, str::len)).sum::<usize>();
        let truth = |place| matches!(self.text(place), None | Some("false" | "true"));
        names <= MOST_NAMES
            && self.values[0].is_some()
            && self.values[2].is_some()
            && self.small(3).is_some()
            && matches!(self.text(9), None | Some("0"))
            && truth(10)
            && self.values[11].is_none()
            && matches!(self.text(12), None | Some("false"))
    }
}

struct Head<'a> {
    code: i32,
    opaque: i32,
    fields: Fields<'a>,
}

fn json_head(header: &[u8]) -> Option<Head<'_>> {
    let code = if header.starts_with(b"{\"code\":310,") {
        SEND_V2
    } else if header.starts_with(b"{\"code\":10,") {
        SEND
    } else {
        return None;
    };
    let mut json = Json::new(std::str::from_utf8(header).ok()?);
    let (mut opaque, mut flag, mut version, mut language) = (None, None, None, false);
    let mut fields = Fields::default();
    json.object(|json, name| {
        match &*name {
            "code" => return Some(()).filter(|_| json.int() == Some(i64::from(code))),
            "opaque" => opaque = Some(i32::try_from(json.int()?).ok()?),
            "flag" => flag = Some(json.int()?),
            "version" => version = Some(i32::try_from(json.int()?).ok()?),
            "language" => {
                json.string()?;
                language = true;
            }
            "remark" if json.peek()? != b'"' => json.word("null")?,
            "extFields" => {
                fields = Fields::default();
                json.object(|json, name| {
                    let value = json.string()?;
                    fields.set(code, name, value);
                    Some(())
                })?;
            }
            _ => json.scalar()?,
        }
        Some(())
    })?;
    if json.peek().is_some() || flag != Some(0) || version.is_none() || !language {
        return None;
    }
    Some(Head { code, opaque: opaque?, fields })
}

fn compact_head(header: &[u8]) -> Option<Head<'_>> {
    let code = i32::from(short(header, 0)?);
    let (opaque, flag, remark) = (int(header, 5)?, int(header, 9)?, int(header, 13)?);
    let size = usize::try_from(int(header, 17)?).ok()?;
    if (code != SEND && code != SEND_V2) || flag != 0 || remark != 0 || size != header.len() - 21 {
        return None;
    }
    let mut fields = Fields::default();
    let mut at = 21;
    while at < header.len() {
        let size = usize::try_from(short(header, at)?).ok()?;
        let name = std::str::from_utf8(header.get(at + 2..at + 2 + size)?).ok()?;
        at += 2 + size;
        let size = usize::try_from(int(header, at)?).ok()?;
        let value = std::str::from_utf8(header.get(at + 4..(at + 4).checked_add(size)?)?).ok()?;
        at += 4 + size;
        fields.set(code, Cow::Borrowed(name), Cow::Borrowed(value));
    }
    Some(Head { code, opaque, fields })
}

/// What the properties of a plain send become.
struct Properties<'a> {
    before: &'a str,
    after: &'a str,
    tags: &'a str,
    keys: &'a str,
    unique: &'a str,
}

impl<'a> Properties<'a> {
    /// None: something about them is unusual.
    fn of(text: &'a str, special: &Special) -> Option<Self> {
        let (mut tags, mut keys, mut unique) = ("", "", "");
        let mut wait = None;
        let mut at = 0;
        if text.is_empty() || text.as_bytes().contains(&0) {
            return None;
        }
        for piece in text.split(PIECE_END as char) {
            let begin = at;
            at += piece.len() + 1;
            if piece.is_empty() {
                continue;
            }
            let end = piece.as_bytes().iter().position(|byte| *byte == NAME_END)?;
            let (name, value) = (&piece[..end], &piece[end + 1..]);
            match name {
                "" => return None,
                "TAGS" => tags = value,
                "KEYS" => keys = value,
                "UNIQ_KEY" => unique = value,
                "WAIT" if value != "true" || wait.is_some() => return None,
                "WAIT" => wait = Some((begin, begin + piece.len())),
                _ if special.has(name) => return None,
                _ => {}
            }
        }
        let (before, after) = match wait {
            None => (text, ""),
            Some((0, end)) => ("", text.get(end + 1..).unwrap_or("")),
            Some((begin, end)) => (&text[..begin - 1], &text[end..]),
        };
        Some(Properties { before, after, tags, keys, unique })
    }

    fn len(&self) -> usize {
        self.before.len() + self.after.len()
    }

    /// Whether they end in something that needs a separator behind it.
    fn joint(&self) -> bool {
        let last = if self.after.is_empty() { self.before } else { self.after };
        !last.is_empty() && !last.ends_with(PIECE_END as char)
    }
}

struct Topic {
    name: String,
    seed: u32,
    largest_queue: i32,
    messages: usize,
    bytes: usize,
    largest: usize,
}

/// What a send may have that needs no other look.
#[pyclass(frozen, module = "gantry_core")]
pub struct SendRules {
    special: Special,
    suffix: Vec<u8>,
    properties: usize,
    keys: usize,
    all_keys: usize,
    frame: usize,
    header: usize,
}

#[pymethods]
impl SendRules {
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        special: Vec<String>,
        suffix: Vec<u8>,
        properties: usize,
        keys: usize,
        all_keys: usize,
        frame: usize,
        header: usize,
    ) -> Self {
        SendRules {
            special: Special::new(special),
            suffix,
            properties: properties.min(MOST_STORED),
            keys,
            all_keys,
            frame,
            header,
        }
    }

    fn split<'py>(
        &self,
        py: Python<'py>,
        data: &[u8],
        most: usize,
        born_host: [u8; 8],
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let mut topics: Vec<Topic> = Vec::new();
        let mut groups: HashMap<(usize, i32), u32> = HashMap::new();
        let (mut of_topic, mut queues) = (Vec::new(), Vec::new());
        let (mut records, mut rows, mut hashes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut at, mut count, mut all_keys, mut most_body) = (0, 0, 0, 0);
        let (mut code, mut user, mut first) = (0, None, Vec::new());
        let (mut signed, mut all_signed) = (Vec::new(), true);
        while count < most {
            let (head, header, body, stop, serialize) = match self.frame_at(data, at) {
                Some(found) => found,
                None => break,
            };
            let fields = &head.fields;
            let own = match (&fields.user, fields.token.is_some() || fields.signature.is_some()) {
                (None, false) => None,
                (found, _) => Some(found.as_deref().unwrap_or("")),
            };
            if count > 0 && (head.code != code || own != user.as_deref()) {
                break;
            }
            let (topic, properties) = match self.plain(fields) {
                Some(found) => found,
                None => break,
            };
            let numbers = (fields.small(4), fields.small(5), fields.number(6, 18), fields.small(7));
            let (queue_id, sys_flag, born_ms, flag) = match numbers {
                (Some(queue_id), Some(sys_flag), Some(born_ms), Some(flag)) => (queue_id, sys_flag, born_ms, flag),
                _ => break,
            };
            if sys_flag & TRANSACTION != 0 {
                break;
            }
            let words = || properties.keys.split(' ').filter(|key| !key.is_empty());
            let unique = Some(properties.unique).filter(|key| !key.is_empty());
            let key_count = words().count();
            let joint = properties.joint();
            let stored = properties.len() + usize::from(joint) + self.suffix.len();
            if key_count > self.keys || stored > self.properties {
                break;
            }
            let key_count = key_count + usize::from(unique.is_some());
            if count > 0 && all_keys + key_count > self.all_keys {
                break;
            }
            all_keys += key_count;
            if count == 0 {
                let room = (data.len() + 256).min(1 << 20);
                records = Vec::with_capacity(room);
                rows = Vec::with_capacity((room / (stop - at).max(64) + 1) * ROW);
                hashes = Vec::with_capacity(rows.capacity() / ROW * 4);
                code = head.code;
                user = own.map(str::to_owned);
                first = properties.before.as_bytes().to_vec();
                first.extend_from_slice(properties.after.as_bytes());
            }
            let wide = topic.len() > 127;
            let size = FIXED + usize::from(wide) + 1 + topic.len() + body.len() + stored;
            let place = match topics.iter().position(|known| known.name == topic) {
                Some(place) => place,
                None => {
                    topics.push(Topic {
                        name: topic.to_owned(),
                        seed: hash_on(hash_on(0, topic), "#"),
                        largest_queue: 0,
                        messages: 0,
                        bytes: 0,
                        largest: 0,
                    });
                    topics.len() - 1
                }
            };
            let known = &mut topics[place];
            known.largest_queue = known.largest_queue.max(queue_id);
            known.messages += 1;
            known.bytes += size;
            known.largest = known.largest.max(size);
            let next = queues.len() as u32;
            let group = *groups.entry((place, queue_id)).or_insert(next);
            if group == next {
                of_topic.push(place);
                queues.push(queue_id);
            }
            rows.extend_from_slice(&(size as u32).to_be_bytes());
            rows.extend_from_slice(&group.to_be_bytes());
            rows.extend_from_slice(&head.opaque.to_be_bytes());
            rows.push(serialize);
            rows.extend_from_slice(&hash_on(0, properties.tags).to_be_bytes());
            rows.extend_from_slice(&(key_count as u16).to_be_bytes());
            for key in unique.into_iter().chain(words()) {
                hashes.extend_from_slice(&key_hash(known.seed, key).to_be_bytes());
            }
            let body = &data[header + body.start..header + body.end];
            all_signed = all_signed && user.is_some() && fields.sign(code, body, &mut signed);
            most_body = most_body.max(body.len());
            records.extend_from_slice(&(size as u32).to_be_bytes());
            records.extend_from_slice(&(if wide { V2 } else { V1 }).to_be_bytes());
            records.extend_from_slice(&(crc32fast::hash(body) & 0x7FFF_FFFF).to_be_bytes());
            records.extend_from_slice(&queue_id.to_be_bytes());
            records.extend_from_slice(&flag.to_be_bytes());
            records.extend_from_slice(&[0; 16]); // Queue offset and offset in the log.
            records.extend_from_slice(&(sys_flag & !HOSTS).to_be_bytes());
            records.extend_from_slice(&born_ms.to_be_bytes());
            records.extend_from_slice(&born_host);
            records.extend_from_slice(&[0; 28]); // Store time, host, attempts, prepared offset.
            records.extend_from_slice(&(body.len() as u32).to_be_bytes());
            records.extend_from_slice(body);
            if wide {
                records.extend_from_slice(&(topic.len() as u16).to_be_bytes());
            } else {
                records.push(topic.len() as u8);
            }
            records.extend_from_slice(topic.as_bytes());
            records.extend_from_slice(&(stored as u16).to_be_bytes());
            records.extend_from_slice(properties.before.as_bytes());
            records.extend_from_slice(properties.after.as_bytes());
            if joint {
                records.push(PIECE_END);
            }
            records.extend_from_slice(&self.suffix);
            count += 1;
            at = stop;
        }
        if count == 0 {
            return Ok(None);
        }
        let topics: Vec<_> = topics
            .into_iter()
            .map(|topic| (topic.name, topic.largest_queue, topic.messages, topic.bytes, topic.largest))
            .collect();
        if !all_signed {
            signed.clear();
        }
        let bytes = |data: &[u8]| PyBytes::new(py, data).into_any();
        let parts = [
            at.into_bound_py_any(py)?,
            count.into_bound_py_any(py)?,
            code.into_bound_py_any(py)?,
            user.into_bound_py_any(py)?,
            topics.into_bound_py_any(py)?,
            of_topic.into_bound_py_any(py)?,
            queues.into_bound_py_any(py)?,
            most_body.into_bound_py_any(py)?,
            bytes(&first),
            bytes(&records),
            bytes(&rows),
            bytes(&hashes),
            bytes(&signed),
        ];
        PyTuple::new(py, parts).map(Some)
    }
}

type Found<'a> = (Head<'a>, usize, std::ops::Range<usize>, usize, u8);

impl SendRules {
    /// The send at `at`: its header, where the bytes behind the header begin, which of them are the body, where the
    /// frame ends, and its serialization. None: it is no whole send of usual size.
    fn frame_at<'a>(&self, data: &'a [u8], at: usize) -> Option<Found<'a>> {
        let length = usize::try_from(int(data, at)?).ok()?;
        let mark = int(data, at + 4)? as u32;
        let size = (mark & 0xFF_FFFF) as usize;
        if length < 4 || length > self.frame || size > length - 4 || size > self.header {
            return None;
        }
        let (begin, stop) = (at + 8, at + 4 + length);
        let header = data.get(begin..stop)?.get(..size)?;
        let (head, serialize) = match mark >> 24 {
            0 => (json_head(header)?, 0),
            1 => (compact_head(header)?, 1),
            _ => return None,
        };
        Some((head, begin + size, 0..length - 4 - size, stop, serialize))
    }

    fn plain<'a>(&self, fields: &'a Fields<'_>) -> Option<(&'a str, Properties<'a>)> {
        if !fields.is_plain() {
            return None;
        }
        let topic = fields.text(1).filter(|topic| !topic.is_empty() && topic.len() <= MOST_TOPIC)?;
        Some((topic, Properties::of(fields.text(8)?, &self.special)?))
    }
}

fn wrong() -> PyErr {
    PyValueError::new_err("no sends that were split")
}

type Placed<'py> = (Bound<'py, PyBytes>, Vec<Bound<'py, PyBytes>>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn place_sends<'py>(
    py: Python<'py>,
    records: &[u8],
    rows: &[u8],
    hashes: &[u8],
    numbers: Vec<i64>,
    phys: i64,
    room: usize,
    room_min: usize,
    now_ms: i64,
    host: [u8; 8],
) -> PyResult<Option<Placed<'py>>> {
    let mut made = records.to_vec();
    let mut numbers = numbers;
    let mut entries: Vec<Vec<u8>> = numbers.iter().map(|_| Vec::with_capacity(ENTRY)).collect();
    let mut keys = Vec::with_capacity(hashes.len() * 5);
    let mut places = Vec::with_capacity(rows.len() / ROW * PLACE);
    let mut hashes = hashes.chunks_exact(4);
    let (mut at, mut room) = (0, room);
    for row in rows.chunks_exact(ROW) {
        let size = int(row, 0).and_then(|size| usize::try_from(size).ok()).ok_or_else(wrong)?;
        let group = int(row, 4).and_then(|group| usize::try_from(group).ok()).ok_or_else(wrong)?;
        let code = int(row, 13).map(i64::from).ok_or_else(wrong)?;
        let count = short(row, 17).filter(|count| *count >= 0).ok_or_else(wrong)?;
        let own = phys.checked_add(at as i64).ok_or_else(wrong)?;
        let number = numbers.get_mut(group).ok_or_else(wrong)?;
        let following = number.checked_add(1).ok_or_else(wrong)?;
        let record = made.get_mut(at..at + size).filter(|record| record.len() >= FIXED).ok_or_else(wrong)?;
        if room < room_min || size + FILLER_MIN > room {
            return Ok(None);
        }
        record[20..28].copy_from_slice(&number.to_be_bytes());
        record[28..36].copy_from_slice(&own.to_be_bytes());
        record[56..64].copy_from_slice(&now_ms.to_be_bytes());
        record[64..72].copy_from_slice(&host);
        let entry = &mut entries[group];
        entry.extend_from_slice(&own.to_be_bytes());
        entry.extend_from_slice(&row[..4]);
        entry.extend_from_slice(&code.to_be_bytes());
        for _ in 0..count {
            keys.extend_from_slice(hashes.next().ok_or_else(wrong)?);
            keys.extend_from_slice(&own.to_be_bytes());
            keys.extend_from_slice(&now_ms.to_be_bytes());
        }
        places.extend_from_slice(&row[8..13]);
        places.extend_from_slice(&record[12..16]);
        places.extend_from_slice(&number.to_be_bytes());
        places.extend_from_slice(&own.to_be_bytes());
        *number = following;
        at += size;
        room -= size;
    }
    if at != made.len() {
        return Err(wrong());
    }
    Ok(Some((
        PyBytes::new(py, &made),
        entries.iter().map(|entry| PyBytes::new(py, entry)).collect(),
        PyBytes::new(py, &keys),
        PyBytes::new(py, &places),
    )))
}

/// Appends a number in decimal digits.
fn digits(made: &mut Vec<u8>, value: i64) {
    let mut buffer = [0; 20];
    let mut at = buffer.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        buffer[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        made.push(b'-');
    }
    made.extend_from_slice(&buffer[at..]);
}

fn hexadecimal(made: &mut Vec<u8>, value: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in value {
        made.push(DIGITS[usize::from(byte >> 4)]);
        made.push(DIGITS[usize::from(byte & 15)]);
    }
}

fn field(made: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    made.extend_from_slice(&(name.len() as u16).to_be_bytes());
    made.extend_from_slice(name);
    made.extend_from_slice(&(value.len() as u32).to_be_bytes());
    made.extend_from_slice(value);
}

#[pyfunction]
pub fn send_answers<'py>(
    py: Python<'py>,
    places: &[u8],
    code: i16,
    host: &str,
    region: &str,
    version: i16,
) -> PyResult<Bound<'py, PyBytes>> {
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\');
    if !plain(host) || !plain(region) {
        return Err(PyValueError::new_err("host and region are plain texts"));
    }
    let mut start = b"{\"code\":".to_vec();
    digits(&mut start, i64::from(code));
    start.extend_from_slice(b",\"extFields\":{\"queueId\":\"");
    let middle = format!("\",\"TRACE_ON\":\"true\",\"MSG_REGION\":\"{region}\",\"msgId\":\"{host}");
    let end = format!(",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":{version}}}");
    let mut made = Vec::with_capacity(places.len() / PLACE * (start.len() + middle.len() + end.len() + 128));
    let (mut text, mut id, mut fields) = (Vec::new(), Vec::new(), Vec::new());
    for place in places.chunks_exact(PLACE) {
        let head = made.len();
        let opaque = int(place, 0).ok_or_else(wrong)?;
        let queue_id = int(place, 5).ok_or_else(wrong)?;
        let number = i64::from_be_bytes(place[9..17].try_into().map_err(|_| wrong())?);
        made.extend_from_slice(&[0; 8]);
        let serialize = u32::from(place[4]);
        if serialize == 0 {
            made.extend_from_slice(&start);
            digits(&mut made, i64::from(queue_id));
            made.extend_from_slice(middle.as_bytes());
            hexadecimal(&mut made, &place[17..25]);
            made.extend_from_slice(b"\",\"queueOffset\":\"");
            digits(&mut made, number);
            made.extend_from_slice(b"\"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":");
            digits(&mut made, i64::from(opaque));
            made.extend_from_slice(end.as_bytes());
        } else {
            made.extend_from_slice(&code.to_be_bytes());
            made.push(0); // Java
            made.extend_from_slice(&version.to_be_bytes());
            made.extend_from_slice(&opaque.to_be_bytes());
            made.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0]); // An answer without a remark.
            fields.clear();
            id.clear();
            id.extend_from_slice(host.as_bytes());
            hexadecimal(&mut id, &place[17..25]);
            field(&mut fields, b"msgId", &id);
            text.clear();
            digits(&mut text, i64::from(queue_id));
            field(&mut fields, b"queueId", &text);
            text.clear();
            digits(&mut text, number);
            field(&mut fields, b"queueOffset", &text);
            field(&mut fields, b"TRACE_ON", b"true");
            field(&mut fields, b"MSG_REGION", region.as_bytes());
            made.extend_from_slice(&(fields.len() as u32).to_be_bytes());
            made.extend_from_slice(&fields);
        }
        let size = (made.len() - head - 8) as u32;
        made[head..head + 4].copy_from_slice(&(size + 4).to_be_bytes());
        made[head + 4..head + 8].copy_from_slice(&(serialize << 24 | size).to_be_bytes());
    }
    Ok(PyBytes::new(py, &made))
}
