//! The layout of the arguments of the workloads' procedures: keys of one length, in the order of the fragments,
//! and then one packed argument with everything else. And the keys of most workloads: a letter, which keeps
//! workloads apart that share a database, and a number.

use std::ops::Deref;

use ordain_model::Args;
use ordain_model::args::Arg;

/// A text of at most `MAX` bytes, which are at most 255, without an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short<const MAX: usize> {
    bytes: [u8; MAX],
    len: u8,
}

impl<const MAX: usize> Short<MAX> {
    /// The text without bytes.
    pub const EMPTY: Short<MAX> = Short { bytes: [0; MAX], len: 0 };

    /// The first `len` of these bytes; `len` is at most `MAX`.
    #[inline]
    pub const fn front(bytes: [u8; MAX], len: u8) -> Short<MAX> {
        Short { bytes, len }
    }

    /// Appends bytes, for which there must be room.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        let at = usize::from(self.len);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }
}

impl<const MAX: usize> Deref for Short<MAX> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Makes the error that refuses the arguments of a procedure which only a generator writes.
macro_rules! damaged {
    ($procedure:literal) => {
        ordain_model::PlanError::fixed(concat!(
            "ERR damaged arguments of ",
            $procedure,
            ": it takes the keys and the packed argument that ordain bench writes, and is not made to be called by hand"
        ))
    };
}
pub(crate) use damaged;

/// The length of a key made by [`key`].
pub const KEY_BYTES: usize = 9;

/// The key of the record of a workload, which has a letter of its own.
#[inline]
pub const fn key(letter: u8, record: u64) -> [u8; KEY_BYTES] {
    let n = record.to_le_bytes();
    [letter, n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]]
}

/// The record whose key it is, if it is a key of the workload with this letter.
#[inline]
pub fn record_of(letter: u8, key: &[u8]) -> Option<u64> {
    let (first, record) = key.split_first()?;
    record.try_into().ok().filter(|_| *first == letter).map(u64::from_le_bytes)
}

/// The packed argument, of `packed_bytes` bytes, behind keys of `key_bytes` bytes each, and those keys.
/// Finding it costs no walk over the keys; `None` in place of a key, or of all, where the arguments are laid
/// out otherwise.
#[inline]
pub fn split(
    args: Args<'_>,
    key_bytes: usize,
    packed_bytes: usize,
) -> Option<(impl Iterator<Item = Option<Arg<'_>>>, &[u8])> {
    const WORD: usize = 4;
    let keys = args.len().checked_sub(1)?;
    // If the whole is as long as that and so is every key, then the rest is the packed argument's.
    if args.encoded().len() != WORD + keys * (WORD + key_bytes) + WORD + packed_bytes {
        return None;
    }
    let checked = move |key: Arg<'_>| key.bytes.len() == key_bytes;
    let keys = args.iter().take(keys).map(move |key| checked(key).then_some(key));
    Some((keys, tail(args, packed_bytes)))
}

/// The last bytes of the arguments: what a fragment finds its packed argument by. Fewer if there are fewer.
#[inline]
pub fn tail(args: Args<'_>, bytes: usize) -> &[u8] {
    let encoded = args.encoded();
    &encoded[encoded.len().saturating_sub(bytes)..]
}

/// The number in a packed argument that is 8 bytes, or ends with them; 0 if there is none.
#[inline]
pub fn tail_number(args: Args<'_>) -> u64 {
    tail(args, 8).try_into().map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use ordain_model::args::encode;

    use super::*;

    #[test]
    fn keys_and_what_is_behind_them_are_found() {
        let bytes = encode(&[&b"ab"[..], b"cd", b"xyz"]);
        let args = Args::parse(&bytes).unwrap();
        let (keys, packed) = split(args, 2, 3).unwrap();
        assert_eq!(keys.map(|key| key.unwrap().bytes).collect::<Vec<_>>(), [b"ab", b"cd"]);
        assert_eq!((packed, tail(args, 2)), (&b"xyz"[..], &b"yz"[..]));
        assert!(split(args, 2, 4).is_none() && split(args, 3, 3).is_none());
        assert!(split(Args::parse(&encode::<&str>(&[])).unwrap(), 2, 3).is_none());
    }

    #[test]
    fn lengths_that_only_add_up_are_refused() {
        // As long as two keys of 2 bytes and 3 bytes, but the bytes are spread otherwise.
        for items in [["a", "bcd", "xyz"], ["ab", "c", "wxyz"]] {
            let bytes = encode(&items);
            let (mut keys, _) = split(Args::parse(&bytes).unwrap(), 2, 3).unwrap();
            assert!(keys.any(|key| key.is_none()), "{items:?}");
        }
    }
}
