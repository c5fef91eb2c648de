//! Interactive transactions on an engine that orders whole transactions: TXN.BEGIN, TXN.COMMIT, TXN.ABORT.
//!
//! Such an engine cannot stop in the middle of a transaction and wait for a client. So the commands run here, on
//! an overlay of records: a record that a command needs and the overlay lacks is read, with its version, by a
//! transaction of its own ([`system::READ`]); then the command runs at once on the overlay and its reply is
//! final for this attempt. TXN.COMMIT submits one transaction ([`system::COMMIT`]) that checks that every record
//! read still has the version that was read, and writes what was changed.
//!
//! Different reads may see different moments, so what an open transaction has seen need not be one consistent
//! state until it commits. (One that is begun READONLY on a node that runs reads on snapshots reads one state from the
//! first read on, and its commit has nothing to prove.) A commit that succeeds proves that it was: all the versions were current at the
//! commit's place in the serial order, which is where the whole transaction then took place. So what it saw may
//! be acted on after `OK`, and not before. The time that its commands see is that of TXN.BEGIN.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_commands::{Action, Command, SessionCommand};
use ordain_gateway::{Finished, Gateway, Lease};
use ordain_model::key::MAX_KEYS;
use ordain_model::plan::Planner;
use ordain_model::procedure::Evidence;
use ordain_model::serial::{self, CallError, Hand, Surroundings, key_of};
use ordain_model::{
    Access, Args, ArgsBuilder, Call, Cell, CellMut, Db, Gsn, Journal, Millis, PlanError, ProcedureId, Token,
    Version, View, Writer, system,
};

use super::dispatch::planned;
use super::{Awaiting, Mode, Session, Words};
use crate::acl::User;
use crate::shared::{Context, Scratch};

/// What a command has to read first.
#[derive(Debug)]
pub(super) struct Fetch {
    keys: Vec<(Db, Vec<u8>)>,
    procedure: ProcedureId,
    args: Vec<u8>,
}

/// An open transaction.
#[derive(Debug)]
pub(super) struct Interactive {
    is_read_only: bool,
    now: Millis,
    seed: u64,
    overlay: Overlay,
    /// How many reads were submitted: what one read saw is consistent as it is.
    reads: u32,
    /// The state that it reads, if it is begun READONLY and reads are run on snapshots.
    at: Option<Token>,
    /// That it is kept.
    lease: Option<Lease>,
    /// One of its commands needed memory.
    pub(super) needs_memory: bool,
    /// It is not kept any more: the transaction cannot commit.
    is_lost: bool,
    /// The rights that its commands were checked against.
    user: Arc<User>,
}

/// The records read so far, as the transaction has changed them.
#[derive(Debug, Default)]
struct Overlay {
    records: Vec<Held>,
    places: BTreeMap<Db, BTreeMap<Box<[u8]>, u32>>,
    journal: Journal,
    bytes: usize,
}

#[derive(Debug)]
struct Held {
    db: Db,
    key: Box<[u8]>,
    version: Version,
    cell: Cell,
    is_changed: bool,
    bytes: usize,
}

impl Overlay {
    fn place(&self, db: Db, key: &[u8]) -> Option<usize> {
        self.places.get(&db)?.get(key).map(|place| *place as usize)
    }

    fn insert(&mut self, evidence: Evidence) {
        let Evidence { db, key, version, cell } = evidence;
        if self.place(db, &key).is_some() {
            return;
        }
        let key: Box<[u8]> = key.into();
        let bytes = key.len() + size_of_cell(&cell);
        self.bytes += bytes;
        self.places.entry(db).or_default().insert(key.clone(), self.records.len() as u32);
        self.records.push(Held { db, key, version, cell, is_changed: false, bytes });
    }

    /// Counts a record again after it may have changed.
    fn recount(&mut self, place: usize) {
        let held = &mut self.records[place];
        self.bytes -= held.bytes;
        held.bytes = held.key.len() + size_of_cell(&held.cell);
        self.bytes += held.bytes;
    }

    fn roll_back(&mut self) {
        let Overlay { records, journal, .. } = self;
        journal.roll_back(0, |place, undo| undo(&mut records[place as usize].cell));
    }
}

fn size_of_cell(cell: &Cell) -> usize {
    match &cell.value {
        None => 0,
        Some(value) => value.heap_bytes(),
    }
}

impl Hand for Overlay {
    fn find(&self, db: Db, key: &[u8]) -> Option<usize> {
        self.place(db, key)
    }

    fn read(&self, at: usize) -> (&Cell, Version) {
        let held = &self.records[at];
        (&held.cell, held.version)
    }

    fn write(&mut self, at: usize) -> Option<CellMut<'_>> {
        let Overlay { records, journal, .. } = self;
        let held = &mut records[at];
        Some(CellMut::new(&mut held.cell, &mut held.is_changed, Some((journal, at as u32))))
    }
}

impl Interactive {
    /// Runs a command whose records are all in the overlay.
    fn run(
        &mut self,
        procedure: ProcedureId,
        db: Db,
        args: Args<'_>,
        (registry, scratch): (&ordain_model::Registry, &mut Scratch),
        out: &mut Vec<u8>,
    ) {
        self.seed = serial::seed_of(Gsn(self.seed));
        let surroundings = Surroundings {
            registry,
            now: self.now,
            seed: self.seed,
            read_only: self.is_read_only,
            room: usize::MAX,
        };
        let Scratch { serial, locals, .. } = scratch;
        let mark = out.len();
        let result = serial::call(surroundings, &mut self.overlay, serial, procedure, db, args, locals, out);
        let text = match result {
            Ok(()) => None,
            Err(CallError::Abort(abort)) => {
                self.overlay.roll_back();
                out.truncate(mark);
                return Writer(out).abort(abort);
            }
            Err(CallError::NoRoom) => {
                self.overlay.roll_back();
                out.truncate(mark);
                return Writer(out).too_long();
            }
            Err(CallError::Plan(refusal)) => Some(refusal.0),
            Err(CallError::ReadOnly) => Some(READ_ONLY.as_bytes().into()),
            Err(CallError::NotAllowed) => Some(NOT_ALLOWED.as_bytes().into()),
            Err(CallError::Undeclared) => {
                Some(b"ERR a record of the transaction is missing; this is a bug".into())
            }
        };
        self.overlay.journal.clear();
        if let Some(text) = text {
            Writer(out).error(text);
        }
    }

    /// Bytes of the records that it holds.
    pub(super) fn bytes(&self) -> usize {
        self.overlay.bytes
    }

    /// Ends the transaction: the arguments of its commit.
    pub(super) fn write_commit(&self, args: &mut ArgsBuilder<'_>) {
        let records = &self.overlay.records;
        let evidence = records.iter().map(|r| (r.db, &*r.key, r.version));
        let writes = records.iter().filter(|r| r.is_changed).map(|r| (r.db, &*r.key, &r.cell));
        system::commit_args(evidence, writes, args);
    }
}

const READ_ONLY: &str = "ERR write command in a transaction that was begun READONLY";
const NOT_ALLOWED: &str = "ERR commands over the whole key space, scripts and functions cannot run between TXN.BEGIN \
                           and TXN.COMMIT";
/// What a transaction is told that was begun READONLY and stayed open for too long.
pub(super) const STATE_GONE: &str = "TXNABORT the state that this transaction reads is not kept any more: it has been \
                                     open for too long; begin it again";
/// What a commit is told whose commands were checked against other rights.
const RIGHTS_CHANGED: &str =
    "TXNABORT the rights of this connection's user have changed since TXN.BEGIN: begin it again";
const TOO_LARGE: &str = "ERR the interactive transaction is too large: commit or abort it";

/// Which records of a call's plan are not in the overlay, and which it may write.
struct Needs {
    missing: Vec<(Db, Vec<u8>)>,
    writes: bool,
}

impl Session {
    /// TXN.BEGIN.
    pub(super) fn txn_begin(&mut self, words: &Words<'_>, cx: &mut Context<'_>, out: &mut Vec<u8>) {
        let is_read_only = match &words[1..] {
            [] => false,
            [option] if option.eq_ignore_ascii_case(b"readonly") => true,
            _ => return Writer(out).error("ERR syntax error"),
        };
        self.mode = Mode::Interactive(Box::new(Interactive {
            is_read_only,
            now: cx.now.to_millis(),
            seed: cx.now.0 ^ self.client.0 << 32,
            overlay: Overlay::default(),
            reads: 0,
            at: None,
            lease: None,
            needs_memory: false,
            is_lost: false,
            user: self.user.clone(),
        }));
        Writer(out).ok();
    }

    /// A command while an interactive transaction is open.
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
                let mut args = std::mem::take(&mut cx.shared.scratch.args);
                args.clear();
                (call.encode)(call.args, &mut ArgsBuilder::new(&mut args));
                self.interactive_call(call.procedure, &mut args, cx);
                cx.shared.scratch.args = args;
            }
        }
    }

    /// Runs a call, or reads first what it needs.
    fn interactive_call(&mut self, procedure: ProcedureId, args: &mut Vec<u8>, cx: &mut Context<'_>) {
        let Mode::Interactive(open) = &mut self.mode else { return };
        let needs = match needs(open, procedure, self.db, args, cx) {
            Ok(needs) => needs,
            Err(refusal) => return self.answer(cx, |w| w.error(&refusal.0)),
        };
        if open.is_read_only && needs.writes {
            return self.answer(cx, |w| w.error(READ_ONLY));
        }
        let bytes = open.overlay.bytes + if needs.writes { args.len() } else { 0 };
        if bytes > cx.shared.limits.transaction_bytes_max
            // A record that is written takes two of the commit's places: one to check it, one to write it.
            || open.overlay.records.len() + needs.missing.len() > MAX_KEYS / 2
        {
            return self.answer(cx, |w| w.error(TOO_LARGE));
        }
        if needs.missing.is_empty() {
            let mut reply = std::mem::take(&mut cx.shared.scratch.datum);
            reply.clear();
            self.interactive_run(procedure, args, cx, &mut reply);
            self.answer_with(cx, &reply);
            cx.shared.scratch.datum = reply;
            return;
        }
        open.reads += 1;
        let call = Call::new(system::READ, self.db);
        let keys = needs.missing.iter().map(|(db, key)| (*db, &**key));
        let view = match &open.at {
            Some(token) => Some(View::At(token.clone())),
            // What has read something elsewhere proves in the end that all of it belongs together.
            None if open.is_read_only && open.reads == 1 => Some(View::Open(self.seen.clone())),
            None => None,
        };
        let submitted = match view {
            Some(view) => self.submit_to(view, call, cx, |out| system::read_args(keys, out)),
            None => self.submit(call, cx, |out| system::read_args(keys, out)),
        };
        match submitted {
            Ok(sequence) => {
                let fetch = Fetch { keys: needs.missing, procedure, args: std::mem::take(args) };
                self.wait_for(sequence, Awaiting::Fetch(fetch));
            }
            Err(refusal) => self.answer(cx, |w| w.error(&refusal.0)),
        }
    }

    /// Runs a call whose records are all there.
    fn interactive_run(
        &mut self,
        procedure: ProcedureId,
        args: &[u8],
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) {
        let (Mode::Interactive(open), Some(view)) = (&mut self.mode, Args::parse(args)) else { return };
        let registry = cx.gateway.registry();
        open.run(procedure, self.db, view, (registry, &mut cx.shared.scratch), out);
        // The plan is still in the scratch: `needs` made it for these very arguments.
        for fragment in cx.shared.scratch.plans.fragments.iter().filter(|f| f.writes()) {
            if let Some(place) = open.overlay.place(fragment.db, key_of(view, fragment).bytes) {
                open.overlay.recount(place);
            }
        }
    }

    /// The records that a command needs have been read: it runs.
    pub(super) fn fetched(
        &mut self,
        fetch: Fetch,
        (finished, answer): (&Finished<'_>, &[u8]),
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) {
        let Fetch { keys, procedure, args } = fetch;
        let read = system::read_reply(keys.iter().map(|(db, key)| (*db, &**key)), answer);
        let (Mode::Interactive(open), Some(read)) = (&mut self.mode, read) else {
            return Writer(out).error("ERR the reply is damaged; this is a bug");
        };
        read.into_iter().for_each(|evidence| open.overlay.insert(evidence));
        if open.reads == 1 && finished.lease.is_some() {
            open.at = Some(finished.token.clone());
            open.lease = finished.lease;
        }
        match needs(open, procedure, self.db, &args, cx) {
            Ok(_) => self.interactive_run(procedure, &args, cx, out),
            Err(refusal) => Writer(out).error(&refusal.0),
        }
    }

    /// The state that the transaction reads is not kept any more.
    pub(super) fn lose_state(&mut self) {
        if let Mode::Interactive(open) = &mut self.mode {
            open.is_lost = true;
        }
    }

    /// Nothing more is read of the state that an open transaction has read.
    pub fn release(&mut self, gateway: &mut Gateway) {
        if let Mode::Interactive(open) = &mut self.mode {
            open.lease.take().into_iter().for_each(|lease| gateway.release(lease));
        }
    }

    /// TXN.COMMIT.
    fn txn_commit(&mut self, cx: &mut Context<'_>) {
        self.release(cx.gateway);
        let Mode::Interactive(open) = std::mem::take(&mut self.mode) else { return };
        if open.is_lost {
            return self.answer(cx, |w| w.error(STATE_GONE));
        }
        if !self.user.is_unrestricted() && open.user.rights() != self.user.rights() {
            return self.answer(cx, |w| w.error(RIGHTS_CHANGED));
        }
        if open.at.is_some() {
            // All that it saw is one state.
            return self.answer(cx, |w| w.ok());
        }
        if open.reads <= 1 && !open.overlay.records.iter().any(|r| r.is_changed) {
            // It took place where its only read did.
            return self.answer(cx, |w| w.ok());
        }
        let call = Call { procedure: system::COMMIT, db: self.db, session: self.take_request() };
        match self.submit(call, cx, |args| open.write_commit(args)) {
            // Commands after it may rely on it, and the client learns of a conflict before they run.
            Ok(sequence) => self.wait_for(sequence, Awaiting::Commit),
            Err(refusal) => self.answer(cx, |w| {
                w.error([b"TXNABORT the commit was refused: ", refusal.reason()].concat());
            }),
        }
    }
}

/// Plans a call into the scratch and says what it needs.
fn needs(
    open: &Interactive,
    procedure: ProcedureId,
    db: Db,
    args: &[u8],
    cx: &mut Context<'_>,
) -> Result<Needs, PlanError> {
    let registry = cx.gateway.registry();
    let view = Args::parse(args).ok_or(PlanError::SYNTAX)?;
    if registry.get(procedure).is_none_or(|p| p.is_dependent()) {
        return Err(PlanError::fixed(NOT_ALLOWED));
    }
    let plans = &mut cx.shared.scratch.plans;
    plans.fragments.clear();
    plans.inputs.clear();
    plans.calls.clear();
    Planner::plan(registry, procedure, db, view, plans)?;
    let mut needs = Needs { missing: Vec::new(), writes: false };
    for fragment in &plans.fragments {
        if !fragment.is_keyed() || fragment.lent {
            return Err(PlanError::fixed(NOT_ALLOWED));
        }
        needs.writes |= fragment.access == Access::Write;
        let key = key_of(view, fragment).bytes;
        if open.overlay.place(fragment.db, key).is_none() {
            needs.missing.push((fragment.db, key.to_vec()));
        }
    }
    needs.missing.sort_unstable();
    needs.missing.dedup();
    Ok(needs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_model::Value;

    fn evidence(key: &str, value: &str) -> Evidence {
        let cell =
            Cell { value: Some(Value::String(value.as_bytes().to_vec())), expires_at: Millis(0).into() };
        Evidence { db: Db(0), key: key.as_bytes().to_vec(), version: Version::of(7), cell }
    }

    #[test]
    fn the_first_read_of_a_record_stands() {
        let mut overlay = Overlay::default();
        overlay.insert(evidence("k", "first"));
        overlay.insert(evidence("k", "second"));
        let (cell, version) = overlay.read(overlay.find(Db(0), b"k").unwrap());
        assert_eq!((cell.string(), version), (Some(&b"first"[..]), Version::of(7)));
        assert!(overlay.find(Db(1), b"k").is_none());
    }

    #[test]
    fn bytes_follow_what_is_held_and_a_roll_back_restores_it() {
        let mut overlay = Overlay::default();
        overlay.insert(evidence("k", "12345"));
        let before = overlay.bytes;
        let place = overlay.place(Db(0), b"k").unwrap();
        overlay.write(place).unwrap().put(Value::String(vec![0; 1000]));
        overlay.recount(place);
        assert!(overlay.bytes >= before + 900);
        overlay.roll_back();
        overlay.recount(place);
        assert_eq!(overlay.bytes, before);
    }
}
