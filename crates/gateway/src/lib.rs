//! The gateway: where requests become chunks and outcomes become answers.
//!
//! One gateway serves one event loop. It plans what clients ask for, gathers it into the chunk that the engine
//! behind it will order, and remembers who asked. It knows no protocol and no engine.
//!
//! Transactions whose keys are not known in advance are found out here (OLLP, the Calvin paper, section
//! 3.2.1): the gateway reads and asks what the procedure wants to know in transactions of their own, submits the
//! real transaction with what it learnt as evidence, and starts over with fresh evidence when that is found stale.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ordain_model::args::{Args, ArgsBuilder};
use ordain_model::procedure::{Known, Reconnaissance};
use ordain_model::{
    Abort, Call, Chunk, ChunkNo, Datum, Db, GatewayId, Gsn, OutcomeBatch, OutcomeStatus, PlanError, Registry,
    RequestNo, Writer, system,
};

/// How often a transaction is started over because its reconnaissance was stale, before its client is told to
/// retry (calvin.md, section 6, `ollp_max`).
pub const MAX_RESTARTS: u8 = 10;

/// The largest request number that a session may use: the rest of the 64 bits counts restarts.
pub const MAX_REQUEST: u64 = (1 << 56) - 1;

/// A chunk is closed at this many transactions or bytes, and another begun.
const MAX_CHUNK: usize = 1 << 13;
const MAX_CHUNK_BYTES: usize = 16 << 20;

/// The caller's own name for a request; comes back with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub struct Finished<'a> {
    /// Whose request.
    pub ticket: Ticket,
    /// How it ended.
    pub status: OutcomeStatus,
    /// Its place in the serial order.
    pub gsn: Gsn,
    /// The reply, encoded as a [`ordain_model::Datum`].
    pub reply: &'a [u8],
    /// How often it was started over because its reconnaissance was stale.
    pub restarts: u8,
}

/// Builds chunks and hands out answers.
#[derive(Debug)]
pub struct Gateway {
    registry: Arc<Registry>,
    building: Chunk,
    /// Chunks that were full before they were asked for.
    closed: VecDeque<Arc<Chunk>>,
    /// Who waits for each transaction of `building`, by index.
    tickets: Vec<Option<Ticket>>,
    /// Chunks submitted and not finished, by consecutive number from `oldest` on.
    submitted: VecDeque<Submitted>,
    oldest: ChunkNo,
    outstanding: usize,
    /// Requests that take several transactions, by the one they wait for now.
    dependents: BTreeMap<(ChunkNo, u32), Dependent>,
}

#[derive(Debug)]
struct Submitted {
    /// Who waits for each transaction, until it is answered.
    tickets: Vec<Option<Ticket>>,
    left: usize,
}

/// A request whose keys have to be found first.
#[derive(Debug)]
struct Dependent {
    ticket: Ticket,
    call: Call,
    args: Vec<u8>,
    known: Known,
    step: Step,
    restarts: u8,
}

/// What a dependent request waits for.
#[derive(Debug)]
enum Step {
    /// These records.
    Reading(Vec<(Db, Vec<u8>)>),
    /// The answer of a procedure.
    Asking,
    /// The real transaction.
    Running,
}

impl Gateway {
    /// A gateway with nothing outstanding.
    pub fn new(id: GatewayId, registry: Arc<Registry>) -> Gateway {
        let oldest = ChunkNo(0);
        Gateway {
            registry,
            building: Chunk::new(id, oldest),
            closed: VecDeque::new(),
            tickets: Vec::new(),
            submitted: VecDeque::new(),
            oldest,
            outstanding: 0,
            dependents: BTreeMap::new(),
        }
    }

    /// The procedures there are.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Adds a request to the chunk being built. A session's request numbers must not exceed [`MAX_REQUEST`].
    ///
    /// # Errors
    /// The arguments were refused; nothing was submitted and no answer will come.
    #[inline]
    pub fn submit(
        &mut self,
        ticket: Ticket,
        mut call: Call,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> Result<(), PlanError> {
        if let Some((_, request)) = &mut call.session {
            if request.0 > MAX_REQUEST {
                return Err(PlanError::fixed("ERR request number exceeds 2^56 - 1"));
            }
            request.0 <<= 8;
        }
        if self.registry.get(call.procedure).is_some_and(|p| p.is_dependent()) {
            let mut args = Vec::new();
            write_args(&mut ArgsBuilder::new(&mut args));
            let (known, step) = (Known::default(), Step::Running);
            let dependent = Dependent { ticket, call, args, known, step, restarts: 0 };
            self.go_on(dependent).map_err(|(_, refusal)| refusal)?;
        } else {
            self.building.push(&self.registry, call, write_args)?;
            self.tickets.push(Some(ticket));
            self.close_if_full();
        }
        self.outstanding += 1;
        Ok(())
    }

    /// How many requests are submitted and not finished.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// The next chunk to submit, if anything was asked for since the last; call it until there is none.
    pub fn flush(&mut self) -> Option<Arc<Chunk>> {
        if self.closed.is_empty() && !self.tickets.is_empty() {
            self.close();
        }
        self.closed.pop_front()
    }

    fn close_if_full(&mut self) {
        if self.tickets.len() >= MAX_CHUNK || self.building.bytes() >= MAX_CHUNK_BYTES {
            self.close();
        }
    }

    fn close(&mut self) {
        let next = Chunk::after(&self.building);
        let chunk = std::mem::replace(&mut self.building, next);
        let room = Vec::with_capacity(self.tickets.len());
        let tickets = std::mem::replace(&mut self.tickets, room);
        self.submitted.push_back(Submitted { left: tickets.len(), tickets });
        self.closed.push_back(Arc::new(chunk));
    }

    /// Takes outcomes and reports each request that they finish. An outcome that nobody waits for (the node was
    /// restarted, or it came twice) is ignored.
    pub fn take_outcomes(&mut self, batch: &OutcomeBatch, mut done: impl FnMut(Finished<'_>)) {
        self.take_outcomes_with(batch, |_, finished| done(finished));
    }

    /// The same for callers that may have something to submit at once.
    pub fn take_outcomes_with(
        &mut self,
        batch: &OutcomeBatch,
        mut done: impl FnMut(&mut Gateway, Finished<'_>),
    ) {
        for outcome in &batch.outcomes {
            let Some(at) = outcome.chunk.0.checked_sub(self.oldest.0) else { continue };
            let Some(submitted) = self.submitted.get_mut(at as usize) else { continue };
            let Some(ticket) = submitted.tickets.get_mut(outcome.index as usize).and_then(Option::take)
            else {
                continue;
            };
            submitted.left -= 1;
            let reply = batch.reply(outcome);
            let dependent = match self.dependents.is_empty() {
                true => None,
                false => self.dependents.remove(&(outcome.chunk, outcome.index)),
            };
            let finished = Finished { ticket, status: outcome.status, gsn: outcome.gsn, reply, restarts: 0 };
            match dependent {
                None => {
                    self.outstanding -= 1;
                    done(self, finished);
                }
                Some(dependent) => self.take_step(dependent, finished, &mut done),
            }
        }
        while self.submitted.front().is_some_and(|s| s.left == 0) {
            self.submitted.pop_front();
            self.oldest.0 += 1;
        }
    }

    /// A transaction of a dependent request has ended: the request goes on or is finished.
    fn take_step(
        &mut self,
        mut dependent: Dependent,
        step: Finished<'_>,
        done: &mut impl FnMut(&mut Gateway, Finished<'_>),
    ) {
        let learnt = match (step.status, &dependent.step) {
            (OutcomeStatus::Committed, Step::Reading(wanted)) => {
                system::read_reply(wanted.iter().map(|(db, key)| (*db, &**key)), step.reply)
                    .map(|read| read.into_iter().for_each(|evidence| dependent.known.learn(evidence)))
            }
            (OutcomeStatus::Committed, Step::Asking) => {
                dependent.known.answers.push(step.reply.to_vec());
                Some(())
            }
            (OutcomeStatus::Aborted(Abort::Restart), Step::Running) if dependent.restarts < MAX_RESTARTS => {
                dependent.restarts += 1;
                if let Some((_, request)) = &mut dependent.call.session {
                    *request = RequestNo(request.0 + 1);
                }
                learn_from_restart(&mut dependent.known, step.reply)
            }
            _ => None,
        };
        let restarts = dependent.restarts;
        if learnt.is_none() {
            self.outstanding -= 1;
            let mut reply = Vec::new();
            if step.status == OutcomeStatus::Aborted(Abort::Restart) {
                Writer(&mut reply).abort(Abort::Restart);
            } else {
                reply.extend_from_slice(step.reply);
            }
            return done(self, Finished { reply: &reply, restarts, ..step });
        }
        if let Err((ticket, refusal)) = self.go_on(dependent) {
            self.outstanding -= 1;
            let mut reply = Vec::new();
            Writer(&mut reply).error(refusal.0.as_bytes());
            let status = OutcomeStatus::Aborted(Abort::Logic);
            done(self, Finished { ticket, status, gsn: step.gsn, reply: &reply, restarts });
        }
    }

    /// Submits whatever the dependent request needs next.
    fn go_on(&mut self, mut dependent: Dependent) -> Result<(), (Ticket, PlanError)> {
        let ticket = dependent.ticket;
        let refuse = |refusal| (ticket, refusal);
        let registry = self.registry.clone();
        let damaged = || (ticket, PlanError::fixed("ERR damaged arguments"));
        let procedure = registry.get(dependent.call.procedure).ok_or_else(damaged)?;
        let args = Args::parse(&dependent.args).ok_or_else(damaged)?;
        match procedure.reconnoitre(args, &dependent.known).map_err(refuse)? {
            Reconnaissance::Read(keys) => {
                let call = Call::new(system::READ, dependent.call.db);
                let reads = keys.iter().map(|(db, key)| (*db, &**key));
                self.building.push(&registry, call, |args| system::read_args(reads, args)).map_err(refuse)?;
                dependent.step = Step::Reading(keys);
            }
            Reconnaissance::Ask(procedure, args) => {
                let args = Args::parse(&args).ok_or_else(damaged)?;
                let call = Call::new(procedure, dependent.call.db);
                let write = |out: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg.bytes));
                let txn = self.building.push(&registry, call, write).map_err(refuse)?;
                debug_assert!(txn.read_only, "a reconnaissance that writes");
                dependent.step = Step::Asking;
            }
            Reconnaissance::Ready(args) => {
                let args = Args::parse(&args).ok_or_else(damaged)?;
                let write = |out: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg.bytes));
                self.building.push(&registry, dependent.call, write).map_err(refuse)?;
                dependent.step = Step::Running;
            }
        }
        self.tickets.push(Some(ticket));
        let index = self.tickets.len() as u32 - 1;
        self.dependents.insert((self.building.number, index), dependent);
        self.close_if_full();
        Ok(())
    }
}

/// What the reply of a restart says is known now, in place of what was thought; `None` for damaged bytes.
fn learn_from_restart(known: &mut Known, reply: &[u8]) -> Option<()> {
    match Datum::first(reply) {
        Datum::Array(_) => {
            system::restart_evidence(reply)?.into_iter().for_each(|evidence| known.learn(evidence));
        }
        Datum::Bulk(_) => known.answers = vec![reply.to_vec()],
        _ => return None,
    }
    Some(())
}
