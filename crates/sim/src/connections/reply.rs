//! Replies as a client reads them, of RESP2 and RESP3.

/// A reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A simple string.
    Status(Vec<u8>),
    /// An error: its text.
    Error(Vec<u8>),
    /// An integer.
    Int(i64),
    /// A bulk string, or a verbatim one without its format.
    Bulk(Vec<u8>),
    /// Nothing there: of RESP2 in either form, or of RESP3.
    Nil,
    /// An array, set or push.
    Array(Vec<Reply>),
    /// A map: keys and values in turns.
    Map(Vec<Reply>),
    /// A double, as text.
    Double(Vec<u8>),
    /// A truth value.
    Bool(bool),
}

/// The bytes are no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no reply begins with {0:02x?}")]
pub struct NoReply(Vec<u8>);

/// The deepest that replies may be in each other.
const DEPTH_MAX: usize = 64;

impl Reply {
    /// Reads the reply at the start of `bytes`, and the number of bytes that it takes; `None` if it is not whole yet.
    ///
    /// # Errors
    /// It is none.
    pub fn read(bytes: &[u8]) -> Result<Option<(Reply, usize)>, NoReply> {
        let mut reader = Reader { bytes, at: 0 };
        let reply = reader.reply(DEPTH_MAX)?;
        Ok(reply.map(|reply| (reply, reader.at)))
    }

    /// Whether this is an error with a text that begins so.
    pub fn is_error(&self, prefix: &str) -> bool {
        matches!(self, Reply::Error(text) if text.starts_with(prefix.as_bytes()))
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn none(&self) -> NoReply {
        NoReply(self.bytes.iter().take(32).copied().collect())
    }

    fn line(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        self.at += end + 2;
        Some(&rest[..end])
    }

    fn reply(&mut self, depth: usize) -> Result<Option<Reply>, NoReply> {
        let Some(line) = self.line() else { return Ok(None) };
        let (kind, rest) = line.split_first().filter(|_| depth > 0).ok_or_else(|| self.none())?;
        let number = || std::str::from_utf8(rest).ok().and_then(|text| text.parse::<i64>().ok());
        let number = || number().ok_or_else(|| self.none());
        Ok(Some(match kind {
            b'+' => Reply::Status(rest.to_vec()),
            b'-' => Reply::Error(rest.to_vec()),
            b':' => Reply::Int(number()?),
            b',' => Reply::Double(rest.to_vec()),
            b'_' => Reply::Nil,
            b'#' => Reply::Bool(rest == b"t"),
            b'$' | b'=' => match number()? {
                -1 => Reply::Nil,
                len => {
                    let len = usize::try_from(len).map_err(|_| self.none())?;
                    let Some(bulk) = self.bytes.get(self.at..self.at + len + 2) else { return Ok(None) };
                    if !bulk.ends_with(b"\r\n") {
                        return Err(self.none());
                    }
                    self.at += len + 2;
                    let format = if *kind == b'=' { 4.min(len) } else { 0 };
                    Reply::Bulk(bulk[format..len].to_vec())
                }
            },
            b'*' | b'~' | b'>' | b'%' => match number()? {
                -1 => Reply::Nil,
                len => {
                    let len = usize::try_from(len).map_err(|_| self.none())?;
                    let len = if *kind == b'%' { 2 * len } else { len };
                    let mut parts = Vec::new();
                    for _ in 0..len {
                        let Some(part) = self.reply(depth - 1)? else { return Ok(None) };
                        parts.push(part);
                    }
                    if *kind == b'%' { Reply::Map(parts) } else { Reply::Array(parts) }
                }
            },
            _ => return Err(self.none()),
        }))
    }
}

/// Appends a command as clients write it: an array of its words.
pub fn write_command(words: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_whole_or_not_yet() {
        let bytes = b"*3\r\n$2\r\nab\r\n:-7\r\n%1\r\n+k\r\n_\r\nrest";
        let map = Reply::Map(vec![Reply::Status(b"k".to_vec()), Reply::Nil]);
        let whole = Reply::Array(vec![Reply::Bulk(b"ab".to_vec()), Reply::Int(-7), map]);
        let len = bytes.len() - 4;
        assert_eq!(Reply::read(bytes), Ok(Some((whole, len))));
        for cut in 0..len {
            assert_eq!(Reply::read(&bytes[..cut]), Ok(None), "{cut} bytes");
        }
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        for bytes in [&b"hello\r\n"[..], b"\r\n", b":x\r\n", b"$2\r\nabcd", b"*x\r\n"] {
            assert!(Reply::read(bytes).is_err(), "{bytes:?}");
        }
        assert!(Reply::Error(b"UNKNOWN who".to_vec()).is_error("UNKNOWN"));
    }

    #[test]
    fn nil_has_three_forms() {
        for bytes in [&b"$-1\r\n"[..], b"*-1\r\n", b"_\r\n"] {
            assert_eq!(Reply::read(bytes), Ok(Some((Reply::Nil, bytes.len()))));
        }
    }
}
