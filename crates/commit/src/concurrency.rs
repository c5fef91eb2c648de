//! The contract between a participant and an engine's concurrency control.

use std::fmt::Debug;

use ordain_execution::{TableChange, Write};
use ordain_model::{Cell, Gsn, codec};
use ordain_store::{MemoryStore, RecordId, RecordStore};

use crate::entry::Commitment;
use crate::ids::{Age, AttemptId, Bounds, TransactionId};
use crate::known::Living;
use crate::message::Snapshot;
use crate::stamps::Stamps;
use crate::view::{Seen, Vector, View};
use crate::viewing::Laid;

/// The order of transactions by age, equal ages by number. A smaller one is older; attempts at one transaction are equal.
pub type Seniority = (Age, TransactionId);

/// The part of a participant's records that an access concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// All records of the participant, those to come included.
    Table,
    /// One record.
    Record(RecordId),
}

/// The mode of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The fragment reads the target.
    Shared,
    /// The fragment reads the target and may change it.
    Exclusive,
    /// The fragment replaces the record, and looks at nothing of it.
    Blind,
}

codec!(enum Mode {
    0 => Shared,
    1 => Exclusive,
    2 => Blind,
});

/// When attempts take their snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Snapshots {
    /// Never: what is read is the newest, or goes by stamps.
    #[default]
    Never,
    /// When they begin: of what their home has heard.
    AtBegin,
    /// Attempts that write do with the first read, which sees the newest; those that only read take none.
    AtFirstRead,
}

/// The versions that an attempt with a view reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// The newest, but for those that it must not see. The attempt only reads.
    #[default]
    Newest,
    /// The newest. The first one that it reads fixes its snapshot.
    First,
    /// The versions of its snapshot.
    Fixed,
    /// The versions of its snapshot. An access that would wait for a transaction of several regions in doubt is refused.
    Resolved,
}

codec!(enum Reads {
    0 => Newest,
    1 => First,
    2 => Fixed,
    3 => Resolved,
});

/// The answer to a request for an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The access may go on.
    Granted,
    /// The access waits: [`Ended`] will report the attempt, unless it is finished before.
    Waits,
    /// The attempt must abort. The participant [finishes](ConcurrencyControl::finish) it; another attempt may be made.
    Refused,
}

/// The end of an attempt, as a participant hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It has committed with this stamp, or has been answered as one that only reads.
    Committed(Age),
    /// It has no effect, and nobody was answered.
    Aborted,
    /// Its home was not asked. It has changed nothing here; if it has only read, it may have been answered with any stamp that it might have.
    Unknown,
}

impl From<Option<Age>> for Ending {
    /// The end that a home has told: committed with a stamp, or aborted.
    fn from(commit: Option<Age>) -> Ending {
        commit.map_or(Ending::Aborted, Ending::Committed)
    }
}

/// The consequences of attempts that are over. Lists grow at their ends, and their owner empties them.
#[derive(Debug, Default)]
pub struct Ended {
    /// Records whose lock word is 0 now. They may be absent ones, which the store releases.
    pub released: Vec<RecordId>,
    /// Attempts whose waiting access is granted, in the order of the grants. The control is not asked for it again.
    pub granted: Vec<AttemptId>,
    /// Attempts whose waiting access is refused, as by [`Verdict::Refused`]: the participant finishes them.
    pub refused: Vec<AttemptId>,
    /// Validated attempts that have [stood on others](ConcurrencyControl::stands_on_others) and do so no more: true if all of those have committed.
    pub settled: Vec<(AttemptId, bool)>,
}

impl Ended {
    /// Adds the verdict on an access that has waited, unless it waits on.
    pub fn add(&mut self, who: AttemptId, verdict: Verdict) {
        match verdict {
            Verdict::Waits => {}
            Verdict::Granted => self.granted.push(who),
            Verdict::Refused => self.refused.push(who),
        }
    }
}

/// An engine's concurrency control on the records of one participant.
///
/// The participant asks for each access in the order in which it executes, one access of an attempt at a time, tells the
/// control when an attempt is over, and keeps a record in the store for as long as its lock word is not 0. An access to a
/// record implies an intention lock on the whole table, in the mode of the access.
pub trait ConcurrencyControl: Debug + Send {
    /// The life of the stamps by which it decides: `age` is one of them everywhere below.
    fn stamps(&self) -> Stamps {
        Stamps::OfTransaction
    }

    /// True if the control decides about an attempt where that is [validated](ConcurrencyControl::validate). Then attempts that only read are
    /// validated too, and the participants of the home are asked last.
    fn validates(&self) -> bool {
        false
    }

    /// True if nobody changes what an attempt was granted to read before the attempt is over. Else the participant asks for a
    /// record again each time before it reads it, unless it was granted [`Mode::Exclusive`].
    fn keeps_reads(&self) -> bool {
        true
    }

    /// True if it tells [`Mode::Blind`] from [`Mode::Exclusive`]. Else it is asked for the latter.
    fn tells_blind(&self) -> bool {
        false
    }

    /// When attempts take their snapshots.
    fn snapshots(&self) -> Snapshots {
        Snapshots::Never
    }

    /// True if what an attempt sees of a child record goes by the version of its parent: a write of the child installs the parent anew (R-VERSION).
    fn versions_parents(&self) -> bool {
        self.snapshots() != Snapshots::Never
    }

    /// An attempt is about to access something, or to be validated: it reads these versions. What it has fixed here before stays.
    fn enter(&mut self, _who: AttemptId, _age: Age, _snapshot: &Snapshot) {}

    /// An attempt is about to access something as a region's part of a transaction that another region has initiated. It must not wait for one that
    /// is promised: that may wait elsewhere for this one's transaction, and no region sees both waits (regions.md, 4.6 and 4.7).
    fn note_part(&mut self, _who: AttemptId, _age: Age) {}

    /// An attempt was granted a record that it checks: it stands only if that is as it was read when it commits (R-VERSION). Where there are no
    /// snapshots that holds for all that it reads.
    fn note_check(&mut self, _who: AttemptId, _record: RecordId) {}

    /// The versions that an attempt reads from now on, and what it has seen here: the vectors of what it has read and, once it was validated, of the
    /// newest versions of what it writes, with the attempts that must not see its writes.
    fn view(&self, _who: AttemptId) -> (Reads, View) {
        (Reads::Newest, View::NONE)
    }

    /// The partition has heard of the decisions of all, as far as its log is applied here.
    fn hear(&mut self, _vector: &Vector) {}

    /// The readers that may be under way, as far as the log is applied here.
    fn outlive(&mut self, _living: &Living) {}

    /// The latest stamp that it knows of: no smaller one than that can have been the reason of a refusal.
    fn latest(&self) -> Age {
        Age(0)
    }

    /// Decides about one access of an attempt. A verdict for a mode covers weaker ones. An attempt that waits, or is refused
    /// and not finished yet, asks for nothing.
    fn access(
        &mut self,
        store: &mut MemoryStore,
        who: AttemptId,
        age: Age,
        target: Target,
        mode: Mode,
    ) -> Verdict;

    /// The first stamp that an attempt may have, as far as it has run here; 0 of one that is not known, or whose stamp is its age.
    fn begins(&self, _who: AttemptId) -> Age {
        Age(0)
    }

    /// Validates an attempt before it is promised or confirmed: it may commit with each stamp within the answer, whatever others do until
    /// it is finished. If no stamp within the bounds is left, the answer is empty and its home finishes it; the answer begins with the
    /// first stamp that another attempt might have here.
    ///
    /// `given` are the stamps that are given now: none before them, and those after them only if there is none within.
    fn validate(
        &mut self,
        _store: &mut MemoryStore,
        _who: AttemptId,
        bounds: Bounds,
        _given: Bounds,
    ) -> Bounds {
        bounds
    }

    /// Forbids that what an attempt has read changes from its validation on until it is over, whatever stamps others have: it is one region's
    /// part of a transaction of several, which takes effect between the promise of the last region and the outcome of the first (regions.md, 4.1).
    /// Called before it is [validated](ConcurrencyControl::validate).
    fn keep_reads(&mut self, _who: AttemptId) {}

    /// True if a transaction of several regions is validated in two rounds: what it writes is [locked](ConcurrencyControl::lock_writes) in all of them
    /// before what it has read is validated in any (regions.md, 4.6). Then what it has read may change once it is validated.
    fn locks_first(&self) -> bool {
        false
    }

    /// Locks what an attempt has written, without waiting, before it is [validated](ConcurrencyControl::validate); answers whether nobody else is in the
    /// way. Of a control that [locks first](ConcurrencyControl::locks_first).
    fn lock_writes(&mut self, _store: &mut MemoryStore, _who: AttemptId) -> bool {
        true
    }

    /// Reports the records that an attempt has read, with the versions that they had and, where the log has not told of that one, the transaction
    /// that has left it. Of views alone.
    fn read_so_far(&self, _who: AttemptId, _show: &mut dyn FnMut(RecordId, Gsn, Option<AttemptId>)) {}

    /// Hears of a transaction of the view's own region that writes in the other one. Of views alone.
    fn lay(&mut self, _store: &mut MemoryStore, _news: Laid, _ended: &mut Ended) {}

    /// Permits records that an attempt has read to change from its validation on: that answer decides it, or it writes nothing.
    /// Called before it is [validated](ConcurrencyControl::validate).
    fn let_reads_go(&mut self, _who: AttemptId) {}
    /// Gives the control the records that an attempt will write here, all of them: once it is validated, others may read them before it is decided.
    fn hand_over(&mut self, _store: &mut MemoryStore, _who: AttemptId, _writes: &[Write]) {}

    /// An attempt that is about to be validated has no effect, whatever it has written here.
    fn forgo(&mut self, _who: AttemptId) {}

    /// True if a validated attempt commits only if others do that are validated and not decided. Its coordinator hears that it is validated once
    /// [`Ended::settled`] reports it.
    fn stands_on_others(&self, _who: AttemptId) -> bool {
        false
    }

    /// Makes a change of whole databases that an attempt has committed, in the order of the log, on every member of the partition.
    fn change(&mut self, store: &mut MemoryStore, change: TableChange, _with: &Commitment, version: Gsn) {
        change.apply(&mut store.table(version));
    }

    /// Installs a record as an attempt leaves it that has committed, in the order of the log, on every member of the partition.
    /// The memory that an engine keeps of it follows from the log alone, as records do.
    fn install(
        &mut self,
        store: &mut MemoryStore,
        record: RecordId,
        cell: Cell,
        _with: &Commitment,
        version: Gsn,
    ) {
        store.put_back(record, cell, version);
    }

    /// Ends an attempt: installed, aborted, or cancelled while it waits. Nothing of it counts any more; it may be one
    /// that is not known here.
    ///
    /// Locks on records are released before the one on the table, so that a request that waited for the table finds records
    /// as the attempt leaves them.
    fn finish(&mut self, store: &mut MemoryStore, who: AttemptId, ending: Ending, ended: &mut Ended);

    /// Takes the attempts whose waits have begun or changed since they were taken last, if waits may close a cycle: whom they wait for is
    /// [`waits_for`](ConcurrencyControl::waits_for). A later one may be over.
    fn take_waiters(&mut self) -> Vec<AttemptId> {
        Vec::new()
    }

    /// The attempts that keep an attempt waiting, if waits may close a cycle. Those for which one of them waits, for the same lock, may be left out.
    fn waits_for(&self, _store: &MemoryStore, _who: AttemptId) -> Vec<AttemptId> {
        Vec::new()
    }

    /// Begins a term, after [`clear`]: in earlier ones accesses with any stamp below the floor may have been granted.
    ///
    /// [`clear`]: ConcurrencyControl::clear
    fn begin(&mut self, _floor: Age) {}

    /// Gives a prepared attempt of an earlier term a lock that it held, with the stamps that it may have. Locks are restored after the term has
    /// [begun] and before any access.
    ///
    /// # Panics
    /// If the lock conflicts with one that is held, or others wait for it: the log would hold what was never granted.
    ///
    /// [begun]: ConcurrencyControl::begin
    fn restore(
        &mut self,
        store: &mut MemoryStore,
        who: AttemptId,
        bounds: Bounds,
        target: Target,
        mode: Mode,
    );

    /// An attempt that only reads the target has found it expired, which others do not see yet who have read it: for them it is as if the attempt
    /// had removed it.
    fn find_expired(&mut self, store: &mut MemoryStore, who: AttemptId, age: Age, target: Target) -> Verdict {
        self.access(store, who, age, target, Mode::Exclusive)
    }

    /// True if an attempt may change a record that is in the store.
    fn is_held(&self, store: &MemoryStore, record: RecordId) -> bool {
        store.lock(record) != 0
    }

    /// Reports the locks that an attempt holds: that on the table first, then those on records by their numbers. Intention
    /// locks are left out, since those on records imply them.
    fn held(&self, who: AttemptId, show: &mut dyn FnMut(Target, Mode));

    /// Drops every lock and request, since the term has changed: all but what follows from the log. Lock words of records of which nothing
    /// else is known become 0, and the store releases absent ones.
    fn clear(&mut self, store: &mut MemoryStore);

    /// Forgets what is remembered of stamps before this one, which the log has agreed on: what is installed from now on has no earlier one.
    /// An access with an earlier one may be refused.
    fn advance(&mut self, _store: &mut MemoryStore, _to: Age) {}

    /// True if it remembers something that [`advance`](ConcurrencyControl::advance) would make it forget.
    fn remembers(&self) -> bool {
        false
    }

    /// Reports what follows from the log and is not in the store: the stamps of writes.
    fn remembered(&self, _show: &mut dyn FnMut(RecordId, Age)) {}

    /// Takes in what [`remembered`](ConcurrencyControl::remembered) has reported of a record, as a checkpoint holds it.
    fn remember(&mut self, _store: &mut MemoryStore, _record: RecordId, _stamp: Age) {}

    /// The contents of the store follow no more than this view, and the readers that it names must not see them.
    fn assume(&mut self, _followed: &Seen) {}

    /// The content of a record that an attempt with a stamp sees, and its version; `None` if that is the one in the store.
    fn seen<'a>(
        &'a self,
        _store: &MemoryStore,
        _record: RecordId,
        _reader: (AttemptId, Age),
    ) -> Option<(&'a Cell, Gsn)> {
        None
    }

    /// All records of which an attempt with a stamp [sees](ConcurrencyControl::seen) another content than the one in the store, in any
    /// order.
    fn replaced(&self, _reader: (AttemptId, Age)) -> Vec<(RecordId, &Cell)> {
        Vec::new()
    }

    /// Checks what must hold between any two events, given the attempts that are under way.
    ///
    /// # Errors
    /// The first invariant that is broken, with the attempt or record.
    fn check(&self, store: &MemoryStore, is_live: &dyn Fn(AttemptId) -> bool) -> Result<(), String>;

    /// Checks that nothing is kept of attempts that are over, when none was under way for so long that all is forgotten.
    ///
    /// # Errors
    /// The first thing that is kept, with its place.
    fn check_at_rest(&self) -> Result<(), String> {
        Ok(())
    }

    /// Reports gauges and counters of the participant's locks, by the names that metrics show.
    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64));
}
