//! The compiled half of `gantry_core`: pure functions over bytes. `_python.py` beside it is their specification.
#![forbid(unsafe_code)]

mod batch;
mod columns;
mod index;
mod json;
mod reads;
mod records;
mod rows;
mod sends;
mod signature;
mod text;

use pyo3::prelude::*;

#[pymodule]
fn gantry_core_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("SOURCES", env!("GANTRY_CORE_SOURCES"))?;
    module.add_class::<batch::BatchRules>()?;
    module.add_function(wrap_pyfunction!(batch::batch_records, module)?)?;
    module.add_function(wrap_pyfunction!(batch::entry_sizes, module)?)?;
    module.add_function(wrap_pyfunction!(batch::message_ids, module)?)?;
    module.add_function(wrap_pyfunction!(index::index_entries, module)?)?;
    module.add_function(wrap_pyfunction!(index::key_times, module)?)?;
    module.add_function(wrap_pyfunction!(records::plain_records, module)?)?;
    module.add_function(wrap_pyfunction!(records::archived_records, module)?)?;
    module.add_function(wrap_pyfunction!(records::checked_records, module)?)?;
    module.add_function(wrap_pyfunction!(records::size_of_whole, module)?)?;
    module.add_function(wrap_pyfunction!(columns::archived_columns, module)?)?;
    module.add_function(wrap_pyfunction!(columns::archived_keys, module)?)?;
    module.add_function(wrap_pyfunction!(rows::record_rows, module)?)?;
    module.add_function(wrap_pyfunction!(rows::row_slices, module)?)?;
    module.add_function(wrap_pyfunction!(rows::row_properties, module)?)?;
    module.add_function(wrap_pyfunction!(rows::row_maps, module)?)?;
    module.add_class::<sends::SendRules>()?;
    module.add_function(wrap_pyfunction!(sends::place_sends, module)?)?;
    module.add_function(wrap_pyfunction!(sends::send_answers, module)?)?;
    module.add_class::<signature::SignatureKeys>()?;
    module.add_function(wrap_pyfunction!(reads::wanted_records, module)?)?;
    module.add_function(wrap_pyfunction!(reads::gather_records, module)?)?;
    module.add_function(wrap_pyfunction!(reads::near_records, module)?)?;
    module.add_function(wrap_pyfunction!(reads::records_named, module)?)?;
    module.add_function(wrap_pyfunction!(reads::records_whole, module)?)?;
    module.add_function(wrap_pyfunction!(index::set_slots, module)?)?;
    module.add_function(wrap_pyfunction!(text::hash_of_key, module)?)?;
    Ok(())
}
