//! Read-only transactions: run in the order like all others, or on a state that is kept
//! (paxflow.md, section 4.6).

use crate::codec;
use crate::ids::Millis;
use crate::interactive::Step;
use crate::named::named;
use crate::stamp::Token;

named! {
    /// The way in which a node runs transactions that only read.
    Reads, "no way to run reads" {
        /// In the order, like all other transactions.
        #[default]
        Ordered = "ordered";
        /// On the state at the end of the epoch before the one that is open in this partition.
        Previous = "previous";
        /// On the last state that this node has published, or a later one that includes all that the connection has seen.
        Session = "session";
        /// On a state that includes all that any client was answered before the request.
        Strict = "strict";
    }
}

/// The state that a transaction is to see, if it only reads; or the open one that it is a step of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// The state at its own place in the order, however the node runs reads.
    Ordered,
    /// A state that includes at least all that this token has seen.
    Since(Token),
    /// As `Since`, and kept until it is released: more reads of it follow.
    Open(Token),
    /// The very state that was seen by the read that was given this token, as of the same time.
    At(Token, Millis),
    /// What an open transaction sees and has written: the request is this step of it, and may write.
    Within(Step),
}

/// The state that a chunk of reads is run on, as the gateway asks its sequencer for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Snapshot {
    /// The last state that the partition has closed.
    Closed,
    /// The last state that the node has published, or a later one that includes all that this token has seen.
    Published(Token),
    /// A state that includes all that was answered before, and all that this token has seen.
    Latest(Token),
    /// The very state that was seen by the read that was given this token, as of the same time.
    At(Token, Millis),
}

codec!(enum Snapshot {
    0 => Closed,
    1 => Published(token),
    2 => Latest(token),
    3 => At(token, now),
});
