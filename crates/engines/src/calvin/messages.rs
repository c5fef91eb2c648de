//! What the shards of a node say to each other (calvin.md, section 3: READ_RESULT, cut to what is needed).

use ordain_model::{Abort, Cell, Gsn, SlotNo};

/// Everything that one shard has for another, gathered while it handled one event.
#[derive(Clone, Debug, Default)]
pub struct ShardMessage {
    /// Which shard sends it.
    pub from: usize,
    /// In the order in which they came to be.
    pub items: Vec<(Gsn, Item)>,
    /// The bytes of the slots.
    pub bytes: Vec<u8>,
}

/// One thing that a transaction needs from another shard.
#[derive(Clone, Debug)]
pub enum Item {
    /// What a fragment answered: a range of the message's bytes.
    Slot {
        /// The fragment.
        slot: SlotNo,
        /// Where it begins.
        at: u32,
        /// How long it is.
        len: u32,
        /// Whether the fragment did not run or aborted.
        poisoned: bool,
    },
    /// The first failure among the sender's abortable fragments, or that all of them passed.
    Vote(Option<(SlotNo, Abort)>),
    /// The record of a lent fragment, for a compute fragment that runs at the receiver.
    Lend {
        /// The lent fragment.
        slot: SlotNo,
        /// The record. Its owner has none while it is lent for writing.
        cell: Cell,
        /// The transaction that wrote it last.
        version: Gsn,
    },
    /// A record that was lent for writing comes back.
    Return {
        /// The lent fragment.
        slot: SlotNo,
        /// The record.
        cell: Cell,
        /// Whether it was changed.
        changed: bool,
    },
}
