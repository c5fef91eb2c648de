//! Interactive transactions by overlay and validated commit, for engines that order whole transactions.
//!
//! Such an engine cannot stop in the middle of a transaction and wait for a client. So the commands run here, on
//! an overlay of records: a record that a command needs and the overlay lacks is read, with its version, by a
//! transaction of its own ([`system::READ`]); then the command runs at once on the overlay and its reply is
//! final for this attempt. The commit is one transaction ([`system::COMMIT`]) that checks that every record
//! read still has the version that was read, and writes what was changed.
//!
//! Different reads may see different states, so what an open transaction has seen need not be one consistent
//! state until it commits. (A read-only one, where reads run on snapshots, reads one state from the
//! first read on, and its commit has nothing to prove.) A commit that succeeds proves that it was: all the versions were
//! current at the commit's place in the serial order, which is where the whole transaction then took place.
//!
//! All its commands see the time of its first read. A record that a later read finds and that has expired by that time is
//! absent for them, and at the commit has to be. Of a state that is kept every read is as of that time.

use std::collections::BTreeMap;

use ordain_model::key::MAX_KEYS;
use ordain_model::plan::{Planner, Plans};
use ordain_model::procedure::{Locals, ValidatedRead};
use ordain_model::serial::{self, CallError, Hand, Surroundings, key_of};
use ordain_model::{
    Access, Args, ArgsBuilder, Call, Cell, CellMut, Db, Gsn, Journal, Millis, OutcomeStatus, PlanError,
    ProcedureId, Registry, RequestNo, SessionId, Token, Version, View, Writer, system,
};

use crate::backend::{Begin, Desk, Progress, READ_ONLY, STATE_GONE, Step, TOO_LARGE, Transaction};
use crate::{Finished, Gateway, Lease};

const NOT_ALLOWED: &str = "ERR commands over the whole key space, scripts and functions cannot run between TXN.BEGIN \
                           and TXN.COMMIT";
const DAMAGED: &str = "ERR the reply is damaged; this is a bug";

/// An open transaction.
#[derive(Debug)]
pub(crate) struct OverlayTransaction {
    is_read_only: bool,
    /// When it was begun.
    begun: Millis,
    /// The time of its first read, which its commands see.
    now: Option<Millis>,
    seed: u64,
    overlay: Overlay,
    /// How many reads were submitted: what one read saw is consistent as it is.
    reads: u32,
    /// The state that the transaction reads, if it is read-only and reads run on snapshots, and as of which time.
    at: Option<(Token, Millis)>,
    /// The hold on that state.
    lease: Option<Lease>,
    /// That state is not kept any more: the transaction cannot commit.
    is_lost: bool,
    /// The call that waits for its records.
    waiting: Option<Waiting>,
}

/// A call that waits for the records it needs.
#[derive(Debug)]
struct Waiting {
    keys: Vec<(Db, Vec<u8>)>,
    procedure: ProcedureId,
    db: Db,
    args: Vec<u8>,
}

/// The records read so far, as the transaction has changed them.
#[derive(Debug, Default)]
struct Overlay {
    records: Vec<Held>,
    places: BTreeMap<Db, BTreeMap<Box<[u8]>, u32>>,
    journal: Journal,
    bytes: usize,
}

/// A record of the overlay.
#[derive(Debug)]
struct Held {
    db: Db,
    key: Box<[u8]>,
    version: Version,
    cell: Cell,
    is_changed: bool,
    bytes: usize,
}

/// Buffers that calls on overlays use again; a gateway has one set for all its transactions.
#[derive(Default)]
pub(crate) struct Buffers {
    plans: Plans,
    serial: serial::Scratch,
    locals: Locals,
}

impl Buffers {
    /// The buffer of plans, empty.
    pub(crate) fn emptied_plans(&mut self) -> &mut Plans {
        self.plans.fragments.clear();
        self.plans.inputs.clear();
        self.plans.calls.clear();
        &mut self.plans
    }
}

impl std::fmt::Debug for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Buffers")
    }
}

/// Which records of a call's plan are not in the overlay, and whether the call may write.
struct Needs {
    missing: Vec<(Db, Vec<u8>)>,
    writes: bool,
}

impl Transaction for OverlayTransaction {
    fn call(&mut self, gateway: &mut Gateway, desk: Desk<'_>, step: Step<'_>, out: &mut Vec<u8>) -> Progress {
        match self.call_or_read(gateway, desk, step, out) {
            Ok(progress) => progress,
            Err(refusal) => {
                Writer(out).error(&refusal.0);
                Progress::Answered
            }
        }
    }

    fn finished(&mut self, gateway: &mut Gateway, finished: &Finished<'_>, out: &mut Vec<u8>) -> bool {
        let Some(waiting) = self.waiting.take() else { return false };
        match finished.status {
            OutcomeStatus::Committed => self.take_records(gateway, &waiting, finished, out),
            OutcomeStatus::TooOld => {
                self.is_lost = true;
                return false;
            }
            _ => return false,
        }
        true
    }

    fn commit(
        &mut self,
        gateway: &mut Gateway,
        desk: Desk<'_>,
        (db, session): (Db, Option<(SessionId, RequestNo)>),
        out: &mut Vec<u8>,
    ) -> Progress {
        self.end(gateway);
        if self.is_lost {
            Writer(out).error(STATE_GONE);
            return Progress::Answered;
        }
        let has_written = self.overlay.records.iter().any(|record| record.is_changed);
        // All that it saw is one state, or it took place where its only read did.
        if self.at.is_some() || self.reads <= 1 && !has_written {
            Writer(out).ok();
            return Progress::Answered;
        }
        let call = Call { procedure: system::COMMIT, db, session };
        let view = View::Since(desk.seen.clone());
        let submitted =
            gateway.submit_in_order(desk.stream, desk.ticket, call, view, |args| self.write_commit(args));
        match submitted {
            Ok(_) => Progress::Waits,
            Err(refusal) => {
                Writer(out).error([b"TXNABORT the commit was refused: ", refusal.reason()].concat());
                Progress::Answered
            }
        }
    }

    fn end(&mut self, gateway: &mut Gateway) {
        self.lease.take().into_iter().for_each(|lease| gateway.release(lease));
    }

    fn is_lost(&self) -> bool {
        self.is_lost
    }

    fn written(&self, show: &mut dyn FnMut(Db, &[u8])) {
        self.overlay
            .records
            .iter()
            .filter(|record| record.is_changed)
            .for_each(|record| show(record.db, &record.key));
    }

    fn bytes(&self) -> usize {
        self.overlay.bytes
    }
}

/// An interactive transaction that runs on copies of records in the session and validates at its commit what it has read:
/// for engines whose transactions are whole when they are submitted.
pub fn overlay(how: Begin) -> Box<dyn Transaction> {
    Box::new(OverlayTransaction::new(how))
}

impl OverlayTransaction {
    pub(crate) fn new(Begin { is_read_only, now, seed, session: _ }: Begin) -> OverlayTransaction {
        OverlayTransaction {
            is_read_only,
            begun: now.to_millis(),
            now: None,
            seed,
            overlay: Overlay::default(),
            reads: 0,
            at: None,
            lease: None,
            is_lost: false,
            waiting: None,
        }
    }

    /// Runs a call, or reads first what it needs.
    fn call_or_read(
        &mut self,
        gateway: &mut Gateway,
        desk: Desk<'_>,
        step: Step<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Progress, PlanError> {
        let Step { procedure, db, args, bytes_max } = step;
        let needs = self.overlay.needs(procedure, db, args, (&gateway.registry, &mut gateway.buffers))?;
        if self.is_read_only && needs.writes {
            return Err(PlanError::fixed(READ_ONLY));
        }
        let bytes = self.overlay.bytes + if needs.writes { args.len() } else { 0 };
        // A record that is written takes two of the commit's places: one to check it, one to write it.
        if bytes > bytes_max || self.overlay.records.len() + needs.missing.len() > MAX_KEYS / 2 {
            return Err(PlanError::fixed(TOO_LARGE));
        }
        if needs.missing.is_empty() {
            self.run(gateway, (procedure, db, args), out);
            return Ok(Progress::Answered);
        }
        self.reads += 1;
        let view = match &self.at {
            Some((token, now)) => View::At(token.clone(), *now),
            // What has read something elsewhere proves in the end that all of it belongs together.
            None if self.is_read_only && self.reads == 1 => View::Open(desk.seen.clone()),
            None => View::Since(desk.seen.clone()),
        };
        let call = Call::new(system::READ, db);
        let keys = needs.missing.iter().map(|(db, key)| (*db, &**key));
        gateway.submit_in_order(desk.stream, desk.ticket, call, view, |out| system::read_args(keys, out))?;
        self.waiting = Some(Waiting { keys: needs.missing, procedure, db, args: std::mem::take(args) });
        Ok(Progress::Waits)
    }

    /// The records that a call needs have been read: it runs.
    fn take_records(
        &mut self,
        gateway: &mut Gateway,
        waiting: &Waiting,
        finished: &Finished<'_>,
        out: &mut Vec<u8>,
    ) {
        let Waiting { keys, procedure, db, args } = waiting;
        let read = system::read_reply(keys.iter().map(|(db, key)| (*db, &**key)), finished.reply);
        let Some(read) = read else { return Writer(out).error(DAMAGED) };
        let now = *self.now.get_or_insert(read.at);
        read.records.into_iter().for_each(|read| self.overlay.insert(read, now));
        if self.reads == 1 && finished.lease.is_some() {
            self.at = Some((finished.token.clone(), now));
            self.lease = finished.lease;
        }
        match self.overlay.needs(*procedure, *db, args, (&gateway.registry, &mut gateway.buffers)) {
            Ok(_) => self.run(gateway, (*procedure, *db, args), out),
            Err(refusal) => Writer(out).error(&refusal.0),
        }
    }

    /// Runs a call whose records are all in the overlay, and which has just been planned.
    fn run(
        &mut self,
        gateway: &mut Gateway,
        (procedure, db, args): (ProcedureId, Db, &[u8]),
        out: &mut Vec<u8>,
    ) {
        let Some(args) = Args::parse(args) else { return };
        self.seed = serial::seed_of(Gsn(self.seed));
        let surroundings = Surroundings {
            registry: &gateway.registry,
            now: self.now.unwrap_or(self.begun),
            seed: self.seed,
            read_only: self.is_read_only,
            room: usize::MAX,
        };
        let Buffers { plans, serial, locals } = &mut gateway.buffers;
        let mark = out.len();
        let result = serial::call(surroundings, &mut self.overlay, serial, procedure, db, args, locals, out);
        match result {
            Ok(()) => self.overlay.journal.clear(),
            Err(error) => self.undo(error, mark, out),
        }
        // The plan is that of this very call.
        for fragment in plans.fragments.iter().filter(|fragment| fragment.writes()) {
            if let Some(place) = self.overlay.place(fragment.db, key_of(args, fragment).bytes) {
                self.overlay.recount(place);
            }
        }
    }

    /// Takes back what a failed call has done, and appends its error in place of its reply.
    fn undo(&mut self, error: CallError, mark: usize, out: &mut Vec<u8>) {
        if matches!(error, CallError::Abort(_) | CallError::NoRoom) {
            self.overlay.roll_back();
        }
        if matches!(error, CallError::NoRoom) {
            out.truncate(mark);
        }
        self.overlay.journal.clear();
        let mut w = Writer(out);
        match error {
            // Its reply is there.
            CallError::Abort(_) => {}
            CallError::NoRoom => w.too_long(),
            CallError::Plan(refusal) => w.error(refusal.0),
            CallError::ReadOnly => w.error(READ_ONLY),
            CallError::NotAllowed => w.error(NOT_ALLOWED),
            CallError::Undeclared => w.error("ERR a record of the transaction is missing; this is a bug"),
        }
    }

    /// Writes the arguments of the commit.
    fn write_commit(&self, args: &mut ArgsBuilder<'_>) {
        let records = &self.overlay.records;
        let reads = records.iter().map(|record| (record.db, &*record.key, record.version));
        let written = records.iter().filter(|record| record.is_changed);
        system::commit_args(reads, written.map(|record| (record.db, &*record.key, &record.cell)), args);
    }
}

impl Overlay {
    /// Plans a call into the buffers and says what it needs.
    fn needs(
        &self,
        procedure: ProcedureId,
        db: Db,
        args: &[u8],
        (registry, buffers): (&Registry, &mut Buffers),
    ) -> Result<Needs, PlanError> {
        let view = Args::parse(args).ok_or(PlanError::SYNTAX)?;
        if registry.get(procedure).is_none_or(|procedure| procedure.is_dependent()) {
            return Err(PlanError::fixed(NOT_ALLOWED));
        }
        let plans = buffers.emptied_plans();
        Planner::plan(registry, procedure, db, view, plans)?;
        let mut needs = Needs { missing: Vec::new(), writes: false };
        for fragment in &plans.fragments {
            if !fragment.is_keyed() || fragment.shipped {
                return Err(PlanError::fixed(NOT_ALLOWED));
            }
            needs.writes |= fragment.access == Access::Write;
            let key = key_of(view, fragment).bytes;
            if self.place(fragment.db, key).is_none() {
                needs.missing.push((fragment.db, key.to_vec()));
            }
        }
        needs.missing.sort_unstable();
        needs.missing.dedup();
        Ok(needs)
    }

    fn place(&self, db: Db, key: &[u8]) -> Option<usize> {
        self.places.get(&db)?.get(key).map(|place| *place as usize)
    }

    /// Adds a record as it is at `now`, unless it is there: what was read first stands.
    fn insert(&mut self, read: ValidatedRead, now: Millis) {
        let ValidatedRead { db, key, mut version, mut cell } = read;
        if self.place(db, &key).is_some() {
            return;
        }
        if cell.is_expired(now) {
            (version, cell) = (Version::NONE, Cell::ABSENT);
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
    cell.value.as_ref().map_or(0, |value| value.heap_bytes())
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

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_model::Value;

    fn read(key: &str, value: &str) -> ValidatedRead {
        let cell =
            Cell { value: Some(Value::String(value.as_bytes().to_vec())), expires_at: Millis(0).into() };
        ValidatedRead { db: Db(0), key: key.as_bytes().to_vec(), version: Version::of(7), cell }
    }

    #[test]
    fn the_first_read_of_a_record_stands() {
        let mut overlay = Overlay::default();
        overlay.insert(read("k", "first"), Millis(1));
        overlay.insert(read("k", "second"), Millis(1));
        let (cell, version) = overlay.read(overlay.find(Db(0), b"k").unwrap());
        assert_eq!((cell.string(), version), (Some(&b"first"[..]), Version::of(7)));
        assert!(overlay.find(Db(1), b"k").is_none());
    }

    #[test]
    fn a_record_that_has_expired_by_the_time_of_the_first_read_is_absent() {
        for (now, is_there) in [(4, true), (5, true), (6, false)] {
            let (mut overlay, mut read) = (Overlay::default(), read("k", "v"));
            read.cell.expires_at = Millis(5).into();
            overlay.insert(read, Millis(now));
            let (cell, version) = overlay.read(overlay.find(Db(0), b"k").unwrap());
            assert_eq!((cell.value.is_some(), version != Version::NONE), (is_there, is_there), "{now}");
        }
    }

    #[test]
    fn bytes_follow_what_is_held_and_a_roll_back_restores_it() {
        let mut overlay = Overlay::default();
        overlay.insert(read("k", "12345"), Millis(1));
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
