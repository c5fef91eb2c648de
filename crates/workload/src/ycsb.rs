//! YCSB as transactions (qstore.md, section 7; the Q-Store paper, section 6; PaxFlow's Table 1): each reads or
//! reads, modifies and writes a number of different records, a fixed count of which are writes.
//!
//! A record is named by 8 bytes and holds a counter and then a payload that is a function of its number. A
//! read-modify-write adds one to the counter. So the counters of a database add up to the writes that were
//! committed, and a lost or doubled update shows; a payload that is not its record's own shows too. A read
//! answers a checksum of all of the record.

use std::sync::Arc;

use ordain_model::args::Arg;
use ordain_model::procedure::Target;
use ordain_model::value::record_hash;
use ordain_model::{
    Abort, Access, Args, ArgsBuilder, Datum, Db, Digest, FragmentContext, PlanError, Planner, Position,
    Procedure, ProcedureId, Registry, ReplyContext, Value, Writer, system,
};

use crate::choice::Choice;
use crate::random::{Random, mix};
use crate::{Made, Source};

/// Inserts records. Arguments: the length of a record, 4 bytes, then keys.
pub const LOAD: ProcedureId = ProcedureId(1000);
/// Reads and increments records. Arguments: a bit for each key that says whether it is incremented, then keys.
/// Answers the sum of the checksums of the records read.
pub const RUN: ProcedureId = ProcedureId(1001);
/// Reads everything. No arguments. Answers what [`Audit`] holds.
pub const AUDIT: ProcedureId = ProcedureId(1002);

/// Where the records are.
pub const DB: Db = Db(0);
/// The length of a record's counter: the shortest record there can be.
pub const COUNTER_BYTES: usize = 8;

const DAMAGED: PlanError = PlanError::fixed("ERR damaged arguments of a YCSB procedure");

pub(crate) fn register(registry: &mut Registry) {
    registry.register(LOAD, "ycsb.load", Arc::new(Load));
    registry.register(RUN, "ycsb.run", Arc::new(Run));
    registry.register(AUDIT, "ycsb.audit", Arc::new(AuditAll));
}

/// The key of a record.
#[inline]
pub const fn key(record: u64) -> [u8; 8] {
    record.to_le_bytes()
}

/// The record of a key.
#[inline]
fn record_of(key: &[u8]) -> Option<u64> {
    key.try_into().ok().map(u64::from_le_bytes)
}

/// The bytes of a record as it is loaded: a counter of 0 and the payload of its number.
pub fn initial(record: u64, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; COUNTER_BYTES];
    content.reserve_exact(bytes.saturating_sub(COUNTER_BYTES));
    for (i, left) in (COUNTER_BYTES..bytes).step_by(8).enumerate() {
        content.extend_from_slice(&payload_word(record, i)[..(bytes - left).min(8)]);
    }
    content
}

#[inline]
fn payload_word(record: u64, i: usize) -> [u8; 8] {
    mix(record.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(i as u64)).to_le_bytes()
}

/// Whether everything behind the counter is as it was loaded.
fn payload_is_whole(record: u64, content: &[u8]) -> bool {
    let words = content.get(COUNTER_BYTES..).unwrap_or_default().chunks(8);
    words.enumerate().all(|(i, word)| payload_word(record, i)[..word.len()] == *word)
}

/// Adds one to the counter of a record.
#[inline]
pub fn increment(content: &mut Vec<u8>) {
    if content.len() < COUNTER_BYTES {
        content.resize(COUNTER_BYTES, 0);
    }
    if let Some(counter) = content.first_chunk_mut::<COUNTER_BYTES>() {
        *counter = u64::from_le_bytes(*counter).wrapping_add(1).to_le_bytes();
    }
}

/// A sum over every byte of a record: what makes a read a read.
#[inline]
pub fn checksum(content: &[u8]) -> u64 {
    let (words, rest) = content.as_chunks::<8>();
    let sum = words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| sum.rotate_left(8).wrapping_add(u64::from(*byte)))
}

struct Load;

impl Procedure for Load {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        if items.next().is_none_or(|length| length.bytes.len() != 4) {
            return Err(DAMAGED);
        }
        items.try_for_each(|key| {
            planner.key_in(DB, 0, Access::Write, checked(key)?)?;
            planner.silent();
            Ok(())
        })
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let length = cx.args.get(0).and_then(|length| length.try_into().ok()).map_or(0, u32::from_le_bytes);
        if let Some(record) = record_of(cx.key.bytes) {
            cx.cell_mut().put(Value::String(initial(record, length as usize)));
        }
        Ok(())
    }

    fn reply(&self, _cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).ok();
    }
}

#[inline]
fn checked(key: Arg<'_>) -> Result<Arg<'_>, PlanError> {
    if key.bytes.len() == 8 { Ok(key) } else { Err(DAMAGED) }
}

struct Run;

impl Run {
    const READ: u16 = 0;
    const INCREMENT: u16 = 1;
}

impl Procedure for Run {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        let written = items.next().ok_or(DAMAGED)?.bytes;
        if written.len() != (args.len() - 1).div_ceil(8) {
            return Err(DAMAGED);
        }
        for (i, key) in items.enumerate() {
            let key = checked(key)?;
            if written[i / 8] >> (i % 8) & 1 == 1 {
                planner.key_in(DB, Run::INCREMENT, Access::Write, key)?;
                planner.silent();
            } else {
                planner.key_in(DB, Run::READ, Access::Read, key)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let is_hash = cx.cell().hash().is_some();
        if code == Run::READ {
            let sum = checksum(cx.cell().string().unwrap_or_default());
            cx.writer().int(sum as i64);
        } else if !is_hash {
            cx.cell_mut().change_string(increment);
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let slots = (0..cx.count).filter_map(|i| Datum::first(cx.slot(i)).as_int());
        Writer(out).int(slots.fold(0, i64::wrapping_add));
    }
}

struct AuditAll;

/// What an audit finds in the whole database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// How many records there are.
    pub records: u64,
    /// What their counters add up to.
    pub increments: u64,
    /// How many records hold a payload that is not theirs, or no string at all.
    pub damaged: u64,
    /// The digest of the records, computed from their bytes.
    pub digest: Digest,
}

impl Audit {
    fn add(self, other: Audit) -> Audit {
        Audit {
            records: self.records + other.records,
            increments: self.increments.wrapping_add(other.increments),
            damaged: self.damaged + other.damaged,
            digest: self.digest.plus(other.digest),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let mut bytes = Vec::with_capacity(Audit::BYTES);
        for word in [self.records, self.increments, self.damaged] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.digest.sum.to_le_bytes());
        bytes.extend_from_slice(&self.digest.records.to_le_bytes());
        Writer(out).bulk(&bytes);
    }

    const BYTES: usize = 3 * 8 + 16 + 4;

    /// Reads the reply of [`AUDIT`]; `None` if it is none.
    pub fn read(reply: &[u8]) -> Option<Audit> {
        let Datum::Bulk(bytes) = Datum::first(reply) else { return None };
        let bytes: &[u8; Audit::BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[at..].first_chunk().map_or(0, |w| u64::from_le_bytes(*w));
        Some(Audit {
            records: word(0),
            increments: word(8),
            damaged: word(16),
            digest: Digest {
                sum: bytes[24..].first_chunk().map_or(0, |w| u128::from_le_bytes(*w)),
                records: bytes[40..].first_chunk().map_or(0, |w| u32::from_le_bytes(*w)),
            },
        })
    }
}

impl Procedure for AuditAll {
    fn plan(&self, _args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        planner.table(0, Access::TableRead).map(drop)
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let mut audit = Audit::default();
        if let Target::Table(table) = &cx.target {
            table.scan(DB, Position::default(), &mut |_, key, cell| {
                audit.records += 1;
                match (record_of(key), cell.string()) {
                    (Some(record), Some(content)) => {
                        let counter = content.first_chunk().map_or(0, |c| u64::from_le_bytes(*c));
                        audit.increments = audit.increments.wrapping_add(counter);
                        audit.damaged += u64::from(!payload_is_whole(record, content));
                    }
                    _ => audit.damaged += 1,
                }
                if let Some(value) = &cell.value {
                    audit.digest.add(record_hash(DB, key, value, cell.expires_at));
                }
                true
            });
        }
        audit.write(cx.out);
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        system::parts(cx.slot(0)).filter_map(Audit::read).fold(Audit::default(), Audit::add).write(out);
    }
}

/// What the transactions are like.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// Which records they choose.
    pub choice: Choice,
    /// How many different records each uses.
    pub ops_per_txn: usize,
    /// How many of them it writes.
    pub writes_per_txn: usize,
    /// How long a record is.
    pub record_bytes: usize,
}

/// One population of clients of several that share the database.
#[derive(Clone, Debug)]
pub struct Ycsb {
    parameters: Parameters,
    random: Random,
    /// Records of this population's share that are not loaded yet.
    to_load: std::ops::Range<u64>,
    /// The transaction made up last.
    records: Vec<u64>,
    /// Its first argument: the length of a record, or which records are written.
    head: Vec<u8>,
}

impl Ycsb {
    /// How many records a transaction of loading inserts.
    const LOAD_BATCH: u64 = 64;

    /// Population `number` of `populations`.
    pub fn new(parameters: Parameters, seed: u64, number: usize, populations: usize) -> Ycsb {
        let records = parameters.choice.records();
        let edge = |n: usize| (u128::from(records) * n as u128 / populations.max(1) as u128) as u64;
        Ycsb {
            random: Random::stream(seed, number as u64),
            to_load: edge(number)..edge(number + 1),
            records: Vec::new(),
            head: Vec::new(),
            parameters,
        }
    }
}

impl Source for Ycsb {
    fn load(&mut self) -> Option<ProcedureId> {
        if self.to_load.is_empty() {
            return None;
        }
        self.head.clear();
        self.head.extend_from_slice(&(self.parameters.record_bytes as u32).to_le_bytes());
        self.records.clear();
        self.records.extend(self.to_load.by_ref().take(Ycsb::LOAD_BATCH as usize));
        Some(LOAD)
    }

    fn next(&mut self) -> Made {
        let Parameters { choice, ops_per_txn, writes_per_txn, .. } = &self.parameters;
        choice.draw_distinct(&mut self.random, *ops_per_txn, &mut self.records);
        self.head.clear();
        self.head.resize(ops_per_txn.div_ceil(8), 0);
        // Exactly so many writes, every place as likely: the popular records are drawn early, so the places
        // are chosen apart from the records.
        let mut writes = *writes_per_txn as u64;
        for i in 0..*ops_per_txn {
            let left = (ops_per_txn - i) as u64;
            let is_write = writes == left || (writes > 0 && self.random.below(left) < writes);
            writes -= u64::from(is_write);
            self.head[i / 8] |= u8::from(is_write) << (i % 8);
        }
        Made { procedure: RUN, kind: 0 }
    }

    fn write_args(&self, args: &mut ArgsBuilder<'_>) {
        args.push(&self.head);
        self.records.iter().for_each(|record| _ = args.push(&key(*record)));
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::{
        Call, Chunk, ChunkNo, Epoch, GatewayId, Gsn, Millis, OutcomeStatus, PartitionId, ReferenceExecutor,
    };

    use super::*;
    use crate::choice::Distribution;

    fn parameters(records: u64, ops_per_txn: usize, writes_per_txn: usize) -> Parameters {
        let choice = Choice::new(records, Distribution::Zipfian { theta: 0.9 }).unwrap();
        Parameters { choice, ops_per_txn, writes_per_txn, record_bytes: 100 }
    }

    /// Runs what a source makes up on the reference executor.
    struct Bed {
        registry: Arc<Registry>,
        executor: ReferenceExecutor,
        index: u32,
    }

    impl Bed {
        fn new() -> Bed {
            let mut registry = Registry::default();
            crate::register(&mut registry);
            let registry = Arc::new(registry);
            Bed { executor: ReferenceExecutor::new(registry.clone()), registry, index: 0 }
        }

        fn run(&mut self, procedure: ProcedureId, write: impl FnOnce(&mut ArgsBuilder<'_>)) -> Vec<u8> {
            let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
            let txn = chunk.push(&self.registry, Call::new(procedure, DB), write).unwrap().clone();
            self.index += 1;
            let gsn = Gsn::new(Epoch(1), PartitionId(0), self.index);
            let result = self.executor.run_txn(gsn, Millis(1), &chunk, &txn);
            assert_eq!(result.status, OutcomeStatus::Committed);
            result.reply
        }

        fn load(&mut self, source: &mut Ycsb) {
            while let Some(procedure) = source.load() {
                self.run(procedure, |args| source.write_args(args));
            }
        }

        fn audit(&mut self) -> Audit {
            let reply = self.run(AUDIT, |_| {});
            Audit::read(&reply).unwrap()
        }
    }

    #[test]
    fn what_is_loaded_and_incremented_is_what_the_audit_finds() {
        let mut bed = Bed::new();
        let mut sources: Vec<Ycsb> = (0..3).map(|n| Ycsb::new(parameters(1_000, 10, 4), 5, n, 3)).collect();
        sources.iter_mut().for_each(|source| bed.load(source));
        let digest = bed.executor.digest();
        assert_eq!(bed.audit(), Audit { records: 1_000, increments: 0, damaged: 0, digest });
        for n in 0..200 {
            let source = &mut sources[n % 3];
            let Made { procedure, .. } = source.next();
            bed.run(procedure, |args| source.write_args(args));
        }
        let digest = bed.executor.digest();
        assert_eq!(bed.audit(), Audit { records: 1_000, increments: 800, damaged: 0, digest });
    }

    #[test]
    fn a_damaged_payload_shows() {
        let mut bed = Bed::new();
        bed.load(&mut Ycsb::new(parameters(10, 1, 1), 5, 0, 1));
        // Another length: the end of the payload is missing, which the digest tells; a wrong byte is damage.
        assert!(payload_is_whole(3, &initial(3, 100)));
        for at in COUNTER_BYTES..100 {
            let mut content = initial(3, 100);
            content[at] ^= 1;
            assert!(!payload_is_whole(3, &content), "byte {at}");
        }
        assert!(!payload_is_whole(4, &initial(3, 100)));
    }

    #[test]
    fn a_read_answers_the_checksum_of_whole_records() {
        let mut bed = Bed::new();
        bed.load(&mut Ycsb::new(parameters(10, 2, 0), 5, 0, 1));
        let read =
            |args: &mut ArgsBuilder<'_>| _ = args.push(&[0b010]).push(&key(3)).push(&key(4)).push(&key(5));
        let sum = checksum(&initial(3, 100)).wrapping_add(checksum(&initial(5, 100)));
        let reply = bed.run(RUN, read);
        assert_eq!(Datum::first(&reply), Datum::Int(sum as i64));
        assert_eq!(bed.audit().increments, 1);
        for at in 0..100 {
            let mut content = initial(3, 100);
            content[at] ^= 1;
            assert_ne!(checksum(&content), checksum(&initial(3, 100)), "byte {at}");
        }
    }

    #[test]
    fn every_transaction_writes_exactly_its_share_of_different_records_at_any_place() {
        let mut source = Ycsb::new(parameters(50, 10, 3), 5, 0, 1);
        let mut places = [0u32; 10];
        for _ in 0..5_000 {
            source.next();
            let records: std::collections::BTreeSet<_> = source.records.iter().collect();
            assert_eq!(records.len(), 10);
            let written: Vec<usize> = (0..10).filter(|i| source.head[i / 8] >> (i % 8) & 1 == 1).collect();
            assert_eq!(written.len(), 3);
            written.iter().for_each(|i| places[*i] += 1);
        }
        assert!(places.iter().all(|n| (1_350..1_650).contains(n)), "{places:?}");
    }

    #[test]
    fn a_seed_repeats_and_populations_differ() {
        let first = |seed, number| {
            let mut source = Ycsb::new(parameters(1_000, 10, 5), seed, number, 2);
            source.next();
            (source.records, source.head)
        };
        assert_eq!(first(1, 0), first(1, 0));
        assert_ne!(first(1, 0), first(1, 1));
        assert_ne!(first(1, 0), first(2, 0));
    }

    #[test]
    fn damaged_arguments_are_refused() {
        let bed = Bed::new();
        for (procedure, args) in [
            (RUN, &[][..]),
            (RUN, &[&[0u8][..]]),
            (RUN, &[&[1], &[0; 7]]),
            (RUN, &[&[1, 0], &[0; 8]]),
            (LOAD, &[]),
            (LOAD, &[&[0; 3]]),
            (LOAD, &[&[0; 4], &[0; 9]]),
        ] {
            let write = |builder: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = builder.push(arg));
            let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
            assert!(
                chunk.push(&bed.registry, Call::new(procedure, DB), write).is_err(),
                "{procedure} {args:?}"
            );
        }
    }
}
