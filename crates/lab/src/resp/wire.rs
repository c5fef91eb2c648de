//! RESP as a client speaks it: commands out, replies in.
//!
//! A reply becomes an encoded [`Datum`](ordain_model::Datum) on the way in, so that the clients of a workload see the
//! same bytes whether they are embedded or behind a socket. Both encodings put the count of a composite in front of
//! its items, so that a reply that comes in pieces is translated as it comes and nothing is read twice.

use memchr::memchr;
use ordain_model::{Args, Writer};

/// Commands, written one after the other.
#[derive(Debug, Default)]
pub struct Commands {
    /// Bytes to send.
    pub bytes: Vec<u8>,
    /// Number of commands, and so of the replies that will come.
    pub count: u32,
}

impl Commands {
    /// Begins a command of so many words, which are to follow.
    pub fn begin(&mut self, words: usize) -> &mut Commands {
        self.count += 1;
        self.length(b'*', words);
        self
    }

    /// The next word of the command.
    pub fn word(&mut self, word: impl AsRef<[u8]>) -> &mut Commands {
        let word = word.as_ref();
        self.length(b'$', word.len());
        self.bytes.extend_from_slice(word);
        self.bytes.extend_from_slice(b"\r\n");
        self
    }

    /// The next word of the command, a number.
    pub fn number(&mut self, n: i64) -> &mut Commands {
        self.word(n.to_string())
    }

    /// All of these arguments are the next words.
    pub fn args(&mut self, args: Args<'_>) -> &mut Commands {
        args.iter().for_each(|arg| _ = self.word(arg.bytes));
        self
    }

    /// A whole command.
    pub fn command<T: AsRef<[u8]>>(&mut self, words: &[T]) -> &mut Commands {
        self.begin(words.len());
        words.iter().for_each(|word| _ = self.word(word));
        self
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }

    fn length(&mut self, tag: u8, n: usize) {
        let mut digits = [0u8; 20];
        let (mut at, mut left) = (digits.len(), n);
        loop {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        self.bytes.push(tag);
        self.bytes.extend_from_slice(&digits[at..]);
        self.bytes.extend_from_slice(b"\r\n");
    }
}

/// The other end does not speak RESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server's reply is not RESP: it has {0:?} where a reply begins, or a length that is none")]
pub struct WireError(char);

/// The outcome of [`Replies::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// A whole reply ends after so many bytes.
    Whole(usize),
    /// So many bytes are done with, and the reply goes on.
    Part(usize),
}

/// The longest line that is waited for: a length, a number, or the text of an error.
const LINE_MAX: usize = 64 << 10;

/// Reads the replies of one connection.
#[derive(Debug, Default)]
pub struct Replies {
    /// Values that the reply at hand still lacks; 0 between replies.
    owed: u64,
}

impl Replies {
    /// Translates as much of `input` as is there, up to the end of a reply, and appends it to `out`.
    pub fn read(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Read, WireError> {
        let mut at = 0;
        self.owed = self.owed.max(1);
        while self.owed > 0 {
            match value(&input[at..], out)? {
                None => return Ok(Read::Part(at)),
                Some((bytes, items)) => {
                    at += bytes;
                    self.owed = self.owed - 1 + items;
                }
            }
        }
        Ok(Read::Whole(at))
    }
}

/// Translates one value: how many bytes it has, and how many items of it follow. `None` if it is not all there.
fn value(input: &[u8], out: &mut Vec<u8>) -> Result<Option<(usize, u64)>, WireError> {
    let Some((&tag, rest)) = input.split_first() else { return Ok(None) };
    let bad = || WireError(char::from(tag));
    let Some(end) = memchr(b'\r', rest) else {
        return if rest.len() > LINE_MAX { Err(bad()) } else { Ok(None) };
    };
    if rest.len() < end + 2 {
        return Ok(None);
    }
    let (line, after) = (&rest[..end], end + 3);
    let number = || std::str::from_utf8(line).ok()?.parse::<i64>().ok();
    let mut w = Writer(out);
    let items = match tag {
        b'+' => {
            w.status(line);
            0
        }
        b'-' => {
            w.error(line);
            0
        }
        b':' => {
            w.int(number().ok_or_else(bad)?);
            0
        }
        b'_' => {
            w.nil();
            0
        }
        b'#' => {
            w.bool(line == b"t");
            0
        }
        b',' => {
            let double = std::str::from_utf8(line).ok().and_then(|text| text.parse().ok());
            w.double(double.ok_or_else(bad)?);
            0
        }
        b'(' => {
            w.bulk(line);
            0
        }
        b'$' | b'=' | b'!' => {
            let n = number().ok_or_else(bad)?;
            if n < 0 {
                w.nil();
                return Ok(Some((after, 0)));
            }
            let n = usize::try_from(n).map_err(|_| bad())?;
            let Some(text) = input.get(after..).and_then(|tail| tail.get(..n.checked_add(2)?)) else {
                return Ok(None);
            };
            match tag {
                b'!' => w.error(&text[..n]),
                // Three letters for the kind of text, and a colon, come first.
                b'=' => w.bulk(text[..n].get(4..).unwrap_or_default()),
                _ => w.bulk(&text[..n]),
            }
            return Ok(Some((after + n + 2, 0)));
        }
        b'*' | b'~' | b'%' => {
            let n = number().ok_or_else(bad)?;
            let Ok(n) = u32::try_from(n) else {
                w.nil_array();
                return Ok(Some((after, 0)));
            };
            match tag {
                b'*' => w.array(n as usize),
                b'~' => w.set(n as usize),
                _ => w.map(n as usize),
            }
            u64::from(n) * if tag == b'%' { 2 } else { 1 }
        }
        _ => return Err(bad()),
    };
    Ok(Some((after, items)))
}

#[cfg(test)]
mod tests {
    use ordain_model::args;

    use super::*;

    #[test]
    fn commands_are_written_as_arrays() {
        let mut commands = Commands::default();
        let args = args::encode(&["a", ""]);
        commands.begin(4).word("SET").number(-12).args(Args::parse(&args).unwrap());
        commands.command(&["PING"]);
        assert_eq!(
            commands.bytes,
            b"*4\r\n$3\r\nSET\r\n$3\r\n-12\r\n$1\r\na\r\n$0\r\n\r\n*1\r\n$4\r\nPING\r\n"
        );
        assert_eq!(commands.count, 2);
        commands.clear();
        assert!(commands.bytes.is_empty() && commands.count == 0);
        assert_eq!(commands.begin(12_345).bytes, b"*12345\r\n");
    }

    const MIXED: &[u8] =
        b"*7\r\n+OK\r\n:-5\r\n$4\r\na\r\nb\r\n%1\r\n$1\r\nk\r\n~1\r\n#t\r\n,0.5\r\n_\r\n!5\r\nERR x\r\n";

    fn expected() -> Vec<u8> {
        let mut out = Vec::new();
        let mut w = Writer(&mut out);
        w.array(7);
        w.ok();
        w.int(-5);
        w.bulk(b"a\r\nb");
        w.map(1);
        w.bulk(b"k");
        w.set(1);
        w.bool(true);
        w.double(0.5);
        w.nil();
        w.error("ERR x");
        out
    }

    #[test]
    fn replies_become_data_however_they_are_cut() {
        for cut in 1..MIXED.len() {
            let (mut replies, mut out, mut input) = (Replies::default(), Vec::new(), Vec::new());
            let mut whole = false;
            for piece in MIXED.chunks(cut) {
                input.extend_from_slice(piece);
                match replies.read(&input, &mut out).unwrap() {
                    Read::Part(bytes) => drop(input.drain(..bytes)),
                    Read::Whole(bytes) => {
                        assert_eq!(bytes, input.len());
                        whole = true;
                    }
                }
            }
            assert!(whole, "cut into {cut}");
            assert_eq!(out, expected(), "cut into {cut}");
        }
    }

    #[test]
    fn one_reply_is_read_at_a_time_and_nothings_differ() {
        let (mut replies, mut out) = (Replies::default(), Vec::new());
        let input = b"$-1\r\n*-1\r\n*0\r\n=5\r\ntxt:x\r\n";
        let mut at = 0;
        while at < input.len() {
            let Read::Whole(bytes) = replies.read(&input[at..], &mut out).unwrap() else { panic!() };
            at += bytes;
        }
        let mut expected = Vec::new();
        let mut w = Writer(&mut expected);
        w.nil();
        w.nil_array();
        w.array(0);
        w.bulk(b"x");
        assert_eq!(out, expected);
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        for bad in [&b"HTTP/1.1 400 Bad Request\r\n"[..], b":x\r\n", b"$x\r\n", b"*1x\r\n", b",x\r\n"] {
            assert!(Replies::default().read(bad, &mut Vec::new()).is_err(), "{}", bad.escape_ascii());
        }
        let endless = [b'+'; LINE_MAX + 2];
        assert!(Replies::default().read(&endless, &mut Vec::new()).is_err());
    }
}
