//! Interactive transactions: TXN.BEGIN, TXN.COMMIT, TXN.ABORT and the commands between them.
//!
//! The gateway runs them ([`ordain_gateway::Transaction`]), each engine in its own way. A session checks what its user may
//! do, and awaits a command that has to wait: a later one may rely on its reply.

use std::sync::Arc;

use ordain_commands::{Action, Command, SessionCommand};
use ordain_gateway::{Begin, Desk, Finished, Gateway, Progress, Step, Transaction};
use ordain_model::{ArgsBuilder, PlanError, ProcedureId, Writer};

use super::access::carrying;
use super::dispatch::{numbered, planned};
use super::{Awaiting, Mode, Sequence, Session, Words};
use crate::acl::User;
use crate::shared::Context;

/// An open transaction.
#[derive(Debug)]
pub(super) struct Interactive {
    transaction: Box<dyn Transaction>,
    /// One of its commands needed memory.
    pub(super) needs_memory: bool,
    /// The rights that its commands were checked against.
    user: Arc<User>,
}

impl Interactive {
    /// Bytes of the records that it holds.
    pub(super) fn bytes(&self) -> usize {
        self.transaction.bytes()
    }

    /// Tells whether its commit writes in a partition that is short of memory.
    pub(super) fn writes_where_short(&self, cx: &Context<'_>) -> bool {
        let (layout, memory) = (cx.gateway.layout(), &cx.shared.memory);
        if layout.partitions() == 1 {
            return true;
        }
        let mut is_short = false;
        self.transaction.written(&mut |_, key| {
            is_short |= memory.is_short_in(layout.region_of(key).0);
        });
        is_short
    }
}

/// The error of a commit whose commands were checked against other rights.
const RIGHTS_CHANGED: &str =
    "TXNABORT the rights of this connection's user have changed since TXN.BEGIN: begin it again";

impl Session {
    /// TXN.BEGIN.
    pub(super) fn txn_begin(&mut self, words: &Words<'_>, cx: &mut Context<'_>, out: &mut Vec<u8>) {
        let is_read_only = match &words[1..] {
            [] => false,
            [option] if option.eq_ignore_ascii_case(b"readonly") => true,
            _ => return Writer(out).error("ERR syntax error"),
        };
        let session = self.retry.map(|(session, _)| session);
        let how = Begin { is_read_only, now: cx.now, seed: cx.now.0 ^ self.client.0 << 32, session };
        let transaction = match cx.gateway.begin(how) {
            Ok(transaction) => transaction,
            Err(refusal) => return Writer(out).error(refusal.to_string()),
        };
        let user = self.user.clone();
        self.mode = Mode::Interactive(Box::new(Interactive { transaction, needs_memory: false, user }));
        Writer(out).ok();
    }

    /// Handles a command while an interactive transaction is open.
    pub(super) fn handle_in_interactive(
        &mut self,
        command: &'static Command,
        words: &Words<'_>,
        cx: &mut Context<'_>,
    ) {
        match command.action {
            Action::Session(SessionCommand::TxnCommit) => return self.txn_commit(cx),
            Action::Session(SessionCommand::TxnAbort) => {
                self.release(cx.gateway);
                self.mode = Mode::Plain;
                return self.answer(cx, |w| w.ok());
            }
            Action::Session(
                SessionCommand::TxnBegin
                | SessionCommand::Multi
                | SessionCommand::Exec
                | SessionCommand::Discard
                | SessionCommand::Watch
                | SessionCommand::Unwatch,
            ) => {
                let name = command.name.to_ascii_uppercase();
                return self.answer(cx, |w| {
                    w.error(format!("ERR {name} is not allowed inside an interactive transaction"));
                });
            }
            _ => {}
        }
        match planned(cx.gateway.registry(), command, words) {
            Err(refusal) => self.answer(cx, |w| w.error(&refusal.0)),
            Ok(None) => {
                if let Action::Session(which) = command.action {
                    self.handle_own(command, which, words, cx);
                }
            }
            Ok(Some(call)) => {
                let user = self.user.clone();
                let (procedure, carried) = carrying(call.procedure, user.carried(), cx.gateway);
                let procedure = numbered(procedure, cx);
                let mut args = std::mem::take(&mut cx.shared.scratch.args);
                args.clear();
                let mut builder = ArgsBuilder::new(&mut args);
                carried.into_iter().for_each(|rights| _ = builder.push(rights));
                (call.encode)(call.args, &mut builder);
                self.interactive_call(procedure, &mut args, cx);
                cx.shared.scratch.args = args;
            }
        }
    }

    /// Runs a call of the open transaction.
    fn interactive_call(&mut self, procedure: ProcedureId, args: &mut Vec<u8>, cx: &mut Context<'_>) {
        let Mode::Interactive(mut open) = std::mem::take(&mut self.mode) else { return };
        let step = Step { procedure, db: self.db, args, bytes_max: cx.shared.limits.transaction_bytes_max };
        let waits = self.take_step(cx, |gateway, desk, out| open.transaction.call(gateway, desk, step, out));
        self.mode = Mode::Interactive(open);
        if let Some(sequence) = waits {
            self.wait_for(sequence, Awaiting::Transaction);
        }
    }

    /// Takes a step of a transaction, and answers it if it need not wait; or else says under which sequence it waits.
    fn take_step(
        &mut self,
        cx: &mut Context<'_>,
        step: impl FnOnce(&mut Gateway, Desk<'_>, &mut Vec<u8>) -> Progress,
    ) -> Option<Sequence> {
        let mut reply = std::mem::take(&mut cx.shared.scratch.datum);
        reply.clear();
        let seen = self.seen.clone();
        let submitted: Result<_, PlanError> = self.submit_some(cx, |gateway, (stream, ticket)| {
            let progress = step(gateway, Desk { stream, ticket, seen: &seen }, &mut reply);
            Ok((progress == Progress::Waits).then_some(()))
        });
        let waits = submitted.ok().flatten().map(|(sequence, ())| sequence);
        if waits.is_none() {
            self.answer_with(cx, &reply);
        }
        cx.shared.scratch.datum = reply;
        waits
    }

    /// Takes the end of what a call of the open transaction waited for; says whether the call has a reply of its own.
    pub(super) fn take_transaction(
        &mut self,
        finished: &Finished<'_>,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        match &mut self.mode {
            Mode::Interactive(open) => open.transaction.finished(cx.gateway, finished, out),
            Mode::Plain | Mode::Multi(_) => false,
        }
    }

    /// Releases what is kept for an open transaction.
    pub fn release(&mut self, gateway: &mut Gateway) {
        if let Mode::Interactive(open) = &mut self.mode {
            open.transaction.end(gateway);
        }
    }

    /// TXN.COMMIT.
    fn txn_commit(&mut self, cx: &mut Context<'_>) {
        let Mode::Interactive(mut open) = std::mem::take(&mut self.mode) else { return };
        let has_changed = !self.user.is_unrestricted() && open.user.rights() != self.user.rights();
        if has_changed && !open.transaction.is_lost() {
            open.transaction.end(cx.gateway);
            return self.answer(cx, |w| w.error(RIGHTS_CHANGED));
        }
        let request = self.retry.and_then(|(session, request)| Some((session, request?)));
        let request = (self.db, request);
        if let Some(sequence) =
            self.take_step(cx, |gateway, desk, out| open.transaction.commit(gateway, desk, request, out))
        {
            // The number is that of the commit.
            self.take_request();
            // Commands after it may rely on it, and the client learns of a conflict before they run.
            self.wait_for(sequence, Awaiting::Commit);
        }
    }
}
