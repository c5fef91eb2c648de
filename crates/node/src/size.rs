//! Sizes in bytes, as flags and configuration files give them.

use serde::{Deserialize, Serialize};

/// A number of bytes, read and written as Redis does ([`parse_size`](ordain_model::options::parse_size)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SizeText", into = "u64")]
pub struct Size(pub u64);

/// A size as a file may have it.
#[derive(Deserialize)]
#[serde(untagged)]
enum SizeText {
    Bytes(u64),
    Text(String),
}

/// A text is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no size: give a number of bytes, with k, kb, m, mb, g or gb after it, as 200mb")]
pub struct NoSize(String);

impl std::str::FromStr for Size {
    type Err = NoSize;

    fn from_str(text: &str) -> Result<Size, NoSize> {
        ordain_model::options::parse_size(text).map(Size).ok_or_else(|| NoSize(text.to_owned()))
    }
}

impl TryFrom<SizeText> for Size {
    type Error = NoSize;

    fn try_from(text: SizeText) -> Result<Size, NoSize> {
        match text {
            SizeText::Bytes(bytes) => Ok(Size(bytes)),
            SizeText::Text(text) => text.parse(),
        }
    }
}

impl From<Size> for u64 {
    fn from(size: Size) -> u64 {
        size.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_or_texts_in_a_file() {
        #[derive(Debug, Deserialize, Serialize)]
        struct File {
            size: Size,
        }
        let read = |text: &str| toml::from_str::<File>(text).map(|file| file.size.0);
        assert_eq!(read("size = \"200mb\""), Ok(200 << 20));
        assert_eq!(read("size = 4096"), Ok(4096));
        assert_eq!(toml::to_string(&File { size: Size(4096) }).unwrap(), "size = 4096\n");
        let refused = read("size = \"much\"").unwrap_err().to_string();
        assert!(refused.contains("much is no size"), "{refused}");
    }
}
