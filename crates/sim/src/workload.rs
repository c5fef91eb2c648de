//! The requests of the clients of a simulation.
//!
//! Key spaces are small, so that nearly every transaction conflicts with one that is under way, and answers
//! carry what was read, so that a lost, doubled or reordered update shows in the next answer.

pub mod ledgers;
pub mod procedures;

use ordain_model::args::encode;
use ordain_model::key::SLOTS;
use ordain_model::system::CopyPart;
use ordain_model::{Call, Db, KeyHash, OutcomeStatus, Position, ProcedureId, Version, system};

use ledgers as l;
use ordain_model::Random;
use ordain_role::NodeId;
use procedures as p;

/// Makes up requests.
pub trait Workload {
    /// The next request: what to call, without a session, and its encoded arguments.
    fn next(&mut self, random: &mut Random) -> (Call, Vec<u8>);

    /// The next request of a client at a node.
    fn next_at(&mut self, node: NodeId, random: &mut Random) -> (Call, Vec<u8>) {
        let _ = node;
        self.next(random)
    }

    /// Procedures that must always give this reply, because every transaction conserves what they measure.
    fn conserved(&self) -> Vec<(ProcedureId, Vec<u8>)> {
        Vec::new()
    }

    /// True if data are to be loaded before the first [request](Workload::next).
    fn loads(&self) -> bool {
        false
    }

    /// The next request that loads data; `None` when all was asked for.
    fn load(&mut self, random: &mut Random) -> Option<(Call, Vec<u8>)> {
        let _ = random;
        None
    }

    /// Procedures without arguments that are called one after the other at the end, when nothing is under way.
    fn audits(&self) -> Vec<ProcedureId> {
        Vec::new()
    }

    /// A client has got an answer to a request, named by its procedure and encoded arguments.
    fn heard(&mut self, asked: (ProcedureId, &[u8]), status: OutcomeStatus, reply: &[u8]) {
        let _ = (asked, status, reply);
    }
}

impl<W: Workload + ?Sized> Workload for &mut W {
    fn next(&mut self, random: &mut Random) -> (Call, Vec<u8>) {
        (**self).next(random)
    }

    fn next_at(&mut self, node: NodeId, random: &mut Random) -> (Call, Vec<u8>) {
        (**self).next_at(node, random)
    }

    fn conserved(&self) -> Vec<(ProcedureId, Vec<u8>)> {
        (**self).conserved()
    }

    fn loads(&self) -> bool {
        (**self).loads()
    }

    fn load(&mut self, random: &mut Random) -> Option<(Call, Vec<u8>)> {
        (**self).load(random)
    }

    fn audits(&self) -> Vec<ProcedureId> {
        (**self).audits()
    }

    fn heard(&mut self, asked: (ProcedureId, &[u8]), status: OutcomeStatus, reply: &[u8]) {
        (**self).heard(asked, status, reply);
    }
}

/// A kind of request of a [`Mix`]: a procedure of the simulator or of the system by its name; `Multi` calls several of
/// the others, `Copy` copies a slot, then once more what has changed, and then moves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Transfer,
    Skim,
    Rotate,
    Append,
    Increment,
    Compute,
    Panic,
    Fatal,
    Dependent,
    Repoint,
    Insert,
    Delete,
    Put,
    Get,
    Audit,
    AuditTable,
    Count,
    Clear,
    Even,
    Post,
    Statement,
    Settle,
    AuditLedgers,
    AuditEntries,
    Multi,
    Lengths,
    Read,
    Checkpoint,
    Move,
    Copy,
}

/// A weighted mix of the simulator's own procedures.
#[derive(Clone, Debug)]
pub struct Mix {
    keys: u64,
    /// Among how many partitions slots are moved.
    partitions: u16,
    /// The slot that is copied, where to, and how often that has been asked for.
    copied: Option<(usize, u64, u8)>,
    weights: Vec<(Kind, u64)>,
    total: u64,
    /// The most keys of a request and calls of a `Multi`, as a multiple of what is usual.
    breadth: u64,
    /// Makes every appended or written value a new one.
    serial: u64,
}

impl Mix {
    /// A mix over `keys` keys a database.
    fn new(keys: u64, weights: &[(Kind, u64)]) -> Mix {
        let total = weights.iter().map(|(_, w)| w).sum();
        Mix {
            keys: keys.max(1),
            partitions: 1,
            copied: None,
            weights: weights.to_vec(),
            total,
            breadth: 1,
            serial: 0,
        }
    }

    /// All kinds but checkpoints and moves, over `keys` keys a database.
    pub fn standard(keys: u64) -> Mix {
        use Kind::*;
        let weights = [
            (Transfer, 12),
            (Skim, 6),
            (Rotate, 10),
            (Append, 10),
            (Increment, 8),
            (Compute, 6),
            (Panic, 3),
            (Dependent, 6),
            (Repoint, 3),
            (Insert, 4),
            (Delete, 4),
            (Put, 4),
            (Get, 8),
            (Audit, 4),
            (AuditTable, 2),
            (Count, 1),
            (Clear, 1),
            (Even, 3),
            (Post, 12),
            (Statement, 2),
            (Settle, 5),
            (AuditLedgers, 3),
            (AuditEntries, 2),
            (Multi, 5),
            (Lengths, 1),
            (Read, 2),
        ];
        Mix::new(keys, &weights)
    }

    /// Transfers and audits alone.
    pub fn transfers(keys: u64) -> Mix {
        use Kind::*;
        Mix::new(keys, &[(Transfer, 10), (Skim, 5), (Audit, 3), (AuditTable, 1)])
    }

    /// Nothing but checkpoints and, where slots move, moves among so many partitions of the slots of so many keys.
    pub fn of_system(keys: u64, moves_among: Option<u16>) -> Mix {
        let mix = Mix::new(keys, &[(Kind::Checkpoint, 2)]);
        moves_among.map_or(mix.clone(), |partitions| mix.with_moves(100, partitions))
    }

    /// Requests without a reconnaissance: each is one transaction.
    pub fn direct(keys: u64) -> Mix {
        let standard = Mix::standard(keys);
        let direct = |(kind, _): &(Kind, u64)| !matches!(kind, Kind::Dependent | Kind::Settle);
        let weights: Vec<_> = standard.weights.into_iter().filter(direct).collect();
        Mix::new(keys, &weights)
    }

    /// Requests name so many times as many keys, and blocks hold so many times as many calls. More of the requests are blocks then,
    /// and none is over all keys or a whole table more than once in a while.
    #[must_use]
    pub fn wide(mut self, breadth: u64) -> Mix {
        if breadth > 1 {
            for (kind, weight) in &mut self.weights {
                match kind {
                    Kind::Multi => *weight *= 4,
                    Kind::Audit | Kind::AuditTable | Kind::AuditLedgers | Kind::AuditEntries => *weight = 1,
                    _ => {}
                }
            }
            self.total = self.weights.iter().map(|(_, weight)| weight).sum();
        }
        Mix { breadth, ..self }
    }

    /// Adds so many checkpoints to a hundred requests, on a system that has them.
    #[must_use]
    pub fn with_checkpoints(mut self, percent: u64) -> Mix {
        let weight = (self.total * percent).div_ceil(100);
        self.weights.push((Kind::Checkpoint, weight));
        self.total += weight;
        self
    }

    /// Adds so many moves of slots to a hundred requests, on a system of several partitions.
    #[must_use]
    pub fn with_moves(mut self, percent: u64, partitions: u16) -> Mix {
        let weight = (self.total * percent).div_ceil(100);
        self.weights.extend([(Kind::Move, weight), (Kind::Copy, 2 * weight)]);
        self.total += 3 * weight;
        Mix { partitions, ..self }
    }

    /// Adds to a hundred requests about so many that end the process, in a run that has an operator.
    #[must_use]
    pub fn with_fatal(mut self, percent: u64) -> Mix {
        let weight = (self.total * percent).div_ceil(100);
        self.weights.push((Kind::Fatal, weight));
        self.total += weight;
        self
    }

    fn kind(&self, random: &mut Random) -> Kind {
        let mut draw = random.below(self.total);
        for (kind, weight) in &self.weights {
            if draw < *weight {
                return *kind;
            }
            draw -= weight;
        }
        Kind::Get
    }

    fn key(&self, prefix: char, random: &mut Random) -> Vec<u8> {
        format!("{prefix}{}", random.below(self.keys)).into_bytes()
    }

    /// One to four different keys, most often two or three, or as many times as many as requests are wide.
    fn some_keys(&self, prefix: char, random: &mut Random) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for _ in 0..(1 + random.below(2) + random.below(3)) * self.breadth {
            let key = self.key(prefix, random);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    fn all_keys(&self, prefix: char) -> Vec<Vec<u8>> {
        (0..self.keys).map(|i| format!("{prefix}{i}").into_bytes()).collect()
    }

    fn serial(&mut self) -> Vec<u8> {
        self.serial += 1;
        self.serial.to_string().into_bytes()
    }

    fn small(random: &mut Random, max: u64) -> Vec<u8> {
        random.between(1, max).to_string().into_bytes()
    }

    /// The slot of a key.
    fn used_slot(&self, random: &mut Random) -> usize {
        let prefix = ['a', 'b', 'c', 'l', 'n', 'o', 'p'][random.index(7)];
        KeyHash::of(&self.key(prefix, random)).slot()
    }

    /// A call and its arguments. `Multi` is the only kind that asks for others.
    fn request(&mut self, kind: Kind, random: &mut Random) -> (ProcedureId, Db, Vec<u8>) {
        let with = |first: Vec<u8>, keys: Vec<Vec<u8>>| [vec![first], keys].concat();
        let (procedure, db, args) = match kind {
            Kind::Transfer | Kind::Skim => {
                let most = if kind == Kind::Skim { 100 } else { 80 };
                let args = vec![self.key('a', random), self.key('a', random), Mix::small(random, most)];
                (if kind == Kind::Skim { p::SKIM } else { p::TRANSFER }, p::ACCOUNTS, args)
            }
            Kind::Rotate => (p::ROTATE, p::CELLS, self.some_keys('c', random)),
            Kind::Append => (p::APPEND, p::LISTS, vec![self.key('l', random), self.serial()]),
            Kind::Increment => (p::INCREMENT, p::COUNTERS, self.some_keys('n', random)),
            Kind::Compute => {
                let keys = self.some_keys('c', random);
                (p::COMPUTE, p::CELLS, with(Mix::small(random, 50), keys))
            }
            Kind::Panic => {
                let keys = self.some_keys('c', random);
                (p::PANIC, p::CELLS, with(Mix::small(random, 50), keys))
            }
            Kind::Dependent => {
                (p::DEPENDENT, p::POINTERS, vec![self.key('p', random), Mix::small(random, 9)])
            }
            Kind::Repoint => (p::REPOINT, p::POINTERS, vec![self.key('p', random), self.key('n', random)]),
            Kind::Insert => (p::INSERT, p::OBJECTS, vec![self.key('o', random), self.serial()]),
            Kind::Delete => (p::DELETE, p::OBJECTS, vec![self.key('o', random)]),
            Kind::Put => (p::PUT, p::OBJECTS, vec![self.key('o', random), self.serial()]),
            Kind::Get => {
                let (db, prefix) = [
                    (p::ACCOUNTS, 'a'),
                    (p::CELLS, 'c'),
                    (p::LISTS, 'l'),
                    (p::COUNTERS, 'n'),
                    (p::POINTERS, 'p'),
                    (p::OBJECTS, 'o'),
                ][random.index(6)];
                (p::GET, db, self.some_keys(prefix, random))
            }
            Kind::Fatal => (p::FATAL, p::OBJECTS, self.some_keys('o', random)),
            Kind::Audit => (p::AUDIT, p::ACCOUNTS, self.all_keys('a')),
            Kind::AuditTable => (p::AUDIT_TABLE, p::ACCOUNTS, Vec::new()),
            Kind::Count => (p::COUNT, p::OBJECTS, Vec::new()),
            Kind::Clear => (p::CLEAR, p::OBJECTS, Vec::new()),
            Kind::Even => (p::EVEN, p::COUNTERS, self.some_keys('n', random)),
            Kind::Post => {
                let args = vec![self.key('b', random), self.key('b', random), Mix::small(random, 40)];
                (l::POST, l::LEDGERS, args)
            }
            Kind::Statement => (l::STATEMENT, l::LEDGERS, vec![self.key('b', random)]),
            Kind::Settle => (l::SETTLE, l::LEDGERS, vec![self.key('b', random), Mix::small(random, 9)]),
            Kind::AuditLedgers => (l::AUDIT_LEDGERS, l::LEDGERS, self.all_keys('b')),
            Kind::AuditEntries => (l::AUDIT_ENTRIES, l::LEDGERS, Vec::new()),
            Kind::Checkpoint => (system::CHECKPOINT, Db(0), Vec::new()),
            Kind::Copy => {
                let (slot, to, asked) = self
                    .copied
                    .unwrap_or_else(|| (self.used_slot(random), random.below(u64::from(self.partitions)), 0));
                self.copied = (asked < 2).then_some((slot, to, asked + 1));
                if asked == 2 {
                    let args = [slot.to_string(), (slot + 1).to_string(), to.to_string()];
                    return (system::MOVE, Db(0), encode(&args.map(String::into_bytes)));
                }
                let from = if asked == 0 { Position::of_slot(slot) } else { CopyPart::last(slot) };
                let records = if random.chance(800_000) { 1000 } else { 1 };
                let args = [to.to_string(), from.0.to_string(), records.to_string(), "100000".to_string()];
                (system::COPY, Db(0), args.map(String::into_bytes).to_vec())
            }
            Kind::Move => {
                let to = random.below(u64::from(self.partitions));
                // Those of a key, so that something moves; and of others around it, now and then of all.
                let slot = self.used_slot(random);
                let reach = [0, 10, 100, SLOTS][random.index(4)];
                let (first, end) = (slot.saturating_sub(reach), SLOTS.min(slot + reach + 1));
                let args = [first.to_string(), end.to_string(), to.to_string()].map(String::into_bytes);
                (system::MOVE, Db(0), args.to_vec())
            }
            Kind::Lengths => (system::LENGTHS, Db(0), Vec::new()),
            Kind::Read => {
                let keys = self.some_keys('o', random);
                let args = keys.into_iter().flat_map(|key| [vec![p::OBJECTS.0], key]).collect();
                (system::READ, Db(0), args)
            }
            Kind::Multi => {
                use Kind::*;
                const INSIDE: [Kind; 7] = [Transfer, Skim, Append, Increment, Put, Get, Post];
                let calls: Vec<_> = (0..random.between(1, 4 * self.breadth))
                    .map(|_| self.request(INSIDE[random.index(INSIDE.len())], random))
                    .collect();
                let mut args = Vec::new();
                let calls = calls.iter().map(|(procedure, db, args)| (*procedure, *db, &**args));
                let nothing: [(Db, &[u8], Version); 0] = [];
                let mut builder = ordain_model::ArgsBuilder::new(&mut args);
                system::multi_args(nothing.into_iter(), calls, &mut builder);
                return (system::MULTI, Db(0), args);
            }
        };
        (procedure, db, encode(&args))
    }
}

impl Workload for Mix {
    fn next(&mut self, random: &mut Random) -> (Call, Vec<u8>) {
        let kind = self.kind(random);
        let (procedure, db, args) = self.request(kind, random);
        (Call::new(procedure, db), args)
    }

    fn conserved(&self) -> Vec<(ProcedureId, Vec<u8>)> {
        let mut zero = Vec::new();
        ordain_model::Writer(&mut zero).int(0);
        let audits = [p::AUDIT, p::AUDIT_TABLE, l::AUDIT_LEDGERS, l::AUDIT_ENTRIES];
        audits.map(|audit| (audit, zero.clone())).to_vec()
    }
}
