//! What goes to one node: a few pieces at a time, so that no link has to keep more.

use std::collections::VecDeque;

use ordain_model::PauseNo;

use crate::Departure;

/// How many pieces may be on their way: one is taken in at the other end while the next travels.
const PIECES: u64 = 2;

/// What a gateway sends to one node.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// How many bytes were sent since the last pause.
    bytes: usize,
    /// The last pause that was made, and the last up to which everything has come.
    made: PauseNo,
    come: PauseNo,
    /// What is to be sent when more has come.
    waiting: VecDeque<Departure>,
}

impl Flow {
    fn is_full(&self) -> bool {
        self.made.0 - self.come.0 >= PIECES
    }

    /// Gives back what may be sent now, and keeps it otherwise.
    pub(crate) fn admit(&mut self, departure: Departure) -> Option<Departure> {
        if self.is_full() {
            self.waiting.push_back(departure);
            return None;
        }
        Some(departure)
    }

    /// So many bytes are sent. If they are the last of a piece, a pause follows.
    pub(crate) fn note_sent(&mut self, bytes: usize, piece: usize) -> Option<PauseNo> {
        self.bytes += bytes;
        (self.bytes >= piece).then(|| {
            self.bytes = 0;
            self.made.0 += 1;
            self.made
        })
    }

    /// Everything before a pause has come. Answers what may be sent then, in its order, as far as there is room.
    pub(crate) fn note_come(&mut self, pause: PauseNo) -> VecDeque<Departure> {
        self.come = pause.clamp(self.come, self.made);
        if self.is_full() { VecDeque::new() } else { std::mem::take(&mut self.waiting) }
    }

    /// The node cannot be reached, and what was on its way may be gone with the stream. Answers what was to be sent.
    pub(crate) fn give_up(&mut self, is_gone: bool) -> VecDeque<Departure> {
        if is_gone {
            self.come = self.made;
            self.bytes = 0;
        }
        std::mem::take(&mut self.waiting)
    }
}
