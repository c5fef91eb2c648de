//! The entries of a partition's log: what the partition has decided, promised and learnt.

mod bytes;
#[cfg(test)]
mod tests;
mod writes;

use std::sync::Arc;

use ordain_execution::{TableChange, Write};
use ordain_model::{Db, Epoch, Millis, PartitionId, Placement, RequestNo, SessionId, codec};
use ordain_replication::EntryType;
use ordain_role::{Bug, Bugs};

use crate::concurrency::Mode;
use crate::founding::Met;
use crate::ids::{Age, AttemptId, Bounds, Lead, Term};
use crate::known::Readers;
use crate::view::View;

/// An entry of a partition's log. Every member applies the same entries in the same order.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The place in the log: the stamp of what takes effect with it, and the version of what it installs. Places are used
    /// once in the life of a partition, and no record moves to another: so a version stands for one writer.
    pub place: Epoch,
    /// The term in which the proposer led.
    pub term: Term,
    /// No transaction before it has seen a later time, and none after it sees an earlier one.
    pub now: Millis,
    /// The content.
    pub content: Content,
    /// The group's term in which members agreed on it; `None` where no members have to. Not in the bytes.
    pub agreed: Option<u64>,
}

impl Entry {
    /// The regions that vote on what it promises, if it is such a promise.
    pub fn among(&self) -> Option<&Among> {
        match &self.content {
            Content::Prepare(prepare) => prepare.among.as_deref(),
            _ => None,
        }
    }

    /// About how many bytes it has in the log.
    pub fn weight(&self) -> u64 {
        /// The place, the term, the time and the names of attempts.
        const REST: usize = 64;
        let of_write = |write: &Write| write.key.len() + write.cell.weight() + 16;
        let of_hold = |hold: &Hold| match hold {
            Hold::Record { key, .. } => key.len() + 8,
            Hold::Table { .. } => 8,
        };
        let content = match &self.content {
            Content::Commit(commit) => {
                let rest = commit.reply.len() + commit.view.weight();
                rest + commit.writes.iter().map(of_write).sum::<usize>()
            }
            Content::Prepare(prepare) => {
                let parts = prepare.writes.iter().map(of_write).chain(prepare.holds.iter().map(of_hold));
                let among = prepare.among.as_ref();
                let among = among.map_or(0, |among| 32 + 10 * among.participants.len() + among.reply.len());
                prepare.view.weight() + among + parts.sum::<usize>()
            }
            Content::Outcome(_, commit) => commit.as_ref().map_or(0, |with| with.view.weight()),
            Content::Announce(numbers) => numbers.len() * 26,
            Content::Forget(attempts) => attempts.len() * 24,
            Content::Begin | Content::Deny(_) | Content::Reserve(_) | Content::Mark | Content::Meet(_) => 0,
        };
        (REST + content) as u64
    }
}

/// The content of an entry.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// A node begins to serve the partition, in a new term.
    Begin,
    /// The home partition commits an attempt.
    Commit(Commit),
    /// A participant votes yes: it will install these writes if the home partition has committed the attempt, whatever
    /// happens to its leader.
    Prepare(Prepare),
    /// A participant has learnt the outcome of what it has prepared: installed with this, or dropped.
    Outcome(AttemptId, Option<Commitment>),
    /// The home partition says that this attempt has not committed and never will.
    Deny(AttemptId),
    /// Every participant of these attempts knows their outcome: nobody asks for it again.
    Forget(Vec<AttemptId>),
    /// Times before this one may be used to tell what has expired (R-CEILING).
    Reserve(Millis),
    /// A node is so far in the first meeting of all nodes. It counts before the first term.
    Meet(Met),
    /// A cut: the checkpoint of the partition holds the state behind this entry. Its place is a multiple of the spacing of cuts.
    Mark,
    /// Other homes have decided so far, and nothing up to there concerns this partition that is not installed here.
    Announce(Vec<Announced>),
}

/// A home's word of how far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The home, in the term in which it says so.
    pub home: Lead,
    /// It has decided up to this number, and the receiver has installed what concerns it of that.
    pub number: u64,
    /// Its transactions under way that only read.
    pub readers: Readers,
}

/// The stamp and view with which an attempt has committed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commitment {
    /// Its stamp.
    pub stamp: Age,
    /// The decisions that it follows, its own included, and the readers that must not see it; nothing with engines that have no snapshots.
    pub view: View,
    /// The last decision of its home before it. To a participant the home tells, unless [`Install::Paper`] is asked for, the last one that
    /// concerns that partition and of which the home does not know that it is installed there; 0 if there is none.
    ///
    /// [`Install::Paper`]: ordain_model::Install::Paper
    pub after: u64,
}

codec!(struct Commitment { stamp, view, after });

impl Commitment {
    /// The commitment of an engine without snapshots.
    pub const fn at(stamp: Age) -> Commitment {
        Commitment { stamp, view: View::NONE, after: 0 }
    }
}

/// The decision to commit an attempt, with what it writes at home. By default it writes nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Commit {
    /// The attempt.
    pub attempt: AttemptId,
    /// Its stamp.
    pub age: Age,
    /// What it has seen. Its own decision is missing: the entry's place is the number of that.
    pub view: View,
    /// Transactions of its home with lower numbers that only read are over.
    pub low: u64,
    /// Stamps and times before this one may be used from now on, as with [`Content::Reserve`].
    pub ceiling: Millis,
    /// The request of a session that is decided, if it is one.
    pub session: Option<(SessionId, RequestNo)>,
    /// The reply to the request of a session; nothing without one, as only a retry is answered from the log.
    pub reply: Vec<u8>,
    /// Changes of whole databases, the same on each shard. They come before the writes.
    pub changes: Vec<TableChange>,
    /// Records of this partition as the attempt leaves them. Of one that is here twice the later counts.
    pub writes: Vec<Write>,
    /// The other partitions that have prepared it.
    pub participants: Vec<PartitionId>,
}

impl Commit {
    /// What the attempt has committed with, given the place of the decision in its home's log.
    pub fn commitment(&self, place: Epoch) -> Commitment {
        let view = self.view.clone().decided(self.attempt.home().partition, place.0);
        Commitment { view, ..Commitment::at(self.age) }
    }
}

/// The promise of a participant.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepare {
    /// The attempt.
    pub attempt: AttemptId,
    /// The stamps that it may commit with.
    pub bounds: Bounds,
    /// What it has seen here, and who must not see what it writes.
    pub view: View,
    /// Stamps and times before this one may be used from now on, as with [`Content::Reserve`]; 0 if the ceiling is above the bounds already.
    pub ceiling: Millis,
    /// Changes of whole databases, the same on each shard. They would come before the writes.
    pub changes: Vec<TableChange>,
    /// Records of this partition as the attempt would leave them. Of one that is here twice the later counts.
    pub writes: Vec<Write>,
    /// The locks of the attempt here, to be held again by whoever leads next.
    pub holds: Vec<Hold>,
    /// The regions among which it is voted on; `None` where a home decides.
    pub among: Option<Box<Among>>,
}

/// The regions that vote on a transaction, of which a promise is one region's part (regions.md, 4.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Among {
    /// The attempt of the initiator: all regions know the transaction by it.
    pub of: AttemptId,
    /// Those that vote, the initiator's among them, in the terms in which the initiator knew them.
    pub participants: Vec<Lead>,
    /// The request of a session that is decided, if it is one. Of the initiator's part.
    pub session: Option<(SessionId, RequestNo)>,
    /// The reply. Of the initiator's part.
    pub reply: Vec<u8>,
}

impl Among {
    /// The regions but one.
    pub fn others(&self, own: PartitionId) -> Vec<PartitionId> {
        self.participants.iter().map(|lead| lead.partition).filter(|partition| *partition != own).collect()
    }
}

/// Something that an attempt holds at a participant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// A record.
    Record {
        /// Its database.
        db: Db,
        /// Its key.
        key: Vec<u8>,
        /// The mode.
        mode: Mode,
    },
    /// All records of a shard.
    Table {
        /// The shard.
        shard: u16,
        /// The mode.
        mode: Mode,
    },
}

codec!(enum Hold {
    0 => Record { db, key, mode },
    1 => Table { shard, mode },
});

/// The terms of a log, as its entries are applied: which of them count.
///
/// An entry counts if members agreed on it in the group's term of its proposer, and no later term had begun. What a former leader has
/// proposed and was agreed on later says what nobody may say any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    last: Term,
    /// Planted, OF-ITS-TERM: an entry counts whoever has proposed it.
    counts_all: bool,
}

impl Terms {
    /// The terms with planted bugs, for tests of the checkers.
    #[must_use]
    pub const fn planting(self, bugs: Bugs) -> Terms {
        Terms { counts_all: bugs.has(Bug::KeepClaim), ..self }
    }

    /// The terms of a log that goes on after this one.
    #[must_use]
    pub const fn after(self, last: Term) -> Terms {
        Terms { last, ..self }
    }

    /// Takes note of the next entry; answers whether it counts.
    pub fn take(&mut self, entry: &Entry) -> bool {
        let is_agreed = entry.agreed.is_none_or(|group| group == entry.term.of_group());
        let is_of_last = match entry.content {
            Content::Begin => entry.term > self.last,
            _ => entry.term == self.last,
        };
        let counts = is_agreed && is_of_last;
        if counts {
            self.last = entry.term;
        }
        counts || self.counts_all && !matches!(entry.content, Content::Begin)
    }

    /// The last term that has begun.
    pub const fn last(&self) -> Term {
        self.last
    }
}

/// Commit records as the entries of a log.
#[derive(Clone, Copy, Debug)]
pub struct Entries;

impl EntryType for Entries {
    type Entry = Arc<Entry>;
    type Context = Placement;

    fn epoch(entry: &Arc<Entry>) -> Epoch {
        entry.place
    }

    fn must_be_durable(_: &Arc<Entry>) -> bool {
        true
    }

    fn encode(entry: &Arc<Entry>) -> Vec<u8> {
        bytes::encode(entry)
    }

    fn decode(placement: &Placement, bytes: &[u8]) -> Result<Arc<Entry>, String> {
        bytes::decode(placement, bytes).map(Arc::new).ok_or_else(|| {
            "it is no entry of a commit engine: another version wrote it, or it is damaged".to_owned()
        })
    }

    fn note_term(entry: &mut Arc<Entry>, term: u64) {
        Arc::make_mut(entry).agreed = Some(term);
    }
}
