//! Flows: messages that go to another node a few pieces at a time, so that no link has to keep more.

use std::collections::VecDeque;

/// The number of a pause in a flow to one node, from 1 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PauseNo(pub u64);

crate::codec!(struct PauseNo(_));

impl PauseNo {
    /// The pause before anything is sent: its answer says that the other side has met this one.
    pub const GREETING: PauseNo = PauseNo(0);
}

/// The pieces that may be on their way: one is taken in at the other end while the next travels.
const PIECES: u64 = 2;

/// A flow of messages to one node. After each piece it makes a [pause](crate::Front::Pause), and that is answered.
#[derive(Debug)]
pub struct Flow<T> {
    /// The bytes sent since the last pause.
    bytes: usize,
    /// The last pause that was made, and the last up to which everything has come.
    made: PauseNo,
    come: PauseNo,
    /// Messages to be sent when more has arrived.
    waiting: VecDeque<T>,
}

impl<T> Default for Flow<T> {
    fn default() -> Flow<T> {
        let (made, come) = (PauseNo::default(), PauseNo::default());
        Flow { bytes: 0, made, come, waiting: VecDeque::new() }
    }
}

impl<T> Flow<T> {
    fn is_full(&self) -> bool {
        self.made.0 - self.come.0 >= PIECES
    }

    /// Gives back what may be sent now, and keeps it otherwise.
    pub fn admit(&mut self, item: T) -> Option<T> {
        if self.is_full() {
            self.waiting.push_back(item);
            return None;
        }
        Some(item)
    }

    /// Notes bytes that are sent. If they are the last of a piece, a pause follows.
    pub fn note_sent(&mut self, bytes: usize, piece: usize) -> Option<PauseNo> {
        self.bytes += bytes;
        (self.bytes >= piece).then(|| {
            self.bytes = 0;
            self.made.0 += 1;
            self.made
        })
    }

    /// Everything before a pause has come. Answers what waits, in its order, if there is room for some of it.
    pub fn note_come(&mut self, pause: PauseNo) -> VecDeque<T> {
        self.come = pause.clamp(self.come, self.made);
        if self.is_full() { VecDeque::new() } else { std::mem::take(&mut self.waiting) }
    }

    /// The node cannot be reached; if what was on its way to it is gone with the stream, nothing is waited for any more.
    /// Answers what was to be sent.
    pub fn give_up(&mut self, is_gone: bool) -> VecDeque<T> {
        if is_gone {
            self.come = self.made;
            self.bytes = 0;
        }
        std::mem::take(&mut self.waiting)
    }
}
