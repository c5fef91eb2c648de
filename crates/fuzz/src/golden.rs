//! Golden bytes: encodings on disk and between nodes, which must stay as they are.

use std::fmt::Write as _;

/// Names the environment variable that has golden files written anew instead of compared.
const BLESS: &str = "ORDAIN_BLESS";

/// Compares encodings with the golden file at `path`, which has one line `name hex` for each.
///
/// # Panics
/// If an encoding differs from its line, or lines are missing or left over.
pub fn golden(path: &str, encodings: &[(&str, Vec<u8>)]) {
    let mut found = String::new();
    for (name, bytes) in encodings {
        found.push_str(name);
        found.push(' ');
        bytes.iter().for_each(|byte| _ = write!(found, "{byte:02x}"));
        found.push('\n');
    }
    if std::env::var_os(BLESS).is_some() {
        return std::fs::write(path, found).unwrap_or_else(|e| panic!("cannot write {path}: {e}"));
    }
    let expected = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("cannot read {path}: {e}"));
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected, "the bytes have changed");
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "{path} has other lines");
}

/// Hands `decode` every truncation of some bytes, and the bytes with each single bit flipped.
pub fn damage_each(bytes: &[u8], mut decode: impl FnMut(&[u8])) {
    (0..bytes.len()).for_each(|cut| decode(&bytes[..cut]));
    let mut flipped = bytes.to_vec();
    for bit in 0..bytes.len() * 8 {
        flipped[bit / 8] ^= 1 << (bit % 8);
        decode(&flipped);
        flipped[bit / 8] ^= 1 << (bit % 8);
    }
}
