//! The signatures of sends: HMAC-SHA1 over what `sends.rs` has put together.

use hmac::{Hmac, Mac};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sha1::Sha1;

/// Characters of a digest in Base64.
pub const GIVEN: usize = 28;
const HEAD: usize = 4 + GIVEN;
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const DIGEST: usize = 20;

/// A digest as it stands in the header, in Base64.
fn text_of(digest: &[u8; DIGEST]) -> [u8; GIVEN] {
    let mut made = [b'='; GIVEN];
    for (three, four) in digest.chunks(3).zip(made.chunks_mut(4)) {
        let value = three.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for (place, letter) in four.iter_mut().enumerate().take(three.len() + 1) {
            *letter = DIGITS[(value >> (18 - 6 * place) & 63) as usize];
        }
    }
    made
}

/// The keys of a user: the state of the hash behind each of them.
#[pyclass(frozen, module = "gantry_core")]
pub struct SignatureKeys(Vec<Hmac<Sha1>>);

#[pymethods]
impl SignatureKeys {
    #[new]
    fn new(keys: Vec<Vec<u8>>) -> PyResult<Self> {
        let keyed = keys.iter().map(|key| Hmac::new_from_slice(key)).collect::<Result<_, _>>();
        keyed.map(SignatureKeys).map_err(|_| PyValueError::new_err("no keys"))
    }

    fn signed(&self, parts: &[u8]) -> bool {
        let mut rest = parts;
        while !rest.is_empty() {
            match self.next(rest) {
                Some(after) => rest = after,
                None => return false,
            }
        }
        !parts.is_empty()
    }
}

impl SignatureKeys {
    /// What follows the first part; None: it has no signature with one of the keys.
    fn next<'a>(&self, rest: &'a [u8]) -> Option<&'a [u8]> {
        let size = usize::try_from(u32::from_be_bytes(rest.get(..4)?.try_into().ok()?)).ok()?;
        let given = rest.get(4..HEAD)?;
        let content = rest.get(HEAD..HEAD.checked_add(size)?)?;
        let mut valid = false;
        for key in &self.0 {
            let mut hash = key.clone();
            hash.update(content);
            let wanted = text_of(&hash.finalize().into_bytes().into());
            // All bytes are compared: the time says nothing about them.
            let other = wanted.iter().zip(given).fold(0, |other, (one, two)| other | (one ^ two));
            valid |= other == 0;
        }
        Some(&rest[HEAD + size..]).filter(|_| valid)
    }
}
