//! Identifiers and units, one type for each, so that the compiler keeps an epoch from becoming an index.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        $crate::codec!(struct $name(_));

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id! {
    /// A Redis database number. It is part of the key; 0–15 are the clients', the highest are ours.
    Db(u8)
}
id! {
    /// A partition of the key space, 0..N. It numbers the partition's sequencer too (calvin.md, section 0).
    PartitionId(u16)
}
id! {
    /// A gateway of the cluster: the state that builds chunks for, and takes outcomes to, one event loop of a
    /// node. The node's number stands in the upper 16 bits.
    GatewayId(u32)
}
id! {
    /// A gateway's running number for the chunks it submits.
    ChunkNo(u64)
}
id! {
    /// An epoch of the input sequence; the first batch is of epoch 1 (the Calvin paper, section 3.1).
    Epoch(u64)
}
id! {
    /// A client's session, within which request numbers identify requests. 0 means "no session".
    SessionId(u64)
}
id! {
    /// The number a client gives a request of its session; a retry carries the same number.
    RequestNo(u64)
}
impl RequestNo {
    /// The largest number that a client may give a request: the highest eight bits count restarts.
    pub const LARGEST: u64 = u64::MAX >> RequestNo::RESTART_BITS;
    /// The bits of a number in the log that count how often the request was restarted.
    pub const RESTART_BITS: u32 = 8;
}

id! {
    /// Names a procedure in the log. Never reused for another procedure.
    ProcedureId(u16)
}
id! {
    /// The number of a fragment inside its transaction, and of the slot that the fragment writes.
    SlotNo(u32)
}
id! {
    /// A point in or a length of time, microseconds.
    Micros(u64)
}
id! {
    /// Wall-clock time of a transaction, milliseconds since the Unix epoch; 0 means "no time".
    Millis(u64)
}

impl Db {
    /// Scripts by their SHA-1. No client can select this database or the next.
    pub const SCRIPTS: Db = Db(255);
    /// Function libraries by name, and functions by name.
    pub const FUNCTIONS: Db = Db(254);
    /// The number of databases that a client can select.
    pub const COUNT: u8 = 16;
    /// The database of the child records of database 0; the others follow.
    const CHILDREN: u8 = 128;

    /// The database of the child records of this one's records (module [`crate::children`]). No client can select it,
    /// and no fragment can name it.
    ///
    /// # Panics
    /// If no client can select this database: its records have no children.
    #[must_use]
    pub const fn children(self) -> Db {
        assert!(self.0 < Db::COUNT, "the records of a database of our own have no children");
        Db(Db::CHILDREN + self.0)
    }

    /// True if this database holds the child records of another.
    #[inline]
    pub const fn holds_children(self) -> bool {
        self.0 >= Db::CHILDREN && self.0 < Db::CHILDREN + Db::COUNT
    }

    /// The database of the parent records if this one holds child records, or else this one: what is cleared and swapped
    /// together has one home.
    #[must_use]
    pub const fn home(self) -> Db {
        if self.holds_children() { Db(self.0 - Db::CHILDREN) } else { self }
    }
}

impl GatewayId {
    /// The gateway of transactions that the database itself submits; no client waits for their outcomes.
    pub const HOUSE: GatewayId = GatewayId(u32::MAX);

    /// Gateway `number` of a node.
    pub const fn of(node: u16, number: u16) -> GatewayId {
        GatewayId((node as u32) << 16 | number as u32)
    }

    /// Its node.
    pub const fn node(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Its number on the node.
    pub const fn number(self) -> u16 {
        self.0 as u16
    }
}

impl Micros {
    /// `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Micros {
        Micros(ms * 1000)
    }

    /// The sum of two times, saturating.
    #[must_use]
    pub const fn plus(self, other: Micros) -> Micros {
        Micros(self.0.saturating_add(other.0))
    }

    /// The time from `earlier` to `self`, zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Micros) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }

    /// Whole milliseconds, rounded down.
    pub const fn to_millis(self) -> Millis {
        Millis(self.0 / 1000)
    }
}

impl Epoch {
    /// The largest that there is room for in a [`Gsn`].
    pub const MAX: Epoch = Epoch((1 << 41) - 1);

    /// The epoch after this one.
    #[must_use]
    pub const fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

/// Global sequence number: a transaction's place in the serial order (calvin.md, section 0).
///
/// Packed as 41 bits of epoch, 8 bits of partition, 15 bits of index, so one integer compare orders any two
/// transactions. (Not 38, 8 and 18 as the sheet has it: epochs here last microseconds, not 10 ms, and 2^38 of
/// them could be used up within months.) [`Gsn::NONE`] is before all and stands for "no transaction".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gsn(pub u64);

crate::codec!(struct Gsn(_));

impl Gsn {
    /// Before every transaction; the version of an absent record.
    pub const NONE: Gsn = Gsn(0);
    /// The most transactions that one batch may hold.
    pub const MAX_BATCH: u32 = 1 << 15;

    /// The place of a read that was run as of the end of an epoch: after all of that epoch, and before the next.
    /// Reads of one epoch mostly differ in `salt`.
    pub const fn of_read(epoch: Epoch, salt: u64) -> Gsn {
        Gsn::new(epoch, PartitionId(255), (salt % Gsn::MAX_BATCH as u64) as u32)
    }

    /// True if the number is the place of such a read.
    pub const fn is_of_read(self) -> bool {
        self.partition().0 == 255
    }

    /// The number of the transaction's second execution: it distinguishes what shards send about it (qstore.md, section
    /// 4.7, step 7). It comes after every transaction that is executed for the first time.
    pub const fn again(self) -> Gsn {
        Gsn(self.0 | Gsn::AGAIN)
    }

    /// True if the number is that of a second execution.
    pub const fn is_again(self) -> bool {
        self.0 & Gsn::AGAIN != 0
    }

    /// The transaction, however often it is executed.
    pub const fn plain(self) -> Gsn {
        Gsn(self.0 & !Gsn::AGAIN)
    }

    const AGAIN: u64 = 1 << 63;

    /// Packs the three parts. The index must be below [`Gsn::MAX_BATCH`] and the partition below 256.
    pub const fn new(epoch: Epoch, partition: PartitionId, index: u32) -> Gsn {
        debug_assert!(index < Gsn::MAX_BATCH && partition.0 < 256);
        Gsn(epoch.0 << 23 | (partition.0 as u64) << 15 | index as u64)
    }

    /// The epoch part.
    pub const fn epoch(self) -> Epoch {
        Epoch(self.plain().0 >> 23)
    }

    /// The partition part.
    pub const fn partition(self) -> PartitionId {
        PartitionId((self.0 >> 15) as u16 & 0xff)
    }

    /// The index part.
    pub const fn index(self) -> u32 {
        (self.0 & 0x7fff) as u32
    }
}

impl fmt::Display for Gsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.epoch(), self.partition(), self.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_has_one_below_it_that_no_other_is() {
        for db in (0..Db::COUNT).map(Db) {
            assert!(db.children().holds_children() && !db.holds_children());
            assert_eq!((db.children().home(), db.home()), (db, db));
        }
        for own in [Db::SCRIPTS, Db::FUNCTIONS] {
            assert!(!own.holds_children());
            assert_eq!(own.home(), own);
        }
    }

    #[test]
    fn a_gsn_orders_by_epoch_then_partition_then_index() {
        let a = Gsn::new(Epoch(7), PartitionId(1), 9);
        assert_eq!((a.epoch(), a.partition(), a.index()), (Epoch(7), PartitionId(1), 9));
        assert!(a < Gsn::new(Epoch(7), PartitionId(2), 0));
        assert!(a < Gsn::new(Epoch(8), PartitionId(0), 0));
        assert!(Gsn::NONE < Gsn::new(Epoch(1), PartitionId(0), 0));
        assert_eq!(a.to_string(), "7.1.9");
    }
}
