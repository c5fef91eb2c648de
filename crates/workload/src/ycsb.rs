//! YCSB as transactions (qstore.md, section 7; the Q-Store paper, section 6; PaxFlow's Table 1): each reads
//! or reads, modifies and writes a number of different records, a fixed count of which are writes.
//!
//! A record is named by 8 bytes and holds a counter and then a payload that is a function of its number. A
//! read-modify-write adds one to the counter. So the counters of a database add up to the writes that were
//! committed, and a lost or doubled update shows; a payload that is not its record's own shows too. A read
//! answers a checksum of all of the record.
//!
//! Partitions are chosen evenly and the skew is inside a partition, as in the Q-Store paper. They are ranges
//! of hash slots here and not of keys ([`crate::pool`]). PaxFlow's hot records are so many of each partition,
//! of which a transaction uses so many exactly (paxflow.md, section 7: 1 of 100, by Zipf among 10, the others
//! evenly). FW-KV's transactions are two operations, both reads or both writes; its keys of 4 bytes are 8
//! here.

use std::sync::Arc;

use ordain_model::key::{MAX_KEYS, MAX_VALUE_LEN, SLOTS};
use ordain_model::{
    Abort, Access, Args, ArgsBuilder, Cell, Db, FragmentContext, OutcomeStatus, PlanError, Planner,
    Procedure, ProcedureId, Registry, ReplyContext, Value, Writer, system,
};

use crate::audit::{self, Numbers};
use crate::choice::{Choice, ChoiceError, Distribution, MAX_RECORDS};
use crate::packed::{split, tail};
use crate::pool::{Drawn, Partition, Pool, share_of};
use crate::random::{Random, mix};
use crate::reads::{Answers, answer_sum};
use crate::{Finding, Made, Param, Seen, Source, Workload};

/// Inserts records. Arguments: keys, then the length of a record, 4 bytes.
pub const LOAD: ProcedureId = ProcedureId(1000);
/// Reads and increments records. Arguments: keys, then a bit for each that says whether it is incremented.
/// Answers the sum of the checksums of the records read.
pub const RUN: ProcedureId = ProcedureId(1001);
/// Reads everything. No arguments. Answers [`Numbers`]: what the counters add up to.
pub const AUDIT: ProcedureId = ProcedureId(1002);

/// Where the records are.
pub const DB: Db = Db(0);
/// The length of a record's counter: the shortest record there can be.
pub const COUNTER_BYTES: usize = 8;
/// The length of a key.
const KEY_BYTES: usize = 8;
/// The length of the packed argument of [`LOAD`].
const LENGTH_BYTES: usize = 4;

/// The most bytes that one transaction of loading makes: a client that calls it asks for them with a few of
/// its own.
const LOAD_BYTES: usize = MAX_VALUE_LEN;

const DAMAGED: PlanError = PlanError::fixed(
    "ERR damaged arguments of a YCSB procedure: it takes the keys and the packed argument that \
     ordain bench writes, and is not made to be called by hand",
);
const TOO_MUCH: PlanError = PlanError::fixed("ERR records of more than 16 MiB in one call of ycsb.load");

pub(crate) fn register(registry: &mut Registry) {
    registry.register_native(LOAD, "ycsb.load", Arc::new(Load));
    registry.register_native(RUN, "ycsb.run", Arc::new(Run));
    registry.register_native(AUDIT, "ycsb.audit", audit::procedure(DB, see));
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
        let (mut keys, length) = split(args, KEY_BYTES, LENGTH_BYTES).ok_or(DAMAGED)?;
        let length = length.try_into().map_or(0, u32::from_le_bytes) as usize;
        if length.saturating_mul(args.len() - 1) > LOAD_BYTES {
            return Err(TOO_MUCH);
        }
        keys.try_for_each(|key| {
            planner.key_in(DB, 0, Access::Write, key.ok_or(DAMAGED)?)?;
            planner.silent();
            Ok(())
        })
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let length = tail(cx.args, LENGTH_BYTES).try_into().map_or(0, u32::from_le_bytes);
        if let Some(record) = record_of(cx.key.bytes) {
            cx.cell_mut().put(Value::String(initial(record, length as usize)));
        }
        Ok(())
    }

    fn reply(&self, _cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).ok();
    }
}

struct Run;

impl Run {
    const READ: u16 = 0;
    const INCREMENT: u16 = 1;
}

impl Procedure for Run {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mask_bytes = args.len().saturating_sub(1).div_ceil(8);
        let (keys, written) = split(args, KEY_BYTES, mask_bytes).ok_or(DAMAGED)?;
        for (i, key) in keys.enumerate() {
            let key = key.ok_or(DAMAGED)?;
            let is_written = written[i / 8] >> (i % 8) & 1;
            let (code, access) =
                [(Run::READ, Access::Read), (Run::INCREMENT, Access::Write)][usize::from(is_written)];
            planner.key_in(DB, code, access, key)?;
            planner.silent_if(is_written == 1);
        }
        Ok(())
    }

    #[inline]
    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let is_hash = cx.cell().hash().is_some();
        if code == Run::READ {
            match cx.cell().string().map(checksum) {
                Some(sum) => cx.writer().int(sum as i64),
                None => cx.writer().nil(),
            }
        } else if !is_hash {
            cx.cell_mut().change_string(increment);
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let written = tail(cx.args(), (cx.count as usize).div_ceil(8));
        answer_sum(cx, Unset { bytes: written, at: 0, bits: 0, count: cx.count }, out);
    }
}

/// The bits of some bytes that are not set. Where they are nobody can foresee, but how many there are of a word.
struct Unset<'a> {
    /// Those behind the word that is looked at.
    bytes: &'a [u8],
    /// The first bit after that word.
    at: u32,
    /// What is left of the word.
    bits: u64,
    /// How many bits there are in all.
    count: u32,
}

impl Iterator for Unset<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        while self.bits == 0 {
            let left = self.count.checked_sub(self.at).filter(|left| *left > 0)?;
            let (word, rest) = self.bytes.split_at_checked(8).unwrap_or((self.bytes, &[]));
            let mut bytes = [u8::MAX; 8];
            bytes[..word.len()].copy_from_slice(word);
            self.bits = !u64::from_le_bytes(bytes) & u64::MAX >> 64u32.saturating_sub(left);
            (self.bytes, self.at) = (rest, self.at + 64);
        }
        let bit = self.bits.trailing_zeros();
        self.bits &= self.bits - 1;
        Some(self.at - 64 + bit)
    }
}

/// Looks at a record for the audit: its counter, if the payload behind it is its own.
fn see(numbers: &mut Numbers, key: &[u8], cell: &Cell) {
    let counter = record_of(key).zip(cell.string()).and_then(|(record, content)| {
        let counter = content.first_chunk()?;
        payload_is_whole(record, content).then(|| u64::from_le_bytes(*counter))
    });
    numbers.see(counter);
}

/// What the transactions are like. The defaults are 10 operations on one partition, half of them writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// How many records there are.
    pub records: u64,
    /// How long a record is.
    pub record_bytes: usize,
    /// How the records of a partition are chosen; if some are hot, how these are.
    pub distribution: Distribution,
    /// How many different records a transaction uses.
    pub ops_per_txn: usize,
    /// How many of them it writes.
    pub writes_per_txn: usize,
    /// The share of transactions that only read.
    pub read_only: f64,
    /// How many records a transaction reads that only reads, if it is another number.
    pub read_only_ops: Option<usize>,
    /// How many partitions the records are divided in.
    pub partitions: usize,
    /// How much more often the first partitions are used than the others: the exponent of a Zipfian choice. With 0, all are
    /// used as often.
    pub partition_theta: f64,
    /// The share of transactions that use several partitions; the others use one.
    pub multi_partition: f64,
    /// How many they use, each for as many operations as the others, or one more.
    pub partitions_per_txn: usize,
    /// How many records of each partition are hot; 0 for none. The others are chosen evenly then.
    pub hot_records: u64,
    /// How many of a transaction's records are hot.
    pub hot_ops: usize,
    /// How many are of a transaction that only reads, if it is another number.
    pub read_only_hot_ops: Option<usize>,
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters {
            records: 1_000_000,
            record_bytes: 100,
            distribution: Distribution::UNIFORM,
            ops_per_txn: 10,
            writes_per_txn: 5,
            read_only: 0.0,
            read_only_ops: None,
            partitions: 1,
            partition_theta: 0.0,
            multi_partition: 0.0,
            partitions_per_txn: 1,
            hot_records: 0,
            hot_ops: 0,
            read_only_hot_ops: None,
        }
    }
}

/// Why there is no such workload.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum YcsbError {
    /// The records cannot be chosen that way.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// A record cannot be that long.
    #[error("record_bytes must be {COUNTER_BYTES} to {MAX_VALUE_LEN}, not {0}")]
    RecordBytes(usize),
    /// A transaction cannot have so many operations.
    #[error("{knob} must be 1 to {MAX_KEYS}, not {ops}")]
    Ops {
        /// Which of the two.
        knob: &'static str,
        /// What was asked for.
        ops: usize,
    },
    /// More writes than operations.
    #[error("writes_per_txn must be 0 to {ops}, which is ops_per_txn, not {writes}")]
    Writes {
        /// What was asked for.
        writes: usize,
        /// The operations there are.
        ops: usize,
    },
    /// Not a share.
    #[error("{knob} must be from 0 to 1, not {share}")]
    Share {
        /// Which of them.
        knob: &'static str,
        /// What was asked for.
        share: f64,
    },
    /// No partition, or too many.
    #[error("partitions must be 1 to {SLOTS}, not {0}")]
    Partitions(usize),
    /// More partitions for a transaction than there are, or none.
    #[error("partitions_per_txn must be 1 to {partitions}, which is partitions, not {per_txn}")]
    PartitionsPerTxn {
        /// What was asked for.
        per_txn: usize,
        /// What there is.
        partitions: usize,
    },
    /// Multi-partition transactions on one partition.
    #[error("multi_partition {0} needs a partitions_per_txn of 2 or more")]
    OnePartition(f64),
    /// A transaction could not do anything on some of its partitions.
    #[error("partitions_per_txn {per_txn} is more than {knob} {ops}: each partition is for an operation")]
    TooFewOps {
        /// What was asked for.
        per_txn: usize,
        /// Which operations.
        knob: &'static str,
        /// How many there are.
        ops: usize,
    },
    /// More hot operations than operations, or hot operations without hot records.
    #[error("{knob} must be 0 to {most}, not {hot_ops}")]
    HotOps {
        /// Which of the two.
        knob: &'static str,
        /// What was asked for.
        hot_ops: usize,
        /// The most there may be: the operations, or none where no records are hot.
        most: usize,
    },
    /// A transaction needs more different records of one kind than a partition has.
    #[error("a transaction needs {needed} different {what} records of partition {partition}: it has {there}")]
    TooFewRecords {
        /// How many it needs at most.
        needed: usize,
        /// Hot ones or others.
        what: &'static str,
        /// A partition that does not have them.
        partition: usize,
        /// How many it has.
        there: u64,
    },
}

/// The workload.
#[derive(Clone, Debug)]
pub struct Ycsb {
    parameters: Parameters,
    partitions: Arc<[Partition]>,
    /// Which of them a transaction uses.
    choice: Choice,
    /// For each partition its pool, and that of its hot records if there are some.
    pools: Arc<[Pools]>,
}

#[derive(Clone, Debug)]
struct Pools {
    hot: Option<Pool>,
    rest: Pool,
}

/// What the transactions of one kind are like.
#[derive(Clone, Copy, Debug)]
struct Shape {
    ops: usize,
    hot_ops: usize,
    writes: usize,
}

impl Parameters {
    fn update(&self) -> Shape {
        Shape { ops: self.ops_per_txn, hot_ops: self.hot_ops, writes: self.writes_per_txn }
    }

    fn read_only(&self) -> Shape {
        Shape {
            ops: self.read_only_ops.unwrap_or(self.ops_per_txn),
            hot_ops: self.read_only_hot_ops.unwrap_or(self.hot_ops),
            writes: 0,
        }
    }

    /// Refuses what makes no sense, but for what only the placement of the records tells.
    fn check(&self) -> Result<(), YcsbError> {
        let Parameters { records, record_bytes, partitions, multi_partition, .. } = *self;
        if !(1..=MAX_RECORDS).contains(&records) {
            return Err(ChoiceError::Records(records).into());
        }
        if !(COUNTER_BYTES..=MAX_VALUE_LEN).contains(&record_bytes) {
            return Err(YcsbError::RecordBytes(record_bytes));
        }
        if self.writes_per_txn > self.ops_per_txn {
            return Err(YcsbError::Writes { writes: self.writes_per_txn, ops: self.ops_per_txn });
        }
        for (knob, share) in [("read_only", self.read_only), ("multi_partition", multi_partition)] {
            if !(0.0..=1.0).contains(&share) {
                return Err(YcsbError::Share { knob, share });
            }
        }
        if !(1..=SLOTS).contains(&partitions) {
            return Err(YcsbError::Partitions(partitions));
        }
        let per_txn = self.partitions_per_txn;
        if !(1..=partitions).contains(&per_txn) {
            return Err(YcsbError::PartitionsPerTxn { per_txn, partitions });
        }
        if multi_partition > 0.0 && per_txn == 1 {
            return Err(YcsbError::OnePartition(multi_partition));
        }
        for (shape, ops_knob, hot_knob) in [
            (self.update(), "ops_per_txn", "hot_ops"),
            (self.read_only(), "read_only_ops", "read_only_hot_ops"),
        ] {
            let Shape { ops, hot_ops, .. } = shape;
            if !(1..=MAX_KEYS).contains(&ops) {
                return Err(YcsbError::Ops { knob: ops_knob, ops });
            }
            if multi_partition > 0.0 && per_txn > ops {
                return Err(YcsbError::TooFewOps { per_txn, knob: ops_knob, ops });
            }
            let most = if self.hot_records == 0 { 0 } else { ops };
            if hot_ops > most {
                return Err(YcsbError::HotOps { knob: hot_knob, hot_ops, most });
            }
        }
        Ok(())
    }

    /// The most different records that a transaction needs of one partition: hot ones, and others.
    fn needed(&self) -> (usize, usize) {
        let fewest = if self.multi_partition < 1.0 { 1 } else { self.partitions_per_txn };
        let of =
            |shape: Shape| (shape.hot_ops.div_ceil(fewest), (shape.ops - shape.hot_ops).div_ceil(fewest));
        let (update, read_only) = (of(self.update()), of(self.read_only()));
        match self.read_only {
            0.0 => update,
            1.0 => read_only,
            _ => (update.0.max(read_only.0), update.1.max(read_only.1)),
        }
    }
}

impl Ycsb {
    /// The workload with these parameters. It takes a moment where there are many records and several
    /// partitions: the records of each are listed.
    ///
    /// # Errors
    /// A parameter that makes no sense, by name.
    pub fn new(parameters: Parameters) -> Result<Ycsb, YcsbError> {
        parameters.check()?;
        let Parameters { records, partitions, hot_records, distribution, .. } = parameters;
        let (hot_needed, needed) = parameters.needed();
        let mut pools = Vec::with_capacity(partitions);
        let partitions = Partition::divide(records, partitions, key);
        for (number, partition) in partitions.iter().enumerate() {
            let enough = |what, needed: usize, there| {
                let error = YcsbError::TooFewRecords { needed, what, partition: number, there };
                if needed as u64 > there { Err(error) } else { Ok(()) }
            };
            enough("other", needed.max(1), partition.count().saturating_sub(hot_records))?;
            enough("hot", hot_needed, hot_records)?;
            pools.push(if hot_records == 0 {
                Pools { hot: None, rest: Pool::whole(partition, distribution)? }
            } else {
                let (hot, rest) = Pool::hot_and_cold(partition, hot_records, distribution)?;
                Pools { hot: Some(hot), rest }
            });
        }
        let by_rank = Distribution::Zipfian { theta: parameters.partition_theta };
        let choice = Choice::new(partitions.len() as u64, by_rank)?;
        Ok(Ycsb { parameters, partitions, choice, pools: pools.into() })
    }
}

/// A transaction that may write.
const UPDATE: u8 = 0;
/// A transaction that cannot.
const READ_ONLY: u8 = 1;

impl Workload for Ycsb {
    fn name(&self) -> &'static str {
        "ycsb"
    }

    fn kinds(&self) -> &'static [&'static str] {
        &["update", "read-only"]
    }

    fn params(&self) -> Vec<(&'static str, Param)> {
        let p = &self.parameters;
        let int = |n: usize| Param::Int(n as u64);
        let mut params = vec![("records", Param::Int(p.records)), ("record_bytes", int(p.record_bytes))];
        params.extend(p.distribution.params());
        params.extend([
            ("ops_per_txn", int(p.ops_per_txn)),
            ("write_ratio", Param::Real(p.writes_per_txn as f64 / p.ops_per_txn as f64)),
            ("read_only", Param::Real(p.read_only)),
            ("read_only_ops", int(p.read_only().ops)),
            ("partitions", int(p.partitions)),
            ("partition_theta", Param::Real(p.partition_theta)),
            ("multi_partition", Param::Real(p.multi_partition)),
            ("partitions_per_txn", int(p.partitions_per_txn)),
            ("hot_records", Param::Int(p.hot_records)),
            ("hot_ops", int(p.hot_ops)),
            ("read_only_hot_ops", int(p.read_only().hot_ops)),
        ]);
        params
    }

    fn accesses(&self) -> Vec<f64> {
        vec![self.parameters.update().ops as f64, self.parameters.read_only().ops as f64]
    }

    fn source(&self, seed: u64, number: usize, populations: usize) -> Box<dyn Source> {
        Box::new(Clients::new(self, seed, number, populations))
    }

    fn audits(&self) -> Vec<ProcedureId> {
        vec![AUDIT, system::DIGEST]
    }

    fn check(&self, seen: &Seen) -> Vec<Finding> {
        let (audited, digest) = match audit::read::<Numbers>(seen) {
            Ok(read) => read,
            Err(unanswered) => return vec![unanswered],
        };
        let updates = seen.by_kind.get(usize::from(UPDATE)).map_or(0, |counts| counts.committed);
        let writes = self.parameters.writes_per_txn as u64;
        let sum = audited.found.sum;
        vec![
            Finding::new("increments", sum == updates * writes, || {
                format!(
                    "the counters add up to {sum}, and {updates} updates of {writes} writes were committed"
                )
            }),
            audited.found.finding(self.parameters.records),
            digest,
            seen.no_aborts(),
            Answers::finding(seen),
        ]
    }
}

/// One population of clients.
#[derive(Clone, Debug)]
struct Clients {
    ycsb: Ycsb,
    random: Random,
    /// Records of this population's share that are not loaded yet.
    to_load: std::ops::Range<u64>,
    /// The transaction made up last: its records, and behind them which are written, or how long they are.
    drawn: Drawn,
    packed: Vec<u8>,
    /// Its partitions.
    partitions: Drawn,
    answers: Answers,
}

impl Clients {
    /// How many records a transaction of loading inserts, unless they are so long that it must be fewer.
    const LOAD_BATCH: usize = 64;

    fn new(ycsb: &Ycsb, seed: u64, number: usize, populations: usize) -> Clients {
        Clients {
            ycsb: ycsb.clone(),
            random: Random::stream(seed, number as u64),
            to_load: share_of(ycsb.parameters.records, number, populations),
            drawn: Drawn::default(),
            packed: Vec::new(),
            partitions: Drawn::default(),
            answers: Answers::default(),
        }
    }

    fn draw_partitions(&mut self) {
        let Parameters { partition_theta, multi_partition, partitions_per_txn, .. } = self.ycsb.parameters;
        let several = multi_partition > 0.0 && self.random.unit() < multi_partition;
        let count = if several { partitions_per_txn } else { 1 };
        let partitions = self.ycsb.choice.records();
        if partition_theta == 0.0 {
            return self.partitions.draw_evenly(&mut self.random, partitions, count);
        }
        self.partitions.begin(count);
        for _ in 0..count {
            let mut rank = self.ycsb.choice.rank(&mut self.random);
            // The most popular ones are mostly there already.
            while !self.partitions.add(rank) {
                rank = (rank + 1) % partitions;
            }
        }
    }
}

impl Source for Clients {
    fn load(&mut self) -> Option<ProcedureId> {
        // At least one, because no record is longer than all of them may be.
        let batch = Clients::LOAD_BATCH.min(LOAD_BYTES / self.ycsb.parameters.record_bytes);
        self.drawn.begin(batch);
        self.to_load.by_ref().take(batch).for_each(|record| _ = self.drawn.add(record));
        self.packed.clear();
        self.packed.extend_from_slice(&(self.ycsb.parameters.record_bytes as u32).to_le_bytes());
        (!self.drawn.records().is_empty()).then_some(LOAD)
    }

    fn next(&mut self) -> Made {
        let read_only = self.ycsb.parameters.read_only;
        let reads = read_only > 0.0 && self.random.unit() < read_only;
        let Shape { ops, hot_ops, writes } =
            if reads { self.ycsb.parameters.read_only() } else { self.ycsb.parameters.update() };
        self.draw_partitions();
        self.drawn.begin(ops);
        let partitions = self.partitions.records();
        let mut turn = 0;
        for i in 0..ops {
            let pools = &self.ycsb.pools[partitions[turn] as usize];
            turn = if turn + 1 == partitions.len() { 0 } else { turn + 1 };
            let pool = pools.hot.as_ref().filter(|_| i < hot_ops).unwrap_or(&pools.rest);
            pool.draw(&mut self.random, &mut self.drawn);
        }
        self.drawn.look_up(&self.ycsb.partitions);
        // Exactly so many writes, every place as likely: the popular records are drawn early, so the places
        // are chosen apart from the records.
        choose(&mut self.random, writes, ops, &mut self.packed);
        Made { procedure: RUN, kind: if reads { READ_ONLY } else { UPDATE } }
    }

    fn write_args(&self, args: &mut ArgsBuilder<'_>) {
        self.drawn.records().iter().for_each(|record| _ = args.push(&key(*record)));
        args.push(&self.packed);
    }

    fn heard(&mut self, _kind: u8, status: OutcomeStatus, reply: &[u8]) {
        self.answers.hear(status, reply);
    }

    fn testimony(&mut self) -> Vec<u8> {
        self.answers.testimony()
    }
}

/// Sets so many of `count` bits, every choice of them as likely (Floyd's algorithm). Those that are fewer are drawn: the ones
/// that are set, or the ones that are not.
fn choose(random: &mut Random, set: usize, count: usize, bits: &mut Vec<u8>) {
    bits.clear();
    bits.resize(count.div_ceil(8), 0);
    let drawn = set.min(count - set);
    for last in count - drawn..count {
        let at = random.below(last as u64 + 1) as usize;
        // One that is set already stands for the last, which is not.
        let is_set = bits[at / 8] >> (at % 8) & 1 == 1;
        let at = if is_set { last } else { at };
        bits[at / 8] |= 1 << (at % 8);
    }
    if set > drawn {
        bits.iter_mut().for_each(|byte| *byte = !*byte);
        if let Some(byte) = bits.last_mut() {
            *byte &= u8::MAX >> (count.next_multiple_of(8) - count);
        }
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::Datum;

    use super::*;
    use crate::choice::Scatter;
    use crate::testing::{Bed, run, wrong};

    const SKEWED: Distribution = Distribution::Zipfian { theta: 0.9 };

    fn parameters(records: u64, ops_per_txn: usize, writes_per_txn: usize) -> Parameters {
        let distribution = SKEWED;
        Parameters { records, ops_per_txn, writes_per_txn, distribution, ..Parameters::default() }
    }

    fn clients(parameters: Parameters) -> Clients {
        Clients::new(&Ycsb::new(parameters).unwrap(), 5, 0, 1)
    }

    fn written(clients: &Clients) -> Vec<usize> {
        (0..clients.drawn.records().len()).filter(|i| clients.packed[i / 8] >> (i % 8) & 1 == 1).collect()
    }

    #[test]
    fn what_is_loaded_and_incremented_is_what_the_audit_finds() {
        let several = Parameters {
            read_only: 0.3,
            read_only_ops: Some(3),
            partitions: 4,
            multi_partition: 0.5,
            partitions_per_txn: 3,
            record_bytes: 12,
            hot_records: 20,
            hot_ops: 1,
            ..parameters(1_000, 10, 4)
        };
        for parameters in [parameters(1_000, 10, 4), several] {
            let ycsb = Ycsb::new(parameters).unwrap();
            let (bed, seen) = run(&ycsb, 3, 300);
            let (audited, _) = audit::read::<Numbers>(&seen).unwrap();
            assert_eq!(audited.digest, bed.executor.digest());
            let sum = 4 * seen.by_kind[0].committed;
            assert_eq!(audited.found, Numbers { records: 1_000, sum, damaged: 0 });
            assert_eq!(seen.total().committed, 300);
            assert_eq!(wrong(&ycsb.check(&seen)), [""; 0]);
            let names: Vec<_> = ycsb.check(&seen).iter().map(|finding| finding.name).collect();
            assert_eq!(names, ["increments", "records", "digest", "no_aborts", "answers"]);
        }
    }

    #[test]
    fn a_lost_update_a_missing_record_and_a_wrong_digest_are_found() {
        let ycsb = Ycsb::new(parameters(100, 10, 4)).unwrap();
        let (mut bed, mut seen) = run(&ycsb, 1, 20);
        seen.by_kind[0].committed += 1;
        assert_eq!(wrong(&ycsb.check(&seen)), ["increments"]);
        seen.by_kind[0].committed -= 1;
        seen.by_kind[1].aborted = 1;
        assert_eq!(wrong(&ycsb.check(&seen)), ["no_aborts"]);
        seen.by_kind[1].aborted = 0;
        let kept = seen.audits[1].clone();
        bed.run(LOAD, |args| _ = args.push(&key(100)).push(&16u32.to_le_bytes()));
        seen.audits = ycsb.audits().into_iter().map(|audit| bed.run(audit, |_| {})).collect();
        assert_eq!(wrong(&ycsb.check(&seen)), ["records"]);
        seen.audits[1] = kept;
        assert_eq!(wrong(&ycsb.check(&seen)), ["records", "digest"]);
        seen.audits.clear();
        assert_eq!(wrong(&ycsb.check(&seen)), ["audit"]);
    }

    #[test]
    fn the_bits_that_are_not_set_are_told_in_order() {
        let bytes: Vec<u8> = (0..40).map(|i: u8| i.wrapping_mul(151)).collect();
        for count in [0, 1, 7, 8, 10, 63, 64, 65, 128, 300] {
            let bytes = &bytes[..(count as usize).div_ceil(8)];
            let naive: Vec<u32> = (0..count).filter(|i| bytes[*i as usize / 8] >> (i % 8) & 1 == 0).collect();
            assert_eq!(Unset { bytes, at: 0, bits: 0, count }.collect::<Vec<_>>(), naive, "of {count}");
        }
        // What is not there is not told of.
        assert_eq!(Unset { bytes: &[], at: 0, bits: 0, count: 9 }.next(), None);
    }

    #[test]
    fn the_longest_records_are_loaded_one_by_one() {
        let mut bed = Bed::new();
        bed.load(&mut clients(Parameters { record_bytes: MAX_VALUE_LEN, ..parameters(2, 1, 1) }));
        assert!(
            bed.executor.records().all(|(_, _, cell)| cell.string().map(<[u8]>::len) == Some(MAX_VALUE_LEN))
        );
        assert_eq!(bed.executor.records().count(), 2);
    }

    #[test]
    fn a_damaged_payload_shows() {
        let cell = |content| Cell { value: Some(Value::String(content)), ..Cell::ABSENT };
        let damaged = |content| {
            let mut numbers = Numbers::default();
            see(&mut numbers, &key(3), &cell(content));
            numbers.damaged == 1
        };
        // Another length: the end of the payload is missing, which the digest tells; a wrong byte is damage.
        assert!(!damaged(initial(3, 100)));
        for at in COUNTER_BYTES..100 {
            let mut content = initial(3, 100);
            content[at] ^= 1;
            assert!(damaged(content), "byte {at}");
        }
        assert!(damaged(initial(4, 100)) && damaged(vec![0; 7]));
    }

    #[test]
    fn a_read_answers_the_checksum_of_whole_records() {
        let mut bed = Bed::new();
        bed.load(&mut clients(parameters(10, 2, 0)));
        let read =
            |args: &mut ArgsBuilder<'_>| _ = args.push(&key(3)).push(&key(4)).push(&key(5)).push(&[0b010]);
        let sum = checksum(&initial(3, 100)).wrapping_add(checksum(&initial(5, 100)));
        let reply = bed.run(RUN, read);
        assert_eq!(Datum::first(&reply), Datum::Int(sum as i64));
        let audited = audit::Audited::<Numbers>::read(&bed.run(AUDIT, |_| {})).unwrap();
        assert_eq!(audited.found.sum, 1);
        // Nor is a record read that is not there.
        let reply = bed.run(RUN, |args| _ = args.push(&key(3)).push(&key(10)).push(&[0]));
        assert!(matches!(Datum::first(&reply), Datum::Error(_)));
        let mut clients = clients(parameters(10, 2, 0));
        clients.heard(UPDATE, OutcomeStatus::Committed, &reply);
        let seen = Seen { testimonies: vec![clients.testimony()], ..Seen::default() };
        assert!(Answers::finding(&seen).wrong.is_some());
        for at in 0..100 {
            let mut content = initial(3, 100);
            content[at] ^= 1;
            assert_ne!(checksum(&content), checksum(&initial(3, 100)), "byte {at}");
        }
    }

    #[test]
    fn every_transaction_writes_exactly_its_share_of_different_records_at_any_place() {
        for writes in [3, 7] {
            let mut clients = clients(parameters(50, 10, writes));
            let mut places = [0u32; 10];
            for _ in 0..5_000 {
                clients.next();
                let records: std::collections::BTreeSet<_> = clients.drawn.records().iter().collect();
                assert_eq!(records.len(), 10);
                assert_eq!(written(&clients).len(), writes);
                written(&clients).iter().for_each(|i| places[*i] += 1);
            }
            let mean = 500 * writes as u32;
            assert!(places.iter().all(|n| n.abs_diff(mean) < 150), "{places:?}");
        }
    }

    #[test]
    fn every_choice_of_places_is_as_likely() {
        let mut random = Random::new(3);
        let mut bits = Vec::new();
        for (set, choices) in [(0, 1), (1, 5), (2, 10), (3, 10), (4, 5), (5, 1)] {
            let mut seen = std::collections::BTreeMap::new();
            for _ in 0..1_000 * choices {
                choose(&mut random, set, 5, &mut bits);
                assert!(bits.len() == 1 && bits[0].count_ones() as usize == set && bits[0] < 32);
                *seen.entry(bits[0]).or_insert(0u32) += 1;
            }
            assert_eq!(seen.len(), choices);
            // Five standard deviations of 32.
            assert!(seen.values().all(|n| n.abs_diff(1_000) < 160), "{set}: {seen:?}");
        }
        choose(&mut random, 19, 20, &mut bits);
        assert_eq!(bits.iter().map(|byte| byte.count_ones()).sum::<u32>(), 19);
        choose(&mut random, 16, 16, &mut bits);
        assert_eq!(bits, [255, 255]);
        choose(&mut random, 0, 0, &mut bits);
        assert!(bits.is_empty());
    }

    #[test]
    fn partitions_are_even_and_exact_in_number_and_their_operations_too() {
        use ordain_model::KeyHash;
        use ordain_model::key::shard_of_slot;
        let mut clients = clients(Parameters {
            partitions: 8,
            multi_partition: 0.3,
            partitions_per_txn: 4,
            distribution: Distribution::Zipfian { theta: 0.99 },
            ..parameters(10_000, 10, 5)
        });
        let (mut several, mut by_partition) = (0, [0u32; 8]);
        const TXNS: u32 = 20_000;
        for _ in 0..TXNS {
            clients.next();
            let mut ops = [0; 8];
            for record in clients.drawn.records() {
                ops[shard_of_slot(KeyHash::of(&key(*record)).slot(), 8)] += 1;
            }
            let mut used: Vec<u32> = ops.into_iter().filter(|n| *n > 0).collect();
            used.sort_unstable();
            assert!(used == [10] || used == [2, 2, 3, 3], "{ops:?}");
            several += u32::from(used.len() == 4);
            (0..8).for_each(|p| by_partition[p] += u32::from(ops[p] > 0));
        }
        // Five standard deviations: sqrt(20,000 x 0.3 x 0.7) is 65.
        assert!((6_000 - 325..6_000 + 325).contains(&several), "{several}");
        let mean = f64::from(TXNS - several + 4 * several) / 8.0;
        for used in by_partition {
            assert!((f64::from(used) - mean).abs() < 5.0 * mean.sqrt(), "{by_partition:?}");
        }
    }

    #[test]
    fn the_skew_is_inside_each_partition() {
        let parameters = Parameters { partitions: 4, distribution: SKEWED, ..parameters(4_000, 1, 0) };
        let mut clients = clients(parameters);
        let tops: Vec<u64> =
            Partition::divide(4_000, 4, key).iter().map(|partition| partition.record(0)).collect();
        let mut seen = [0u32; 4];
        for _ in 0..20_000 {
            clients.next();
            let record = clients.drawn.records()[0];
            tops.iter().zip(&mut seen).for_each(|(top, n)| *n += u32::from(*top == record));
        }
        // The first of about 1,000 ranks at 0.9 has 1 / sum r^-0.9 = 9.5% of a partition's quarter: 475.
        assert!(seen.iter().all(|n| (370..590).contains(n)), "{seen:?}");
    }

    #[test]
    fn hot_operations_are_exact_in_number_and_the_others_spare_the_hot_records() {
        // PaxFlow's Table 1, and updates of all the hot records beside it (paxflow.md, section 7, E2).
        let mut clients = clients(Parameters {
            distribution: Distribution::Zipfian { theta: 0.99 },
            hot_records: 10,
            hot_ops: 10,
            read_only: 0.5,
            read_only_ops: Some(100),
            read_only_hot_ops: Some(1),
            ..parameters(100_000, 10, 10)
        });
        let scatter = Scatter::new(100_000);
        let hot: Vec<u64> = (0..10).map(|rank| scatter.place(rank)).collect();
        let (mut reads, mut first) = (0u32, 0u32);
        for _ in 0..4_000 {
            let made = clients.next();
            let records = clients.drawn.records();
            let of_hot = records.iter().filter(|record| hot.contains(record)).count();
            if made.kind == READ_ONLY {
                assert_eq!((records.len(), of_hot, written(&clients).len()), (100, 1, 0));
                reads += 1;
                first += u32::from(records[0] == hot[0]);
            } else {
                assert_eq!((records.len(), of_hot, written(&clients).len()), (10, 10, 10));
            }
        }
        assert!((1_840..2_160).contains(&reads), "{reads}");
        // The first of 10 ranks at 0.99 has 34% of the draws.
        assert!((580..780).contains(&first), "{first} of {reads}");
    }

    #[test]
    fn a_seed_repeats_and_populations_differ() {
        let ycsb = Ycsb::new(parameters(1_000, 10, 5)).unwrap();
        let first = |seed, number| {
            let mut clients = Clients::new(&ycsb, seed, number, 2);
            clients.next();
            (clients.drawn.records().to_vec(), clients.packed)
        };
        assert_eq!(first(1, 0), first(1, 0));
        assert_ne!(first(1, 0), first(1, 1));
        assert_ne!(first(1, 0), first(2, 0));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let good = parameters(1_000, 10, 5);
        let refused = |parameters: Parameters| Ycsb::new(parameters).unwrap_err().to_string();
        for (parameters, name) in [
            (Parameters { records: 0, ..good.clone() }, "records"),
            (Parameters { record_bytes: 7, ..good.clone() }, "record_bytes"),
            (Parameters { record_bytes: MAX_VALUE_LEN + 1, ..good.clone() }, "record_bytes"),
            (Parameters { distribution: Distribution::Zipfian { theta: 1.0 }, ..good.clone() }, "theta 1.0"),
            (Parameters { ops_per_txn: 0, writes_per_txn: 0, ..good.clone() }, "ops_per_txn"),
            (Parameters { writes_per_txn: 11, ..good.clone() }, "writes_per_txn"),
            (Parameters { read_only: 1.1, ..good.clone() }, "read_only"),
            (Parameters { read_only_ops: Some(0), ..good.clone() }, "read_only_ops"),
            (Parameters { multi_partition: f64::NAN, ..good.clone() }, "multi_partition"),
            (Parameters { partitions: 0, ..good.clone() }, "partitions"),
            (Parameters { partitions: 1_025, ..good.clone() }, "partitions"),
            (Parameters { partitions: 2, partitions_per_txn: 3, ..good.clone() }, "partitions_per_txn"),
            (Parameters { multi_partition: 0.5, ..good.clone() }, "partitions_per_txn of 2"),
            (
                Parameters { partitions: 16, partitions_per_txn: 11, multi_partition: 0.1, ..good.clone() },
                "more than ops_per_txn",
            ),
            (Parameters { hot_ops: 1, ..good.clone() }, "hot_ops"),
            (Parameters { hot_records: 5, hot_ops: 6, ..good.clone() }, "different hot"),
            (Parameters { hot_records: 1_000, hot_ops: 1, ..good.clone() }, "different other"),
            (Parameters { partitions: 200, ..good.clone() }, "different other"),
        ] {
            assert!(refused(parameters).contains(name), "{name}");
        }
        assert!(Ycsb::new(good).is_ok());
    }

    #[test]
    fn damaged_arguments_are_refused() {
        let bed = Bed::new();
        for (procedure, args) in [
            (RUN, &[][..]),
            (RUN, &[&[0u8; 8][..]]),
            (RUN, &[&[0; 7], &[1]]),
            (RUN, &[&[0; 8], &[1, 0]]),
            (LOAD, &[]),
            (LOAD, &[&[0; 3]]),
            (LOAD, &[&[0; 9], &[0; 4]]),
            (LOAD, &[&[0; 8], &[1, 0, 0, 1]]),
            (LOAD, &[&[0; 8], &[1; 8], &[1, 0, 128, 0]]),
        ] {
            assert!(bed.refuses(procedure, args), "{procedure} {args:?}");
        }
    }
}
