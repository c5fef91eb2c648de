//! Speculation: executes transactions in a row before it is known which of them abort (the Q-Store paper, section 4.2;
//! `docs/protocols/qstore.md`, Q15 to Q20).
//!
//! A *speculative batch* is what is left of an epoch from the first batch on that says so, up to a transaction over the whole
//! table, if there is one; then another begins. Every shard of the replica finds the same speculative batches in the order.
//!
//! ```text
//!  first time  every fragment runs in the order of its range, without waiting for verdicts, and every change is noted
//!  round 0     EXEC_DONE to all: this shard has executed everything, and these transactions abort
//!  rounds      TAINT to all, until no shard finds more: a transaction that uses a key which an aborting or affected
//!              transaction may have written is *affected*, and undone too
//!  decided     changes of aborting and affected transactions are undone, newest first; all others are answered
//!  second time affected transactions are executed again, one after the other in the order, waiting for verdicts as
//!              usual; nothing else is left that could abort
//! ```
//!
//! What shards send for a transaction the first time is a function of the order, although it may have been executed on
//! values that are undone: no verdict is inspected meanwhile. So remote results may be repeated, as always. What they send the
//! second time is distinguished by the number that they use ([`Gsn::again`]).
//!
//! A transaction that is executed again and only reads a record may find it changed by a later one that was not undone. It
//! sees the record as it was before. What it writes, no later transaction has left standing.
//!
//! A transaction of one shard is decided at once, and its changes are gone when it aborts: no other shard needs to know (Q20).
//!
//! With [`Cascade::Abort`] there is no second time: affected transactions abort. Which these are must not depend on where a
//! speculative batch ends, or on which transaction is of one shard, as the log says neither: see `QueueScheduler::dirty_keys` and
//! `SpeculativeBatch::note_done`.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_model::{Abort, Cascade, Cell, Choice, Chunk, Gsn, KeyHash, Millis, SlotNo, Txn};
use ordain_role::Bug;
use ordain_store::{RecordId, RecordStore};

use super::queues::QueueScheduler;
use ordain_deterministic::shard::{Active, BatchPlace, Core, Findings, Item, Known, Round, batch_of};

/// A speculative batch: transactions that are decided together.
#[derive(Debug)]
pub(crate) struct SpeculativeBatch {
    /// Its name: a place in the order before all of its transactions and after what precedes them.
    pub(crate) id: Gsn,
    stage: Stage,
    /// What becomes of affected transactions.
    cascade: Cascade,
    /// The keys that aborting and affected transactions earlier in its epoch were to write here; with
    /// [`Cascade::Abort`] only.
    dirty_keys: BTreeSet<KeyHash>,
    /// Where its transactions are: the chunk, the number of its index 0, and the time.
    sources: Vec<(Arc<Chunk>, Gsn, Millis)>,
    /// Those in which this shard takes part, in order: by source, and by place in the chunk.
    members: Vec<(u32, u32)>,
    /// The batches that its transactions are of, none of which counts as done before it is decided.
    batches: Vec<BatchPlace>,
    /// The transactions that a fragment here has failed, and whether they are logged.
    aborts: Vec<(Gsn, SlotNo, Abort, bool)>,
    /// The transactions that abort by the findings of all shards, each with the lowest fragment.
    failures: BTreeMap<Gsn, (SlotNo, Abort)>,
    /// The affected transactions: they use a key that an aborting or affected one may have written.
    affected: BTreeSet<Gsn>,
    /// The final changes of keys that an affected transaction reads, by place in the journal.
    later: BTreeMap<KeyHash, Vec<usize>>,
    /// The contents hidden from transactions that are executed again, by number: as they are to be afterwards.
    hidden: BTreeMap<u32, Vec<(RecordId, Cell, Gsn)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// More of it may come.
    Open,
    /// All of it is planned.
    Planned,
    /// All of it is executed here, and the findings of this round were sent to the others.
    Sent(u32),
    /// It is decided; what is to be executed again is planned.
    Again,
}

/// The findings of all shards in a round, by shard. They are kept until the speculative batch is over, to be compared
/// with repetitions.
pub(crate) type Rounds = BTreeMap<usize, Round>;

impl SpeculativeBatch {
    /// Returns whether nothing may be planned before it is over.
    pub(crate) fn is_planned(&self) -> bool {
        self.stage != Stage::Open
    }

    /// All of it is planned.
    pub(crate) fn close(&mut self) {
        self.stage = Stage::Planned;
    }

    /// Adds a transaction in which this shard takes part.
    pub(crate) fn note(&mut self, chunk: &Arc<Chunk>, base: Gsn, now: Millis, at: usize) {
        if self.sources.last().is_none_or(|(last, ..)| !Arc::ptr_eq(last, chunk)) {
            self.sources.push((chunk.clone(), base, now));
        }
        self.members.push((self.sources.len() as u32 - 1, at as u32));
    }

    /// Notes that a transaction is done here the first time, and whether it aborts.
    pub(crate) fn note_done(&mut self, active: &Active) {
        // A transaction of one shard has left nothing that another could have used. If others abort with it, that
        // must not count: which transactions are of one shard depends on how many shards there are.
        let counts = !active.alone || self.cascade == Cascade::Abort;
        if let Some((slot, abort)) = active.own_failure.filter(|_| counts) {
            let is_logged = active.chunk.txns()[active.at].logged;
            self.aborts.push((active.gsn, slot, abort, is_logged));
        }
    }

    fn members(&self) -> impl Iterator<Item = (Gsn, &Arc<Chunk>, &Txn)> {
        self.members.iter().map(|(source, at)| {
            let (chunk, base, _) = &self.sources[*source as usize];
            let txn = &chunk.txns()[*at as usize];
            (Gsn(base.0 + u64::from(txn.index)), chunk, txn)
        })
    }

    fn is_undone(&self, gsn: Gsn) -> bool {
        self.failures.contains_key(&gsn) || self.affected.contains(&gsn)
    }

    /// Finds the affected transactions that are not known, in one pass in the order, and adds them to the findings.
    fn find_affected<S: RecordStore>(&mut self, core: &Core<S>, round: &mut Round) {
        let mut dirty = self.dirty_keys.clone();
        for (gsn, chunk, txn) in self.members() {
            let mine = || chunk.fragments(txn).iter().filter(|f| core.is_scheduled(f));
            let is_new = !self.affected.contains(&gsn) && mine().any(|f| dirty.contains(&f.hash));
            if is_new {
                round.of(txn.logged).affected.push(gsn);
            }
            if is_new || self.is_undone(gsn) {
                dirty.extend(mine().filter(|f| f.writes()).map(|f| f.hash));
            }
        }
        self.affected.extend(round.findings().into_iter().flat_map(|findings| &findings.affected));
    }

    /// Returns the keys that transactions dropped now, or before, were to write here.
    fn dirty_keys_at_end<S: RecordStore>(&mut self, core: &Core<S>) -> BTreeSet<KeyHash> {
        let mut dirt = std::mem::take(&mut self.dirty_keys);
        for (_, chunk, txn) in self.members().filter(|(gsn, ..)| self.is_undone(*gsn)) {
            let written = chunk.fragments(txn).iter().filter(|f| core.is_scheduled(f) && f.writes());
            dirt.extend(written.map(|fragment| fragment.hash));
        }
        dirt
    }

    /// Returns the transactions that abort by this shard, as findings.
    fn aborts(&mut self) -> Round {
        // The order in which they were executed is not a function of the log.
        self.aborts.sort_unstable_by_key(|abort| abort.0);
        let mut round = Round::default();
        for &(gsn, slot, abort, is_logged) in &self.aborts {
            round.of(is_logged).aborts.push((gsn, slot, abort));
        }
        round
    }

    /// Takes the findings of all shards; returns whether there are any that may be known on all nodes.
    fn learn(&mut self, rounds: &Rounds) -> bool {
        for findings in rounds.values().flat_map(Round::findings) {
            for &(gsn, slot, abort) in &findings.aborts {
                let first = self.failures.entry(gsn).or_insert((slot, abort));
                if slot < first.0 {
                    *first = (slot, abort);
                }
            }
            self.affected.extend(&findings.affected);
        }
        rounds.values().any(|round| round.logged != Findings::default())
    }
}

impl QueueScheduler {
    /// Begins a speculative batch, if that was chosen for the epoch.
    pub(crate) fn begin_speculation<S: RecordStore>(&mut self, core: &mut Core<S>, id: Gsn) {
        let Choice::Speculate(cascade) = self.choice else { return };
        self.speculation = Some(SpeculativeBatch {
            id,
            stage: Stage::Open,
            cascade,
            dirty_keys: std::mem::take(&mut self.dirty_keys),
            sources: Vec::new(),
            members: Vec::new(),
            batches: Vec::new(),
            aborts: Vec::new(),
            failures: BTreeMap::new(),
            affected: BTreeSet::new(),
            later: BTreeMap::new(),
            hidden: BTreeMap::new(),
        });
        self.counts.units += 1;
        self.reach(core, batch_of(id));
    }

    /// Adds a batch of the order to the speculative batch, if there is one.
    pub(crate) fn reach<S: RecordStore>(&mut self, core: &mut Core<S>, place: BatchPlace) {
        let Some(speculative) = &mut self.speculation else { return };
        if speculative.batches.last() != Some(&place) {
            speculative.batches.push(place);
            core.order.backlog.count(place, 1);
            core.order.backlog.count_unsettled(place, 1);
        }
    }

    /// Takes the findings of another shard in a round.
    pub(crate) fn receive_round(&mut self, from: usize, speculative: Gsn, round: Round) -> Known {
        match self.rounds.entry((speculative, round.number)).or_default().entry(from) {
            Entry::Occupied(before) => Known::again(*before.get() == round, "a round"),
            Entry::Vacant(place) => {
                place.insert(round);
                Known::New
            }
        }
    }

    /// Advances the speculative batch as far as it can; returns whether it did anything.
    pub(crate) fn advance_speculation<S: RecordStore>(&mut self, core: &mut Core<S>) -> bool {
        let Some(mut speculative) = self.speculation.take() else { return false };
        let is_executed = core.active.unfinished == 0 && self.is_idle() && !core.active.has_ready();
        match speculative.stage {
            Stage::Planned if is_executed && self.is_answered(core, &speculative) => {
                let mut round = speculative.aborts();
                if !speculative.dirty_keys.is_empty() {
                    speculative.find_affected(core, &mut round);
                }
                self.send_round(core, &speculative, 0, round);
                speculative.stage = Stage::Sent(0);
            }
            Stage::Sent(number) if self.have_sent(core, &speculative, number) => {
                let is_known_to_all = self
                    .rounds
                    .get(&(speculative.id, number))
                    .is_some_and(|rounds| speculative.learn(rounds));
                if is_known_to_all {
                    let mut round = Round::default();
                    speculative.find_affected(core, &mut round);
                    self.counts.rounds += 1;
                    self.send_round(core, &speculative, number + 1, round);
                    speculative.stage = Stage::Sent(number + 1);
                } else {
                    speculative = self.decide(core, speculative);
                }
            }
            Stage::Again if is_executed => {
                self.end_speculation(core, speculative);
                return true;
            }
            _ => {
                self.speculation = Some(speculative);
                return false;
            }
        }
        self.speculation = Some(speculative);
        true
    }

    /// Sends the findings of a round to all shards, this one included.
    fn send_round<S: RecordStore>(
        &mut self,
        core: &mut Core<S>,
        speculative: &SpeculativeBatch,
        number: u32,
        mut round: Round,
    ) {
        round.number = number;
        for to in (0..core.shards()).filter(|to| *to != core.site.number) {
            let mut round = round.clone();
            if !core.site.partition.contains(&to) {
                round.unlogged = Findings::default();
            }
            core.remote.results.add(to, speculative.id, Item::Round(Box::new(round)));
        }
        self.receive_round(core.site.number, speculative.id, round);
    }

    /// Returns whether the findings of all shards in a round have come.
    fn have_sent<S>(&self, core: &Core<S>, speculative: &SpeculativeBatch, number: u32) -> bool {
        let received = self.rounds.get(&(speculative.id, number));
        received.is_some_and(|received| received.len() == core.site.places.shards.len())
    }

    /// Returns whether every part of the replies that are composed here has come.
    fn is_answered<S: RecordStore>(&self, core: &Core<S>, speculative: &SpeculativeBatch) -> bool {
        let is_whole = |number: u32| {
            let active = core.active.get(number);
            active.is_none_or(|active| active.is_whole())
        };
        self.planned.iter().all(|planning| planning.missing == 0)
            && core.active.since(speculative.id).all(|(_, number)| is_whole(number))
    }

    /// Decides the speculative batch: the findings of all shards are complete.
    fn decide<S: RecordStore>(
        &mut self,
        core: &mut Core<S>,
        mut speculative: SpeculativeBatch,
    ) -> SpeculativeBatch {
        self.undo(core, &speculative);
        self.counts.undone += speculative.failures.len() as u64;
        self.counts.affected += speculative.affected.len() as u64;
        match speculative.cascade {
            Cascade::Repair => self.index_later(core, &mut speculative),
            Cascade::Abort => self.dirty_keys = speculative.dirty_keys_at_end(core),
        }
        self.settled =
            speculative.members().last().map_or(speculative.id, |(gsn, ..)| gsn).max(speculative.id);
        let kept: Vec<(Gsn, u32)> = core.active.since(speculative.id).collect();
        for (gsn, number) in kept {
            let Some(mut active) = core.active.take(number) else { continue };
            let is_affected = speculative.affected.contains(&gsn);
            if is_affected && speculative.cascade == Cascade::Repair {
                core.forget(number, active);
                continue;
            }
            active.is_speculative = false;
            if is_affected {
                let aborts = !core.settings.bugs.has(Bug::SpareAffected);
                active.failure = aborts.then_some((SlotNo(0), Abort::Cascade));
            } else if let Some(failure) = speculative.failures.get(&gsn) {
                Active::fail(&mut active.failure, *failure);
            }
            core.active.put(number, active);
            core.active.make_ready(number);
        }
        for place in 0..self.planned.len() {
            let planning = &mut self.planned[place];
            if std::mem::take(&mut planning.is_speculative) {
                if speculative.cascade == Cascade::Abort {
                    planning.abort(&speculative.affected);
                } else if planning.leave_out(&speculative.affected) && core.has_peers() {
                    core.order.backlog.count(batch_of(planning.base), -1);
                }
                self.finish_ready(core, place);
            }
        }
        self.drop_done();
        speculative.stage = Stage::Again;
        let members = std::mem::take(&mut speculative.members);
        for (source, at) in members {
            let (chunk, base, now) = speculative.sources[source as usize].clone();
            let gsn = Gsn(base.0 + u64::from(chunk.txns()[at as usize].index));
            if speculative.cascade == Cascade::Repair
                && speculative.affected.contains(&gsn)
                && let Some(mut active) = core.take_up(gsn, now, &chunk, at as usize)
            {
                active.is_again = true;
                self.enter_again(core, active, &mut speculative);
            }
        }
        speculative
    }

    /// Undoes the changes of aborting and affected transactions, newest first.
    fn undo<S: RecordStore>(&mut self, core: &mut Core<S>, speculative: &SpeculativeBatch) {
        if speculative.failures.is_empty() && speculative.affected.is_empty() {
            return;
        }
        let mut loses = core.settings.bugs.has(Bug::LoseUndo);
        for at in (0..core.undo.journal.mark()).rev() {
            let by = core.undo.touched_by(at).by;
            if speculative.is_undone(by) && !std::mem::take(&mut loses) {
                core.credit(batch_of(by));
                core.undo.undo_one(&mut core.store, at);
            }
        }
    }

    /// Finds the final changes that transactions executed again must not see.
    fn index_later<S: RecordStore>(&self, core: &Core<S>, speculative: &mut SpeculativeBatch) {
        if speculative.affected.is_empty() {
            return;
        }
        let mut later: BTreeMap<KeyHash, Vec<usize>> = BTreeMap::new();
        for (gsn, chunk, txn) in speculative.members() {
            if speculative.affected.contains(&gsn) {
                let keyed = chunk.fragments(txn).iter().filter(|f| core.is_scheduled(f));
                later.extend(keyed.map(|fragment| (fragment.hash, Vec::new())));
            }
        }
        for at in 0..core.undo.journal.mark() {
            let touched = core.undo.touched_by(at);
            if !speculative.is_undone(touched.by)
                && let Some(changes) = later.get_mut(&touched.of)
            {
                changes.push(at);
            }
        }
        speculative.later = later;
    }

    /// Ends the speculative batch: its changes are final.
    fn end_speculation<S: RecordStore>(&mut self, core: &mut Core<S>, speculative: SpeculativeBatch) {
        core.undo.end(&mut core.store, None);
        core.undo.writer = None;
        for place in speculative.batches {
            core.order.backlog.count_unsettled(place, -1);
            core.order.backlog.count(place, -1);
        }
        self.decided = speculative.id;
        self.rounds.retain(|(id, _), _| *id > speculative.id);
    }
}

impl SpeculativeBatch {
    /// Hides from a transaction that is about to be executed again what later ones have changed and it reads.
    pub(crate) fn hide<S: RecordStore>(&mut self, core: &mut Core<S>, number: u32, active: &Active) {
        if !active.is_again || self.hidden.contains_key(&number) {
            return;
        }
        let mut hidden = Vec::new();
        let mut hashes = BTreeSet::new();
        for fragment in active.chunk.fragments(&active.chunk.txns()[active.at]) {
            let is_first = core.is_scheduled(fragment) && hashes.insert(fragment.hash);
            let changes = self.later.get(&fragment.hash).filter(|_| is_first);
            for at in changes.into_iter().flatten().rev().copied() {
                let touched = core.undo.touched_by(at);
                if touched.by < active.gsn {
                    break;
                }
                let record = touched.record;
                core.credit(batch_of(active.gsn));
                let store = &mut core.store;
                hidden.push((record, store.cell(record).clone(), store.version(record)));
                core.undo.undo_one(store, at);
            }
        }
        if !hidden.is_empty() {
            self.hidden.insert(number, hidden);
        }
    }

    /// Restores what was hidden from a transaction: it is done.
    pub(crate) fn unhide<S: RecordStore>(&mut self, core: &mut Core<S>, number: u32, active: &Active) {
        for (record, cell, version) in self.hidden.remove(&number).into_iter().flatten().rev() {
            core.credit(batch_of(active.gsn));
            core.store.put_back(record, cell, version);
            core.keep_place(record);
        }
    }
}
