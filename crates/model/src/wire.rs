//! How numbers and bytes are written for another node: little-endian, lengths before bytes.
//!
//! Whatever is read may be damaged or hostile, so reading answers `None` instead of trusting a length.

/// Takes a message apart, from its front.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

macro_rules! numbers {
    ($($name:ident: $type:ty),*) => {
        impl<'a> Reader<'a> {$(
            /// The next number.
            #[inline]
            pub fn $name(&mut self) -> Option<$type> {
                let (head, tail) = self.0.split_first_chunk()?;
                self.0 = tail;
                Some(<$type>::from_le_bytes(*head))
            }
        )*}
        $(
            /// Appends a number.
            #[inline]
            pub fn $name(out: &mut Vec<u8>, number: $type) {
                out.extend_from_slice(&number.to_le_bytes());
            }
        )*
    };
}

numbers!(u8: u8, u16: u16, u32: u32, u64: u64);

impl<'a> Reader<'a> {
    /// The next bytes, which their length stands before.
    #[inline]
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    /// How many items follow, of which each takes at least `least` bytes: more than the rest can hold is damage, found
    /// before room is made for them.
    pub fn count(&mut self, least: usize) -> Option<usize> {
        let count = self.u32()? as usize;
        (count.checked_mul(least)? <= self.0.len()).then_some(count)
    }

    /// Whether nothing is left.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `value`, if nothing is left.
    pub fn end<T>(self, value: T) -> Option<T> {
        self.is_empty().then_some(value)
    }
}

/// Appends bytes with their length before them.
#[inline]
pub fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    u32(out, bytes.len() as u32);
    out.extend_from_slice(bytes);
}

/// The next byte as a yes or no.
pub fn flag(bytes: &mut Reader<'_>) -> Option<bool> {
    match bytes.u8()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_beyond() {
        let mut out = Vec::new();
        u8(&mut out, 7);
        u16(&mut out, 300);
        bytes(&mut out, b"abc");
        u64(&mut out, u64::MAX);
        let mut reader = Reader(&out);
        assert_eq!((reader.u8(), reader.u16()), (Some(7), Some(300)));
        assert_eq!((reader.bytes(), reader.u64()), (Some(&b"abc"[..]), Some(u64::MAX)));
        assert_eq!((reader.u8(), reader.end(())), (None, Some(())));
        assert_eq!(Reader(&out[..5]).end(()), None);
        assert_eq!(Reader(&[9, 0, 0, 0, 1]).bytes(), None);
        assert_eq!(Reader(&[255, 255, 255, 255, 1]).count(8), None);
    }
}
