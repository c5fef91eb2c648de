//! How read-only transactions are run: in the order like all others, or on the state as of the end of an epoch
//! (paxflow.md, section 4.6).

use crate::ids::Epoch;
use crate::named::named;
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

/// What whoever asks wants a transaction to see, if it only reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// What comes before it in the order, whatever the node does with reads.
    Ordered,
    /// A state that holds at least this epoch.
    Since(Epoch),
    /// The same, and it is to be kept until it is released: more of it will be asked for.
    Open(Epoch),
    /// The very state as of the end of this epoch.
    At(Epoch),
}

/// Which state a chunk of reads is to be run on, as the gateway asks its sequencer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snapshot {
    /// As of the last epoch that the partition has closed.
    Closed,
    /// As of the last epoch that the node has published, or this one if it is later.
    Published(Epoch),
    /// One that holds all that was answered before, and this epoch.
    Latest(Epoch),
    /// As of the end of this very epoch.
    At(Epoch),
}

impl Snapshot {
    /// Appends the bytes by which it travels.
    pub fn encode(self, out: &mut Vec<u8>) {
        let (kind, epoch) = match self {
            Snapshot::Closed => (0, Epoch(0)),
            Snapshot::Published(epoch) => (1, epoch),
            Snapshot::Latest(epoch) => (2, epoch),
            Snapshot::At(epoch) => (3, epoch),
        };
        wire::u8(out, kind);
        wire::u64(out, epoch.0);
    }

    /// What the bytes are, if they are one.
    pub fn decode(bytes: &mut Reader<'_>) -> Option<Snapshot> {
        let kind = bytes.u8()?;
        let epoch = Epoch(bytes.u64()?);
        Some(match kind {
            0 => Snapshot::Closed,
            1 => Snapshot::Published(epoch),
            2 => Snapshot::Latest(epoch),
            3 => Snapshot::At(epoch),
            _ => return None,
        })
    }
}
