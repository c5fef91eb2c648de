//! Words of procedures that people call by hand: a letter and a number, or a number alone, in decimal digits.

use std::ops::Deref;

/// A number in decimal digits, behind a letter or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    bytes: [u8; Word::LONGEST],
    start: u8,
}

impl Word {
    /// A letter and the digits of the largest number.
    const LONGEST: usize = 21;

    /// The digits of a number.
    pub const fn number(number: u64) -> Word {
        let (mut bytes, mut start, mut left) = ([0; Word::LONGEST], Word::LONGEST, number);
        loop {
            start -= 1;
            bytes[start] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                return Word { bytes, start: start as u8 };
            }
        }
    }

    /// A letter and the digits of a number.
    pub const fn named(letter: u8, number: u64) -> Word {
        let mut word = Word::number(number);
        word.start -= 1;
        word.bytes[word.start as usize] = letter;
        word
    }
}

impl Deref for Word {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(usize::from(self.start)..).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Word {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// The number that these digits are, up to the largest that a reply can hold. A number has one text: no sign, and no zero
/// before other digits.
pub fn number_of(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 19 || (digits[0] == b'0' && digits.len() > 1) {
        return None;
    }
    let number = digits.iter().try_fold(0u64, |number, digit| {
        digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0'))
    })?;
    i64::try_from(number).ok().map(i64::cast_unsigned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_text() {
        for number in [0, 7, 10, 4_294_967_296, i64::MAX as u64] {
            let text = number.to_string();
            assert_eq!((&*Word::number(number), number_of(text.as_bytes())), (text.as_bytes(), Some(number)));
            assert_eq!(&*Word::named(b'b', number), format!("b{text}").as_bytes());
        }
        assert_eq!(&*Word::named(b'b', u64::MAX), b"b18446744073709551615");
        for wrong in ["", "-1", "+1", "01", "1 ", "x", "9223372036854775808", "18446744073709551616"] {
            assert_eq!(number_of(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
