//! Interactive transactions: what a coordinator keeps open between the steps of a client.
//!
//! ```text
//!  first step ─▶ Executing ──answered──▶ Open ──next step──▶ Executing ─▶ …
//!                                        │  ▲
//!              taken back by its shards ─┘  └─ a step that has failed by itself
//!  commit: Open ──own shards hand over──▶ Voting, Confirming or Deciding, as any transaction
//! ```
//!
//! An open transaction is one attempt with the locks of all its steps. Once its client has been answered there is no other
//! attempt: what would begin one ends the transaction, and the client hears why with its next command. It ends without effect when
//! its client goes away, when the front door's node may have lost messages, and after [`IDLE_MAX`] or [`OPEN_MAX`]: so nobody
//! waits for a client for longer than that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_model::serial::seed_of;
use ordain_model::{Abort, Chunk, Epoch, Gsn, Micros, OpenId, PartitionId, RequestNo, SessionId, Step};
use ordain_role::NodeId;

use super::attempt::{End, Executing, Former};
use super::{ATTEMPT_MAX, Asker, Coordinator, Live, State};
use crate::desk::Desk;
use crate::ids::Lead;
use crate::message::{Protocol, Settle, Settled};
use crate::voting::No;

/// A transaction whose client sends nothing for so long is ended.
pub const IDLE_MAX: Micros = Micros::from_millis(5_000);
/// A transaction is ended when it has been open for so long, whatever its client sends.
pub const OPEN_MAX: Micros = Micros::from_millis(60_000);

/// The open transactions of a coordinator.
#[derive(Debug, Default)]
pub struct Opens {
    /// Their numbers.
    by_id: BTreeMap<OpenId, u64>,
    /// Why those were ended whose clients have not heard of it.
    ended: BTreeMap<OpenId, (Abort, Option<No>)>,
}

/// The interactive side of a transaction under way.
#[derive(Debug)]
pub struct Open {
    /// Its name.
    of: OpenId,
    /// Its last step.
    step: Step,
    /// A step was answered: there is no other attempt.
    pub is_shown: bool,
    since: Micros,
    /// The remains of its steps, for the next.
    pub former: Former,
    /// The request of a session that its commit is.
    pub request: Option<(SessionId, RequestNo)>,
}

/// Work that participants of an open transaction do between two steps.
#[derive(Debug)]
pub struct Settling {
    /// The shards that have not answered.
    awaited: BTreeSet<usize>,
    /// The answer to the step that is taken back; `None` if the transaction commits.
    end: Option<End>,
}

impl Open {
    fn new(step: Step, since: Micros) -> Open {
        Open { of: step.of, step, is_shown: false, since, former: Former::default(), request: None }
    }

    /// The step that runs or was run last.
    pub const fn step(&self) -> &Step {
        &self.step
    }
}

impl Opens {
    /// A transaction is under way no more.
    pub fn remove(&mut self, open: &Open) {
        self.by_id.remove(&open.of);
    }

    /// The number of transactions that are open.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The node leads no more, and remembers nothing.
    pub fn forget_ended(&mut self) {
        self.ended.clear();
    }

    /// Checks the names against what is under way.
    ///
    /// # Errors
    /// The first that is not there.
    pub fn check(&self, live: &BTreeMap<u64, Box<Live>>) -> Result<(), String> {
        let is_of = |of: &OpenId, number: &u64| {
            live.get(number).and_then(|live| live.open.as_ref()).is_some_and(|open| open.of == *of)
        };
        match self.by_id.iter().find(|(of, number)| !is_of(of, number)) {
            Some((of, number)) => Err(format!("{of:?} is transaction {number}, which is not open")),
            None => Ok(()),
        }
    }
}

impl Coordinator {
    /// Takes a step of an open transaction: the only transaction of the chunk.
    pub fn take_step(&mut self, step: Step, chunk: &Arc<Chunk>, desk: &mut Desk<'_>) {
        let Some(txn) = chunk.txns().first() else { return };
        let asker = Asker { gateway: chunk.gateway, chunk: chunk.number, index: txn.index };
        let request = txn.call.session.filter(|_| step.is_commit);
        if let Some(request) = request
            && self.answered_before(request, asker, desk)
        {
            // An earlier commit of this request has taken effect, or is about to: this one never does.
            return self.end_open(step.of, desk);
        }
        if let Some(abort) = desk.site.refuses(txn) {
            self.end_open(step.of, desk);
            return self.answer_lost(asker, abort, None);
        }
        if step.is_first() {
            self.end_open(step.of, desk);
            self.begin_open(step, request, asker, chunk, desk);
            return;
        }
        let number = self.opens.by_id.get(&step.of).copied();
        let live = number.and_then(|number| Some((number, self.live.get_mut(&number)?)));
        let Some((number, live)) = live else {
            let (reason, no) = self.opens.ended.remove(&step.of).unwrap_or((Abort::TermChanged, None));
            return self.answer_lost(asker, reason, no);
        };
        let is_next = match (&live.state, &live.open) {
            (State::Open(None), Some(open)) => open.step.number + 1 == step.number,
            _ => false,
        };
        if let (State::Deciding { .. }, Some(open)) = (&live.state, &live.open) {
            // Its commit is on its way into the log, and nothing that comes now ends it.
            return match open.step.number == step.number {
                true => live.askers.push(asker),
                false => self.answer_lost(asker, Abort::TermChanged, None),
            };
        }
        live.askers.push(asker);
        if !is_next {
            // A step in between is lost.
            return self.lose(number, Abort::TermChanged, desk);
        }
        live.chunk = chunk.clone();
        live.at = 0;
        if let Some(open) = &mut live.open {
            (open.step, open.request) = (step, request);
        }
        self.agenda.set(number, desk.elapsed().plus(ATTEMPT_MAX));
        if let Some(request) = request {
            self.requests.insert(request, number);
        }
        match step.is_commit {
            true => self.gather_own(number, desk),
            false => self.run_step(number, desk),
        }
    }

    fn begin_open(
        &mut self,
        step: Step,
        request: Option<(SessionId, RequestNo)>,
        asker: Asker,
        chunk: &Arc<Chunk>,
        desk: &mut Desk<'_>,
    ) {
        let open = Open { request, ..Open::new(step, desk.elapsed()) };
        let Some(number) = self.add(chunk, 0, asker, Some(open), desk) else { return };
        self.opens.by_id.insert(step.of, number);
        self.begin_attempt(number, desk);
    }

    /// Runs the step that was taken, as the attempt that the transaction is.
    fn run_step(&mut self, number: u64, desk: &mut Desk<'_>) {
        let Some(live) = self.live.get_mut(&number) else { return };
        let Some(open) = &live.open else { return };
        let seed = seed_of(Gsn(live.who(number).seed() ^ u64::from(open.step.number)));
        let txn = &live.chunk.txns()[live.at];
        let executing = Executing::new(&live.chunk, txn, desk.site, open.former.now(), seed);
        live.state = State::Executing(executing.after(&open.former, open.step.number));
        self.note_regions(number, desk);
        self.go_on(number, desk);
    }

    /// A step of an open transaction has run: it is answered, once what it has written is taken back if it has failed.
    pub fn step_done(&mut self, number: u64, desk: &mut Desk<'_>) {
        let Some(live) = self.live.get_mut(&number) else { return };
        let who = live.who(number);
        let (State::Executing(executing), Some(open)) = (&live.state, &mut live.open) else { return };
        let txn = &live.chunk.txns()[live.at];
        let failure = executing.failure();
        let end = executing.end(&desk.site.registry, &live.chunk, txn, failure);
        let State::Executing(mut executing) = std::mem::replace(&mut live.state, State::Open(None)) else {
            return;
        };
        let awaited: BTreeSet<usize> = executing.asked().collect();
        if failure.is_none() || awaited.is_empty() {
            open.former = executing.leave();
            return self.answer_step(number, &end, desk);
        }
        open.former.take_back(executing);
        let undo = Protocol::Settle(who, Settle::Undo(open.step.number));
        for shard in &awaited {
            if let Some(lead) = open.former.lead(*shard) {
                desk.tell_participant(*shard, lead.term, undo.clone());
            }
        }
        live.state = State::Open(Some(Settling { awaited, end: Some(end) }));
    }

    /// Answers a step; the transaction waits for its client.
    fn answer_step(&mut self, number: u64, end: &End, desk: &mut Desk<'_>) {
        let Some(live) = self.live.get_mut(&number) else { return };
        let Some(open) = &mut live.open else { return };
        open.is_shown = true;
        live.state = State::Open(None);
        let follows = desk.agreed.place();
        let until = desk.elapsed().plus(IDLE_MAX).min(open.since.plus(OPEN_MAX));
        self.agenda.set(number, until);
        for asker in std::mem::take(&mut live.askers) {
            // It shows what others have committed a moment ago.
            self.answer(asker, end.status, (Epoch(0), follows), |out| out.extend_from_slice(&end.reply));
        }
    }

    /// Gathers what a transaction that commits has written at home: its decision holds that.
    fn gather_own(&mut self, number: u64, desk: &mut Desk<'_>) {
        let site = desk.site;
        let Some(live) = self.live.get_mut(&number) else { return };
        let who = live.who(number);
        let Some(open) = &live.open else { return };
        // Views are of this node too.
        let is_here = |partition| partition == site.partition || site.is_foreign(partition);
        let awaited: Vec<(usize, Lead)> = open.former.written_at(is_here).collect();
        for (shard, lead) in &awaited {
            desk.tell_participant(*shard, lead.term, Protocol::Settle(who, Settle::HandOver));
        }
        let awaited: BTreeSet<usize> = awaited.into_iter().map(|(shard, _)| shard).collect();
        let is_gathered = awaited.is_empty();
        live.state = State::Open(Some(Settling { awaited, end: None }));
        if is_gathered {
            self.commit_open(number, desk);
        }
    }

    /// Takes what a participant says between two steps.
    pub fn settled(&mut self, settled: Settled, desk: &mut Desk<'_>) {
        let Settled { attempt: who, shard, changes, writes, seen } = settled;
        let number = who.transaction.number;
        let Some(live) = self.live.get_mut(&number).filter(|live| live.attempt == who.attempt) else {
            return;
        };
        let (State::Open(Some(settling)), Some(open)) = (&mut live.state, &mut live.open) else { return };
        if !settling.awaited.remove(&usize::from(shard)) {
            return;
        }
        if settling.end.is_none() {
            open.former.put_writes(usize::from(shard), (changes, writes), seen);
        }
        if !settling.awaited.is_empty() {
            return;
        }
        match settling.end.take() {
            Some(end) => self.answer_step(number, &end, desk),
            None => self.commit_open(number, desk),
        }
    }

    /// All that a transaction has written at home is there: it commits as any other.
    fn commit_open(&mut self, number: u64, desk: &mut Desk<'_>) {
        self.run_step(number, desk);
    }

    /// An open transaction cannot go on: it ends without effect, and its client hears why.
    pub fn lose(&mut self, number: u64, reason: Abort, desk: &mut Desk<'_>) {
        self.abort_attempt(number, desk);
        self.drop_part(number, reason, desk);
        let Some(live) = self.remove(number) else { return };
        if live.reserved.is_some() {
            self.release_all(live.who(number).transaction, desk);
        }
        if let Some(open) = live.open.filter(|_| live.askers.is_empty()) {
            self.opens.ended.insert(open.of, (reason, live.no));
        }
        live.askers.into_iter().for_each(|asker| self.answer_lost(asker, reason, live.no));
    }

    /// A client wants nothing more of its open transaction, unless it is being committed.
    pub fn abandon(&mut self, of: OpenId, desk: &mut Desk<'_>) {
        self.opens.ended.remove(&of);
        self.end_open(of, desk);
    }

    /// Ends an open transaction of which nobody is to hear, unless it is being committed.
    fn end_open(&mut self, of: OpenId, desk: &mut Desk<'_>) {
        let Some(number) = self.opens.by_id.get(&of).copied() else { return };
        let is_committing = |live: &Live| live.open.as_ref().is_some_and(|open| open.step.is_commit);
        if self.live.get(&number).is_some_and(|live| is_committing(live)) {
            return;
        }
        self.abort_attempt(number, desk);
        self.drop_part(number, Abort::Idle, desk);
        self.remove(number);
    }

    /// Messages of front doors of a node may be lost: their open transactions are ended, but for those that are being committed.
    pub fn lose_doors(&mut self, node: NodeId, desk: &mut Desk<'_>) {
        self.opens.ended.retain(|of, _| of.gateway.node() != node.0);
        let gone = self.opens.by_id.keys().filter(|of| of.gateway.node() == node.0);
        for of in gone.copied().collect::<Vec<OpenId>>() {
            self.end_open(of, desk);
        }
    }

    /// The number of interactive transactions that are open.
    pub fn interactive(&self) -> usize {
        self.opens.len()
    }
}

impl Former {
    /// True if something was read or written at a partition.
    pub fn touches(&self, partition: PartitionId) -> bool {
        self.shards().any(|(_, lead)| lead.partition == partition)
    }
}
