//! Replies and words as transcripts write them.

use std::fmt::Write as _;

use ordain_resp::client::Reply;

/// Reads the first reply of some bytes, and the number of bytes that it takes; `None` if it is not whole.
///
/// # Errors
/// The bytes are no reply.
pub fn first(bytes: &[u8]) -> Result<Option<(Reply, usize)>, String> {
    Reply::read(bytes).map_err(|error| error.to_string())
}

/// The number of whole replies that some bytes are made of.
///
/// # Errors
/// The bytes are something else.
pub fn count(mut bytes: &[u8]) -> Result<usize, String> {
    let mut count = 0;
    while !bytes.is_empty() {
        let (_, len) = first(bytes)?.ok_or("a reply is cut")?;
        bytes = &bytes[len..];
        count += 1;
    }
    Ok(count)
}

/// Writes what a connection has received, line by line, as transcripts do.
pub fn lines(received: &[u8]) -> Vec<String> {
    let text = received.escape_ascii().to_string();
    let text = text.replace("\\r\\n", "\n").replace("\\'", "'").replace("\\\"", "\"");
    text.lines().map(str::to_owned).collect()
}

/// Writes a word as an inline command has it, quoted where it must be.
pub fn quoted(word: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
    if !word.is_empty() && word.iter().all(is_plain) {
        return String::from_utf8_lossy(word).into_owned();
    }
    let mut text = String::from("\"");
    for byte in word {
        match byte {
            b'"' | b'\\' => _ = write!(text, "\\{}", char::from(*byte)),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            b' '..=b'~' => text.push(char::from(*byte)),
            other => _ = write!(text, "\\x{other:02x}"),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_inline_commands_read_them() {
        for word in [&b"plain"[..], b"", b"two words", b"\"", b"\\x", b"\0\xff\r\n\t", b"it's"] {
            assert_eq!(crate::transcript::words_of(&quoted(word)), Ok(vec![word.to_vec()]));
        }
    }
}
