//! The participant: one shard's records, the engine's concurrency control over them, and the workspaces of attempts.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_execution::{InWorkspace, Step, Workspace};
use ordain_model::procedure::Locals;
use ordain_model::{
    Access as FragmentAccess, Digest, DigestSpan, Epoch, Gsn, KeyHash, Layout, Registry, SlotNo,
};
use ordain_replication::Log;
use ordain_role::{Address, Bug, Bugs, Event, Now, Outbox, Role};
use ordain_store::{MemoryStore, RecordStore};

use crate::concurrency::{Age, AttemptId, ConcurrencyControl, Ended, Mode, Target, Verdict};
use crate::decision::Decision;
use crate::message::{Access, Accessed, Failure, Message};

/// A shard of the records.
#[derive(Debug)]
pub struct Participant {
    number: usize,
    layout: Arc<Layout>,
    coordinator: Address,
    registry: Arc<Registry>,
    store: MemoryStore,
    control: Box<dyn ConcurrencyControl>,
    /// Attempts under way, each with what it has written here and the results that it knows.
    attempts: BTreeMap<AttemptId, Attempt>,
    locals: Locals,
    /// The last decision that is installed.
    installed: Epoch,
    refused: u64,
    /// Bugs that a test has planted.
    bugs: Bugs,
}

#[derive(Debug, Default)]
struct Attempt {
    workspace: Workspace,
    slots: Vec<Vec<u8>>,
}

impl Participant {
    /// A shard without records.
    pub fn new(
        number: usize,
        layout: Arc<Layout>,
        coordinator: Address,
        registry: Arc<Registry>,
        control: Box<dyn ConcurrencyControl>,
    ) -> Participant {
        let store = MemoryStore::new(layout.slots_of_shard(number));
        Participant {
            number,
            layout,
            coordinator,
            registry,
            store,
            control,
            attempts: BTreeMap::new(),
            locals: Locals::default(),
            installed: Epoch(0),
            refused: 0,
            bugs: Bugs::NONE,
        }
    }

    /// The participant with planted bugs, for tests of the checkers.
    #[must_use]
    pub fn planting(self, bugs: Bugs) -> Participant {
        Participant { bugs, ..self }
    }

    /// The digest of the committed records.
    pub fn digest(&self) -> Digest {
        self.store.digest()
    }

    /// Installs what a decision writes here, in place of all that the records held, and ends its attempt.
    pub fn install(&mut self, decision: &Decision) {
        assert!(decision.stamp > self.installed, "decisions are installed in the order of the log");
        self.installed = decision.stamp;
        // Planted, ORDER.
        let skips = self.bugs.has(Bug::SkipTransaction) && decision.stamp.0 % 97 == 13;
        for write in decision.writes.iter().filter(|_| !skips) {
            let hash = KeyHash::of_record(write.db, &write.key);
            if self.layout.shard_of(hash.slot()) != self.number {
                continue;
            }
            let record = self.store.find_or_reserve(write.db, &write.key, hash);
            let version = if write.cell.value.is_some() { Gsn(decision.stamp.0) } else { Gsn::NONE };
            self.store.put_back(record, write.cell.clone(), version);
            self.store.release_if_absent(record);
        }
        self.finish(decision.attempt);
    }

    /// Runs the fragments of an access, as far as the concurrency control lets it.
    fn access(&mut self, access: &Access) -> Accessed {
        let Access { attempt, chunk, at, fragments, inputs, now, seed } = access;
        let txn = &chunk.txns()[*at];
        let count = chunk.fragments(txn).len();
        let Participant { registry, store, control, attempts, locals, .. } = self;
        let Attempt { workspace, slots: known } = attempts.entry(*attempt).or_default();
        known.resize(count, Vec::new());
        for (slot, result) in inputs {
            known[slot.0 as usize].clone_from(result);
        }
        let (mut slots, mut failure) = (Vec::with_capacity(fragments.len()), None);
        for n in fragments {
            let slot = SlotNo(*n);
            let step = Step { registry, chunk, txn, n: *n as usize, now: *now, seed: *seed, slots: &*known };
            let name = step.name();
            let mode = match step.fragment().access {
                FragmentAccess::Write => Mode::Exclusive,
                _ => Mode::Shared,
            };
            let record = store.find_or_reserve(name.db, name.key, name.hash);
            let age = Age(attempt.transaction.0);
            // No access of the miniature waits: a request that would is refused, and cancelled with its attempt.
            if control.access(store, *attempt, age, Target::Record(record), mode) != Verdict::Granted {
                store.release_if_absent(record);
                failure = Some(Failure::Refused);
                break;
            }
            let mut out = Vec::new();
            let ran = step.run(&mut InWorkspace { store, workspace }, locals, &mut out);
            known[*n as usize].clone_from(&out);
            slots.push((slot, out));
            if let Err(abort) = ran {
                failure = Some(Failure::Aborted(slot, abort));
                break;
            }
        }
        let writes = if failure.is_none() { workspace.writes() } else { Vec::new() };
        if failure == Some(Failure::Refused) {
            self.refused += 1;
            self.finish(*attempt);
        }
        Accessed { attempt: *attempt, slots, failure, writes }
    }

    fn finish(&mut self, attempt: AttemptId) {
        self.attempts.remove(&attempt);
        let mut ended = Ended::default();
        self.control.finish(&mut self.store, attempt, &mut ended);
        for record in ended.released {
            self.store.release_if_absent(record);
        }
    }
}

impl Role for Participant {
    type Message = Message;

    fn handle(&mut self, _: Now, event: Event<Message>, out: &mut Outbox<Message>) {
        match event {
            Event::Message { message: Message::Access(access), .. } => {
                let accessed = self.access(&access);
                out.send(self.coordinator, Message::Accessed(accessed));
            }
            Event::Message { message: Message::Finish(attempt), .. } => self.finish(attempt),
            Event::Message { message: Message::Log(Log::Sealed(decision)), .. } => self.install(&decision),
            Event::Message { message, .. } => {
                out.halt(format!("a participant was sent a message that is not for it: {message:?}"));
            }
            _ => {}
        }
    }

    fn name(&self) -> &'static str {
        "participant"
    }

    fn check(&self) -> Result<(), String> {
        self.control.check(&self.store, &|attempt| self.attempts.contains_key(&attempt))
    }

    fn digests(&self, report: &mut dyn FnMut(DigestSpan)) {
        report(DigestSpan { first: self.installed, last: self.installed, digest: self.digest() });
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report("ordain_participant_attempts", self.attempts.len() as f64);
        report("ordain_participant_refused_total", self.refused as f64);
        report("ordain_store_records", f64::from(self.store.records()));
        self.control.gauges(report);
    }
}
