//! Rows of the archive to its columns.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

const ROW: usize = 28;
const KEY: usize = 12;
const COLUMNS: [(usize, usize); 4] = [(0, 8), (8, 4), (12, 8), (20, 8)];

#[pyfunction]
pub fn archived_columns<'py>(py: Python<'py>, rows: &[u8]) -> Bound<'py, PyBytes> {
    let out = py.allow_threads(|| {
        let mut out = Vec::with_capacity(rows.len());
        for (at, size) in COLUMNS {
            for row in rows.chunks_exact(ROW) {
                out.extend(row[at..at + size].iter().rev());
            }
        }
        out
    });
    PyBytes::new(py, &out)
}

#[pyfunction]
pub fn archived_keys<'py>(py: Python<'py>, rows: &[u8]) -> Bound<'py, PyBytes> {
    let out = py.allow_threads(|| {
        let mut keys: Vec<(i32, i64)> = rows
            .chunks_exact(KEY)
            .map(|row| {
                let (hash, place) = row.split_at(4);
                (
                    i32::from_be_bytes(hash.try_into().unwrap_or_default()),
                    i64::from_be_bytes(place.try_into().unwrap_or_default()),
                )
            })
            .collect();
        keys.sort_unstable();
        let mut out = Vec::with_capacity(keys.len() * KEY);
        out.extend(keys.iter().flat_map(|(hash, _)| hash.to_le_bytes()));
        out.extend(keys.iter().flat_map(|(_, place)| place.to_le_bytes()));
        out
    });
    PyBytes::new(py, &out)
}
