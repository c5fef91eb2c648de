//! A small JSON file with a checksum over all of its bytes, written as a whole: a crash leaves the former content or the
//! new one, and a flipped bit is found.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Serialize, de::DeserializeOwned};

/// What stands before the eight hexadecimal digits, and after them. They are counted as zeros.
const BEFORE: &str = ",\n  \"checksum\": \"";
const AFTER: &str = "\"\n}\n";
const DIGITS: usize = 8;
const ZEROS: &str = "00000000";

/// The bytes of a file that holds a value, which must be written as a JSON object.
pub(crate) fn seal<T: Serialize>(value: &T) -> serde_json::Result<String> {
    let text = serde_json::to_string_pretty(value)?;
    let open = text.strip_suffix('}').unwrap_or(&text).trim_end();
    let whole = format!("{open}{BEFORE}{ZEROS}{AFTER}");
    let sum = format!("{:08x}", crc32c::crc32c(whole.as_bytes()));
    Ok(format!("{open}{BEFORE}{sum}{AFTER}"))
}

/// Reads the value out of the bytes of a file. Fields that the type does not have are up to the type.
///
/// # Errors
/// Why the bytes are not what was written.
pub(crate) fn unseal<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let end = bytes.len().checked_sub(AFTER.len() + DIGITS).ok_or("it is cut short")?;
    let (body, rest) = bytes.split_at(end);
    let (digits, after) = rest.split_at(DIGITS);
    if after != AFTER.as_bytes() || !body.ends_with(BEFORE.as_bytes()) {
        return Err("it does not end with a checksum".to_owned());
    }
    let whole = [body, ZEROS.as_bytes(), after].concat();
    if format!("{:08x}", crc32c::crc32c(&whole)).as_bytes() != digits {
        return Err("its checksum is not that of its content".to_owned());
    }
    let without = [&body[..body.len() - BEFORE.len()], b"\n}"].concat();
    serde_json::from_slice(&without).map_err(|error| error.to_string())
}

/// Writes a file of a directory: aside, then renamed, so that a crash leaves the former content or the new one. Only its
/// owner may read it.
///
/// # Errors
/// The system's; the former content is still there then.
pub(crate) fn write<T: Serialize>(directory: &Path, file: &str, value: &T) -> std::io::Result<()> {
    let aside = directory.join(format!("{file}.new"));
    let mut options = fs::OpenOptions::new();
    let mut open = options.write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
    open.write_all(seal(value)?.as_bytes())?;
    open.sync_all()?;
    fs::rename(&aside, directory.join(file))?;
    fs::File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
    struct Some {
        name: String,
        numbers: Vec<u32>,
    }

    #[test]
    fn no_bit_can_be_flipped_and_nothing_be_cut() {
        let directory = tempfile::tempdir().unwrap();
        let value = Some { name: "a \"name\", }".into(), numbers: vec![1, 2, 70_000] };
        write(directory.path(), "some.json", &value).unwrap();
        let bytes = fs::read(directory.path().join("some.json")).unwrap();
        assert_eq!(unseal::<Some>(&bytes).unwrap(), value);
        // It stays what other tools can read.
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["numbers"][2], 70_000);
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(unseal::<Some>(&other).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(unseal::<Some>(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left aside");
    }
}
