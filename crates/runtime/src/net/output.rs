//! What is to leave on a connection.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};

use ordain_role::Bytes;

/// So many bytes are written from where they are; fewer are sooner copied.
const SHARED: usize = 4 << 10;
/// The number of pieces that are written with one call.
const PIECES: usize = 64;
/// Room that was larger is given back when it is empty.
const USUAL: usize = 2 << 20;

/// Bytes in order: small ones gathered, large ones shared with their sender.
#[derive(Debug, Default)]
pub(super) struct Output {
    pieces: VecDeque<Bytes>,
    /// How much there is in `pieces`.
    len: usize,
    /// What comes after them.
    small: Vec<u8>,
    /// How much of the first piece has left; of `small` if there is no piece.
    written: usize,
}

impl Output {
    /// The number of bytes that have not left.
    pub(super) fn len(&self) -> usize {
        self.len + self.small.len() - self.written
    }

    /// The buffer for small pieces.
    pub(super) fn small(&mut self) -> &mut Vec<u8> {
        &mut self.small
    }

    /// Appends bytes, without a copy if they are many.
    pub(super) fn share(&mut self, bytes: &Bytes) {
        if bytes.len() < SHARED {
            self.small.extend_from_slice(bytes);
        } else {
            self.end_small();
            self.push(bytes.clone());
        }
    }

    /// Appends all of another output, of which nothing has left.
    pub(super) fn append(&mut self, other: Output) {
        if other.pieces.is_empty() {
            self.small.extend_from_slice(&other.small);
        } else {
            self.end_small();
            other.pieces.into_iter().for_each(|piece| self.push(piece));
            self.small = other.small;
        }
    }

    /// Ends the buffer of small pieces before a large one.
    fn end_small(&mut self) {
        if !self.small.is_empty() {
            let small = std::mem::take(&mut self.small);
            self.push(small.into());
        }
    }

    fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        self.pieces.push_back(piece);
    }

    /// Writes with one call; answers how much was taken.
    pub(super) fn write(&mut self, to: &mut impl Write) -> io::Result<usize> {
        let all = self.pieces.iter().map(|piece| &piece[..]).chain([&self.small[..]]);
        let mut slices: Vec<IoSlice<'_>> = all.take(PIECES).map(IoSlice::new).collect();
        slices[0].advance(self.written);
        let count = match &slices[..] {
            [one] => to.write(one)?,
            several => to.write_vectored(several)?,
        };
        self.written += count;
        while let Some(piece) = self.pieces.pop_front_if(|piece| piece.len() <= self.written) {
            self.written -= piece.len();
            self.len -= piece.len();
        }
        // What has left of the rest goes when all of it has, or when it is the larger part.
        if self.pieces.is_empty() && self.written * 2 > self.small.len() {
            self.small.drain(..self.written);
            self.written = 0;
            if self.small.is_empty() && self.small.capacity() > USUAL {
                self.small = Vec::new();
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Takes no more than so many bytes at once.
    struct Narrow {
        taken: Vec<u8>,
        width: usize,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.width);
            self.taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            let before = self.taken.len();
            for slice in slices {
                let left = self.width - (self.taken.len() - before);
                self.taken.extend_from_slice(&slice[..slice.len().min(left)]);
            }
            Ok(self.taken.len() - before)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn everything_leaves_in_order(
            steps in prop::collection::vec((0..4, 0..3 * SHARED), 0..30),
            width in 1..4 * SHARED,
        ) {
            let mut to = Narrow { taken: Vec::new(), width };
            let (mut output, mut given) = (Output::default(), Vec::new());
            for (i, (kind, len)) in steps.into_iter().enumerate() {
                let bytes = vec![i as u8; len];
                match kind {
                    0 => output.small().extend_from_slice(&bytes),
                    1 => output.share(&bytes.clone().into()),
                    2 => {
                        let mut other = Output::default();
                        other.small().push(b'-');
                        other.share(&bytes.clone().into());
                        other.small().push(b'-');
                        given.push(b'-');
                        output.append(other);
                    }
                    _ => {
                        output.write(&mut to).unwrap();
                        prop_assert_eq!(output.len(), given.len() - to.taken.len());
                        continue;
                    }
                }
                given.extend_from_slice(&bytes);
                if kind == 2 {
                    given.push(b'-');
                }
            }
            while output.len() > 0 {
                prop_assert!(output.write(&mut to).unwrap() > 0);
            }
            prop_assert_eq!(to.taken, given);
        }
    }
}
