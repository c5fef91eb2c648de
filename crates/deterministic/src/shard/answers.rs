//! The wire form of the answers that one shard has to one transaction, for the shard that composes the reply. They travel
//! together, so that the receiver looks the transaction up once and reads its memory from the front.
//!
//! ```text
//!  slot, length, bytes │ slot, length, bytes │ …
//! ```
//!
//! Numbers are written in groups of seven bits, the lowest first: most slots and lengths take one byte.

use ordain_model::SlotNo;
use ordain_model::wire::Reader;

use super::slots::append;

/// Answers of a transaction by slot, in wire form.
#[derive(Clone, Copy, Debug)]
pub struct WireAnswers<'a>(Reader<'a>);

/// Appends an answer.
pub(crate) fn write(slot: SlotNo, bytes: &[u8], out: &mut Vec<u8>) {
    number(slot.0, out);
    number(bytes.len() as u32, out);
    append(out, bytes);
}

fn number(mut number: u32, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[inline]
fn read_number(bytes: &mut Reader<'_>) -> Option<u32> {
    let mut number = 0;
    for shift in (0..32).step_by(7) {
        let byte = bytes.u8()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return u32::try_from(number).ok();
        }
    }
    None
}

impl<'a> WireAnswers<'a> {
    /// Reads answers; `None` if the bytes are no answers.
    pub fn read(bytes: &'a [u8]) -> Option<WireAnswers<'a>> {
        let mut rest = WireAnswers(Reader::new(bytes));
        rest.by_ref().for_each(drop);
        rest.0.end(WireAnswers(Reader::new(bytes)))
    }
}

impl<'a> Iterator for WireAnswers<'a> {
    type Item = (SlotNo, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<(SlotNo, &'a [u8])> {
        let mut rest = self.0;
        let (slot, len) = (read_number(&mut rest)?, read_number(&mut rest)?);
        let bytes = rest.take(len as usize)?;
        self.0 = rest;
        Some((SlotNo(slot), bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(answers: &[(u32, Vec<u8>)]) -> Vec<u8> {
        let mut out = Vec::new();
        answers.iter().for_each(|(slot, bytes)| write(SlotNo(*slot), bytes, &mut out));
        out
    }

    fn read(bytes: &[u8]) -> Option<Vec<(u32, Vec<u8>)>> {
        Some(WireAnswers::read(bytes)?.map(|(slot, bytes)| (slot.0, bytes.to_vec())).collect())
    }

    proptest! {
        #[test]
        fn answers_arrive_as_they_were_written_and_whole(
            answers in prop::collection::vec((any::<u32>(), prop::collection::vec(any::<u8>(), 0..300)), 0..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = written(&answers);
            prop_assert_eq!(read(&bytes), Some(answers.clone()));
            // What is cut between two answers is fewer of them; a message says how long its own are.
            let fewer = read(&bytes[..cut.index(bytes.len() + 1)]);
            prop_assert!(fewer.is_none_or(|fewer| answers.starts_with(&fewer)));
            bytes.push(0);
            prop_assert_eq!(read(&bytes), None);
        }

        #[test]
        fn noise_is_no_answers_or_all_of_it_is(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some(answers) = read(&bytes) {
                prop_assert_eq!(read(&written(&answers)), Some(answers));
            }
        }
    }

    #[test]
    fn small_answers_take_two_bytes_more() {
        assert_eq!(written(&[(3, vec![7; 9]), (127, vec![8; 127])]).len(), 2 + 9 + 2 + 127);
        assert_eq!(read(&[0x80, 0x80, 0x80, 0x80, 0x80, 0, 0]), None, "more bits than there are");
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0x1f, 0]), None);
    }
}
