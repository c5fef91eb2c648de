//! One stream of messages between two nodes: in order and exactly once, across reconnects, for as long as both nodes
//! live and there is room for what is under way. When one of them is started again, or has had to give up what it
//! kept, both learn that a [`PeerState::Fresh`] stream begins.
//!
//! A [`Link`] is one node's side of it: a state machine without clock, socket or thread. It asks little of what
//! carries its frames: they may be lost, doubled, reordered and late by any time, so TCP will do, and so will the
//! simulator's worst day.
//!
//! # How both sides agree
//!
//! Each side has an [`End`]: its [`Life`] and a number that grows with every stream it gives up. An end is **bound** to
//! at most one end of the other side, ever: whoever unbinds takes a new end. A side is **joined** when it is bound to
//! an end that has said, in a [`Hello`], that it is bound to this one. Two joined ends are a stream; and because
//! neither is ever bound again, a stream that is over cannot come back. Messages name the end they are meant for, and
//! only a joined side sends any, so none is taken for a message of another stream.
//!
//! The rest is progress: when to believe that the other side has a new end. An end of the life that we are bound to is
//! newer if its number is. Between two lives no number tells, and the hello of a dead one may still arrive. So a hello
//! also says what was last [heard](Hello::heard) from us, our end and what it was bound to. Who has heard that we are
//! bound to one life, and is another, was started after it.
//!
//! A hello is answered until both have said that they are settled.

use std::collections::VecDeque;

use ordain_model::codec;

pub use ordain_role::PeerState;

/// The divisor of the room for kept messages: one message counts for at most this part of it.
const LARGEST: usize = 8;

/// The most bytes of unacknowledged messages that a side keeps.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// While there is no connection over which both have met. No message counts for more than an eighth of this, however
    /// large it is: there is room for it, and for what follows it.
    pub parted: usize,
    /// While there is one, so that the other side takes them, at its own pace: not less.
    pub open: usize,
}

/// A life of a process: a number that no other start of the same node ever has; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life(pub u64);

codec!(struct Life(_));

/// An end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct End {
    /// The process.
    pub life: Life,
    /// Which of its streams with this peer, from 1 on.
    pub stream: u64,
}

codec!(struct End { life, stream });

/// The knowledge of one side, for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The sender's end.
    pub me: End,
    /// The receiver's end that it is bound to.
    pub bound: Option<End>,
    /// The receiver's end, and what that was bound to, in the last hello received.
    pub heard: Option<(End, Option<End>)>,
    /// The number up to which messages have been received.
    pub received: u64,
    /// The sender has what it needs; if not, it wants an answer.
    pub is_settled: bool,
}

/// A unit of transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<T> {
    /// See [`Hello`].
    Hello(Hello),
    /// A message.
    Data {
        /// The end it is meant for.
        to: End,
        /// The message's number; the first message of a stream is 1.
        sequence: u64,
        /// The sender has received everything up to this number.
        received: u64,
        /// The message.
        payload: T,
    },
    /// The receipt of all messages up to a number.
    Ack {
        /// The end it is meant for.
        to: End,
        /// The number.
        received: u64,
    },
}

impl<T> Frame<T> {
    /// Replaces the payload, if the frame has one.
    pub fn map<U>(self, with: impl FnOnce(T) -> U) -> Frame<U> {
        match self {
            Frame::Hello(hello) => Frame::Hello(hello),
            Frame::Data { to, sequence, received, payload } => {
                Frame::Data { to, sequence, received, payload: with(payload) }
            }
            Frame::Ack { to, received } => Frame::Ack { to, received },
        }
    }
}

/// The result of taking a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received<T> {
    /// Nothing for the roles.
    Nothing,
    /// The next message.
    Message(T),
    /// A message, but not the next: what is between is still to come, or lost and to be sent again. A carrier that
    /// keeps order is broken.
    Gap,
    /// The stream has changed.
    Change(PeerState),
}

/// A message that may have to be sent again.
#[derive(Clone, Debug)]
struct Kept<T> {
    payload: T,
    bytes: usize,
}

/// The state of a side that is bound.
#[derive(Clone, Copy, Debug)]
struct Bond {
    to: End,
    /// The other side has reported that it is bound to this one.
    is_joined: bool,
}

/// A side of the stream between two nodes.
#[derive(Clone, Debug)]
pub struct Link<T> {
    me: End,
    bond: Option<Bond>,
    heard: Option<(End, Option<End>)>,
    /// Messages that have not been acknowledged, in order. Empty unless joined.
    kept: VecDeque<Kept<T>>,
    /// The number of the first of `kept`, or that the next will have.
    first: u64,
    /// The number of messages of `kept` that were sent over this connection.
    sent: usize,
    bytes: usize,
    room: Room,
    received: u64,
    /// There is something to send frames over.
    is_connected: bool,
    /// The other side has reported over this connection that it is bound to this one.
    is_open: bool,
    /// The roles know that the other side is lost.
    is_lost: bool,
    hello_due: bool,
    ack_due: bool,
}

impl<T: Clone> Link<T> {
    /// Makes a side that has met no other.
    pub fn new(life: Life, room: Room) -> Link<T> {
        Link {
            me: End { life, stream: 1 },
            bond: None,
            heard: None,
            kept: VecDeque::new(),
            first: 1,
            sent: 0,
            bytes: 0,
            room,
            received: 0,
            is_connected: false,
            is_open: false,
            is_lost: false,
            hello_due: false,
            ack_due: false,
        }
    }

    /// Sends a message, which counts as so many bytes, and answers whether it will arrive unless the stream ends.
    /// Before the first meeting, and from giving up the stream to the next, there is no stream and the message is
    /// dropped. A message without room ends the stream.
    pub fn send(&mut self, payload: T, bytes: usize) -> bool {
        if !self.is_joined() {
            return false;
        }
        let bytes = bytes.min(self.room.parted / LARGEST);
        if self.bytes + bytes > if self.is_open { self.room.open } else { self.room.parted } {
            self.give_up();
            return false;
        }
        self.bytes += bytes;
        self.kept.push_back(Kept { payload, bytes });
        true
    }

    /// Begins a new connection with a hello.
    pub fn connected(&mut self) {
        self.is_connected = true;
        self.is_open = false;
        self.hello_due = true;
    }

    /// The connection is gone. What was not acknowledged is kept for the next.
    pub fn parted(&mut self) {
        self.is_connected = false;
        self.is_open = false;
    }

    /// Sends everything unacknowledged again, after a silence. For carriers that lose frames.
    pub fn resend(&mut self) {
        self.sent = 0;
        self.hello_due |= !self.is_open;
    }

    /// Gives up the other side, after a long silence; answers the change for the roles, if they do not know yet.
    /// Nothing is taken from the other side until the two have met again.
    pub fn lost(&mut self) -> Option<PeerState> {
        self.is_open = false;
        self.hello_due = true;
        (!std::mem::replace(&mut self.is_lost, true)).then_some(PeerState::Lost)
    }

    /// The next frame to put on the wire: what the other side waits for. Messages carry acknowledgements.
    pub fn poll(&mut self) -> Option<Frame<T>> {
        if !self.is_connected {
            return None;
        }
        if std::mem::take(&mut self.hello_due) {
            return Some(Frame::Hello(self.hello()));
        }
        let to = self.bond.filter(|_| self.is_open)?.to;
        let next = self.kept.get(self.sent)?;
        let sequence = self.first + self.sent as u64;
        self.sent += 1;
        self.ack_due = false;
        Some(Frame::Data { to, sequence, received: self.received, payload: next.payload.clone() })
    }

    /// The acknowledgement that no message has carried, if there is one. Only the memory of the other side waits for
    /// it, and a frame of its own costs both sides a system call: a carrier may let some time pass.
    pub fn poll_ack(&mut self) -> Option<Frame<T>> {
        let to = self.bond.filter(|_| self.is_connected && self.is_open)?.to;
        std::mem::take(&mut self.ack_due).then_some(Frame::Ack { to, received: self.received })
    }

    /// Takes a frame from the wire.
    pub fn receive(&mut self, frame: Frame<T>) -> Received<T> {
        let (to, received) = match &frame {
            Frame::Hello(hello) => return self.meet(*hello).map_or(Received::Nothing, Received::Change),
            Frame::Data { to, received, .. } | Frame::Ack { to, received } => (*to, *received),
        };
        if to != self.me || !self.is_joined() || self.is_lost {
            // A frame of a stream that is over, or ahead of the hello that begins it or goes on with it.
            self.hello_due = true;
            return Received::Nothing;
        }
        self.acknowledged(received);
        let Frame::Data { sequence, payload, .. } = frame else { return Received::Nothing };
        // Also for one that is here already: the acknowledgement may have been lost.
        self.ack_due = true;
        if sequence <= self.received {
            return Received::Nothing;
        }
        if sequence != self.received + 1 {
            return Received::Gap;
        }
        self.received = sequence;
        Received::Message(payload)
    }

    /// Tells whether there is a stream: messages are kept until they arrive.
    pub fn is_joined(&self) -> bool {
        self.bond.is_some_and(|bond| bond.is_joined)
    }

    /// Tells whether messages are on their way that may have to be sent again, or a hello that wants an answer.
    pub fn is_waiting(&self) -> bool {
        self.is_connected && (!self.is_open || self.sent > 0)
    }

    /// The bytes of the messages that are kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Checks that kept messages are counted right, within their room, and kept for a stream.
    ///
    /// # Errors
    /// What is broken.
    pub fn check(&self) -> Result<(), String> {
        // The sum is for tests: what is kept may be much.
        let bytes = || self.kept.iter().map(|kept| kept.bytes).sum::<usize>();
        if (cfg!(debug_assertions) && bytes() != self.bytes) || (self.kept.is_empty() && self.bytes > 0) {
            return Err(format!("{} bytes are kept, and {} counted", bytes(), self.bytes));
        }
        if self.sent > self.kept.len() {
            return Err(format!("{} messages were sent of {} that are kept", self.sent, self.kept.len()));
        }
        if self.bytes > self.room.open.max(self.room.parted) {
            return Err(format!("{} bytes are kept, and there is room for {}", self.bytes, self.room.open));
        }
        if !self.kept.is_empty() && !self.is_joined() {
            return Err(format!("{} messages are kept for no stream", self.kept.len()));
        }
        match self.is_open && !(self.is_connected && self.is_joined()) {
            true => Err("the stream is open without a connection over which both have met".to_owned()),
            false => Ok(()),
        }
    }

    /// The end of this side; the number in it grows with every stream that was given up.
    pub fn end(&self) -> End {
        self.me
    }

    fn hello(&self) -> Hello {
        let bound = self.bond.map(|bond| bond.to);
        let is_settled = self.is_open && self.is_joined();
        Hello { me: self.me, bound, heard: self.heard, received: self.received, is_settled }
    }

    fn meet(&mut self, theirs: Hello) -> Option<PeerState> {
        self.heard = Some((theirs.me, theirs.bound));
        let bound = self.bond.map(|bond| bond.to);
        if bound != Some(theirs.me) && self.is_news(&theirs) {
            if bound.is_some() {
                self.give_up();
            }
            // An end that is bound to another of ours will have to be given up by its owner.
            if theirs.bound.is_none_or(|end| end == self.me) {
                self.bond = Some(Bond { to: theirs.me, is_joined: false });
            }
        }
        let is_mutual = theirs.bound == Some(self.me) && self.bond.is_some_and(|bond| bond.to == theirs.me);
        let change = if is_mutual { self.mutual(theirs.received) } else { None };
        self.hello_due |= !is_mutual || !theirs.is_settled;
        change
    }

    /// Tells whether a hello from an end that this side is not bound to comes from a newer one.
    fn is_news(&self, theirs: &Hello) -> bool {
        match self.bond {
            None => true,
            Some(bond) if bond.to.life == theirs.me.life => theirs.me.stream > bond.to.stream,
            Some(bond) => theirs.heard == Some((self.me, Some(bond.to))),
        }
    }

    /// Tells whether each side is bound to the other.
    fn mutual(&mut self, received: u64) -> Option<PeerState> {
        let was_joined = self.is_joined();
        self.acknowledged(received);
        if !self.is_open {
            self.is_open = self.is_connected;
            self.sent = 0;
        }
        if let Some(bond) = &mut self.bond {
            bond.is_joined = true;
        }
        match (was_joined, std::mem::take(&mut self.is_lost)) {
            (false, _) => Some(PeerState::Fresh),
            (true, true) => Some(PeerState::Back),
            (true, false) => None,
        }
    }

    fn acknowledged(&mut self, received: u64) {
        // More than there is cannot have been received.
        while self.first <= received
            && let Some(kept) = self.kept.pop_front()
        {
            self.first += 1;
            self.sent = self.sent.saturating_sub(1);
            self.bytes -= kept.bytes;
        }
    }

    /// Ends the stream: this side takes a new end and announces it.
    fn give_up(&mut self) {
        self.me.stream += 1;
        self.bond = None;
        self.kept.clear();
        self.first = 1;
        self.sent = 0;
        self.bytes = 0;
        self.received = 0;
        self.is_open = false;
        self.ack_due = false;
        self.hello_due = true;
    }
}

#[cfg(test)]
mod tests;
