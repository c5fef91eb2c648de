//! MULTI blocks and WATCH.
//!
//! A block is kept until EXEC and then submitted as one transaction ([`Gateway::submit_block`](ordain_gateway::Gateway::submit_block)),
//! which aborts if a key that WATCH has named was changed since ([`Watched`](ordain_gateway::Watched)).
//!
//! What the session answers itself inside a block (PING, SELECT, …) and calls whose arguments are refused are not
//! part of the transaction; their replies are put in their places among the transaction's, as Redis answers
//! them: the other commands of the block run.

use std::ops::Range;
use std::sync::Arc;

use ordain_commands::rights::Denied;
use ordain_commands::script::frugal;
use ordain_commands::{Action, Command, Flags, SessionCommand};
use ordain_gateway::{Watched, Watching};
use ordain_model::plan::Planner;
use ordain_model::{Args, ArgsBuilder, Call, Datum, Db, PlanError, ProcedureId, View, Writer, system};
use smallvec::SmallVec;

use super::access::{carrying, changed, is_script};
use super::dispatch::{Answered, Place, planned};
use super::{Awaiting, Cost, Mode, Session, Words};
use crate::acl::User;
use crate::diagnostics::note_error;
use crate::shared::{Context, parse_db};

/// Commands of one block. A transaction's keys are limited too; this bounds those without keys.
const QUEUE_MAX: usize = 1 << 20;

/// A MULTI block.
#[derive(Debug)]
pub(super) struct Multi {
    queue: Vec<Queued>,
    /// The arguments of what is queued, one encoding after the other.
    args: Vec<u8>,
    /// A command was refused as it came: EXEC will not run.
    is_spoiled: bool,
    /// The cost of its commands together.
    cost: Cost,
    /// One of them needs memory.
    needs_memory: bool,
    /// What SELECT inside the block has selected so far.
    db: Db,
    /// The rights of the user when the block was begun: those that its scripts carry.
    user: Arc<User>,
    /// The words of the commands, where any user's rights are restricted: they are checked again if the user's change.
    words: Vec<u8>,
}

#[derive(Debug)]
struct Queued {
    what: Part,
    args: Range<usize>,
    command: &'static Command,
    /// Where its words are, if they are kept.
    words: Option<Range<usize>>,
}

#[derive(Debug)]
enum Part {
    /// Part of the transaction.
    Call(ProcedureId, Db),
    /// The session answers it, when the transaction has committed. Its words are its arguments.
    Own(SessionCommand),
    /// The command's arguments are refused.
    Refused(PlanError),
}

impl Multi {
    pub(super) fn new(db: Db, user: Arc<User>) -> Multi {
        Multi {
            queue: Vec::new(),
            args: Vec::new(),
            is_spoiled: false,
            cost: Cost::default(),
            needs_memory: false,
            db,
            user,
            words: Vec::new(),
        }
    }

    pub(super) fn spoil(&mut self) {
        self.is_spoiled = true;
    }

    /// Counts a command that is queued.
    pub(super) fn count(&mut self, cost: Cost, needs_memory: bool) {
        self.cost.values = self.cost.values.saturating_add(cost.values);
        self.cost.need = self.cost.need.saturating_add(cost.need);
        self.needs_memory |= needs_memory;
    }

    /// The cost of its commands together.
    pub(super) fn cost(&self) -> Cost {
        Cost { request: self.args.len(), ..self.cost }
    }

    /// The database that is selected in it.
    pub(super) fn db(&self) -> Db {
        self.db
    }

    /// Tells whether one of them needs memory.
    pub(super) fn needs_memory(&self) -> bool {
        self.needs_memory
    }

    /// Has its scripts and functions refuse commands that need memory.
    fn be_frugal(&mut self) {
        for queued in &mut self.queue {
            if let Part::Call(procedure, _) = &mut queued.what {
                *procedure = frugal(*procedure);
            }
        }
    }

    /// The arguments of its calls.
    pub(super) fn planned(&self) -> impl Iterator<Item = (ProcedureId, Db, &[u8])> {
        self.calls()
    }

    /// The number of commands that are queued.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn memory(&self) -> usize {
        self.args.capacity() + self.words.capacity() + self.queue.capacity() * size_of::<Queued>()
    }

    fn push(
        &mut self,
        what: Part,
        command: &'static Command,
        words: Option<&Words<'_>>,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) {
        let start = self.args.len();
        write_args(&mut ArgsBuilder::new(&mut self.args));
        let words = words.map(|words| {
            let start = self.words.len();
            let mut list = ArgsBuilder::new(&mut self.words);
            words.iter().for_each(|word| _ = list.push(word));
            start..self.words.len()
        });
        self.queue.push(Queued { what, args: start..self.args.len(), command, words });
    }

    /// Refuses what a user whose rights have changed since the block was begun may not do any more.
    fn check_again(&mut self, user: &User) {
        let queued = self.queue.iter_mut().filter(|queued| !matches!(queued.what, Part::Refused(_)));
        for queued in queued {
            let list = queued.words.clone().and_then(|range| Args::parse(self.words.get(range)?));
            let words: Option<SmallVec<[&[u8]; 8]>> =
                list.map(|list| list.iter().map(|word| word.bytes).collect());
            // What was queued while no user was restricted has left no words to check; and a script carries the rights that
            // it was queued with.
            let result = match &words {
                Some(words) if !is_script(queued.command) => user.rights().check(queued.command, words),
                _ => Err(Denied::Command),
            };
            if let Err(denied) = result {
                queued.what = Part::Refused(PlanError::fixed(changed(denied)));
            }
        }
    }

    fn calls(&self) -> impl Iterator<Item = (ProcedureId, Db, &[u8])> {
        self.queue.iter().filter_map(|queued| match queued.what {
            Part::Call(procedure, db) => Some((procedure, db, &self.args[queued.args.clone()])),
            Part::Own(_) | Part::Refused(_) => None,
        })
    }

    fn is_whole_transaction(&self) -> bool {
        self.queue.iter().all(|queued| matches!(queued.what, Part::Call(..)))
    }
}

impl Session {
    /// A command while a block is open.
    pub(super) fn handle_in_multi(
        &mut self,
        command: &'static Command,
        words: &Words<'_>,
        cx: &mut Context<'_>,
    ) {
        let Mode::Multi(multi) = &mut self.mode else { return };
        match command.action {
            Action::Session(SessionCommand::Exec) => return self.exec(cx),
            Action::Session(SessionCommand::Discard) => {
                self.mode = Mode::Plain;
                self.watched.clear();
                return self.answer(cx, |w| w.ok());
            }
            Action::Session(SessionCommand::Multi) => {
                return self.answer(cx, |w| w.error("ERR MULTI calls can not be nested"));
            }
            Action::Session(SessionCommand::Watch) => {
                return self.answer(cx, |w| w.error("ERR WATCH inside MULTI is not allowed"));
            }
            Action::Session(which @ (SessionCommand::Quit | SessionCommand::Reset)) => {
                return self.handle_own(command, which, words, cx);
            }
            // Their answers change how everything after them is written.
            Action::Session(SessionCommand::Hello | SessionCommand::Auth) => {
                return self.reject(b"ERR Command not allowed inside a transaction", cx);
            }
            _ if command.flags.has(Flags::NO_MULTI) => {
                return self.reject(b"ERR Command not allowed inside a transaction", cx);
            }
            _ => {}
        }
        if multi.queue.len() >= QUEUE_MAX
            || multi.args.len() + multi.words.len() > cx.shared.limits.transaction_bytes_max
        {
            return self.reject(b"ERR the MULTI block is too large", cx);
        }
        let planned = match planned(cx.gateway.registry(), command, words) {
            Ok(planned) => planned,
            // Redis finds out when it runs the command; the others of the block run.
            Err(refusal) => {
                multi.push(Part::Refused(refusal), command, None, |_| ());
                return self.answer(cx, |w| w.status("QUEUED"));
            }
        };
        let kept = cx.shared.access.is_restricted().then_some(words);
        if let Some(call) = planned {
            if cx.gateway.registry().get(call.procedure).is_some_and(|p| p.is_dependent()) {
                let name = cx.gateway.registry().name(call.procedure).unwrap_or(command.name);
                let text =
                    format!("ERR '{name}' finds its keys while it runs and cannot be part of a MULTI block");
                return self.reject(text.as_bytes(), cx);
            }
            let user = self.user.clone();
            let (procedure, carried) = carrying(call.procedure, user.carried(), cx.gateway);
            multi.push(Part::Call(procedure, multi.db), command, kept, |args| {
                carried.into_iter().for_each(|rights| _ = args.push(rights));
                (call.encode)(call.args, args);
            });
        } else if let Action::Session(which) = command.action {
            if let (SessionCommand::Select, Ok(db)) =
                (which, parse_db(words.get(1).copied().unwrap_or_default()))
            {
                multi.db = db;
            }
            multi.push(Part::Own(which), command, kept, |args| {
                words.iter().for_each(|word| _ = args.push(word));
            });
        }
        self.answer(cx, |w| w.status("QUEUED"));
    }

    fn exec(&mut self, cx: &mut Context<'_>) {
        let Mode::Multi(mut multi) = std::mem::take(&mut self.mode) else { return };
        let watched = std::mem::take(&mut self.watched);
        if multi.is_spoiled {
            return self.answer(cx, |w| {
                w.error("EXECABORT Transaction discarded because of previous errors.");
            });
        }
        if !self.user.is_unrestricted() && multi.user.rights() != self.user.rights() {
            multi.check_again(&self.user);
        }
        if watched.is_empty() && multi.calls().next().is_none() {
            return self.exec_alone(&multi, cx);
        }
        if cx.shared.memory.is_short() {
            multi.be_frugal();
        }
        let session = self.take_request();
        let call = Call { procedure: system::MULTI, db: self.db, session };
        let sequence = match self.submit_block(call, &watched, &multi, cx) {
            Ok(sequence) => sequence,
            // One of the commands may be at fault; Redis would run the others.
            Err(refusal) => {
                let whole = if !set_refused_aside(&mut multi, cx) {
                    Err(refusal)
                } else if watched.is_empty() && multi.calls().next().is_none() {
                    return self.exec_alone(&multi, cx);
                } else {
                    self.submit_block(call, &watched, &multi, cx)
                };
                match whole {
                    Ok(sequence) => sequence,
                    Err(refusal) => {
                        return self.answer(cx, |w| {
                            w.error(
                                [b"EXECABORT Transaction discarded because of: ", refusal.reason()].concat(),
                            );
                        });
                    }
                }
            }
        };
        if !multi.is_whole_transaction() {
            self.wait_for(sequence, Awaiting::Exec(multi));
        }
    }

    fn submit_block(
        &mut self,
        call: Call,
        watched: &Watched,
        multi: &Multi,
        cx: &mut Context<'_>,
    ) -> Result<super::Sequence, PlanError> {
        let view = View::Since(self.seen.clone());
        self.submit_with(cx, |gateway, place| gateway.submit_block(place, call, view, watched, multi.calls()))
            .map(|(sequence, _)| sequence)
    }

    /// A block without a transaction.
    fn exec_alone(&mut self, multi: &Multi, cx: &mut Context<'_>) {
        let (mut reply, mut none) = (Vec::new(), Vec::new());
        Writer(&mut none).array(0);
        self.exec_done(multi, &none, cx, &mut reply);
        self.answer_with(cx, &reply);
    }

    /// Puts the replies of a committed block together: the transaction's, and those of the parts that were not
    /// in it.
    pub(super) fn exec_done(
        &mut self,
        multi: &Multi,
        answer: &[u8],
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) {
        let mut rest = match Datum::split(answer) {
            Some((Datum::Array(_), rest)) => rest,
            _ => return out.extend_from_slice(answer),
        };
        Writer(out).array(multi.queue.len());
        for queued in &multi.queue {
            let start = out.len();
            match &queued.what {
                Part::Call(..) => match Datum::split_whole(rest) {
                    Some((reply, tail)) => {
                        out.extend_from_slice(reply);
                        rest = tail;
                    }
                    None => Writer(out).error("ERR the reply is damaged; this is a bug"),
                },
                Part::Refused(refusal) => Writer(out).error(&refusal.0),
                Part::Own(which) => {
                    let words: SmallVec<[&[u8]; 8]> = match Args::parse(&multi.args[queued.args.clone()]) {
                        Some(args) => args.iter().map(|arg| arg.bytes).collect(),
                        None => SmallVec::new(),
                    };
                    self.run_own(*which, &words, Place::InExec, cx, out);
                }
            }
            note_error(&out[start..], &cx.shared.observed.times);
        }
    }

    /// WATCH: reads the versions of keys that are not watched yet.
    pub(super) fn watch(&mut self, words: &Words<'_>, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Answered {
        let (db, view) = (self.db, View::Since(self.seen.clone()));
        let watched = std::mem::take(&mut self.watched);
        let keys = words[1..].iter().map(|key| (db, key.to_vec()));
        let submitted = self.submit_some(cx, |gateway, place| gateway.watch(place, view, keys, &watched));
        self.watched = watched;
        match submitted {
            Ok(Some((sequence, watching))) => {
                self.wait_for(sequence, Awaiting::Watch(watching));
                Answered::Later
            }
            Ok(None) => {
                Writer(out).ok();
                Answered::Now
            }
            Err(refusal) => {
                Writer(out).error(&refusal.0);
                Answered::Now
            }
        }
    }

    /// The versions of watched keys have been read.
    pub(super) fn watch_read(&mut self, watching: &Watching, answer: &[u8], out: &mut Vec<u8>) {
        match self.watched.take(watching, answer) {
            Some(()) => Writer(out).ok(),
            None => Writer(out).error("ERR the reply is damaged; this is a bug"),
        }
    }
}

/// Marks the calls that are refused on their own, with their refusals; says whether there are any.
fn set_refused_aside(multi: &mut Multi, cx: &mut Context<'_>) -> bool {
    let Multi { queue, args, .. } = multi;
    let mut any = false;
    for queued in queue {
        let Part::Call(procedure, db) = queued.what else { continue };
        let plans = &mut cx.shared.scratch.plans;
        plans.fragments.clear();
        plans.inputs.clear();
        plans.calls.clear();
        let Some(view) = Args::parse(&args[queued.args.clone()]) else { continue };
        if let Err(refusal) = Planner::plan(cx.gateway.registry(), procedure, db, view, plans) {
            queued.what = Part::Refused(refusal);
            any = true;
        }
    }
    any
}
