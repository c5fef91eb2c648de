//! The coordinator: takes transactions, sends their accesses to participants, and decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_execution::{Step, Write};
use ordain_family::TAKES_TRANSACTIONS;
use ordain_model::datum::bounded_reply;
use ordain_model::serial::seed_of;
use ordain_model::{
    Abort, Chunk, ChunkNo, Effect, Epoch, Front, GatewayId, Gsn, Layout, Micros, Millis, OutcomeBatch,
    OutcomeStatus, Registry, ReplyContext, RequestNo, SessionId, SlotNo, Stamp, Token, Txn, Writer,
};
use ordain_replication::Log;
use ordain_role::{Address, Bug, Bugs, Event, NodeId, Now, Outbox, Role, TimerId};

use crate::concurrency::{AttemptId, TransactionId};
use crate::decision::Decision;
use crate::message::{Access, Accessed, Failure, Message};

/// Transactions under way at most: a further one is answered BUSY and has no effect.
const LIVE_MAX: usize = 1 << 18;
/// Attempts at a transaction are made for so long. Then its client is answered BUSY.
const GIVE_UP_AFTER: Micros = Micros::from_millis(5_000);
/// The pause after the first refused attempt, about. Each further pause is twice as long.
const BACKOFF: Micros = Micros(50);
/// The longest pause.
const BACKOFF_MAX: Micros = Micros::from_millis(5);
/// Pauses after attempts of one number have so many different lengths, so that two transactions that refuse each other part.
const SPREAD: u64 = 7;
const RETRY: TimerId = TimerId(1);

/// The error for a transaction that the miniature does not run; `None` if it runs the transaction.
pub fn refusal(registry: &Registry, chunk: &Chunk, txn: &Txn) -> Option<&'static str> {
    let step = |n| Step { registry, chunk, txn, n, now: Millis(0), seed: 0, slots: &NO_SLOTS };
    let is_point = (0..chunk.fragments(txn).len()).all(|n| step(n).is_point());
    (!is_point).then_some(
        "ERR this engine runs transactions whose steps each read or write one key, and this one does more: use another \
         engine",
    )
}

static NO_SLOTS: Vec<Vec<u8>> = Vec::new();

/// A request that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asker {
    gateway: GatewayId,
    chunk: ChunkNo,
    index: u32,
}

/// A transaction under way.
#[derive(Debug)]
struct Live {
    askers: Vec<Asker>,
    chunk: Arc<Chunk>,
    at: usize,
    attempt: u32,
    /// The time of its submission, since the node started.
    since: Micros,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Participants run it.
    Executing(Executing),
    /// The attempt was refused; the next begins at this time since the node started.
    Waiting(Micros),
    /// The decision is on its way to the log.
    Deciding,
}

/// An attempt that participants run.
#[derive(Debug, Default)]
struct Executing {
    now: Millis,
    seed: u64,
    /// The results of fragments.
    slots: Vec<Option<Vec<u8>>>,
    /// Fragments that were sent.
    sent: BTreeSet<usize>,
    /// Participants that have not answered.
    awaited: BTreeSet<usize>,
    /// Writes of each participant that holds something of the attempt.
    writes: BTreeMap<usize, Vec<Write>>,
    failure: Option<Failure>,
}

/// The outcome of a session's last committed request.
#[derive(Clone, Debug)]
struct Answered {
    request: RequestNo,
    stamp: Epoch,
    reply: Vec<u8>,
}

/// Coordinates all transactions of a node.
#[derive(Debug)]
pub struct Coordinator {
    layout: Arc<Layout>,
    registry: Arc<Registry>,
    log: Address,
    /// The transactions under way, by number.
    participants: Vec<Address>,
    /// The role number of a node's first front door.
    gateways: u16,
    live: BTreeMap<TransactionId, Live>,
    /// The session's request that a live transaction is.
    requests: BTreeMap<(SessionId, RequestNo), TransactionId>,
    sessions: BTreeMap<SessionId, Answered>,
    last: TransactionId,
    /// The stamp of the last decision that was appended or replayed.
    stamp: Epoch,
    now: Millis,
    outcomes: BTreeMap<GatewayId, OutcomeBatch>,
    committed: u64,
    attempts: u64,
    /// Bugs that a test has planted.
    bugs: Bugs,
}

impl Coordinator {
    /// A coordinator with nothing under way. `participants` are the node's shards, by number.
    pub fn new(
        layout: Arc<Layout>,
        registry: Arc<Registry>,
        log: Address,
        participants: Vec<Address>,
        gateways: u16,
    ) -> Coordinator {
        Coordinator {
            layout,
            registry,
            log,
            participants,
            gateways,
            live: BTreeMap::new(),
            requests: BTreeMap::new(),
            sessions: BTreeMap::new(),
            last: TransactionId(0),
            stamp: Epoch(0),
            now: Millis(0),
            outcomes: BTreeMap::new(),
            committed: 0,
            attempts: 0,
            bugs: Bugs::NONE,
        }
    }

    /// The coordinator with planted bugs, for tests of the checkers.
    #[must_use]
    pub fn planting(self, bugs: Bugs) -> Coordinator {
        Coordinator { bugs, ..self }
    }

    /// Takes note of a decision that the log holds.
    pub fn replay(&mut self, decision: &Decision) {
        self.stamp = decision.stamp;
        self.last = self.last.max(decision.attempt.transaction);
        // No later transaction sees an earlier time, wherever the clock stands.
        self.now = self.now.max(decision.now);
        self.note_session(decision);
    }

    fn note_session(&mut self, decision: &Decision) {
        let Some((session, request)) = decision.session else { return };
        // Requests of a session that come over several connections may commit out of order; the last one counts.
        if self.sessions.get(&session).is_none_or(|last| last.request < request) {
            let (stamp, reply) = (decision.stamp, decision.reply.clone());
            self.sessions.insert(session, Answered { request, stamp, reply });
        }
    }

    fn take_chunk(&mut self, chunk: &Arc<Chunk>, now: Now, out: &mut Outbox<Message>) {
        for at in 0..chunk.txns().len() {
            self.take_transaction(chunk, at, now, out);
        }
    }

    fn take_transaction(&mut self, chunk: &Arc<Chunk>, at: usize, now: Now, out: &mut Outbox<Message>) {
        let txn = &chunk.txns()[at];
        let asker = Asker { gateway: chunk.gateway, chunk: chunk.number, index: txn.index };
        if let Some(text) = refusal(&self.registry, chunk, txn) {
            let status = OutcomeStatus::Aborted(Abort::Logic);
            return self.answer(asker, status, Epoch(0), |reply| Writer(reply).error(text));
        }
        // Planted, ONCE.
        let forgets = self.bugs.has(Bug::ForgetSession);
        let session = txn.call.session.filter(|_| !txn.read_only && !forgets);
        if let Some((session, request)) = session {
            if let Some(answered) = self.sessions.get(&session).filter(|last| last.request >= request) {
                let Answered { request: last, stamp, reply } = answered.clone();
                let status = match last == request {
                    true => OutcomeStatus::Committed,
                    false => OutcomeStatus::Superseded,
                };
                return self.answer(asker, status, stamp, |out| {
                    if status == OutcomeStatus::Committed {
                        out.extend_from_slice(&reply);
                    }
                });
            }
            // A retry joins the attempt that is under way.
            if let Some(id) = self.requests.get(&(session, request))
                && let Some(live) = self.live.get_mut(id)
            {
                return live.askers.push(asker);
            }
        }
        if self.live.len() >= LIVE_MAX {
            return self.answer(asker, OutcomeStatus::Busy, Epoch(0), |_| {});
        }
        self.last.0 += 1;
        let id = self.last;
        if let Some(request) = session {
            self.requests.insert(request, id);
        }
        let state = State::Waiting(now.elapsed);
        self.live.insert(
            id,
            Live { askers: vec![asker], chunk: chunk.clone(), at, attempt: 0, since: now.elapsed, state },
        );
        self.attempt(id, out);
    }

    /// Begins the next attempt at a transaction.
    fn attempt(&mut self, id: TransactionId, out: &mut Outbox<Message>) {
        let Some(live) = self.live.get_mut(&id) else { return };
        live.attempt += 1;
        self.attempts += 1;
        let count = live.chunk.fragments(&live.chunk.txns()[live.at]).len();
        let seed = seed_of(Gsn(id.0 << 6 | u64::from(live.attempt)));
        live.state = State::Executing(Executing {
            now: self.now,
            seed,
            slots: vec![None; count],
            ..Default::default()
        });
        self.go_on(id, out);
    }

    /// Sends every fragment whose inputs are known and that has not been sent; decides if there is none left.
    fn go_on(&mut self, id: TransactionId, out: &mut Outbox<Message>) {
        let Some(Live { chunk, at, attempt, state: State::Executing(executing), .. }) =
            self.live.get_mut(&id)
        else {
            return;
        };
        let attempt = AttemptId { transaction: id, attempt: *attempt };
        let txn = &chunk.txns()[*at];
        let fragments = chunk.fragments(txn);
        let mut ready: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        if executing.failure.is_none() {
            for (n, fragment) in fragments.iter().enumerate() {
                let mut inputs = chunk.plans().inputs_of(fragment).iter();
                let is_ready = inputs.all(|slot| executing.slots[slot.0 as usize].is_some());
                if is_ready && !executing.sent.contains(&n) {
                    ready.entry(self.layout.shard_of(fragment.hash.slot())).or_default().push(n as u32);
                }
            }
        }
        for (shard, fragments_here) in ready {
            let needs = fragments_here.iter().flat_map(|n| chunk.plans().inputs_of(&fragments[*n as usize]));
            let known = needs.filter_map(|slot| Some((*slot, executing.slots[slot.0 as usize].clone()?)));
            let inputs = known.collect();
            executing.sent.extend(fragments_here.iter().map(|n| *n as usize));
            executing.awaited.insert(shard);
            let Executing { now, seed, .. } = *executing;
            let access = Access {
                attempt,
                chunk: chunk.clone(),
                at: *at,
                fragments: fragments_here,
                inputs,
                now,
                seed,
            };
            out.send(self.participants[shard], Message::Access(access));
        }
        if executing.awaited.is_empty() {
            self.decide(id, out);
        }
    }

    fn accessed(&mut self, shard: usize, accessed: Accessed, now: Now, out: &mut Outbox<Message>) {
        let id = accessed.attempt.transaction;
        let Some(live) = self.live.get_mut(&id).filter(|live| live.attempt == accessed.attempt.attempt)
        else {
            return out.halt(format!(
                "a participant answered attempt {}, which is not under way",
                accessed.attempt
            ));
        };
        let State::Executing(executing) = &mut live.state else {
            return out.halt(format!("a participant answered attempt {} after its end", accessed.attempt));
        };
        executing.awaited.remove(&shard);
        for (slot, result) in accessed.slots {
            executing.slots[slot.0 as usize] = Some(result);
        }
        // A refused attempt holds nothing there any more.
        if accessed.failure != Some(Failure::Refused) {
            executing.writes.insert(shard, accessed.writes);
        }
        executing.failure = match (executing.failure, accessed.failure) {
            // Refusals come first: what an attempt that is refused elsewhere has found out is not to be relied on.
            (Some(Failure::Refused), _) | (_, Some(Failure::Refused)) => Some(Failure::Refused),
            (failure, None) => failure,
            (None, failure) => failure,
            (Some(Failure::Aborted(a, why)), Some(Failure::Aborted(b, other))) => {
                Some(if a <= b { Failure::Aborted(a, why) } else { Failure::Aborted(b, other) })
            }
        };
        if !executing.awaited.is_empty() {
            return;
        }
        match executing.failure {
            Some(Failure::Refused) => self.refused(id, now, out),
            _ => self.go_on(id, out),
        }
    }

    /// Every participant that was asked has answered, and one has refused.
    fn refused(&mut self, id: TransactionId, now: Now, out: &mut Outbox<Message>) {
        self.end_attempt(id, out);
        let Some(live) = self.live.get_mut(&id) else { return };
        if now.elapsed.since(live.since) > GIVE_UP_AFTER {
            return self.end(id, OutcomeStatus::Busy, Epoch(0), &[]);
        }
        let pause = backoff(id, live.attempt);
        live.state = State::Waiting(now.elapsed.plus(pause));
        self.set_timer(now, out);
    }

    /// Every fragment has run, or one has aborted the transaction.
    fn decide(&mut self, id: TransactionId, out: &mut Outbox<Message>) {
        let Some(Live { chunk, at, attempt, state, .. }) = self.live.get_mut(&id) else { return };
        let State::Executing(executing) = state else { return };
        let txn = &chunk.txns()[*at];
        let slots: Vec<Vec<u8>> = executing.slots.iter().cloned().map(Option::unwrap_or_default).collect();
        let failure = match executing.failure {
            Some(Failure::Aborted(slot, abort)) => Some((slot, abort)),
            _ => None,
        };
        let reply = reply_of(&self.registry, chunk, txn, &slots, failure);
        // Planted, ONE-VERDICT: a transaction that has aborted on one shard is installed on the others.
        let keeps = self.bugs.has(Bug::IgnoreRemoteVote) && executing.writes.values().any(|w| !w.is_empty());
        if let Some((_, abort)) = failure.filter(|_| !keeps) {
            self.end_attempt(id, out);
            return self.end(id, OutcomeStatus::Aborted(abort), Epoch(0), &reply);
        }
        let writes: Vec<Write> = std::mem::take(&mut executing.writes).into_values().flatten().collect();
        let session = txn.call.session.filter(|_| !txn.read_only);
        if writes.is_empty() && session.is_none() {
            // All locks are held at this moment: it takes effect here, after every decision that is appended.
            let shards = executing.sent.iter().map(|n| chunk.fragments(txn)[*n].hash.slot());
            let shards: BTreeSet<usize> = shards.map(|slot| self.layout.shard_of(slot)).collect();
            let attempt = AttemptId { transaction: id, attempt: *attempt };
            for shard in shards {
                out.send(self.participants[shard], Message::Finish(attempt));
            }
            return self.end(id, OutcomeStatus::Committed, self.stamp, &reply);
        }
        self.stamp = self.stamp.next();
        let attempt = AttemptId { transaction: id, attempt: *attempt };
        let decision = Decision { stamp: self.stamp, attempt, now: executing.now, session, reply, writes };
        *state = State::Deciding;
        out.send(self.log, Message::Log(Log::Append(Arc::new(decision))));
    }

    /// A decision is in the log.
    fn decided(&mut self, decision: &Decision) {
        self.note_session(decision);
        self.end(decision.attempt.transaction, OutcomeStatus::Committed, decision.stamp, &decision.reply);
    }

    /// A decision is not in the log and never will be: the disk is full.
    fn rejected(&mut self, decision: &Decision, out: &mut Outbox<Message>) {
        for participant in &self.participants {
            out.send(*participant, Message::Finish(decision.attempt));
        }
        self.end(decision.attempt.transaction, OutcomeStatus::Refused, Epoch(0), &[]);
    }

    /// Lets the participants of an attempt forget it.
    fn end_attempt(&mut self, id: TransactionId, out: &mut Outbox<Message>) {
        let Some(Live { attempt, state: State::Executing(executing), .. }) = self.live.get(&id) else {
            return;
        };
        let attempt = AttemptId { transaction: id, attempt: *attempt };
        for shard in executing.writes.keys() {
            out.send(self.participants[*shard], Message::Finish(attempt));
        }
    }

    /// A transaction is over.
    fn end(&mut self, id: TransactionId, status: OutcomeStatus, stamp: Epoch, reply: &[u8]) {
        let Some(live) = self.live.remove(&id) else { return };
        let txn = &live.chunk.txns()[live.at];
        if let Some(request) = txn.call.session.filter(|_| !txn.read_only) {
            self.requests.remove(&request);
        }
        self.committed += u64::from(status == OutcomeStatus::Committed);
        for asker in live.askers {
            self.answer(asker, status, stamp, |out| out.extend_from_slice(reply));
        }
    }

    fn answer(
        &mut self,
        asker: Asker,
        status: OutcomeStatus,
        stamp: Epoch,
        reply: impl FnOnce(&mut Vec<u8>),
    ) {
        let Asker { gateway, chunk, index } = asker;
        let batch = self.outcomes.entry(gateway).or_insert_with(|| OutcomeBatch::new(gateway));
        let effect = Effect { stamp: Stamp::new(stamp.0), token: Token::of(stamp.0) };
        batch.push(chunk, index, effect, status, reply);
    }

    fn set_timer(&self, now: Now, out: &mut Outbox<Message>) {
        let due = self.live.values().filter_map(|live| match live.state {
            State::Waiting(due) => Some(due),
            _ => None,
        });
        if let Some(due) = due.min() {
            out.set_timer(RETRY, due.since(now.elapsed).max(Micros(1)));
        }
    }

    /// Begins the attempts whose time has come.
    fn retry(&mut self, now: Now, out: &mut Outbox<Message>) {
        let is_due = |live: &Live| matches!(live.state, State::Waiting(due) if due <= now.elapsed);
        let due: Vec<TransactionId> =
            self.live.iter().filter(|(_, live)| is_due(live)).map(|(id, _)| *id).collect();
        for id in due {
            self.attempt(id, out);
        }
        self.set_timer(now, out);
    }

    fn send_outcomes(&mut self, out: &mut Outbox<Message>) {
        for (gateway, batch) in std::mem::take(&mut self.outcomes) {
            let to = Address { node: NodeId(gateway.node()), role: self.gateways + gateway.number() };
            out.send(to, Front::Outcomes(batch));
        }
    }

    fn shard_at(&self, address: Address) -> Option<usize> {
        self.participants.iter().position(|participant| *participant == address)
    }

    fn take_message(&mut self, from: Address, message: Message, now: Now, out: &mut Outbox<Message>) {
        match message {
            Message::Front(Front::Submit(chunk) | Front::Read(chunk, _)) => {
                self.take_chunk(&chunk, now, out);
            }
            Message::Front(Front::Pause(pause)) => out.send(from, Front::Continue(pause)),
            // Reads keep nothing.
            Message::Front(Front::ReadDone(..)) => {}
            Message::Accessed(accessed) => match self.shard_at(from) {
                Some(shard) => self.accessed(shard, accessed, now, out),
                None => out.halt(format!("{from:?} answered an access and is no participant")),
            },
            Message::Log(Log::Sealed(decision)) => self.decided(&decision),
            Message::Log(Log::Rejected(decision)) => self.rejected(&decision, out),
            Message::Log(Log::Logged(_) | Log::Writable) => {}
            message => out.halt(format!("a coordinator was sent a message that is not for it: {message:?}")),
        }
    }
}

/// The pause after a refused attempt. Attempts are numbered from 1.
fn backoff(id: TransactionId, attempt: u32) -> Micros {
    let longest = (BACKOFF.0 << attempt.saturating_sub(1).min(16)).min(BACKOFF_MAX.0);
    Micros((longest * (1 + (id.0 + u64::from(attempt)) % SPREAD) / SPREAD).max(1))
}

/// The reply of a transaction, or of the fragment that has aborted it.
fn reply_of(
    registry: &Registry,
    chunk: &Chunk,
    txn: &Txn,
    slots: &Vec<Vec<u8>>,
    failure: Option<(SlotNo, Abort)>,
) -> Vec<u8> {
    let mut reply = Vec::new();
    let Some(procedure) = registry.get(txn.call.procedure) else { return reply };
    let cx = ReplyContext {
        txn_args: chunk.args(txn),
        call_at: 0,
        db: txn.call.db,
        slots,
        first: 0,
        count: chunk.fragments(txn).len() as u32,
        calls: chunk.calls(txn),
        registry,
    };
    bounded_reply(registry.limits().reply, &mut reply, |reply| match failure {
        None => procedure.reply(&cx, reply),
        Some((slot, abort)) => procedure.abort_reply(abort, slot, &cx, reply),
    });
    reply
}

impl Role for Coordinator {
    type Message = Message;

    fn handle(&mut self, now: Now, event: Event<Message>, out: &mut Outbox<Message>) {
        self.now = self.now.max(now.wall.to_millis());
        match event {
            Event::Message { from, message } => self.take_message(from, message, now, out),
            Event::Timer(RETRY) => self.retry(now, out),
            _ => {}
        }
        self.send_outcomes(out);
    }

    fn name(&self) -> &'static str {
        "coordinator"
    }

    fn check(&self) -> Result<(), String> {
        for (request, id) in &self.requests {
            let Some(live) = self.live.get(id) else {
                return Err(format!("{request:?} is under way as transaction {}, which is not", id.0));
            };
            if live.chunk.txns()[live.at].call.session != Some(*request) {
                return Err(format!("transaction {} is not {request:?}", id.0));
            }
        }
        for (id, live) in &self.live {
            if let State::Executing(executing) = &live.state
                && executing.awaited.is_empty()
            {
                return Err(format!("transaction {} waits for no participant and goes not on", id.0));
            }
        }
        Ok(())
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report(TAKES_TRANSACTIONS, 1.0);
        report("ordain_coordinator_transactions", self.live.len() as f64);
        report("ordain_coordinator_committed_total", self.committed as f64);
        report("ordain_coordinator_attempts_total", self.attempts as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_request_of_a_session_is_not_forgotten_for_an_earlier_one_that_commits_after_it() {
        let nowhere = Address::default();
        let layout = Arc::new(Layout::single(1));
        let mut coordinator = Coordinator::new(layout, Arc::default(), nowhere, vec![nowhere], 256);
        let session = SessionId(3);
        for (stamp, request, now) in [(1, 6, 90), (2, 5, 80)] {
            coordinator.replay(&Decision {
                stamp: Epoch(stamp),
                attempt: AttemptId { transaction: TransactionId(stamp), attempt: 1 },
                now: Millis(now),
                session: Some((session, RequestNo(request))),
                reply: Vec::new(),
                writes: Vec::new(),
            });
        }
        assert_eq!(coordinator.sessions[&session].request, RequestNo(6));
        assert_eq!(
            (coordinator.stamp, coordinator.last, coordinator.now),
            (Epoch(2), TransactionId(2), Millis(90))
        );
    }

    #[test]
    fn pauses_grow_up_to_a_bound_and_differ() {
        let pauses = |attempt| (1..=SPREAD).map(move |id| backoff(TransactionId(id), attempt));
        for attempt in [1, 2, 5, 8, 64, u32::MAX - 1] {
            let longest = (BACKOFF.0 << (attempt - 1).min(16)).min(BACKOFF_MAX.0);
            assert_eq!(pauses(attempt).max(), Some(Micros(longest)), "{attempt}");
            assert_eq!(pauses(attempt).collect::<BTreeSet<_>>().len() as u64, SPREAD, "{attempt}");
            assert!(pauses(attempt).all(|pause| pause > Micros(0)));
        }
    }
}
