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

mod procedures;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use ordain_model::key::{MAX_KEYS, MAX_VALUE_LEN, SLOTS};
use ordain_model::{ArgsBuilder, OutcomeStatus, ProcedureId, Random, Registry};

use crate::aggregate::Aggregate;
use crate::audit::{self, Numbers};
use crate::choice::{Choice, Distribution, MAX_RECORDS};
use crate::parameters::{ParameterError, parameters, require, require_in, require_share};
use crate::pool::{Drawn, Partition, Pool};
use crate::population::Population;
use crate::reads::Answers;
use crate::{Finding, Made, Param, Results, Source, Workload};
use procedures::LOAD_BYTES;
pub use procedures::{AUDIT, COUNTER_BYTES, DB, LOAD, RUN, checksum, increment, initial, key};

pub(crate) fn register(registry: &mut Registry) {
    procedures::register(registry);
}

parameters! {
    /// The transactions. The defaults are 10 operations on one partition, half of them writes.
    pub struct Parameters {
        /// The number of records.
        pub records: u64 = 1_000_000,
        /// The length of a record.
        pub record_bytes: usize = 100,
        /// The choice of the records of a partition; if some are hot, of these.
        pub distribution: Distribution = Distribution::UNIFORM,
        /// The number of different records that a transaction uses.
        pub ops_per_txn: usize = 10,
        /// The number of them that it writes.
        pub writes_per_txn: usize = 5,
        /// The share of transactions that only read.
        pub read_only: f64 = 0.0,
        /// The number of records of a transaction that only reads, if it is another.
        pub read_only_ops: Option<usize> = None,
        /// The number of partitions that the records are divided in.
        pub partitions: usize = 1,
        /// The skew of the partitions: the exponent of a Zipfian choice. With 0, all
        /// are used as often.
        pub partition_theta: f64 = 0.0,
        /// The share of transactions that use several partitions; the others use one.
        pub multi_partition: f64 = 0.0,
        /// The number of partitions that they use, each for as many operations as the others, or one more.
        pub partitions_per_txn: usize = 1,
        /// The number of hot records of each partition; 0 for none. The others are chosen evenly then.
        pub hot_records: u64 = 0,
        /// The number of a transaction's records that are hot.
        pub hot_ops: usize = 0,
        /// The number of hot records of a transaction that only reads, if it is another.
        pub read_only_hot_ops: Option<usize> = None,
    }
}

/// The workload.
#[derive(Clone, Debug)]
pub struct Ycsb {
    parameters: Parameters,
    partitions: Arc<[Partition]>,
    /// The choice of the partitions that a transaction uses.
    choice: Choice,
    /// For each partition its pool, and that of its hot records if there are some.
    pools: Arc<[Pools]>,
}

#[derive(Clone, Debug)]
struct Pools {
    hot: Option<Pool>,
    rest: Pool,
}

/// The operations of the transactions of one kind.
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
    fn check(&self) -> Result<(), ParameterError> {
        let Parameters { partitions, multi_partition, partitions_per_txn: per_txn, .. } = *self;
        let (writes, ops) = (self.writes_per_txn, self.ops_per_txn);
        require_in("records", self.records, 1..=MAX_RECORDS)?;
        require_in("record_bytes", self.record_bytes, COUNTER_BYTES..=MAX_VALUE_LEN)?;
        require(writes <= ops, || {
            format!("writes_per_txn must be 0 to {ops}, which is ops_per_txn, not {writes}")
        })?;
        require_share("read_only", self.read_only)?;
        require_share("multi_partition", multi_partition)?;
        require_in("partitions", partitions, 1..=SLOTS)?;
        require((1..=partitions).contains(&per_txn), || {
            format!("partitions_per_txn must be 1 to {partitions}, which is partitions, not {per_txn}")
        })?;
        require(multi_partition == 0.0 || per_txn > 1, || {
            format!("multi_partition {multi_partition} needs a partitions_per_txn of 2 or more")
        })?;
        for (Shape { ops, hot_ops, .. }, ops_name, hot_name) in [
            (self.update(), "ops_per_txn", "hot_ops"),
            (self.read_only(), "read_only_ops", "read_only_hot_ops"),
        ] {
            require_in(ops_name, ops, 1..=MAX_KEYS)?;
            require(multi_partition == 0.0 || per_txn <= ops, || {
                format!(
                    "partitions_per_txn {per_txn} is more than {ops_name} {ops}: each partition is for an operation"
                )
            })?;
            // No operation is hot where no record is.
            let most = if self.hot_records == 0 { 0 } else { ops };
            require_in(hot_name, hot_ops, 0..=most)?;
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
    pub fn new(parameters: Parameters) -> Result<Ycsb, ParameterError> {
        parameters.check()?;
        let Parameters { records, partitions, hot_records, distribution, .. } = parameters;
        let (hot_needed, needed) = parameters.needed();
        let mut pools = Vec::with_capacity(partitions);
        let partitions = Partition::divide(records, partitions, key);
        for (number, partition) in partitions.iter().enumerate() {
            let enough = |what, needed: usize, there| {
                require(needed as u64 <= there, || {
                    format!(
                        "a transaction needs {needed} different {what} records of partition {number}: it has {there}"
                    )
                })
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

    fn audit(&self) -> ProcedureId {
        AUDIT
    }

    fn check(&self, results: &Results) -> Vec<Finding> {
        audit::check(results, |numbers: Numbers, digest| {
            let updates = results.of_kind(UPDATE).committed;
            let (sum, writes) = (numbers.sum, self.parameters.writes_per_txn as u64);
            vec![
                Finding::new("increments", sum == updates * writes, || {
                    format!(
                        "the counters add up to {sum}, and {updates} updates of {writes} writes were committed"
                    )
                }),
                numbers.finding(self.parameters.records),
                digest,
                results.no_aborts(),
                Answers::finding(results),
            ]
        })
    }
}

/// One population of clients.
#[derive(Clone, Debug)]
struct Clients {
    ycsb: Ycsb,
    population: Population,
    /// The bytes behind the keys of the transaction made up last: which records are written, or how long they are.
    packed: Vec<u8>,
    /// The partitions of the transaction made up last.
    partitions: Drawn,
    answers: Answers,
}

impl Clients {
    fn new(ycsb: &Ycsb, seed: u64, number: usize, populations: usize) -> Clients {
        Clients {
            ycsb: ycsb.clone(),
            population: Population::new(seed, number, populations, ycsb.parameters.records),
            packed: Vec::new(),
            partitions: Drawn::default(),
            answers: Answers::default(),
        }
    }

    fn draw_partitions(&mut self) {
        let Parameters { partition_theta, multi_partition, partitions_per_txn, .. } = self.ycsb.parameters;
        let random = &mut self.population.random;
        let count = if random.is_in(multi_partition) { partitions_per_txn } else { 1 };
        let partitions = self.ycsb.choice.records();
        if partition_theta == 0.0 {
            return self.partitions.draw_evenly(random, partitions, count);
        }
        self.partitions.begin(count);
        for _ in 0..count {
            let mut rank = self.ycsb.choice.rank(random);
            // The most popular ones are mostly there already.
            while !self.partitions.add(rank) {
                rank = (rank + 1) % partitions;
            }
        }
    }
}

impl Source for Clients {
    fn load(&mut self) -> Option<ProcedureId> {
        let bytes = self.ycsb.parameters.record_bytes;
        self.packed.clear();
        self.packed.extend_from_slice(&(bytes as u32).to_le_bytes());
        // At least one, because no record is longer than all of them may be.
        self.population.load(Population::LOAD_BATCH.min(LOAD_BYTES / bytes)).then_some(LOAD)
    }

    fn next(&mut self) -> Made {
        let parameters = &self.ycsb.parameters;
        let reads = self.population.random.is_in(parameters.read_only);
        let Shape { ops, hot_ops, writes } = if reads { parameters.read_only() } else { parameters.update() };
        self.draw_partitions();
        let Population { random, drawn, .. } = &mut self.population;
        drawn.begin(ops);
        let partitions = self.partitions.records().iter().cycle();
        for (i, partition) in partitions.take(ops).enumerate() {
            let pools = &self.ycsb.pools[*partition as usize];
            pools.hot.as_ref().filter(|_| i < hot_ops).unwrap_or(&pools.rest).draw(random, drawn);
        }
        drawn.look_up(&self.ycsb.partitions);
        // Exactly so many writes, every place as likely: the popular records are drawn early, so the places
        // are chosen apart from the records.
        choose(random, writes, ops, &mut self.packed);
        Made { procedure: RUN, kind: if reads { READ_ONLY } else { UPDATE } }
    }

    fn write_args(&self, args: &mut ArgsBuilder<'_>) {
        self.population.write_keys(key, args);
        args.push(&self.packed);
    }

    fn answered(&mut self, _kind: u8, status: OutcomeStatus, reply: &[u8]) {
        self.answers.count(status, reply);
    }

    fn summary(&mut self) -> Vec<u8> {
        self.answers.encoded()
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
