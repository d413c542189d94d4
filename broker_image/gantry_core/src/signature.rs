//! The signatures of requests: HMAC-SHA1 over the values of a header's fields, in the order of their names, and the body.

use crate::json::Json;
use hmac::{Hmac, Mac};
use pyo3::prelude::*;
use sha1::Sha1;
use std::borrow::Cow;

const SIGNATURE: &str = "Signature";
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const DIGEST: usize = 20;

type Named<'a> = (Cow<'a, str>, Cow<'a, str>);

fn number(data: &[u8], at: usize, width: usize) -> Option<usize> {
    let bytes = data.get(at..at.checked_add(width)?)?;
    Some(bytes.iter().fold(0, |value, byte| value << 8 | usize::from(*byte)))
}

fn json_fields(header: &[u8]) -> Option<Vec<Named<'_>>> {
    let mut json = Json::new(std::str::from_utf8(header).ok()?);
    let mut found = Vec::with_capacity(24);
    json.object(|json, name| {
        if name != "extFields" {
            return json.scalar();
        }
        found.clear();
        json.object(|json, name| {
            found.push((name, json.string()?));
            Some(())
        })
    })?;
    if json.peek().is_some() {
        return None;
    }
    Some(found)
}

fn compact_fields(header: &[u8]) -> Option<Vec<Named<'_>>> {
    let mut at = 21usize.checked_add(number(header, 13, 4)?)?;
    let mut found = Vec::with_capacity(24);
    while at < header.len() {
        let mut texts = ["", ""];
        for (text, width) in texts.iter_mut().zip([2, 4]) {
            let size = number(header, at, width)?;
            let begin = at + width;
            at = begin.checked_add(size)?;
            *text = std::str::from_utf8(header.get(begin..at)?).ok()?;
        }
        found.push((Cow::Borrowed(texts[0]), Cow::Borrowed(texts[1])));
    }
    Some(found)
}

/// A digest as it stands in the header, in Base64.
fn text_of(digest: &[u8; DIGEST]) -> [u8; 28] {
    let mut made = [b'='; 28];
    for (three, four) in digest.chunks(3).zip(made.chunks_mut(4)) {
        let value = three.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for (place, letter) in four.iter_mut().enumerate().take(three.len() + 1) {
            *letter = DIGITS[(value >> (18 - 6 * place) & 63) as usize];
        }
    }
    made
}

/// Whether the frame is signed with one of the keys; None: it cannot be read.
fn is_signed(header: &[u8], body: &[u8], compact: bool, keys: &[Hmac<Sha1>]) -> Option<bool> {
    let mut fields = if compact { compact_fields(header)? } else { json_fields(header)? };
    fields.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    if fields.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return None;
    }
    let given = fields.iter().find(|field| field.0 == SIGNATURE).map(|field| field.1.as_bytes())?;
    if given.len() != 28 {
        return None;
    }
    let mut content = Vec::with_capacity(header.len() + body.len());
    for (name, value) in &fields {
        if name != SIGNATURE {
            content.extend_from_slice(value.as_bytes());
        }
    }
    content.extend_from_slice(body);
    let mut valid = false;
    for key in keys {
        let mut hash = key.clone();
        hash.update(&content);
        let wanted = text_of(&hash.finalize().into_bytes().into());
        // All bytes are compared: the time says nothing about them.
        let other = wanted.iter().zip(given).fold(0, |other, (one, two)| other | (one ^ two));
        valid |= other == 0;
    }
    Some(valid)
}

fn all_signed(data: &[u8], keys: &[Hmac<Sha1>]) -> Option<bool> {
    let mut at = 0;
    while at < data.len() {
        let (length, kind, size) = (number(data, at, 4)?, number(data, at + 4, 1)?, number(data, at + 5, 3)?);
        let stop = at.checked_add(4)?.checked_add(length)?;
        let frame = data.get(at + 8..stop)?;
        if kind > 1 || size > frame.len() || !is_signed(&frame[..size], &frame[size..], kind == 1, keys)? {
            return None;
        }
        at = stop;
    }
    Some(at > 0)
}

#[pyfunction]
pub fn signed_frames(data: &[u8], end: usize, keys: Vec<Vec<u8>>) -> bool {
    let keyed: Option<Vec<Hmac<Sha1>>> = keys.iter().map(|key| Hmac::new_from_slice(key).ok()).collect();
    match (keyed, data.get(..end)) {
        (Some(keyed), Some(data)) => all_signed(data, &keyed).unwrap_or(false),
        _ => false,
    }
}
