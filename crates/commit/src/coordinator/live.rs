//! The transactions of a coordinator that are under way, and how far their attempts have come.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_model::{Chunk, Fragment, Micros, Millis, PartitionId, RequestNo, RoMode, SessionId};

use super::attempt::{End, Executing};
use super::open::{Open, Settling};
use super::parts::{Does, Elsewhere, Part};
use super::{Asker, session_of};
use crate::concurrency::Reads;
use crate::desk::Site;
use crate::entry::{Commit, Hold};
use crate::ids::{Age, AttemptId, Bounds, Lead, TransactionId};
use crate::message::Snapshot;
use crate::view::View;
use crate::voting::No;

/// A transaction under way.
#[derive(Debug)]
pub(super) struct Live {
    /// The claim under which it was taken.
    pub(super) home: Lead,
    pub(super) askers: Vec<Asker>,
    pub(super) chunk: Arc<Chunk>,
    pub(super) at: usize,
    pub(super) attempt: u32,
    pub(super) age: Age,
    /// The versions that it reads.
    pub(super) reads: Reads,
    /// The view that it has seen: its snapshot too, if it has one.
    pub(super) view: View,
    /// The time of its submission, since the node started.
    pub(super) since: Micros,
    pub(super) state: State,
    /// The part of an interactive one.
    pub(super) open: Option<Box<Open>>,
    /// The side of this region, if it is one of several regions: of an attempt that has run, or is asked for by another.
    pub(super) part: Option<Box<Part>>,
    /// It concerns several regions, as far as the attempt has come.
    pub(super) is_regional: bool,
    /// The last no of another region, since the attempt began.
    pub(super) no: Option<No>,
    /// The attempts that other regions have refused.
    pub(super) losses: u32,
    /// The times at which its records were reserved first, by the clock, and last, since the node started; if they are.
    pub(super) reserved: Option<(Millis, Micros)>,
}

impl Live {
    /// The request of a session that the transaction is, if it has to take effect once.
    pub(super) fn request(&self) -> Option<(SessionId, RequestNo)> {
        match &self.open {
            Some(open) => open.request,
            None => session_of(&self.chunk.txns()[self.at]),
        }
    }

    /// True if it can do nothing but read.
    pub(super) fn only_reads(&self) -> bool {
        self.open.is_none() && self.part.is_none() && self.chunk.txns()[self.at].read_only
    }

    /// True if it only reads, and nothing but records of its own region by their names.
    pub(super) fn reads_at_home(&self, site: &Site) -> bool {
        let fragments = self.chunk.fragments(&self.chunk.txns()[self.at]);
        let is_elsewhere = |fragment: &Fragment| {
            fragment.is_keyed() && site.is_foreign(site.layout.partition_of(fragment.hash.slot()))
        };
        self.only_reads() && !fragments.iter().any(is_elsewhere)
    }

    /// True if a part of it was answered: no other attempt may be made.
    pub(super) fn is_shown(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.is_shown)
    }

    /// True if another region has asked for it: no other attempt is made.
    pub(super) fn is_of_others(&self) -> bool {
        self.part.as_ref().is_some_and(|part| part.does != Does::Initiate)
    }

    /// True if this region initiated and promised the transaction, and waits for the votes of others.
    pub(super) fn is_in_doubt(&self) -> bool {
        matches!(self.state, State::Deciding { .. })
            && self.part.as_ref().is_some_and(|part| part.does == Does::Initiate)
    }

    /// True if a region is to say something before the attempt can be promised here: all of those that the initiator asks, and the initiator itself,
    /// once what is written here is locked.
    pub(super) fn needs_region(&self, region: PartitionId) -> bool {
        let part = self.part.as_ref().filter(|_| !matches!(self.state, State::Deciding { .. }));
        part.is_some_and(|part| match part.does {
            Does::Initiate => part.participants.iter().any(|lead| lead.partition == region),
            Does::Validate => {
                matches!(self.state, State::Locking { .. }) && part.of.home().partition == region
            }
            Does::Check => false,
        })
    }

    /// True if what it has read of other regions has to be validated there, though it has no effect.
    pub(super) fn is_validated(&self, site: &Site) -> bool {
        let is_past = site.regions.is_some_and(|regional| regional.reading == RoMode::Stale);
        !is_past || self.open.as_ref().is_some_and(|open| open.step().may_write)
    }

    /// The versions that the attempt reads, as far as it has come.
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot { reads: self.reads, vector: self.view.seen().vector.clone() }
    }

    /// The attempt that is under way, or was the last.
    pub(super) const fn who(&self, number: u64) -> AttemptId {
        AttemptId { transaction: TransactionId { home: self.home, number }, attempt: self.attempt }
    }
}

#[derive(Debug)]
pub(super) enum State {
    /// Participants run it.
    Executing(Executing),
    /// Its end is known, and rests on reads alone: `awaited` have not confirmed that their leaders lead.
    Confirming { awaited: BTreeSet<PartitionId>, shards: Vec<(usize, Lead)>, bounds: Bounds, end: End },
    /// Its participants vote: `awaited` have not promised it.
    Voting { awaited: BTreeSet<PartitionId>, shards: Vec<(usize, Lead)>, ready: Box<Ready> },
    /// It is of several regions, and all lock what it writes before any validates: `awaited` of this node's participants have not.
    Locking { awaited: BTreeSet<usize>, shards: Vec<(usize, Lead)>, ready: Box<Ready> },
    /// The others have promised it: `awaited` of this node's participants have not said with which stamps it may commit.
    Validating { awaited: BTreeSet<usize>, shards: Vec<(usize, Lead)>, ready: Box<Ready> },
    /// The decision is on its way into the log, which keeps the reply to a request of a session: `reply` is that to any other.
    Deciding { shards: Vec<(usize, Lead)>, reply: Vec<u8> },
    /// The attempt was refused; the next begins when the agenda says so.
    Waiting,
    /// An interactive one waits for its client, or for participants between two of its steps.
    Open(Option<Settling>),
}

/// A commit that waits for votes.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) now: Millis,
    /// The stamps that it may have, by those who have answered.
    pub(super) bounds: Bounds,
    pub(super) commit: Commit,
    /// The end of one that has no effect: the partition's leader is confirmed, and nothing goes into the log.
    pub(super) end: Option<End>,
    /// Its locks at this node's participants, where they are promised.
    pub(super) holds: Vec<Hold>,
    /// Reads of views that the regions are to check, of one that has no effect.
    pub(super) checked: BTreeMap<PartitionId, Elsewhere>,
}
