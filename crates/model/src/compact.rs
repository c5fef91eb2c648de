//! Compact bytes: numbers in as many bytes as they need, and texts beside the one before.
//!
//! Messages have numbers of a fixed size ([`wire`](crate::wire)), which cost nothing to read. What a log keeps is written by several nodes and
//! kept for long, so its bytes count:
//!
//! | what | bytes |
//! |---|---|
//! | number | seven bits a byte, the lowest first; the highest bit says that more follow |
//! | difference | the number 2d if it is not negative, else -2d - 1 |
//! | text | its shape, what is not in the shape, and its own bytes |
//!
//! The shape of a text is one byte: how many bytes it shares with the front of the text before it (upper four bits), and how many bytes
//! of its own follow (lower four). 15 stands for 15 and more: how many more is a number behind the shape, that of the shared bytes
//! first. A text may be cut short by zeros at its end, as numbers of a fixed size have them: they are counted, at most [`ZEROS_MAX`], by
//! whoever writes it. Bytes that have no text before them have the number of their zeros in the upper half of the shape.

use crate::wire::Reader;

/// The most zeros at the end of a text that are counted in place of being written. So few are no way to make a reader take much memory.
pub const ZEROS_MAX: usize = 15;

/// The most bytes that a text shares with the one before it, for the same reason.
pub const SHARED_MAX: usize = 127;

/// The largest count that a half of the shape holds itself.
const HALF: usize = 15;

/// Appends a number.
#[inline]
pub fn number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads a number.
#[inline]
pub fn read_number(bytes: &mut Reader<'_>) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = bytes.u8()?;
        let part = u64::from(byte & 0x7f);
        if part << shift >> shift != part {
            return None;
        }
        number |= part << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Reads a number that counts what is in memory.
#[inline]
pub fn read_count(bytes: &mut Reader<'_>) -> Option<usize> {
    usize::try_from(read_number(bytes)?).ok()
}

/// Appends how much a number differs from another one, which the reader knows.
#[inline]
pub fn difference(out: &mut Vec<u8>, of: u64, from: u64) {
    let by = of.wrapping_sub(from) as i64;
    number(out, (by << 1 ^ by >> 63) as u64);
}

/// Reads the number that differs so from another one.
#[inline]
pub fn read_difference(bytes: &mut Reader<'_>, from: u64) -> Option<u64> {
    let coded = read_number(bytes)?;
    let by = (coded >> 1) as i64 ^ -((coded & 1) as i64);
    Some(from.wrapping_add(by as u64))
}

/// The zeros at the end of a text that need not be written.
#[inline]
pub fn zeros_at_end(text: &[u8]) -> usize {
    text.iter().rev().take(ZEROS_MAX).take_while(|byte| **byte == 0).count()
}

/// Appends a text without so many zeros at its end, given the text before it.
pub fn text(out: &mut Vec<u8>, text: &[u8], zeros: usize, before: &[u8]) {
    let text = &text[..text.len() - zeros];
    let is_same = |(mine, theirs): &(&u8, &u8)| mine == theirs;
    let shared = text.iter().zip(before).take(SHARED_MAX).take_while(is_same).count();
    let own = &text[shared..];
    out.push((shared.min(HALF) << 4 | own.len().min(HALF)) as u8);
    for count in [shared, own.len()] {
        if count >= HALF {
            number(out, (count - HALF) as u64);
        }
    }
    out.extend_from_slice(own);
}

/// Appends bytes that have nothing before them.
pub fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let zeros = zeros_at_end(bytes);
    let own = &bytes[..bytes.len() - zeros];
    out.push((zeros << 4 | own.len().min(HALF)) as u8);
    if own.len() >= HALF {
        number(out, (own.len() - HALF) as u64);
    }
    out.extend_from_slice(own);
}

/// Reads bytes that have nothing before them.
pub fn read_bytes(bytes: &mut Reader<'_>) -> Option<Vec<u8>> {
    let shape = usize::from(bytes.u8()?);
    let (zeros, mut own) = (shape >> 4, shape & HALF);
    if own == HALF {
        own = own.checked_add(read_count(bytes)?)?;
    }
    let own = bytes.take(own)?;
    let mut all = Vec::with_capacity(own.len() + zeros);
    all.extend_from_slice(own);
    all.resize(own.len() + zeros, 0);
    Some(all)
}

/// The room to make for so many items: no more than twice what the bytes are worth, whatever the count claims.
pub fn room_for<T>(bytes: &Reader<'_>, count: usize) -> usize {
    count.min(2 * bytes.rest().len() / size_of::<T>().max(1))
}

/// Reads so many items.
pub fn read_items<T>(
    bytes: &mut Reader<'_>,
    count: usize,
    mut read: impl FnMut(&mut Reader<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let mut items = Vec::with_capacity(room_for::<T>(bytes, count));
    for _ in 0..count {
        items.push(read(bytes)?);
    }
    Some(items)
}

/// Reads a text that ends with so many zeros, given the text before it.
pub fn read_text(bytes: &mut Reader<'_>, zeros: usize, before: &[u8]) -> Option<Vec<u8>> {
    let shape = usize::from(bytes.u8()?);
    let mut counts = [shape >> 4, shape & HALF];
    for count in &mut counts {
        if *count == HALF {
            *count = count.checked_add(read_count(bytes)?)?;
        }
    }
    let [shared, own] = counts;
    let shared = before.get(..shared).filter(|shared| shared.len() <= SHARED_MAX)?;
    let own = bytes.take(own)?;
    let mut text = Vec::with_capacity(shared.len() + own.len() + zeros.min(ZEROS_MAX));
    text.extend_from_slice(shared);
    text.extend_from_slice(own);
    text.resize(text.len() + zeros.min(ZEROS_MAX), 0);
    Some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes_of(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    /// What is read of some bytes, if it is all of them.
    fn whole<T>(bytes: &[u8], read: impl FnOnce(&mut Reader<'_>) -> Option<T>) -> Option<T> {
        let mut reader = Reader::new(bytes);
        let value = read(&mut reader)?;
        reader.end(value)
    }

    /// Texts that often share their front, and often end with zeros.
    fn a_text() -> impl Strategy<Value = Vec<u8>> {
        let own = prop::collection::vec(any::<u8>(), 0..20);
        (0..160_usize, own, 0..20_usize)
            .prop_map(|(shared, own, zeros)| [vec![b'k'; shared], own, vec![0; zeros]].concat())
    }

    proptest! {
        #[test]
        fn numbers_and_differences_come_back(of in any::<u64>(), from in any::<u64>(), small in 0..200_u64) {
            for number in [of, small, u64::MAX - small] {
                let bytes = bytes_of(|out| super::number(out, number));
                prop_assert_eq!(whole(&bytes, read_number), Some(number));
                let bytes = bytes_of(|out| difference(out, number, from));
                prop_assert_eq!(whole(&bytes, |bytes| read_difference(bytes, from)), Some(number));
            }
        }

        #[test]
        fn texts_come_back_and_every_truncation_is_refused(one in a_text(), before in a_text()) {
            let zeros = zeros_at_end(&one);
            let bytes = bytes_of(|out| text(out, &one, zeros, &before));
            let read = |bytes: &[u8]| whole(bytes, |bytes| read_text(bytes, zeros, &before));
            prop_assert_eq!(read(&bytes), Some(one));
            prop_assert!((0..bytes.len()).all(|cut| read(&bytes[..cut]).is_none()));
            let alone = bytes_of(|out| super::bytes(out, &before));
            prop_assert_eq!(whole(&alone, read_bytes), Some(before));
            prop_assert!((0..alone.len()).all(|cut| whole(&alone[..cut], read_bytes).is_none()));
        }

        #[test]
        fn noise_is_read_or_refused(noise in prop::collection::vec(any::<u8>(), 0..40), before in a_text()) {
            let read = whole(&noise, |bytes| read_text(bytes, ZEROS_MAX, &before));
            prop_assert!(read.is_none_or(|text| text.len() <= noise.len() + ZEROS_MAX + SHARED_MAX));
            let _ = whole(&noise, read_number);
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_table() {
        assert_eq!(bytes_of(|out| number(out, 300)), [0xac, 2]);
        assert_eq!(bytes_of(|out| number(out, u64::MAX)).len(), 10);
        assert_eq!(whole(&[0xff; 10], read_number), None);
        assert_eq!(whole(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2], read_number), None);
        assert_eq!(bytes_of(|out| difference(out, 5, 8)), [5]);
        assert_eq!(bytes_of(|out| difference(out, 8, 5)), [6]);
        assert_eq!(bytes_of(|out| difference(out, u64::MAX, 0)), [1]);
        // Two bytes are as in the text before, one is its own, and two zeros are not written.
        assert_eq!(bytes_of(|out| text(out, b"abd\0\0", 2, b"abc")), [0x21, b'd']);
        let long = [b"abc".repeat(10), vec![7; 20]].concat();
        let bytes = bytes_of(|out| text(out, &long, 0, &b"abc".repeat(10)));
        assert_eq!((bytes.len(), &bytes[..3]), (23, &[0xff, 15, 5][..]));
        assert_eq!(bytes_of(|out| super::bytes(out, &300_u64.to_le_bytes())), [0x62, 0x2c, 1]);
        assert_eq!(bytes_of(|out| super::bytes(out, &[7; 16]))[..2], [0x0f, 1]);
        assert_eq!(whole(&[9], |bytes| read_items(bytes, usize::MAX, |bytes| bytes.u64())), None);
    }
}
