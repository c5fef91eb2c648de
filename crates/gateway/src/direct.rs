//! Interactive transactions that the engine itself keeps open, for engines that execute before they agree.
//!
//! Each command is submitted as a [`Step`] of the open transaction, and so is the commit. The engine holds what the steps have
//! read and written until the transaction ends; the gateway keeps its number, and what may end it before its client does. A
//! transaction that the engine gives up answers its next command with the reason, and is lost.

use std::collections::BTreeSet;

use ordain_model::key::MAX_KEYS;
use ordain_model::plan::Planner;
use ordain_model::serial::key_of;
use ordain_model::{
    Abort, Args, ArgsBuilder, Call, Db, Front, OpenId, OutcomeStatus, PlanError, RequestNo, SessionId,
    Step as StepOf, View, Writer, system,
};

use crate::backend::{Begin, Desk, Progress, READ_ONLY, Step, TOO_LARGE, Transaction};
use crate::pending::{Asker, Waiter};
use crate::submit::{Admitted, put_aside};
use crate::{Departure, Finished, Gateway};

/// A transaction that the engine keeps open between its commands.
pub fn direct(how: Begin) -> Box<dyn Transaction> {
    let Begin { is_read_only, session, .. } = how;
    // What only reads is no request of a session.
    let session = session.filter(|_| !is_read_only);
    Box::new(DirectTransaction { is_read_only, session, ..DirectTransaction::default() })
}

const DEPENDENT: PlanError =
    PlanError::fixed("ERR a procedure that finds its keys first cannot run between TXN.BEGIN and TXN.COMMIT");
const OVER: PlanError = PlanError::fixed("TXNABORT the transaction is over: begin it again");
const OTHER_SESSION: &str =
    "TXNABORT the connection has taken another session since TXN.BEGIN: begin the transaction again";

/// An open transaction.
#[derive(Debug, Default)]
struct DirectTransaction {
    is_read_only: bool,
    /// The session of the connection when the transaction was begun.
    session: Option<SessionId>,
    /// The engine's name for it, once a step was submitted.
    of: Option<OpenId>,
    /// The number of steps so far.
    steps: u32,
    /// The keys that its steps may write.
    written: BTreeSet<(Db, Vec<u8>)>,
    /// A step so far may write.
    may_write: bool,
    /// The number of keys that its steps have named.
    keys: usize,
    /// Bytes of arguments and replies.
    bytes: usize,
    /// The reason why it can only be begun again, if the engine has given it up.
    lost: Option<Abort>,
}

impl DirectTransaction {
    fn submit(
        &mut self,
        gateway: &mut Gateway,
        desk: Desk<'_>,
        (call, is_commit): (Call, bool),
        args: &[u8],
    ) -> Result<(), PlanError> {
        let of = *self.of.get_or_insert_with(|| gateway.open_transaction());
        let may_write = self.may_write;
        let step = StepOf { of, number: self.steps + 1, session: self.session, is_commit, may_write };
        let args = Args::parse(args).ok_or(PlanError::SYNTAX)?;
        let write = |out: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg.bytes));
        gateway.submit_in_order(desk.stream, desk.ticket, call, View::Within(step), write)?;
        self.steps += 1;
        Ok(())
    }

    /// Checks a call against what the transaction may do, and counts what it touches.
    fn admit(&mut self, gateway: &mut Gateway, step: &Step<'_>) -> Result<(), PlanError> {
        let Gateway { registry, buffers, .. } = gateway;
        if registry.get(step.procedure).is_none_or(|procedure| procedure.is_dependent()) {
            return Err(DEPENDENT);
        }
        let args = Args::parse(step.args).ok_or(PlanError::SYNTAX)?;
        let plans = buffers.emptied_plans();
        Planner::plan(registry, step.procedure, step.db, args, plans)?;
        let writes = plans.fragments.iter().filter(|fragment| fragment.writes());
        if self.is_read_only && writes.clone().next().is_some() {
            return Err(PlanError::fixed(READ_ONLY));
        }
        let (keys, bytes) = (self.keys + plans.fragments.len(), self.bytes + step.args.len());
        if bytes > step.bytes_max || keys > MAX_KEYS {
            return Err(PlanError::fixed(TOO_LARGE));
        }
        self.may_write |= writes.clone().next().is_some();
        let keyed = writes.filter(|fragment| fragment.is_keyed());
        self.written.extend(keyed.map(|fragment| (fragment.db, key_of(args, fragment).bytes.to_vec())));
        (self.keys, self.bytes) = (keys, bytes);
        Ok(())
    }

    /// The engine has given the transaction up.
    fn lose(&mut self, gateway: &mut Gateway, reason: Abort) {
        self.end(gateway);
        self.lost = Some(reason);
    }
}

impl Transaction for DirectTransaction {
    fn call(&mut self, gateway: &mut Gateway, desk: Desk<'_>, step: Step<'_>, out: &mut Vec<u8>) -> Progress {
        if let Some(reason) = self.lost {
            Writer(out).abort(reason);
            return Progress::Answered;
        }
        let call = Call::new(step.procedure, step.db);
        let submitted = self.admit(gateway, &step);
        match submitted.and_then(|()| self.submit(gateway, desk, (call, false), step.args)) {
            Ok(()) => Progress::Waits,
            Err(refusal) => {
                Writer(out).error(&refusal.0);
                Progress::Answered
            }
        }
    }

    fn finished(&mut self, gateway: &mut Gateway, finished: &Finished<'_>, out: &mut Vec<u8>) -> bool {
        match finished.status {
            OutcomeStatus::Committed => self.bytes += finished.reply.len(),
            // The command has failed by itself, and the transaction goes on.
            OutcomeStatus::Aborted(abort) if !abort.is_retryable() => {}
            OutcomeStatus::Aborted(abort) => self.lose(gateway, abort),
            _ => {
                self.lose(gateway, Abort::Unavailable);
                Writer(out).abort(Abort::Unavailable);
                return true;
            }
        }
        false
    }

    fn commit(
        &mut self,
        gateway: &mut Gateway,
        desk: Desk<'_>,
        (db, request): (Db, Option<(SessionId, RequestNo)>),
        out: &mut Vec<u8>,
    ) -> Progress {
        if let Some(reason) = self.lost {
            Writer(out).abort(reason);
            return Progress::Answered;
        }
        let request = request.filter(|_| !self.is_read_only);
        if self.of.is_none() && request.is_none() {
            Writer(out).ok();
            return Progress::Answered;
        }
        if request.is_some_and(|(session, _)| Some(session) != self.session) {
            self.end(gateway);
            Writer(out).error(OTHER_SESSION);
            return Progress::Answered;
        }
        let call = Call { procedure: system::COMMIT, db, session: request };
        let mut args = Vec::new();
        system::commit_args([].into_iter(), [], &mut ArgsBuilder::new(&mut args));
        match self.submit(gateway, desk, (call, true), &args) {
            Ok(()) => Progress::Waits,
            Err(refusal) => {
                self.end(gateway);
                Writer(out).error([b"TXNABORT the commit was refused: ", refusal.reason()].concat());
                Progress::Answered
            }
        }
    }

    fn end(&mut self, gateway: &mut Gateway) {
        self.of.take().into_iter().for_each(|of| gateway.end_transaction(of));
    }

    fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    fn written(&self, show: &mut dyn FnMut(Db, &[u8])) {
        self.written.iter().for_each(|(db, key)| show(*db, key));
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Gateway {
    /// Names a transaction that is kept open.
    fn open_transaction(&mut self) -> OpenId {
        self.last_open += 1;
        self.open.insert(self.last_open);
        OpenId { gateway: self.id, number: self.last_open }
    }

    /// An open transaction is over without effect, unless its commit was submitted: the engine hears of it, and steps that are not
    /// submitted never are.
    fn end_transaction(&mut self, of: OpenId) {
        if self.open.remove(&of.number) {
            self.closed.push_back(Departure::Word(self.id.node(), Front::Abandon(of)));
        }
    }

    /// Plans a step of an open transaction and puts it in a chunk of its own.
    pub(crate) fn admit_step(
        &mut self,
        step: StepOf,
        asker: Asker,
        call: Call,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> Result<Admitted, PlanError> {
        if !self.open.contains(&step.of.number) {
            return Err(OVER);
        }
        let home = self.partition;
        let at = usize::from(home.0);
        if !self.building[at].txns().is_empty() {
            self.close(home);
        }
        self.building[at].push(&self.registry, call, write_args)?;
        if !self.may_order(asker) {
            return Ok(Admitted::NotYet(put_aside(&mut self.aside, &mut self.building[at])));
        }
        if step.is_commit {
            // From here on the connection's end takes nothing back.
            self.open.remove(&step.of.number);
        }
        let waiter = Waiter::new(asker, home, false);
        let place = self.pending.add(&mut self.building[at], (home, None), waiter);
        if let Some(stream_place) = asker.stream_place {
            self.sit_down(stream_place, place, (home, home));
        }
        let chunk = self.take_built(home);
        self.closed.push_back(Departure::Step(step, home, chunk));
        Ok(Admitted::Placed(place, crate::Path::Order))
    }
}
