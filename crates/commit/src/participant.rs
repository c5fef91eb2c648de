//! The participant: one shard's records, the engine's concurrency control over them, and the workspaces of attempts.
//!
//! Its records are what the partition's log says, on every member ([`Participant::apply`]). Everything else is of the term in
//! which its node serves the partition, and goes with that term: attempts, their workspaces, what they hold and wait for. A
//! new term begins with what is prepared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_execution::{InWorkspace, Step, Workspace, Write};
use ordain_model::procedure::Locals;
use ordain_model::{
    Access as FragmentAccess, Chunk, Db, Digest, DigestSpan, Epoch, Gsn, KeyHash, Layout, PartitionId,
    Registry, SlotNo,
};
use ordain_replication::Log;
use ordain_role::{Address, Bug, Bugs, Event, Now, Outbox, Role};
use ordain_store::{MemoryStore, RecordStore};

use crate::concurrency::{ConcurrencyControl, Ended, Mode, Target, Verdict};
use crate::entry::{Content, Entry, Hold, Prepare, Terms};
use crate::ids::{Age, AttemptId, Lead, Term};
use crate::message::{Access, Accessed, Accesses, Failure, Gathered, Message, Own, Protocol, Termed};

/// A shard of the records.
#[derive(Debug)]
pub struct Participant {
    number: usize,
    layout: Arc<Layout>,
    manager: Address,
    registry: Arc<Registry>,
    store: MemoryStore,
    /// The last entry that is applied.
    applied: Epoch,
    terms: Terms,
    /// Promises of the partition whose outcomes it has not learnt.
    prepared: BTreeMap<AttemptId, Arc<Entry>>,
    control: Box<dyn ConcurrencyControl>,
    /// The term in which the node serves the partition, if it does.
    serves: Option<Term>,
    /// The term, and the place up to which everything has to be applied before it begins.
    begins: Option<(Term, Epoch)>,
    /// The latest terms of homes that are known here.
    homes: BTreeMap<PartitionId, Term>,
    attempts: BTreeMap<AttemptId, Attempt>,
    locals: Locals,
    refused: u64,
    waited: u64,
    bugs: Bugs,
}

/// An attempt under way.
#[derive(Debug, Default)]
struct Attempt {
    age: Age,
    workspace: Workspace,
    /// The results that are known here.
    slots: Vec<Vec<u8>>,
    /// The access that is being run; it waits for a record if there is one between two events.
    work: Option<Work>,
    /// Handed over: the partition may promise it, so that only the partition's log ends it now.
    is_gathered: bool,
}

/// An access that is being run.
#[derive(Debug)]
struct Work {
    from: Address,
    home: Lead,
    chunk: Arc<Chunk>,
    access: Access,
    /// The next of the access's fragments.
    next: usize,
    /// The concurrency control has granted the next fragment's record already.
    is_granted: bool,
    slots: Vec<(SlotNo, Vec<u8>)>,
}

/// The progress of an access.
enum Ran {
    All,
    Waits,
    Failed(Failure),
}

impl Participant {
    /// A shard without records.
    pub fn new(
        number: usize,
        layout: Arc<Layout>,
        manager: Address,
        registry: Arc<Registry>,
        control: Box<dyn ConcurrencyControl>,
    ) -> Participant {
        let store = MemoryStore::new(layout.slots_of_shard(number));
        Participant {
            number,
            layout,
            manager,
            registry,
            store,
            applied: Epoch(0),
            terms: Terms::default(),
            prepared: BTreeMap::new(),
            control,
            serves: None,
            begins: None,
            homes: BTreeMap::new(),
            attempts: BTreeMap::new(),
            locals: Locals::default(),
            refused: 0,
            waited: 0,
            bugs: Bugs::NONE,
        }
    }

    /// The participant with planted bugs, for tests of the checkers.
    #[must_use]
    pub fn planting(self, bugs: Bugs) -> Participant {
        Participant { bugs, ..self }
    }

    /// The digest of the committed records.
    pub fn digest(&self) -> Digest {
        self.store.digest()
    }

    // ---- what the log says ---------------------------------------------------------------------------------

    /// Applies the next entry of the partition's log; answers the attempt that it ends, if it ends one.
    ///
    /// # Panics
    /// If the entry is not the next.
    pub fn apply(&mut self, entry: &Arc<Entry>) -> Option<AttemptId> {
        assert!(entry.place > self.applied, "entries are applied in the order of the log");
        self.applied = entry.place;
        if !self.terms.take(entry) {
            return None;
        }
        match &entry.content {
            Content::Commit(commit) => {
                self.install(&commit.writes, entry.place);
                Some(commit.attempt)
            }
            Content::Prepare(prepare) => {
                if self.takes_part(prepare) {
                    self.prepared.insert(prepare.attempt, entry.clone());
                }
                None
            }
            Content::Outcome(attempt, is_commit) => {
                let prepared = self.prepared.remove(attempt);
                if let Some(Content::Prepare(prepare)) = prepared.as_ref().map(|entry| &entry.content)
                    && *is_commit
                {
                    self.install(&prepare.writes, entry.place);
                }
                Some(*attempt)
            }
            Content::Begin | Content::Deny(_) | Content::Forget(_) => None,
        }
    }

    /// True if something of a promise is here.
    fn takes_part(&self, prepare: &Prepare) -> bool {
        let is_here = |db, key: &[u8]| self.layout.shard_of(self.hash_of(db, key).slot()) == self.number;
        let is_held_here = |hold: &Hold| match hold {
            Hold::Record { db, key, .. } => is_here(*db, key),
            Hold::Table { shard, .. } => usize::from(*shard) == self.number,
        };
        prepare.holds.iter().any(is_held_here)
            || prepare.writes.iter().any(|write| is_here(write.db, &write.key))
    }

    /// Installs what is written here, in place of all that the records held.
    fn install(&mut self, writes: &[Write], place: Epoch) {
        // Planted, ORDER.
        let skips = self.bugs.has(Bug::SkipTransaction) && place.0 % 97 == 13;
        for write in writes.iter().filter(|_| !skips) {
            let hash = self.hash_of(write.db, &write.key);
            if self.layout.shard_of(hash.slot()) != self.number {
                continue;
            }
            let record = self.store.find_or_reserve(write.db, &write.key, hash);
            let version = if write.cell.value.is_some() { Gsn(place.0) } else { Gsn::NONE };
            self.store.put_back(record, write.cell.clone(), version);
            self.store.release_if_absent(record);
        }
    }

    fn hash_of(&self, db: Db, key: &[u8]) -> KeyHash {
        KeyHash::of_record(db, key)
    }

    // ---- terms ---------------------------------------------------------------------------------------------

    /// The node serves the partition from now on, if it has applied everything up to the place that was named.
    fn begin_if_ready(&mut self, out: &mut Outbox<Message>) {
        let Some((term, _)) = self.begins.take_if(|(_, after)| *after <= self.applied) else { return };
        self.stand();
        self.serves = Some(term);
        let prepared: Vec<Arc<Entry>> = self.prepared.values().cloned().collect();
        for entry in prepared {
            let Content::Prepare(prepare) = &entry.content else { continue };
            let (who, age) = (prepare.attempt, prepare.age);
            for hold in &prepare.holds {
                match hold {
                    Hold::Record { db, key, mode } => {
                        let hash = self.hash_of(*db, key);
                        if self.layout.shard_of(hash.slot()) == self.number {
                            let record = self.store.find_or_reserve(*db, key, hash);
                            self.control.restore(&mut self.store, who, age, Target::Record(record), *mode);
                        }
                    }
                    Hold::Table { shard, mode } if usize::from(*shard) == self.number => {
                        self.control.restore(&mut self.store, who, age, Target::Table, *mode);
                    }
                    Hold::Table { .. } => {}
                }
            }
            self.attempts.insert(who, Attempt { age, is_gathered: true, ..Attempt::default() });
        }
        out.send(self.manager, Own::Ready(term));
    }

    /// All that is not agreed on is gone.
    fn stand(&mut self) {
        self.serves = None;
        self.attempts.clear();
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
        over.into_iter().for_each(|who| self.finish(who, out));
    }

    // ---- accesses ------------------------------------------------------------------------------------------

    fn take_accesses(&mut self, from: Address, home: Lead, accesses: Accesses, out: &mut Outbox<Message>) {
        let Accesses { chunk, list } = accesses;
        for access in list {
            let who = access.attempt;
            if who.home() != home || !self.is_sound(&chunk, &access) {
                // Another version has sent it, or nobody: a coordinator that waits for it gives the attempt up.
                self.refused += 1;
                continue;
            }
            // An earlier attempt is over, unless it may be promised: then the log ends it.
            let before = AttemptId { attempt: 0, ..who };
            let former = self.attempts.range(before..who).filter(|(_, former)| !former.is_gathered);
            let former: Vec<AttemptId> = former.map(|(who, _)| *who).collect();
            former.into_iter().for_each(|who| self.finish(who, out));
            let attempt = self.attempts.entry(who).or_default();
            if attempt.work.is_some() || attempt.is_gathered {
                continue;
            }
            attempt.age = access.age;
            let count = chunk.fragments(&chunk.txns()[access.at as usize]).len();
            attempt.slots.resize(count, Vec::new());
            for (slot, result) in &access.inputs {
                attempt.slots[slot.0 as usize].clone_from(result);
            }
            let chunk = chunk.clone();
            attempt.work =
                Some(Work { from, home, chunk, access, next: 0, is_granted: false, slots: Vec::new() });
            self.go_on(who, out);
        }
    }

    /// True if an access names fragments that are there: it may come from another node.
    fn is_sound(&self, chunk: &Chunk, access: &Access) -> bool {
        let Some(txn) = chunk.txns().get(access.at as usize) else { return false };
        let fragments = chunk.fragments(txn);
        let is_here = |n: &u32| {
            let fragment = fragments.get(*n as usize);
            fragment.is_some_and(|fragment| self.layout.shard_of(fragment.hash.slot()) == self.number)
        };
        access.fragments.iter().all(is_here)
            && access.inputs.iter().all(|(slot, _)| (slot.0 as usize) < fragments.len())
    }

    /// Goes on with an access, and with those that wait for what it releases.
    fn go_on(&mut self, who: AttemptId, out: &mut Outbox<Message>) {
        self.settle(Ended { granted: vec![who], ..Ended::default() }, out);
    }

    /// Goes on with whatever may go on, until nothing may.
    fn settle(&mut self, mut ended: Ended, out: &mut Outbox<Message>) {
        loop {
            let released = std::mem::take(&mut ended.released);
            released.into_iter().for_each(|record| self.store.release_if_absent(record));
            for who in std::mem::take(&mut ended.refused) {
                if let Some((work, accessed)) = self.refuse(who) {
                    self.answer(work, accessed, out);
                }
                self.end(who, &mut ended);
            }
            let granted = std::mem::take(&mut ended.granted);
            if granted.is_empty() && ended.refused.is_empty() {
                break;
            }
            for who in granted {
                let Some((work, accessed)) = self.run(who) else { continue };
                let is_refused = accessed.failure == Some(Failure::Refused);
                self.answer(work, accessed, out);
                if is_refused {
                    self.end(who, &mut ended);
                }
            }
        }
    }

    /// An access that waited is refused.
    fn refuse(&mut self, who: AttemptId) -> Option<(Work, Accessed)> {
        let attempt = self.attempts.get_mut(&who)?;
        let mut work = attempt.work.take()?;
        let slots = std::mem::take(&mut work.slots);
        let (shard, failure) = (self.number as u16, Some(Failure::Refused));
        let accessed =
            Accessed { attempt: who, shard, slots, failure, has_written: false, writes: Vec::new() };
        Some((work, accessed))
    }

    fn answer(&self, work: Work, accessed: Accessed, out: &mut Outbox<Message>) {
        let Some(from) = self.lead() else { return };
        out.send(work.from, Termed { from, to: work.home, content: Protocol::Accessed(accessed) });
    }

    /// The claim under which the participant answers.
    fn lead(&self) -> Option<Lead> {
        self.serves.map(|term| Lead { partition: self.layout.partition_of_shard(self.number), term })
    }

    /// Runs the fragments of an attempt's access as far as the concurrency control lets it; answers what came of it, unless it
    /// waits.
    fn run(&mut self, who: AttemptId) -> Option<(Work, Accessed)> {
        let mut attempt = self.attempts.remove(&who)?;
        let Some(mut work) = attempt.work.take() else {
            self.attempts.insert(who, attempt);
            return None;
        };
        let ran = self.run_fragments(who, &mut attempt, &mut work);
        let (has_written, is_local) = (!attempt.workspace.is_clean(), work.from == self.manager);
        let failure = match ran {
            Ran::Waits => {
                self.waited += 1;
                attempt.work = Some(work);
                self.attempts.insert(who, attempt);
                return None;
            }
            Ran::Failed(failure) => Some(failure),
            Ran::All => None,
        };
        let hands_over = failure.is_none() && work.access.is_last && is_local;
        let writes = if hands_over { attempt.workspace.writes() } else { Vec::new() };
        let slots = std::mem::take(&mut work.slots);
        self.attempts.insert(who, attempt);
        let shard = self.number as u16;
        Some((work, Accessed { attempt: who, shard, slots, failure, has_written, writes }))
    }

    fn run_fragments(&mut self, who: AttemptId, attempt: &mut Attempt, work: &mut Work) -> Ran {
        let Participant { registry, store, control, locals, .. } = self;
        let Work { chunk, access, .. } = work;
        let txn = &chunk.txns()[access.at as usize];
        while let Some(n) = access.fragments.get(work.next) {
            let (slot, n) = (SlotNo(*n), *n as usize);
            let step =
                Step { registry, chunk, txn, n, now: access.now, seed: access.seed, slots: &attempt.slots };
            let (name, fragment) = (step.name(), step.fragment());
            let mode = match fragment.access {
                FragmentAccess::Write => Mode::Exclusive,
                _ => Mode::Shared,
            };
            let record = store.find_or_reserve(name.db, name.key, name.hash);
            if !std::mem::take(&mut work.is_granted) {
                match control.access(store, who, attempt.age, Target::Record(record), mode) {
                    Verdict::Granted => {}
                    Verdict::Waits => {
                        work.is_granted = true;
                        return Ran::Waits;
                    }
                    Verdict::Refused => {
                        store.release_if_absent(record);
                        return Ran::Failed(Failure::Refused);
                    }
                }
            }
            let mut out = Vec::new();
            let workspace = &mut attempt.workspace;
            let ran = step.run(&mut InWorkspace { store: &*store, workspace }, locals, &mut out);
            attempt.slots[n].clone_from(&out);
            work.slots.push((slot, out));
            work.next += 1;
            if let Err(abort) = ran {
                return Ran::Failed(Failure::Aborted(slot, abort));
            }
        }
        Ran::All
    }

    // ---- the end of attempts -------------------------------------------------------------------------------

    /// An attempt is over here, whatever its outcome; whoever waited for it goes on.
    fn finish(&mut self, who: AttemptId, out: &mut Outbox<Message>) {
        let mut ended = Ended::default();
        self.end(who, &mut ended);
        self.settle(ended, out);
    }

    /// An attempt is over here; adds those that have, or will never have, what they waited for.
    fn end(&mut self, who: AttemptId, ended: &mut Ended) {
        self.attempts.remove(&who);
        self.control.finish(&mut self.store, who, ended);
    }

    /// Hands over what an attempt has written and holds, for the partition to promise.
    fn gather(&mut self, who: AttemptId) -> Option<Gathered> {
        let attempt = self.attempts.get_mut(&who).filter(|attempt| attempt.work.is_none())?;
        attempt.is_gathered = true;
        let mut holds = Vec::new();
        let (store, number) = (&self.store, self.number as u16);
        self.control.held(who, &mut |target, mode| {
            holds.push(match target {
                Target::Table => Hold::Table { shard: number, mode },
                Target::Record(record) => {
                    let (db, key) = store.key(record);
                    Hold::Record { db, key: key.to_vec(), mode }
                }
            });
        });
        Some(Gathered { writes: attempt.workspace.writes(), holds })
    }

    /// Ends all attempts of a home but those that are still under way.
    fn keep_still(&mut self, home: Lead, still: Vec<AttemptId>, out: &mut Outbox<Message>) {
        let still: BTreeSet<AttemptId> = still.into_iter().collect();
        let gone = self
            .attempts
            .iter()
            .filter(|(who, attempt)| who.home() == home && !attempt.is_gathered && !still.contains(who));
        let gone: Vec<AttemptId> = gone.map(|(who, _)| *who).collect();
        gone.into_iter().for_each(|who| self.finish(who, out));
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
            Protocol::Finish(who) => {
                if self.attempts.get(&who).is_some_and(|attempt| !attempt.is_gathered) {
                    self.finish(who, out);
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
            Own::Gather(who) => {
                let gathered = self.gather(who);
                out.send(self.manager, Own::Gathered(who, gathered));
            }
            Own::Drop(who) => self.finish(who, out),
            Own::Home(home) => self.note_home(home, out),
            Own::Gathered(..) | Own::Ready(_) => {
                out.halt("a participant was sent what a participant says");
            }
        }
    }
}

impl Role for Participant {
    type Message = Message;

    fn handle(&mut self, _: Now, event: Event<Message>, out: &mut Outbox<Message>) {
        let Event::Message { from, message } = event else { return };
        match message {
            Message::Termed(termed) => self.take_termed(from, termed, out),
            Message::Own(own) => self.take_own(own, out),
            Message::Log(Log::Sealed(entry)) => {
                if let Some(ended) = self.apply(&entry) {
                    self.finish(ended, out);
                }
                self.begin_if_ready(out);
            }
            message => out.halt(format!("a participant was sent a message that is not for it: {message:?}")),
        }
    }

    fn name(&self) -> &'static str {
        "participant"
    }

    fn check(&self) -> Result<(), String> {
        self.control.check(&self.store, &|attempt| self.attempts.contains_key(&attempt))?;
        if self.serves.is_none() && !self.attempts.is_empty() {
            return Err(format!(
                "{} attempts are under way on a node that does not serve",
                self.attempts.len()
            ));
        }
        let lacks = self.prepared.keys().find(|who| !self.attempts.contains_key(who));
        match lacks.filter(|_| self.serves.is_some()) {
            Some(who) => Err(format!("attempt {who} is promised and holds nothing")),
            None => Ok(()),
        }
    }

    fn digests(&self, report: &mut dyn FnMut(DigestSpan)) {
        report(DigestSpan { first: self.applied, last: self.applied, digest: self.digest() });
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report("ordain_participant_attempts", self.attempts.len() as f64);
        report("ordain_participant_prepared", self.prepared.len() as f64);
        report("ordain_participant_refused_total", self.refused as f64);
        report("ordain_participant_waited_total", self.waited as f64);
        report("ordain_store_records", f64::from(self.store.records()));
        self.control.gauges(report);
    }
}
