//! Properties and the hashes of texts.

use pyo3::prelude::*;

pub const NAME_END: u8 = 1;
pub const PIECE_END: u8 = 2;

/// Java's `String.hashCode` of a text that continues one with the hash `value`: over UTF-16 code units.
pub fn hash_on(value: u32, text: &str) -> u32 {
    if text.is_ascii() {
        text.bytes().fold(value, |value, unit| {
            value.wrapping_mul(31).wrapping_add(u32::from(unit))
        })
    } else {
        text.encode_utf16().fold(value, |value, unit| {
            value.wrapping_mul(31).wrapping_add(u32::from(unit))
        })
    }
}

/// The hash under which the index files a key. `seed`: the hash of "topic#".
pub fn key_hash(seed: u32, key: &str) -> i32 {
    // The least number has no absolute value.
    (hash_on(seed, key) as i32).checked_abs().unwrap_or(0)
}

#[pyfunction(name = "key_hash")]
pub fn hash_of_key(topic: &str, key: &str) -> i32 {
    key_hash(hash_on(hash_on(0, topic), "#"), key)
}

/// The values of the properties that the broker indexes; the last one of a name counts.
#[derive(Default)]
pub struct Indexed<'a> {
    pub tags: &'a str,
    pub keys: &'a str,
    pub unique: &'a str,
}

impl<'a> Indexed<'a> {
    /// Calls `other` with each other name, and stops when it returns false. None: it did.
    pub fn of(properties: &'a str, mut other: impl FnMut(&str) -> bool) -> Option<Self> {
        let mut found = Indexed::default();
        for piece in properties.split(PIECE_END as char) {
            let at = match piece.as_bytes().iter().position(|byte| *byte == NAME_END) {
                Some(at) if at > 0 => at,
                _ => continue,
            };
            let (name, value) = (&piece[..at], &piece[at + 1..]);
            match name {
                "TAGS" => found.tags = value,
                "KEYS" => found.keys = value,
                "UNIQ_KEY" => found.unique = value,
                _ => {
                    if !other(name) {
                        return None;
                    }
                }
            }
        }
        Some(found)
    }

    /// The keys of the index: the unique one, then the words of KEYS, `most` of them at most.
    pub fn words(&self, most: usize) -> impl Iterator<Item = &'a str> {
        let unique = Some(self.unique).filter(|key| !key.is_empty());
        let words = self.keys.split(' ').filter(|key| !key.is_empty());
        unique.into_iter().chain(words.take(most))
    }
}
