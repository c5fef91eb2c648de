//! How read-only transactions are run: in the order like all others, or on a state that is kept
//! (paxflow.md, section 4.6).

use crate::named::named;
use crate::stamp::Token;
use crate::wire::{self, Reader};

/// Where a node runs transactions that only read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// In the order, like all others.
    #[default]
    Ordered,
    /// On the state as of the epoch before the one that is open in this partition.
    Previous,
    /// On the last state that this node has published, or a later one that holds all that the connection has seen.
    Session,
    /// On a state that holds all that anybody was answered before the request came.
    Strict,
}

impl Reads {
    /// All of them, by name.
    pub const ALL: [(&'static str, Reads); 4] = [
        ("ordered", Reads::Ordered),
        ("previous", Reads::Previous),
        ("session", Reads::Session),
        ("strict", Reads::Strict),
    ];
}

named!(Reads, UnknownReads, "no way to run reads: ordered, previous, session or strict");

/// The state that a transaction is to see, if it only reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// The state at its own place in the order, whatever the node does with reads.
    Ordered,
    /// A state that holds at least all that this token has seen.
    Since(Token),
    /// A state that holds at least all that this token has seen, kept until it is released: more of it will be asked for.
    Open(Token),
    /// The very state that a read had seen which was given this token.
    At(Token),
}

/// Which state a chunk of reads is to be run on, as the gateway asks its sequencer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Snapshot {
    /// The last state that the partition has closed.
    Closed,
    /// The last state that the node has published, or a later one that holds all that this token has seen.
    Published(Token),
    /// A state that holds all that was answered before, and all that this token has seen.
    Latest(Token),
    /// The very state that a read had seen which was given this token.
    At(Token),
}

impl Snapshot {
    /// Appends the bytes by which it travels.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (kind, token) = match self {
            Snapshot::Closed => (0, &Token::NOTHING),
            Snapshot::Published(token) => (1, token),
            Snapshot::Latest(token) => (2, token),
            Snapshot::At(token) => (3, token),
        };
        wire::u8(out, kind);
        token.encode(out);
    }

    /// The snapshot that the bytes are, if they are one.
    pub fn decode(bytes: &mut Reader<'_>) -> Option<Snapshot> {
        let kind = bytes.u8()?;
        let token = Token::decode(bytes)?;
        Some(match kind {
            0 => Snapshot::Closed,
            1 => Snapshot::Published(token),
            2 => Snapshot::Latest(token),
            3 => Snapshot::At(token),
            _ => return None,
        })
    }
}
