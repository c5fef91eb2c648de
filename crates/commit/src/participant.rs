//! The participant: one shard's records, the engine's concurrency control over them, and the workspaces of attempts.
//!
//! Its records are what the partition's log says, on every member ([`Participant::apply`]). Everything else is of the term in
//! which its node serves the partition, and goes with that term: attempts, their workspaces, what they hold and wait for. A
//! new term begins with what is prepared.

mod holding;
mod replacing;
mod running;
mod seen;
mod stamped;
#[cfg(test)]
mod tests;
mod values;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_execution::{PATIENCE, TableChange, Write};
use ordain_model::children::split_child_key;
use ordain_model::procedure::Locals;
use ordain_model::{
    Cell, Computations, Db, Digest, DigestSpan, Epoch, Gsn, KeyHash, Micros, Millis, PartitionId, Position,
    Registry, Stopwatch,
};
use ordain_replication::Log;
use ordain_role::{Address, Bug, Bugs, Event, Now, Outbox, Role, TimerId, UnderWay};
use ordain_store::{Evicting as _, MemoryStore, RecordId, RecordStore};

use crate::capture::Capture;
use crate::concurrency::{ConcurrencyControl, Ended, Ending, Snapshots, Target};
use crate::digests::Digests;
use crate::entry::{Commitment, Content, Entry, Hold, Prepare, Terms};
use crate::figures::of_view;
use crate::heard::Heard;
use crate::ids::{Age, AttemptId, Bounds, Lead, Term};
use crate::image::{Image, Remembered};
use crate::known::{Living, Readers};
use crate::message::{Gathered, Message, Own, Protocol, Snapshot, Termed};
use crate::saving::Giving;
use crate::stamps::Stamps;
use crate::times::{LATEST, Times};
use crate::view::View;
use crate::viewing::Laid;
pub use holding::Holding;
use replacing::Replacing;
use running::{Attempt, Away};
pub(crate) use values::{Values, Waiter};
use waiting::Waiting;

const SWEEP: TimerId = TimerId(1);
/// Goes on giving a checkpoint away.
const GIVE: TimerId = TimerId(2);
/// Values that a checkpoint asked for were on their way to the disk.
const VALUES: TimerId = TimerId(3);
/// Records whose time has come are looked for so often.
const SWEEP_EVERY: Micros = Micros::from_millis(100);
/// The number of records that are looked at each time, about.
const SWEPT: usize = 20_000;
/// The number of records whose memory is given back each time after a whole database was cleared, about.
const FREED: usize = 20_000;
/// The most records that are removed at once.
const REMOVED: usize = 256;

/// See the module.
#[derive(Debug)]
pub struct Participant {
    holding: Holding,
    manager: Address,
    registry: Arc<Registry>,
    store: MemoryStore,
    /// Its values on disk, if it has a budget of memory.
    values: Option<Values>,
    /// The last entry that is applied.
    applied: Epoch,
    terms: Terms,
    /// Promises of the partition whose outcomes it has not learnt: those that concern this shard.
    prepared: BTreeMap<AttemptId, Arc<Entry>>,
    /// The ages of all promises of the partition: its shards forget alike.
    promised: BTreeMap<AttemptId, Age>,
    control: Box<dyn ConcurrencyControl>,
    /// What the log has heard of the decisions of all, as far as it is applied.
    heard: Heard,
    /// The readers that may be under way, by the log.
    living: Living,
    /// The term in which the node serves the partition, if it does.
    serves: Option<Term>,
    /// The term, and the place up to which everything has to be applied before it begins.
    begins: Option<(Term, Epoch)>,
    /// The latest terms of homes that are known here.
    homes: BTreeMap<PartitionId, Term>,
    /// Boxed, as a tree moves its values.
    attempts: BTreeMap<AttemptId, Box<Attempt>>,
    times: Times,
    /// Attempts that wait for their times to be reserved.
    unreserved: Vec<AttemptId>,
    waiting: Waiting,
    /// Where the next sweep begins.
    sweeps_from: Position,
    locals: Locals,
    away: Away,
    /// A write of a child record gives its parent the version of the write: another region knows by that alone whether what it has read of both
    /// is the newest.
    moves_parents: bool,
    /// It shows a partition to which the node does not belong, whose log this role reads.
    shows: Option<Address>,
    replacing: Replacing,
    /// The digests by which members compare themselves, if the partition has several.
    digests: Option<Digests>,
    capture: Capture,
    refused: u64,
    waited: u64,
    /// Messages to other nodes.
    sent: u64,
    bugs: Bugs,
}

impl Participant {
    /// A participant without records.
    ///
    /// # Panics
    /// If the registry plans by another placement than that of the layout: a mistake in the program.
    pub fn new(
        holding: Holding,
        manager: Address,
        registry: Arc<Registry>,
        control: Box<dyn ConcurrencyControl>,
    ) -> Participant {
        let placement = holding.placement();
        assert_eq!(registry.placement(), placement, "transactions are planned by another placement");
        let store = MemoryStore::placed(holding.slots(), placement.clone());
        Participant {
            holding,
            manager,
            registry,
            store,
            values: None,
            applied: Epoch(0),
            terms: Terms::default(),
            prepared: BTreeMap::new(),
            promised: BTreeMap::new(),
            control,
            heard: Heard::default(),
            living: Living::default(),
            serves: None,
            begins: None,
            homes: BTreeMap::new(),
            attempts: BTreeMap::new(),
            times: Times::default(),
            unreserved: Vec::new(),
            waiting: Waiting::default(),
            sweeps_from: Position::default(),
            locals: Locals::default(),
            away: Away::default(),
            moves_parents: false,
            shows: None,
            replacing: Replacing::default(),
            digests: None,
            capture: Capture::default(),
            refused: 0,
            waited: 0,
            sent: 0,
            bugs: Bugs::NONE,
        }
    }

    /// The participant with planted bugs, for tests of the checkers.
    #[must_use]
    pub fn planting(self, bugs: Bugs) -> Participant {
        Participant { bugs, terms: self.terms.planting(bugs), ..self }
    }

    /// Sets where an operator finds its long computations, and what it is executing.
    #[must_use]
    pub fn with_computations(mut self, computations: Computations, under_way: UnderWay) -> Participant {
        (self.away.computations, self.away.under_way) = (computations, under_way);
        self
    }

    /// Sets the clock by which scripts are timed, here and on work threads.
    #[must_use]
    pub fn with_stopwatch(mut self, stopwatch: Arc<dyn Stopwatch>) -> Participant {
        self.locals.stopwatch = Some(stopwatch.clone());
        self.away.stopwatch = Some(stopwatch);
        self
    }

    /// The participant as the view of a region that the node does not belong to: it takes accesses from the start on, whoever leads there.
    #[must_use]
    pub fn viewing(mut self, reader: Address) -> Participant {
        self.shows = Some(reader);
        // Others test the time of the same records there. What is shown is of the past anyhow.
        self.times.reserve(LATEST);
        self.serves = Some(self.terms.last());
        self
    }

    /// The participant as one of a region, or the view of one.
    #[must_use]
    pub fn of_region(self) -> Participant {
        Participant { moves_parents: true, ..self }
    }

    /// The participant as one of several members that are compared by their digests.
    #[must_use]
    pub fn comparing(self) -> Participant {
        Participant { digests: Some(Digests::default()), ..self }
    }

    /// The participant that gives its part of checkpoints away.
    #[must_use]
    pub fn giving(mut self, giving: Giving) -> Participant {
        self.capture.set(giving);
        self
    }

    /// Takes a record of the state behind a cut, as a checkpoint holds it.
    ///
    /// A version beyond the cut is of another history, in which versions were counted in another way: it counts as the cut's.
    pub fn restore(&mut self, cut: Epoch, (db, key): (Db, &[u8]), cell: Cell, version: Gsn) {
        let record = self.store.find_or_reserve(db, key, self.hash_of(db, key));
        self.store.put_back(record, cell, version.min(Gsn(cut.0)));
    }

    /// Begins with the state behind a cut, once all its records are [restored](Participant::restore).
    pub fn begin_from(&mut self, cut: Epoch, image: &Image) {
        self.applied = cut;
        self.terms = self.terms.after(image.standing.term);
        self.times.reserve(image.standing.ceiling);
        self.heard = image.standing.heard.clone();
        self.living = image.standing.living.clone();
        self.control.hear(self.heard.vector());
        self.control.outlive(&self.living);
        self.control.assume(&image.standing.followed);
        for Remembered { db, key, stamp } in &image.remembered {
            let hash = self.hash_of(*db, key);
            if self.holding.has(hash) {
                let record = self.store.find_or_reserve(*db, key, hash);
                self.control.remember(&mut self.store, record, *stamp);
                self.store.release_if_absent(record);
            }
        }
        for entry in &image.prepared {
            if let Content::Prepare(prepare) = &entry.content {
                self.promise(prepare, entry);
            }
        }
    }

    /// The stamps of records that a checkpoint would have now, beside their contents.
    pub fn remembered(&self) -> Vec<Remembered> {
        remembered_by(&*self.control, &self.store)
    }

    /// The digest of the committed records.
    pub fn digest(&self) -> Digest {
        self.store.digest()
    }

    // ---- what the log says ---------------------------------------------------------------------------------

    /// Applies the next entry of the partition's log; answers the attempt that it ends, if it ends one, with its stamp if that has committed.
    ///
    /// # Panics
    /// If the entry is not the next.
    pub fn apply(&mut self, entry: &Arc<Entry>) -> Option<(AttemptId, Option<Age>)> {
        assert!(entry.place > self.applied, "entries are applied in the order of the log");
        if let Some(digests) = &mut self.digests {
            digests.pass(self.applied, entry.place, || self.store.digest());
        }
        self.applied = entry.place;
        self.capture.applied();
        if !self.terms.take(entry) {
            return None;
        }
        match &entry.content {
            Content::Commit(commit) => {
                self.times.reserve(commit.ceiling);
                let with = commit.commitment(entry.place);
                if with.view.is_some() {
                    let home = commit.attempt.home();
                    self.heard.decided(home.partition, entry.place.0);
                    self.control.hear(self.heard.vector());
                    self.outlive(home, commit.low.into());
                }
                self.install(&commit.changes, &commit.writes, &with, entry.place);
                Some((commit.attempt, Some(commit.age)))
            }
            Content::Prepare(prepare) => {
                self.times.reserve(prepare.ceiling);
                self.promise(prepare, entry);
                None
            }
            Content::Outcome(attempt, commit) => {
                let prepared = self.prepared.remove(attempt);
                let of = prepared.as_ref().and_then(|entry| entry.among()).map(|among| among.of);
                self.promised.remove(attempt);
                if let Some(Content::Prepare(prepare)) = prepared.as_ref().map(|entry| &entry.content)
                    && let Some(with) = commit
                {
                    self.install(&prepare.changes, &prepare.writes, with, entry.place);
                }
                if let Some(with) = commit {
                    self.heard.concluded(*attempt, with);
                    self.control.hear(self.heard.vector());
                }
                if let Some(of) = of.filter(|_| self.shows.is_some()) {
                    self.lay(Laid::Told(of, entry.place));
                }
                Some((*attempt, commit.as_ref().map(|with| with.stamp)))
            }
            Content::Reserve(ceiling) => {
                self.times.reserve(*ceiling);
                self.forget();
                None
            }
            Content::Mark => {
                let control = &*self.control;
                self.capture.cut(entry.place, &mut self.store, |store| remembered_by(control, store));
                None
            }
            Content::Announce(numbers) => {
                numbers.iter().for_each(|of| self.heard.announced(of.home.partition, of.number));
                self.control.hear(self.heard.vector());
                numbers.iter().for_each(|of| self.outlive(of.home, of.readers.clone()));
                None
            }
            Content::Begin | Content::Deny(_) | Content::Forget(_) | Content::Meet(_) => None,
        }
    }

    /// A home has said which of its readers are under way.
    fn outlive(&mut self, home: Lead, readers: Readers) {
        if self.living.outlive(home, readers) {
            self.control.outlive(&self.living);
        }
    }

    /// Forgets what is remembered of stamps that no attempt will have that is promised or committed from now on: what is promised already is
    /// yet to be installed.
    fn forget(&mut self) {
        let to = match self.control.snapshots() {
            Snapshots::Never => self.promised.values().copied().fold(self.floor(), Age::min),
            // What is promised is the newest version, whatever is forgotten.
            _ => Stamps::kept_from(self.times.ceiling()),
        };
        self.control.advance(&mut self.store, to);
    }

    /// No attempt with an earlier stamp is promised or committed any more.
    fn floor(&self) -> Age {
        self.control.stamps().floor(self.times.ceiling())
    }

    fn promise(&mut self, prepare: &Prepare, entry: &Arc<Entry>) {
        self.promised.insert(prepare.attempt, prepare.bounds.from);
        if self.takes_part(prepare) {
            self.prepared.insert(prepare.attempt, entry.clone());
        }
    }

    /// True if something of a promise is here.
    fn takes_part(&self, prepare: &Prepare) -> bool {
        let is_here = |db, key: &[u8]| self.holding.has(self.hash_of(db, key));
        let is_held_here = |hold: &Hold| match hold {
            Hold::Record { db, key, .. } => is_here(*db, key),
            Hold::Table { shard, .. } => usize::from(*shard) == self.holding.number(),
        };
        !prepare.changes.is_empty()
            || prepare.holds.iter().any(is_held_here)
            || prepare.writes.iter().any(|write| self.holding.has(write.hash))
    }

    /// Makes the changes of whole databases here, and installs what is written here, in place of all that the records held.
    fn install(&mut self, changes: &[TableChange], writes: &[Write], with: &Commitment, place: Epoch) {
        // Nobody else has a lock meanwhile, and those of the attempt itself stay with their names.
        for change in changes {
            self.control.change(&mut self.store, *change, with, Gsn(place.0));
        }
        // Planted, ORDER.
        let skips = self.bugs.has(Bug::SkipTransaction) && place.0 % 97 == 13;
        for write in writes.iter().filter(|_| !skips) {
            if !self.holding.has(write.hash) {
                continue;
            }
            let record = self.store.find_or_reserve(write.db, &write.key, write.hash);
            // Planted, WATCHED.
            let counts = self.bugs.has(Bug::CountVersions) && write.cell.value.is_some();
            let version = if counts { self.store.version(record).0.wrapping_add(1) } else { place.0 };
            // An absent record has no version; that a later one has removed it tells the store what to keep for a checkpoint.
            self.control.install(&mut self.store, record, write.cell.clone(), with, Gsn(version));
            if self.values.is_some() {
                // Only a leader reads: what was written lately is what the next one has in memory.
                self.store.touch(record);
            }
            self.store.release_if_absent(record);
            if write.db.holds_children() && (self.moves_parents || self.control.versions_parents()) {
                self.touch_parent(write, with, Gsn(place.0));
            }
        }
    }

    /// Gives the parent of a child that was written a version with the same content: attempts access the parent, and what they see of the
    /// child goes by that (R-VERSION).
    fn touch_parent(&mut self, write: &Write, with: &Commitment, place: Gsn) {
        let Some((parent, _)) = split_child_key(&write.key) else { return };
        let db = write.db.home();
        let record = self.store.find_or_reserve(db, parent, self.hash_of(db, parent));
        let cell = self.store.cell(record).clone();
        let version = if self.moves_parents { place } else { self.store.version(record) };
        self.control.install(&mut self.store, record, cell, with, version);
        self.store.release_if_absent(record);
    }

    fn hash_of(&self, db: Db, key: &[u8]) -> KeyHash {
        self.holding.placement().hash_of_record(db, key)
    }

    // ---- terms ---------------------------------------------------------------------------------------------

    /// The node serves the partition from now on, if it has applied everything up to the place that was named.
    fn begin_if_ready(&mut self, out: &mut Outbox<Message>) {
        let Some((term, _)) = self.begins.take_if(|(_, after)| *after <= self.applied) else { return };
        if term < self.terms.last() {
            // Another node has begun meanwhile: this one's manager is about to hear of it.
            return;
        }
        self.stand();
        self.serves = Some(term);
        // Planted, TIME-RISES.
        if !self.bugs.has(Bug::ForgetCeiling) {
            self.times.begin();
            self.control.begin(Age::first_at(self.times.ceiling()));
        }
        let prepared: Vec<Arc<Entry>> = self.prepared.values().cloned().collect();
        for entry in prepared {
            let Content::Prepare(prepare) = &entry.content else { continue };
            let (who, bounds) = (prepare.attempt, prepare.bounds);
            // Planted, PROMISED: nothing that is promised is locked.
            let forgets = self.bugs.has(Bug::ForgetLocks);
            for hold in prepare.holds.iter().filter(|_| !forgets) {
                match hold {
                    Hold::Record { db, key, mode } => {
                        let hash = self.hash_of(*db, key);
                        if self.holding.has(hash) {
                            let record = self.store.find_or_reserve(*db, key, hash);
                            self.control.restore(&mut self.store, who, bounds, Target::Record(record), *mode);
                        }
                    }
                    Hold::Table { shard, mode } if usize::from(*shard) == self.holding.number() => {
                        self.control.restore(&mut self.store, who, bounds, Target::Table, *mode);
                    }
                    Hold::Table { .. } => {}
                }
            }
            let attempt = Attempt { age: bounds.from, is_gathered: true, ..Attempt::default() };
            self.attempts.insert(who, Box::new(attempt));
        }
        out.send(self.manager, Own::Ready(term));
    }

    /// The view goes on under the claim of a later term; what was begun under the former is over.
    fn show(&mut self, out: &mut Outbox<Message>) {
        self.serves = Some(self.terms.last());
        self.lead().into_iter().for_each(|lead| out.send(self.manager, Own::Viewed(lead)));
    }

    /// All that is not agreed on is gone.
    fn stand(&mut self) {
        self.serves = None;
        for who in std::mem::take(&mut self.attempts).into_keys() {
            self.forget_values(who);
        }
        self.away.stop(None);
        self.unreserved.clear();
        self.waiting.clear();
        self.control.clear(&mut self.store);
    }

    /// A home is led in this term: what its former leaders began here and nobody has promised is over.
    fn note_home(&mut self, home: Lead, out: &mut Outbox<Message>) {
        let known = self.homes.entry(home.partition).or_default();
        *known = home.term.max(*known);
        let term = *known;
        let is_over = |who: &AttemptId| who.home().partition == home.partition && who.home().term < term;
        let over = self.attempts.iter().filter(|(who, attempt)| is_over(who) && !attempt.is_gathered);
        let over: Vec<AttemptId> = over.map(|(who, _)| *who).collect();
        over.into_iter().for_each(|who| self.finish(who, Ending::Unknown, out));
        self.replacing.keep(|who| !is_over(who));
    }

    /// The claim under which the participant answers.
    fn lead(&self) -> Option<Lead> {
        self.serves.map(|term| Lead { partition: self.holding.partition(), term })
    }

    /// A view hears of a transaction of its own region that writes in the other one.
    fn lay(&mut self, news: Laid) {
        let mut ended = Ended::default();
        self.control.lay(&mut self.store, news, &mut ended);
        ended.released.into_iter().for_each(|record| self.store.release_if_absent(record));
    }

    // ---- the end of attempts -------------------------------------------------------------------------------

    /// An attempt is over here; whoever waited for it goes on.
    fn finish(&mut self, who: AttemptId, ending: Ending, out: &mut Outbox<Message>) {
        let mut ended = Ended::default();
        self.end(who, ending, &mut ended);
        self.settle(ended, out);
    }

    /// An attempt is over here; adds those that have, or will never have, what they waited for.
    fn end(&mut self, who: AttemptId, ending: Ending, ended: &mut Ended) {
        if self.attempts.remove(&who).is_some_and(|attempt| attempt.job.is_some()) {
            self.away.stop(Some(who));
        }
        self.forget_values(who);
        self.waiting.end(who);
        self.control.finish(&mut self.store, who, ending, ended);
    }

    /// The stamps with which an attempt may commit here, which may be none, and what it has seen here; nothing if it is not complete here.
    fn validate(
        &mut self,
        who: AttemptId,
        (bounds, oldest): (Bounds, Age),
        snapshot: &Snapshot,
    ) -> Option<(Bounds, View)> {
        let attempt = self.attempts.get(&who).filter(|attempt| attempt.job.is_none())?;
        self.control.enter(who, attempt.age, snapshot);
        if self.control.stamps().are_two() && !self.is_alive_at(who, bounds.from) {
            return Some((Bounds { until: Age(0), ..bounds }, View::NONE));
        }
        let first = self.control.begins(who).max(bounds.from);
        let given = self.control.stamps().given_to(first, self.times.ceiling()).with(Bounds::from(oldest));
        let may = self.control.validate(&mut self.store, who, bounds, given);
        Some((may, self.control.view(who).1))
    }

    /// Hands over what an attempt has written and holds, for the partition to promise.
    fn gather(&mut self, who: AttemptId, bounds: Bounds, snapshot: &Snapshot) -> Option<Gathered> {
        let (bounds, view) = self.validate(who, (bounds, Age(0)), snapshot)?;
        let stands = self.control.stands_on_others(who);
        // A promise stands on nothing that may come to nothing.
        let bounds = if stands { Bounds { until: Age(0), ..bounds } } else { bounds };
        if bounds.is_empty() {
            return Some(Gathered { bounds, view, ..Gathered::default() });
        }
        let holds = self.promise_holds(who);
        let attempt = self.attempts.get_mut(&who)?;
        let changes = attempt.workspace.changes().to_vec();
        Some(Gathered { bounds, view, changes, writes: attempt.workspace.take_writes(), holds })
    }

    /// The locks of an attempt, which the partition may promise from now on: only its log ends it.
    fn promise_holds(&mut self, who: AttemptId) -> Vec<Hold> {
        let mut holds = Vec::new();
        let Some(attempt) = self.attempts.get_mut(&who) else { return holds };
        attempt.is_gathered = true;
        let (store, number) = (&self.store, self.holding.number() as u16);
        self.control.held(who, &mut |target, mode| {
            holds.push(match target {
                Target::Table => Hold::Table { shard: number, mode },
                Target::Record(record) => {
                    let (db, key) = store.key(record);
                    Hold::Record { db, key: key.to_vec(), mode }
                }
            });
        });
        holds
    }

    /// Ends all attempts of a home but those that are still under way.
    fn keep_still(&mut self, home: Lead, still: Vec<AttemptId>, out: &mut Outbox<Message>) {
        let still: BTreeSet<AttemptId> = still.into_iter().collect();
        self.replacing.keep(|who| who.home() != home || still.contains(who));
        let gone = self
            .attempts
            .iter()
            .filter(|(who, attempt)| who.home() == home && !attempt.is_gathered && !still.contains(who));
        let gone: Vec<AttemptId> = gone.map(|(who, _)| *who).collect();
        gone.into_iter().for_each(|who| self.finish(who, Ending::Unknown, out));
    }

    // ---- what expires --------------------------------------------------------------------------------------

    /// Looks for records whose time has come, and tells the manager of those that nobody holds: it removes them.
    fn sweep(&mut self, now: Now, out: &mut Outbox<Message>) {
        self.store.free_some(FREED);
        self.replacing.free_some(FREED);
        if self.serves.is_none() || self.shows.is_some() {
            return;
        }
        let now = now.wall.to_millis();
        if self.control.remembers() && self.times.ceiling() < now {
            // Nobody comes any more: what is remembered is forgotten as the ceiling rises.
            out.send(self.manager, Own::Reserve(now));
        }
        let is_free = |record| !self.control.is_held(&self.store, record);
        let (names, next) = self.expired(now, (self.sweeps_from, SWEPT), REMOVED, is_free);
        self.sweeps_from = if next < Position::END { next } else { Position::default() };
        if !names.is_empty() {
            out.send(self.manager, Own::Expired(names));
        }
    }

    /// The names of records whose time has come and that are meant: so many at most, of about so many that are looked at from a position
    /// on. Answers the position to go on from as well.
    fn expired(
        &self,
        now: Millis,
        (from, looked): (Position, usize),
        most: usize,
        is_meant: impl Fn(RecordId) -> bool,
    ) -> (Vec<(Db, Vec<u8>)>, Position) {
        let (found, next) = self.store.expired(now, from, looked);
        let mut names = Vec::new();
        if let Some(positions) = found {
            self.store.visit(positions.start, |entry| {
                let is_in = entry.position < positions.end && names.len() < most;
                if is_in && entry.cell.is_expired(now) {
                    let record = self.store.find(entry.db, entry.key, self.hash_of(entry.db, entry.key));
                    names.extend(record.is_some_and(&is_meant).then(|| (entry.db, entry.key.to_vec())));
                }
                is_in
            });
        }
        (names, next)
    }

    // ---- messages ------------------------------------------------------------------------------------------

    fn take_termed(&mut self, sender: Address, message: Termed, out: &mut Outbox<Message>) {
        let Termed { from, to, content } = message;
        let known = self.homes.get(&from.partition).copied().unwrap_or_default();
        if self.lead() != Some(to) || from.term < known {
            return;
        }
        match content {
            Protocol::Access(accesses) => self.take_accesses(sender, from, accesses, out),
            Protocol::Finish(who, commit) => {
                self.replacing.finish(who);
                if self.attempts.get(&who).is_some_and(|attempt| !attempt.is_gathered) {
                    self.finish(who, commit.into(), out);
                }
            }
            Protocol::Settle(who, what) => {
                // Without an answer the coordinator gives the transaction up in time.
                if let Some((settled, own)) = self.settle_open(who, what).zip(self.lead()) {
                    out.send(sender, Termed { from: own, to: from, content: Protocol::Settled(settled) });
                }
            }
            Protocol::Still(still) => self.keep_still(from, still, out),
            content => out.halt(format!("a participant was sent a message that is not for it: {content:?}")),
        }
    }

    fn take_own(&mut self, message: Own, out: &mut Outbox<Message>) {
        match message {
            Own::Serve(term, after) => {
                self.begins = Some((term, after));
                self.begin_if_ready(out);
            }
            Own::Stand => {
                self.begins = None;
                self.stand();
            }
            Own::Gather(who, bounds, snapshot) => {
                let gathered = self.gather(who, bounds, &snapshot);
                out.send(self.manager, Own::Gathered(who, gathered));
            }
            Own::Validate(who, validation) => self.answer_validation(who, &validation, out),
            Own::Lock(who) => self.lock_writes(who, out),
            // The log has the outcome of what is promised: it is on its way here if the manager knows already.
            Own::Drop(who) if self.prepared.contains_key(&who) => {}
            Own::Drop(who) => self.finish(who, Ending::Aborted, out),
            Own::Home(home) => self.note_home(home, out),
            Own::Lay(news) => self.lay(news),
            Own::Come(come) => self.take_come(&come, out),
            Own::Refuse(who, behind) => self.refuse(who, behind, out),
            Own::Gathered(..)
            | Own::Validated(..)
            | Own::Locked(..)
            | Own::Ready(_)
            | Own::Viewed(_)
            | Own::Replaced(_)
            | Own::Taken(_)
            | Own::Reserve(_)
            | Own::Expired(_)
            | Own::Waits(_)
            | Own::Over(..)
            | Own::Spared(..) => {
                out.halt("a participant was sent what a participant says");
            }
        }
    }

    fn take(&mut self, from: Address, message: Message, out: &mut Outbox<Message>) {
        match message {
            Message::Termed(termed) => self.take_termed(from, termed, out),
            Message::Saving(saving) if from.node == self.manager.node => {
                self.capture.take(&saving, &mut self.store, self.values.as_mut());
            }
            // Another node has nothing to say about this one's checkpoints.
            Message::Saving(_) => self.refused += 1,
            Message::Own(own) => self.take_own(own, out),
            Message::Log(Log::Sealed(entry)) if self.replacing.has(entry.place) => {}
            Message::Log(Log::Sealed(entry)) => {
                let ceiling = self.times.ceiling();
                let ended = self.apply(&entry);
                // A former leader that is reached again may hear of the next term before it hears that its own is over.
                if self.serves.is_some_and(|term| term < self.terms.last()) {
                    self.stand();
                    if self.shows.is_some() {
                        self.show(out);
                    }
                }
                if let Some((who, commit)) = ended {
                    self.finish(who, commit.into(), out);
                }
                if self.times.ceiling() > ceiling {
                    self.go_on_reserved(out);
                }
                self.begin_if_ready(out);
            }
            message => out.halt(format!("a participant was sent a message that is not for it: {message:?}")),
        }
    }
}

/// The stamps of records that a checkpoint has beside their contents.
fn remembered_by(control: &dyn ConcurrencyControl, store: &MemoryStore) -> Vec<Remembered> {
    let mut remembered = Vec::new();
    control.remembered(&mut |record, stamp| {
        let (db, key) = store.key(record);
        remembered.push(Remembered { db, key: key.to_vec(), stamp });
    });
    remembered
}

impl Role for Participant {
    type Message = Message;

    fn handle(&mut self, now: Now, event: Event<Message>, out: &mut Outbox<Message>) {
        match event {
            Event::Message { from, message } => self.take(from, message, out),
            Event::Start => {
                self.away.patience = Some(PATIENCE);
                self.capture.go_live();
                out.set_timer(SWEEP, SWEEP_EVERY);
                if self.shows.is_some() {
                    self.show(out);
                }
            }
            Event::Timer(SWEEP) => {
                self.values.iter_mut().for_each(Values::tick);
                self.sweep(now, out);
                out.set_timer(SWEEP, SWEEP_EVERY);
            }
            Event::Timer(GIVE) => self.capture.rested(&mut self.store),
            Event::Work(done) => self.take_computed(done, out),
            Event::Disk(done) => self.take_disk(done, out),
            Event::Timer(_) | Event::Stop => {}
        }
        self.take_values(out);
        self.tell_waits(out);
        match self.capture.give(&mut self.store, self.values.as_mut(), self.bugs, out) {
            Ok(Some(pause)) => out.set_timer(GIVE, pause),
            Ok(None) => {}
            Err(reason) => out.halt(format!("shard {}: {reason}", self.holding.number())),
        }
        if self.send_values(out) {
            out.set_timer(VALUES, Micros(0));
        }
    }

    fn name(&self) -> &'static str {
        match self.shows {
            Some(_) => "view",
            None => "participant",
        }
    }

    fn check(&self) -> Result<(), String> {
        self.control.check(&self.store, &|attempt| self.attempts.contains_key(&attempt))?;
        self.times.check()?;
        self.check_values()?;
        if self.serves.is_none() && !self.attempts.is_empty() {
            return Err(format!(
                "{} attempts are under way on a node that does not serve",
                self.attempts.len()
            ));
        }
        if self.serves.is_some_and(|term| term < self.terms.last()) {
            return Err(format!("it serves in {:?}, and a later term has begun", self.serves));
        }
        self.replacing.check()?;
        let reserved = Age::first_at(self.times.ceiling());
        for (who, entry) in self.prepared.iter().filter(|_| self.control.stamps().are_chosen_late()) {
            if let Content::Prepare(prepare) = &entry.content
                && prepare.bounds.until > reserved
            {
                return Err(format!("attempt {who} is promised {:?}, above the ceiling", prepare.bounds));
            }
        }
        self.waiting.check(&|who| self.attempts.contains_key(&who))?;
        let lacks = self.prepared.keys().find(|who| !self.attempts.contains_key(who));
        // The region's own participants hold what it has promised, not those that show it.
        match lacks.filter(|_| self.serves.is_some() && self.shows.is_none()) {
            Some(who) => Err(format!("attempt {who} is promised and holds nothing")),
            None => Ok(()),
        }
    }

    fn check_at_rest(&self) -> Result<(), String> {
        self.control.check_at_rest()
    }

    fn digests(&self, report: &mut dyn FnMut(DigestSpan)) {
        self.digests.iter().flat_map(Digests::spans).for_each(&mut *report);
        report(DigestSpan { first: self.applied, last: self.applied, digest: self.digest() });
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let (region, is_view) = (self.holding.partition(), self.shows.is_some());
        // A node has a view for each other region, and what it holds is not the node's own.
        let report = &mut |name, value| match is_view {
            true => of_view(name, region).into_iter().for_each(|name| report(name, value)),
            false => report(name, value),
        };
        report("ordain_participant_attempts", self.attempts.len() as f64);
        report("ordain_participant_prepared", self.prepared.len() as f64);
        report("ordain_participant_refused_total", self.refused as f64);
        report("ordain_participant_waited_total", self.waited as f64);
        report("ordain_participant_computing", self.away.len() as f64);
        report("ordain_participant_messages_total", self.sent as f64);
        report("ordain_shard_applied_epoch", self.applied.0 as f64);
        report("ordain_shard_slots", self.holding.slots().len() as f64);
        report("ordain_shard_hits_total", self.locals.counts.hits as f64);
        report("ordain_shard_misses_total", self.locals.counts.misses as f64);
        report("ordain_shard_expired_total", self.locals.counts.expired as f64);
        report("ordain_store_memory_bytes", self.store.memory().total() as f64);
        report("ordain_store_records", f64::from(self.store.records()));
        self.values.iter().for_each(|tier| tier.gauges(report));
        self.control.gauges(report);
    }
}
