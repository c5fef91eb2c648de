//! Replies as a client reads them: cut out of the stream, RESP2 or RESP3, and written on one line.
//!
//! The line is the compact form of transcripts: `"bytes"` with Rust's escapes, `:7`, `+status`, `-error`, `_` for nil,
//! `[array]`, `{map}`, `~[set]`, `>[push]`, `#t`, `,1.5`, `(12345` and `="verbatim"`.

use std::fmt::Write as _;

/// The reason why some bytes are no reply.
pub type Malformed = &'static str;

/// A reply cut out of what a connection has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The compact form.
    pub text: String,
    /// The compact forms of its items, if it has any.
    pub items: Vec<String>,
    /// The number of bytes that it took.
    pub len: usize,
}

/// Reads the first reply of some bytes; `None` if it is not whole.
///
/// # Errors
/// The bytes are no reply.
pub fn first(bytes: &[u8]) -> Result<Option<Reply>, Malformed> {
    let mut reader = Reader { bytes, at: 0 };
    let mut items = Vec::new();
    let text = match reader.value(&mut items) {
        Ok(text) => text,
        Err(Stop::Cut) => return Ok(None),
        Err(Stop::Malformed(reason)) => return Err(reason),
    };
    Ok(Some(Reply { text, items, len: reader.at }))
}

/// The number of whole replies that some bytes are made of.
///
/// # Errors
/// The bytes are something else.
pub fn count(mut bytes: &[u8]) -> Result<usize, Malformed> {
    let mut count = 0;
    while !bytes.is_empty() {
        let reply = first(bytes)?.ok_or("a reply is cut")?;
        bytes = &bytes[reply.len..];
        count += 1;
    }
    Ok(count)
}

/// Encodes a command as clients do: an array of bulk strings.
pub fn command<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The reason why a reader does not go on.
enum Stop {
    Cut,
    Malformed(Malformed),
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.bytes[self.at..];
        let end = rest.windows(2).position(|pair| pair == b"\r\n").ok_or(Stop::Cut)?;
        self.at += end + 2;
        Ok(&rest[..end])
    }

    fn bulk(&mut self, len: usize) -> Result<&'a [u8], Stop> {
        let rest = &self.bytes[self.at..];
        if rest.len() < len + 2 {
            return Err(Stop::Cut);
        }
        if &rest[len..len + 2] != b"\r\n" {
            return Err(Stop::Malformed("a value is longer than it says"));
        }
        self.at += len + 2;
        Ok(&rest[..len])
    }

    fn value(&mut self, items: &mut Vec<String>) -> Result<String, Stop> {
        let line = self.line()?;
        let (kind, rest) = line.split_first().ok_or(Stop::Malformed("an empty line"))?;
        let text = String::from_utf8_lossy(rest);
        let number = || text.parse::<i64>().map_err(|_| Stop::Malformed("no number"));
        Ok(match kind {
            b'+' | b'-' | b'(' | b',' | b'#' => String::from_utf8_lossy(line).into_owned(),
            b':' => format!(":{}", number()?),
            b'_' if rest.is_empty() => "_".to_owned(),
            b'$' | b'*' if rest == b"-1" => "_".to_owned(),
            b'$' | b'=' | b'!' => {
                let len = usize::try_from(number()?).map_err(|_| Stop::Malformed("a negative length"))?;
                let bytes = self.bulk(len)?;
                match kind {
                    b'=' => format!("=\"{}\"", bytes.get(4..).unwrap_or(bytes).escape_ascii()),
                    b'!' => format!("!\"{}\"", bytes.escape_ascii()),
                    _ => format!("\"{}\"", bytes.escape_ascii()),
                }
            }
            b'*' | b'~' | b'>' | b'%' => {
                let count = usize::try_from(number()?).map_err(|_| Stop::Malformed("a negative count"))?;
                let count = if *kind == b'%' { 2 * count } else { count };
                for _ in 0..count {
                    let item = self.value(&mut Vec::new())?;
                    items.push(item);
                }
                let (open, close) = match kind {
                    b'~' => ("~[", "]"),
                    b'>' => (">[", "]"),
                    b'%' => ("{", "}"),
                    _ => ("[", "]"),
                };
                format!("{open}{}{close}", items.join(" "))
            }
            _ => return Err(Stop::Malformed("a value of no known type")),
        })
    }
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
    fn replies_are_cut_out_of_the_stream_and_written_on_a_line() {
        for (bytes, text) in [
            (&b"+OK\r\n"[..], "+OK"),
            (b"-ERR no\r\n", "-ERR no"),
            (b"$-1\r\n", "_"),
            (b"*-1\r\n", "_"),
            (b"$3\r\na\r\n\r\n", "\"a\\r\\n\""),
            (b"*2\r\n:1\r\n*1\r\n$0\r\n\r\n", "[:1 [\"\"]]"),
            (b"%1\r\n+a\r\n~1\r\n#t\r\n", "{+a ~[#t]}"),
            (b"=5\r\ntxt:x\r\n", "=\"x\""),
            (b",1.5\r\n", ",1.5"),
        ] {
            let reply = first(bytes).unwrap().unwrap();
            assert_eq!((reply.text.as_str(), reply.len), (text, bytes.len()));
            for cut in 0..bytes.len() {
                assert_eq!(first(&bytes[..cut]), Ok(None), "{text} cut at {cut}");
            }
        }
        assert_eq!(count(b":1\r\n$1\r\nx\r\n"), Ok(2));
        assert!(count(b":1\r\n$1\r\n").is_err());
        assert!(first(b"$1\r\nxyz\r\n").is_err());
        assert!(first(b"?\r\n").is_err());
    }

    #[test]
    fn words_are_quoted_as_inline_commands_read_them() {
        for word in [&b"plain"[..], b"", b"two words", b"\"", b"\\x", b"\0\xff\r\n\t", b"it's"] {
            assert_eq!(crate::transcript::words_of(&quoted(word)), Ok(vec![word.to_vec()]));
        }
    }
}
