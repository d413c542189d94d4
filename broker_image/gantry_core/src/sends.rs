//! The sends of one read: frames to records that lack only their place, records to their places, places to answers.

use crate::batch::{Messages, Special};
use crate::json::Json;
use crate::signature::GIVEN;
use crate::text::{hash_on, key_hash, Indexed, NAME_END, PIECE_END};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyTuple};
use pyo3::IntoPyObjectExt;
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;

/// Bytes of a record without body, topic field and properties, with IPv4 hosts.
const FIXED: usize = 90;
const FILLER_MIN: usize = 8;
const ENTRY: usize = 20;
const ROW: usize = 19;
const PLACE: usize = 25;
const SEND: i32 = 10;
const SEND_V2: i32 = 310;
const BATCH: i32 = 320;
/// The bit of the serialization of a row or a place whose message came in the request of the one before it.
const SAME_REQUEST: u8 = 0x80;
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
        let place = if code != SEND {
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
        if self.others.is_empty() && code != SEND {
            own.chain(self.values.iter().flatten()).for_each(|value| made.extend_from_slice(value.as_bytes()));
        } else {
            let mut all: Vec<(&str, &str)> = self.others.iter().map(|(name, value)| (&**name, &**value)).collect();
            all.extend(self.user.iter().map(|value| ("AccessKey", &**value)));
            all.extend(self.token.iter().map(|value| ("SecurityToken", &**value)));
            for (place, value) in self.values.iter().enumerate() {
                if let Some(value) = value {
                    all.push((if code != SEND { LETTERS[place] } else { FIELDS[place] }, value));
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

    fn is_plain(&self, code: i32) -> bool {
        let names = [0, 2, 13].iter().map(|place| self.text(*place).map_or(0, str::len)).sum::<usize>();
        let truth = |place| matches!(self.text(place), None | Some("false" | "true"));
        names <= MOST_NAMES
            && self.values[0].is_some()
            && self.values[2].is_some()
            && self.small(3).is_some()
            && matches!(self.text(9), None | Some("0"))
            && truth(10)
            && self.values[11].is_none()
            && (matches!(self.text(12), None | Some("false")) || (code == BATCH && truth(12)))
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
    } else if header.starts_with(b"{\"code\":320,") {
        BATCH
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
    if ![SEND, SEND_V2, BATCH].contains(&code) || flag != 0 || remark != 0 || size != header.len() - 21 {
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
    least: usize,
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
    batch_frame: usize,
    batch_messages: usize,
    batch_keys: usize,
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
        batch_frame: usize,
        batch_messages: usize,
        batch_keys: usize,
    ) -> Self {
        SendRules {
            special: Special::new(special),
            suffix,
            properties: properties.min(MOST_STORED),
            keys,
            all_keys,
            frame,
            header,
            batch_frame,
            batch_messages,
            batch_keys,
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
        let mut made = Made::default();
        let (mut at, mut requests, mut messages, mut all_keys, mut most_body) = (0, 0, 0, 0, 0);
        let (mut code, mut user) = (0, None);
        let (mut signed, mut all_signed) = (Vec::new(), true);
        while requests < most {
            let (head, header, body, stop, serialize) = match self.frame_at(data, at) {
                Some(found) => found,
                None => break,
            };
            let fields = &head.fields;
            let own = match (&fields.user, fields.token.is_some() || fields.signature.is_some()) {
                (None, false) => None,
                (found, _) => Some(found.as_deref().unwrap_or("")),
            };
            if requests > 0 && (head.code != code || own != user.as_deref()) {
                break;
            }
            let topic = match self.topic(&head) {
                Some(topic) => topic,
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
            let known = topics.iter().position(|known| known.name == topic);
            let place = known.unwrap_or(topics.len());
            let seed = known.map_or_else(|| hash_on(hash_on(0, topic), "#"), |known| topics[known].seed);
            let next = queues.len() as u32;
            let group = groups.get(&(place, queue_id)).copied().unwrap_or(next);
            let request = Request { topic, seed, group, queue_id, sys_flag, born_ms, born_host, opaque: head.opaque };
            let body = &data[header + body.start..header + body.end];
            if requests == 0 {
                made.reserve(data.len(), stop - at);
            }
            let before = made.ends();
            let added = if head.code == BATCH {
                self.batch(&mut made, &request, fields, body, serialize)
            } else {
                self.single(&mut made, &request, fields, body, flag, serialize)
            };
            let added = match added {
                Some(added) if requests == 0 || all_keys + added.keys <= self.all_keys => added,
                _ => {
                    made.cut(before);
                    break;
                }
            };
            if requests == 0 {
                code = head.code;
                user = own.map(str::to_owned);
            }
            if known.is_none() {
                let name = topic.to_owned();
                topics.push(Topic { name, seed, largest_queue: 0, messages: 0, bytes: 0, least: usize::MAX, largest: 0 });
            }
            if group == next {
                groups.insert((place, queue_id), group);
                of_topic.push(place);
                queues.push(queue_id);
            }
            let known = &mut topics[place];
            known.largest_queue = known.largest_queue.max(queue_id);
            known.messages += added.messages;
            known.bytes += added.bytes;
            known.least = known.least.min(added.least);
            known.largest = known.largest.max(added.largest);
            all_signed = all_signed && user.is_some() && fields.sign(code, body, &mut signed);
            most_body = most_body.max(body.len());
            all_keys += added.keys;
            messages += added.messages;
            requests += 1;
            at = stop;
        }
        if requests == 0 {
            return Ok(None);
        }
        let topics: Vec<_> = topics
            .into_iter()
            .map(|topic| (topic.name, topic.largest_queue, topic.messages, topic.bytes, topic.least, topic.largest))
            .collect();
        if !all_signed {
            signed.clear();
        }
        let bytes = |data: &[u8]| PyBytes::new(py, data).into_any();
        let parts = [
            at.into_bound_py_any(py)?,
            messages.into_bound_py_any(py)?,
            requests.into_bound_py_any(py)?,
            code.into_bound_py_any(py)?,
            user.into_bound_py_any(py)?,
            topics.into_bound_py_any(py)?,
            of_topic.into_bound_py_any(py)?,
            queues.into_bound_py_any(py)?,
            most_body.into_bound_py_any(py)?,
            bytes(&made.first),
            PyByteArray::new(py, &made.records).into_any(),
            bytes(&made.rows),
            bytes(&made.hashes),
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
        if length < 4 || length > self.frame.max(self.batch_frame) || size > length - 4 || size > self.header {
            return None;
        }
        let (begin, stop) = (at + 8, at + 4 + length);
        let header = data.get(begin..stop)?.get(..size)?;
        let (head, serialize) = match mark >> 24 {
            0 => (json_head(header)?, 0),
            1 => (compact_head(header)?, 1),
            _ => return None,
        };
        if length > (if head.code == BATCH { self.batch_frame } else { self.frame }) {
            return None;
        }
        Some((head, begin + size, 0..length - 4 - size, stop, serialize))
    }

    fn topic<'a>(&self, head: &'a Head<'_>) -> Option<&'a str> {
        if !head.fields.is_plain(head.code) {
            return None;
        }
        head.fields.text(1).filter(|topic| !topic.is_empty() && topic.len() <= MOST_TOPIC)
    }

    /// Adds the message of a send; None: something about it is unusual.
    #[inline(always)]
    fn single<'a>(
        &self,
        made: &mut Made,
        request: &Request,
        fields: &'a Fields<'a>,
        body: &[u8],
        flag: i32,
        serialize: u8,
    ) -> Option<Added> {
        let properties = Properties::of(fields.text(8)?, &self.special)?;
        if made.records.is_empty() {
            made.first = [properties.before, properties.after].concat().into_bytes();
        }
        made.add(self, request, flag, body, &properties, serialize)
    }

    /// Adds the messages of a batch, as `BatchRules.check` takes them; None: something about them is unusual.
    fn batch(
        &self,
        made: &mut Made,
        request: &Request,
        fields: &Fields,
        body: &[u8],
        serialize: u8,
    ) -> Option<Added> {
        if !matches!(fields.text(8), None | Some("" | "WAIT\x01true" | "WAIT\x01true\x02")) {
            return None;
        }
        let mut all = Added::default();
        let mut mark = serialize;
        for message in Messages(body) {
            let message = message?;
            if all.messages == self.batch_messages || message.properties.contains(&0) {
                return None;
            }
            let text = std::str::from_utf8(message.properties).ok()?;
            let found = Indexed::of(text, |name| !self.special.has(name))?;
            let Indexed { tags, keys, unique } = found;
            let properties = Properties { before: text, after: "", tags, keys, unique };
            let added = made.add(self, request, message.flag, message.body, &properties, mark)?;
            all.messages += 1;
            all.keys += added.keys;
            all.bytes += added.bytes;
            all.least = if all.messages == 1 { added.least } else { all.least.min(added.least) };
            all.largest = all.largest.max(added.largest);
            mark = serialize | SAME_REQUEST;
        }
        Some(all).filter(|all| all.messages > 0 && all.keys <= self.batch_keys + all.messages)
    }
}

/// What the messages of a request have in common.
struct Request<'a> {
    topic: &'a str,
    seed: u32,
    group: u32,
    queue_id: i32,
    sys_flag: i32,
    born_ms: i64,
    born_host: [u8; 8],
    opaque: i32,
}

/// What a request has added: messages, keys, bytes of the records, of the smallest and of the largest one.
#[derive(Default)]
struct Added {
    messages: usize,
    keys: usize,
    bytes: usize,
    least: usize,
    largest: usize,
}

/// What the sends have become.
#[derive(Default)]
struct Made {
    records: Vec<u8>,
    rows: Vec<u8>,
    hashes: Vec<u8>,
    /// Properties of the first message; empty: it came in a batch.
    first: Vec<u8>,
}

impl Made {
    /// Makes room for the requests of `data`, of which the first has `frame` bytes.
    fn reserve(&mut self, data: usize, frame: usize) {
        let room = (data + 256).min(1 << 20);
        self.records = Vec::with_capacity(room);
        self.rows = Vec::with_capacity((room / frame.max(64) + 1) * ROW);
        self.hashes = Vec::with_capacity(self.rows.capacity() / ROW * 4);
    }

    fn ends(&self) -> [usize; 3] {
        [self.records.len(), self.rows.len(), self.hashes.len()]
    }

    fn cut(&mut self, ends: [usize; 3]) {
        self.records.truncate(ends[0]);
        self.rows.truncate(ends[1]);
        self.hashes.truncate(ends[2]);
    }

    /// Adds a message; None: it has more properties or keys than it may have.
    #[inline(always)]
    fn add(
        &mut self,
        rules: &SendRules,
        request: &Request,
        flag: i32,
        body: &[u8],
        properties: &Properties,
        serialize: u8,
    ) -> Option<Added> {
        let words = || properties.keys.split(' ').filter(|key| !key.is_empty());
        let unique = Some(properties.unique).filter(|key| !key.is_empty());
        let key_count = words().count();
        let joint = properties.joint();
        let stored = properties.len() + usize::from(joint) + rules.suffix.len();
        if key_count > rules.keys || stored > rules.properties {
            return None;
        }
        let key_count = key_count + usize::from(unique.is_some());
        let topic = request.topic;
        let wide = topic.len() > 127;
        let size = FIXED + usize::from(wide) + 1 + topic.len() + body.len() + stored;
        let rows = &mut self.rows;
        rows.extend_from_slice(&(size as u32).to_be_bytes());
        rows.extend_from_slice(&request.group.to_be_bytes());
        rows.extend_from_slice(&request.opaque.to_be_bytes());
        rows.push(serialize);
        rows.extend_from_slice(&hash_on(0, properties.tags).to_be_bytes());
        rows.extend_from_slice(&(key_count as u16).to_be_bytes());
        for key in unique.into_iter().chain(words()) {
            self.hashes.extend_from_slice(&key_hash(request.seed, key).to_be_bytes());
        }
        let records = &mut self.records;
        records.extend_from_slice(&(size as u32).to_be_bytes());
        records.extend_from_slice(&(if wide { V2 } else { V1 }).to_be_bytes());
        records.extend_from_slice(&(crc32fast::hash(body) & 0x7FFF_FFFF).to_be_bytes());
        records.extend_from_slice(&request.queue_id.to_be_bytes());
        records.extend_from_slice(&flag.to_be_bytes());
        records.extend_from_slice(&[0; 16]); // Queue offset and offset in the log.
        records.extend_from_slice(&(request.sys_flag & !HOSTS).to_be_bytes());
        records.extend_from_slice(&request.born_ms.to_be_bytes());
        records.extend_from_slice(&request.born_host);
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
        records.extend_from_slice(&rules.suffix);
        Some(Added { messages: 1, keys: key_count, bytes: size, least: size, largest: size })
    }
}

fn wrong() -> PyErr {
    PyValueError::new_err("no sends that were split")
}

type Placed<'py> = (Vec<Bound<'py, PyBytes>>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

fn set(cells: &[Cell<u8>], bytes: &[u8]) {
    cells.iter().zip(bytes).for_each(|(cell, byte)| cell.set(*byte));
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn place_sends<'py>(
    py: Python<'py>,
    records: PyBuffer<u8>,
    rows: &[u8],
    hashes: &[u8],
    numbers: Vec<i64>,
    phys: i64,
    room: usize,
    room_min: usize,
    now_ms: i64,
    host: [u8; 8],
) -> PyResult<Option<Placed<'py>>> {
    let made = records.as_mut_slice(py).ok_or_else(wrong)?;
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
        let record = made.get(at..at + size).filter(|record| record.len() >= FIXED).ok_or_else(wrong)?;
        if room < room_min || size + FILLER_MIN > room {
            return Ok(None);
        }
        set(&record[20..28], &number.to_be_bytes());
        set(&record[28..36], &own.to_be_bytes());
        set(&record[56..64], &now_ms.to_be_bytes());
        set(&record[64..72], &host);
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
        record[12..16].iter().for_each(|cell| places.push(cell.get()));
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
    let middle = format!("\",\"TRACE_ON\":\"true\",\"MSG_REGION\":\"{region}\",\"msgId\":\"");
    let end = format!(",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":{version}}}");
    let mut made = Vec::with_capacity(places.len() / PLACE * (start.len() + middle.len() + end.len() + 128));
    let (mut text, mut id, mut fields) = (Vec::new(), Vec::new(), Vec::new());
    let mut rest = places.chunks_exact(PLACE).peekable();
    while let Some(place) = rest.next() {
        let head = made.len();
        let opaque = int(place, 0).ok_or_else(wrong)?;
        let queue_id = int(place, 5).ok_or_else(wrong)?;
        let number = i64::from_be_bytes(place[9..17].try_into().map_err(|_| wrong())?);
        made.extend_from_slice(&[0; 8]);
        let serialize = u32::from(place[4] & !SAME_REQUEST);
        id.clear();
        id.extend_from_slice(host.as_bytes());
        hexadecimal(&mut id, &place[17..25]);
        while let Some(more) = rest.next_if(|more| more[4] & SAME_REQUEST != 0) {
            id.push(b',');
            id.extend_from_slice(host.as_bytes());
            hexadecimal(&mut id, &more[17..25]);
        }
        if serialize == 0 {
            made.extend_from_slice(&start);
            digits(&mut made, i64::from(queue_id));
            made.extend_from_slice(middle.as_bytes());
            made.extend_from_slice(&id);
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
