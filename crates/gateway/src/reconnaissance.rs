//! Reconnaissance: transactions whose keys are found out before they are submitted (OLLP; the Calvin paper, section 3.2.1).
//!
//! A *dependent* request takes several transactions. The first ones read and ask what the procedure wants to know; the last
//! is the real one, which carries what it has learnt as validated reads. If those are found stale, the abort says what
//! holds now, and the real transaction is submitted again.

use ordain_model::args::{Args, ArgsBuilder, encode};
use ordain_model::procedure::{Known, Reconnaissance};
use ordain_model::{Abort, Call, Datum, Db, OutcomeStatus, PlanError, View, Writer, system};

use crate::pending::Asker;
use crate::streams::StreamPlace;
use crate::submit::next_attempt;
use crate::{Finished, Gateway, Ticket};

/// How often a transaction is submitted again because its reconnaissance was stale, before its client is told to
/// retry (calvin.md, section 6, `ollp_max`).
pub const MAX_RESTARTS: u8 = 10;

const TOO_MUCH_TO_READ: PlanError = PlanError::fixed(
    "ERR the records that the request reads first exceed the limit of 256 MiB: it did nothing, ask for less at once",
);

/// A request whose keys have to be found first.
#[derive(Debug)]
pub(crate) struct Dependent {
    pub(crate) ticket: Ticket,
    pub(crate) stream_place: Option<StreamPlace>,
    pub(crate) call: Call,
    args: Vec<u8>,
    known: Known,
    pub(crate) stage: Stage,
    restarts: u8,
    view: View,
}

/// The transaction that a dependent request waits for.
#[derive(Debug)]
pub(crate) enum Stage {
    /// These records.
    Reading(Vec<(Db, Vec<u8>)>),
    /// The answer of a procedure.
    Asking,
    /// The real transaction.
    Running,
}

impl Dependent {
    /// A request of which nothing is known yet.
    pub(crate) fn new(
        (ticket, stream_place): (Ticket, Option<StreamPlace>),
        call: Call,
        args: Vec<u8>,
        view: View,
    ) -> Dependent {
        let (known, stage) = (Known::default(), Stage::Running);
        Dependent { ticket, stream_place, call, args, known, stage, restarts: 0, view }
    }

    /// Learns from the end of the transaction that the request waits for; `None` if the request ends with it.
    ///
    /// # Errors
    /// The records to read are more than one reply may hold.
    fn learn(&mut self, step: &Finished<'_>) -> Option<Result<(), PlanError>> {
        match (step.status, &self.stage) {
            (OutcomeStatus::Committed, Stage::Reading(wanted)) => {
                let wanted = wanted.iter().map(|(db, key)| (*db, &**key));
                let Some(read) = system::read_reply(wanted, step.reply) else {
                    return Some(Err(TOO_MUCH_TO_READ));
                };
                read.records.into_iter().for_each(|seen| self.known.learn(seen));
            }
            (OutcomeStatus::Committed, Stage::Asking) => self.known.answers.push(step.reply.to_vec()),
            (OutcomeStatus::Aborted(Abort::Restart), Stage::Running) if self.restarts < MAX_RESTARTS => {
                self.restarts += 1;
                if let Some((_, request)) = &mut self.call.session {
                    *request = next_attempt(*request);
                }
                learn_from_restart(&mut self.known, step.reply)?;
            }
            // It has used what is undone, and has learnt nothing: it asks again.
            (OutcomeStatus::Aborted(Abort::Cascade), Stage::Reading(_) | Stage::Asking)
                if self.restarts < MAX_RESTARTS =>
            {
                self.restarts += 1;
            }
            _ => return None,
        }
        Some(Ok(()))
    }

    /// A request that takes the place of this one if it cannot be planned, but for its text. Only a session's request has one: an
    /// earlier attempt at it may have been planned.
    fn stand_in(&self) -> Option<Dependent> {
        self.call.session?;
        let call = Call { procedure: system::REFUSE, ..self.call };
        let (known, stage, view) = (Known::default(), Stage::Running, self.view.clone());
        Some(Dependent { call, args: Vec::new(), known, stage, view, ..*self })
    }
}

impl Gateway {
    /// Goes on with a dependent request of which a transaction has ended, or reports the request's end.
    pub(crate) fn take_step(
        &mut self,
        mut dependent: Dependent,
        step: Finished<'_>,
        done: &mut impl FnMut(&mut Gateway, Finished<'_>),
    ) {
        let learnt = dependent.learn(&step);
        let (stream_place, restarts) = (dependent.stream_place, dependent.restarts);
        let mut reply = Vec::new();
        let Some(learnt) = learnt else {
            if step.status == OutcomeStatus::Aborted(Abort::Restart) {
                Writer(&mut reply).abort(Abort::Restart);
            } else {
                reply.extend_from_slice(step.reply);
            }
            self.leave_stream(stream_place, false, &step);
            return done(self, Finished { reply: &reply, restarts, outcome: None, ..step });
        };
        let (ticket, stand_in) = (dependent.ticket, dependent.stand_in());
        let refusal = learnt.map_err(|refusal| (ticket, refusal)).and_then(|()| self.go_on(dependent)).err();
        let refusal = refusal.and_then(|(_, refusal)| match stand_in {
            Some(refused) => self.go_on(Dependent { args: encode(&[&refusal.0]), ..refused }).err(),
            None => Some((ticket, refusal)),
        });
        if let Some((ticket, refusal)) = refusal {
            self.leave_stream(stream_place, false, &step);
            Writer(&mut reply).error(&refusal.0);
            let status = OutcomeStatus::Aborted(Abort::Logic);
            let refused =
                Finished { ticket, status, reply: &reply, restarts, lease: None, outcome: None, ..step };
            done(self, refused);
        }
    }

    /// Submits whatever the dependent request needs next.
    ///
    /// # Errors
    /// The procedure refuses its arguments, or what it has learnt.
    pub(crate) fn go_on(&mut self, mut dependent: Dependent) -> Result<(), (Ticket, PlanError)> {
        let (ticket, view) = (dependent.ticket, dependent.view.clone());
        let asker = Asker::alone(ticket);
        let refuse = |refusal| (ticket, refusal);
        let registry = self.registry.clone();
        let damaged = || (ticket, PlanError::fixed("ERR damaged arguments"));
        let procedure = registry.get(dependent.call.procedure).ok_or_else(damaged)?;
        let args = Args::parse(&dependent.args).ok_or_else(damaged)?;
        let at = match procedure.reconnoitre(args, &dependent.known).map_err(refuse)? {
            Reconnaissance::Read(keys) => {
                let call = Call::new(system::READ, dependent.call.db);
                let reads = keys.iter().map(|(db, key)| (*db, &**key));
                let write = |args: &mut ArgsBuilder<'_>| system::read_args(reads, args);
                let (at, _) = self.admit(asker, call, view, write).map_err(refuse)?;
                dependent.stage = Stage::Reading(keys);
                at
            }
            Reconnaissance::Ask(procedure, args) => {
                let args = Args::parse(&args).ok_or_else(damaged)?;
                let call = Call::new(procedure, dependent.call.db);
                let write = |out: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg.bytes));
                dependent.stage = Stage::Asking;
                self.admit(asker, call, view, write).map_err(refuse)?.0
            }
            Reconnaissance::Ready(args) => {
                let args = Args::parse(&args).ok_or_else(damaged)?;
                let write = |out: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg.bytes));
                dependent.stage = Stage::Running;
                self.admit(asker, dependent.call, view, write).map_err(refuse)?.0
            }
        };
        self.dependents.insert(at, dependent);
        Ok(())
    }
}

/// Learns what the reply of a restart says is known now, in place of what was thought; `None` for damaged bytes.
fn learn_from_restart(known: &mut Known, reply: &[u8]) -> Option<()> {
    match Datum::first(reply) {
        Datum::Array(_) => {
            system::restart_reads(reply)?.into_iter().for_each(|seen| known.learn(seen));
        }
        Datum::Bulk(_) => known.answers = vec![reply.to_vec()],
        _ => return None,
    }
    Some(())
}
