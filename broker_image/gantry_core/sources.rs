//! Compiles the CRC-32 of all sources into the module: `gantry_core` never uses one that was made from other sources.

use std::{env, fs, path::Path};

fn crc32(crc: u32, data: &[u8]) -> u32 {
    let mut crc = !crc;
    for byte in data {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & (0u32.wrapping_sub(crc & 1)));
        }
    }
    !crc
}

fn main() {
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR").unwrap()).join("src");
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().map_or(false, |end| end == "rs"))
        .collect();
    files.sort();
    let crc = files
        .iter()
        .fold(0, |crc, path| crc32(crc, &fs::read(path).unwrap()));
    println!("cargo:rustc-env=GANTRY_CORE_SOURCES={crc:08x}");
    println!("cargo:rerun-if-changed={}", folder.display());
}
