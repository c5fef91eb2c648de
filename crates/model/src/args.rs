//! The arguments of a call, as they stand in a chunk and in the log: a count, then length-prefixed items.
//!
//! An argument knows its offset, so that a plan can point at a key inside the arguments instead of copying
//! it, and a fragment finds what follows its key without walking from the start.

/// The length that stands before each argument.
pub const WORD: usize = 4;

/// Borrowed arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Args<'a> {
    bytes: &'a [u8],
}

/// An argument: its bytes and its place, in bytes from the start of the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arg<'a> {
    /// The argument.
    pub bytes: &'a [u8],
    /// The offset of the argument's length prefix.
    pub at: u32,
}

impl<'a> Args<'a> {
    /// Views an encoding made by [`ArgsBuilder`].
    ///
    /// # Errors
    /// `None` if the bytes are not an encoding.
    pub fn parse(bytes: &'a [u8]) -> Option<Args<'a>> {
        let args = Args { bytes };
        let (count, mut rest) = bytes.split_first_chunk::<WORD>()?;
        for _ in 0..u32::from_le_bytes(*count) {
            let (len, tail) = rest.split_first_chunk::<WORD>()?;
            rest = tail.get(u32::from_le_bytes(*len) as usize..)?;
        }
        rest.is_empty().then_some(args)
    }

    /// Views bytes that are known to be an encoding, without checking; a damaged one reads as fewer items.
    #[inline]
    pub(crate) fn trusted(bytes: &'a [u8]) -> Args<'a> {
        Args { bytes }
    }

    /// The number of arguments.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.first_chunk::<WORD>().map_or(0, |n| u32::from_le_bytes(*n) as usize)
    }

    /// True without arguments.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Walks the arguments.
    #[inline]
    pub fn iter(&self) -> ArgIter<'a> {
        ArgIter { bytes: self.bytes, at: WORD.min(self.bytes.len()) }
    }

    /// Argument `i`, found by walking.
    pub fn get(&self, i: usize) -> Option<&'a [u8]> {
        self.iter().nth(i).map(|a| a.bytes)
    }

    /// Walks the arguments from the one at `offset` on (an [`Arg::at`] of these arguments).
    #[inline]
    pub fn from_offset(&self, offset: u32) -> ArgIter<'a> {
        ArgIter { bytes: self.bytes, at: offset as usize }
    }

    /// The whole encoding.
    pub fn encoded(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> IntoIterator for Args<'a> {
    type Item = Arg<'a>;
    type IntoIter = ArgIter<'a>;

    fn into_iter(self) -> ArgIter<'a> {
        self.iter()
    }
}

/// Walks arguments in order.
#[derive(Clone, Copy, Debug)]
pub struct ArgIter<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> ArgIter<'a> {
    /// The next argument's bytes; empty when there is none, for callers that checked the count before.
    #[inline]
    pub fn bytes(&mut self) -> &'a [u8] {
        self.next().map_or(&[], |a| a.bytes)
    }
}

impl<'a> Iterator for ArgIter<'a> {
    type Item = Arg<'a>;

    #[inline]
    fn next(&mut self) -> Option<Arg<'a>> {
        let (len, tail) = self.bytes.get(self.at..)?.split_first_chunk::<WORD>()?;
        let len = u32::from_le_bytes(*len) as usize;
        let bytes = tail.get(..len)?;
        let at = self.at as u32;
        self.at += WORD + len;
        Some(Arg { bytes, at })
    }
}

/// Writes arguments at the end of a buffer.
#[derive(Debug)]
pub struct ArgsBuilder<'a> {
    buffer: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> ArgsBuilder<'a> {
    /// Starts an encoding at the end of `buffer`.
    pub fn new(buffer: &'a mut Vec<u8>) -> ArgsBuilder<'a> {
        let start = buffer.len();
        buffer.extend_from_slice(&0u32.to_le_bytes());
        ArgsBuilder { buffer, start }
    }

    /// Appends one argument: the one copy between the socket and the log.
    #[inline]
    pub fn push(&mut self, arg: &[u8]) -> &mut Self {
        self.buffer.extend_from_slice(&(arg.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(arg);
        self.count(1);
        self
    }

    /// Appends all of other arguments.
    #[inline]
    pub fn append(&mut self, args: Args<'_>) -> &mut Self {
        let Some((_, items)) = args.bytes.split_first_chunk::<WORD>() else { return self };
        self.buffer.extend_from_slice(items);
        self.count(args.len() as u32);
        self
    }

    /// Counts arguments that have been written.
    #[inline]
    fn count(&mut self, more: u32) {
        let count = &mut self.buffer[self.start..self.start + WORD];
        let n = u32::from_le_bytes([count[0], count[1], count[2], count[3]]) + more;
        count.copy_from_slice(&n.to_le_bytes());
    }

    /// Appends a number as decimal text.
    pub fn push_int(&mut self, i: i64) -> &mut Self {
        self.push(i.to_string().as_bytes())
    }
}

/// Encodes arguments into a buffer of their own: for tests and tools.
pub fn encode<T: AsRef<[u8]>>(args: &[T]) -> Vec<u8> {
    let mut buffer = Vec::new();
    let mut builder = ArgsBuilder::new(&mut buffer);
    for arg in args {
        builder.push(arg.as_ref());
    }
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_found_by_number_and_by_offset() {
        let bytes = encode(&["k", "", "value"]);
        let args = Args::parse(&bytes).unwrap();
        assert_eq!(args.len(), 3);
        assert_eq!(args.get(2), Some(&b"value"[..]));
        assert_eq!(args.get(3), None);
        let second = args.iter().nth(1).unwrap();
        assert_eq!(args.from_offset(second.at).map(|a| a.bytes).collect::<Vec<_>>(), [&b""[..], b"value"]);
    }

    #[test]
    fn arguments_are_appended_to_arguments() {
        let (first, second) = (encode(&["k", ""]), encode(&["value"]));
        let mut all = b"before".to_vec();
        let mut builder = ArgsBuilder::new(&mut all);
        for part in [&first, &encode::<&str>(&[]), &second] {
            builder.append(Args::parse(part).unwrap());
        }
        builder.push(b"last");
        assert_eq!(all[6..], encode(&["k", "", "value", "last"]));
    }

    #[test]
    fn every_truncation_is_refused() {
        let bytes = encode(&["abc", "d"]);
        for n in 0..bytes.len() {
            assert!(Args::parse(&bytes[..n]).is_none(), "cut at {n}");
        }
    }
}
