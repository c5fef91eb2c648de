//! The microbenchmarks of two papers, which share their procedures: so many operations on counters, all reads
//! or all read-modify-writes.
//!
//! **Calvin** (the Calvin paper, section 6.2; calvin.md, section 7). Every partition has a small set of hot
//! records, the inverse of the *contention index*. A transaction reads ten records, checks a constraint on
//! what it read, and adds one to each if the check passed: one hot and nine cold records of one partition, or
//! one hot and four cold on each of two. The constraint here is that no counter is below a floor; how often
//! it is set to fire is a knob, and so is leaving it out, as the paper's public code does.
//!
//! **Regions** (the paper's evaluation; regions.md, section 7). Ten or five records of 50 (high contention)
//! or of 1,000,000 (low), chosen evenly; transactions only read, or read, modify and write all, or are mixed. A
//! share of them is of two regions (section 7, F1): half of the records are at home, the others in another region.
//!
//! Partitions are ranges of hash slots ([`crate::pool`]), so each has about, not exactly, its share of the
//! records.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use ordain_model::args::Arg;
use ordain_model::key::{MAX_KEYS, SLOTS};
use ordain_model::{
    Abort, Access, Args, ArgsBuilder, Cell, Datum, Db, FragmentContext, OutcomeStatus, PlanError, Planner,
    Procedure, ProcedureId, Registry, ReplyContext, Writer, system,
};

use crate::aggregate::Aggregate;
use crate::audit::{self, Audited, Numbers};
use crate::choice::{Distribution, MAX_RECORDS};
use crate::packed::{self, KEY_BYTES, damaged, split, tail, tail_number};
use crate::parameters::{ParameterError, parameters, require, require_in, require_share};
use crate::pool::{Drawn, Partition, Pool, share_of};
use crate::population::Population;
use crate::reads::{Answers, answer_sum};
use crate::{Class, Counts, Finding, Made, Param, Results, Source, Workload};

/// Sets counters to 0. Arguments: keys, then nothing, 0 bytes.
pub const LOAD: ProcedureId = ProcedureId(1020);
/// Reads counters, or adds one to each. Arguments: keys, then what to do with all of them, 1 byte (0 reads, 1
/// adds, 2 adds if no counter is below the floor, 3 adds to each of the latter half by what it finds in its counterpart of
/// the first: together two), and the floor, 8 bytes. Answers the sum of what it only read, or aborts with an error that
/// begins with `CONSTRAINT`.
pub const RUN: ProcedureId = ProcedureId(1021);
/// Reads everything. No arguments. Answers [`Numbers`]: what the counters add up to.
pub const AUDIT: ProcedureId = ProcedureId(1022);

/// Reads counters. Arguments: keys, then nothing, 0 bytes. Answers [`Numbers`] of these alone, without a
/// digest; a record that is damaged is not counted.
pub const COUNT: ProcedureId = ProcedureId(1023);

/// The database of the records.
pub const DB: Db = Db(0);
/// The length of the packed argument of [`RUN`].
const PACKED_BYTES: usize = 1 + 8;
/// A floor that no counter comes below, and one that every counter is below.
const NEVER: u64 = 0;
const ALWAYS: u64 = u64::MAX;

const DAMAGED: PlanError = damaged!("a microbenchmark's procedure");

pub(crate) fn register(registry: &mut Registry) {
    registry.register_native(LOAD, "micro.load", Arc::new(Load));
    registry.register_native(RUN, "micro.run", Arc::new(Run));
    registry.register_native(COUNT, "micro.count", Arc::new(Count));
    registry.register_native(AUDIT, "micro.audit", audit::procedure(|table| audit::fold(table, DB, see)));
}

/// The key of a record.
#[inline]
pub const fn key(record: u64) -> [u8; KEY_BYTES] {
    packed::key(b'm', record)
}

fn counter(content: &[u8]) -> Option<u64> {
    content.try_into().ok().map(u64::from_le_bytes)
}

/// Adds a record to the audit: its counter, if it is a record of ours.
fn see(numbers: &mut Numbers, key: &[u8], cell: &Cell) {
    numbers.add(packed::record_of(b'm', key).and(cell.string()).and_then(counter));
}

struct Load;

impl Procedure for Load {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (mut keys, _) = split(args, KEY_BYTES, 0).ok_or(DAMAGED)?;
        keys.try_for_each(|key| {
            planner.key_in(DB, 0, Access::Write, key.ok_or(DAMAGED)?)?;
            planner.silent();
            planner.blind();
            Ok(())
        })
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        cx.cell_mut().put_string(&[0; 8]);
        Ok(())
    }

    fn reply(&self, _cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).ok();
    }
}

struct Count;

impl Procedure for Count {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (mut keys, _) = split(args, KEY_BYTES, 0).ok_or(DAMAGED)?;
        keys.try_for_each(|key| planner.key_in(DB, 0, Access::Read, key.ok_or(DAMAGED)?).map(drop))
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        match cx.cell().string().and_then(counter) {
            Some(count) => cx.writer().int(count as i64),
            None => cx.writer().nil(),
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let mut audited = Audited::<Numbers>::default();
        for slot in 0..cx.count {
            if let Some(count) = Datum::first(cx.slot(slot)).as_int() {
                audited.found.add(Some(count as u64));
            }
        }
        audited.write(out);
    }
}

/// The codes of its fragments are what is to be done with the records.
struct Run;

impl Run {
    const READ: u8 = 0;
    const ADD: u8 = 1;
    const CHECK_AND_ADD: u8 = 2;
    const DEPEND: u8 = 3;

    /// Of [`Run::DEPEND`] the fragments of the first half and the latter.
    const GIVE: u16 = 3;
    const TAKE: u16 = 4;

    /// Every record of the latter half is written by what was found in its counterpart.
    fn plan_dependent<'a>(
        keys: impl Iterator<Item = Option<Arg<'a>>>,
        count: usize,
        planner: &mut Planner<'_>,
    ) -> Result<(), PlanError> {
        if count % 2 == 1 {
            return Err(DAMAGED);
        }
        let mut given = Vec::with_capacity(count / 2);
        for (i, key) in keys.enumerate() {
            let key = key.ok_or(DAMAGED)?;
            if i < count / 2 {
                given.push(planner.key_in(DB, Run::GIVE, Access::Write, key)?);
            } else {
                planner.key_in(DB, Run::TAKE, Access::Write, key)?;
                planner.input(given[i - count / 2]);
            }
            planner.silent();
        }
        Ok(())
    }
}

impl Procedure for Run {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (keys, packed) = split(args, KEY_BYTES, PACKED_BYTES).ok_or(DAMAGED)?;
        let what = packed[0];
        if what > Run::DEPEND {
            return Err(DAMAGED);
        }
        if what == Run::DEPEND {
            return Run::plan_dependent(keys, args.len() - 1, planner);
        }
        let access = if what == Run::READ { Access::Read } else { Access::Write };
        for key in keys {
            planner.key_in(DB, what.into(), access, key.ok_or(DAMAGED)?)?;
            if what != Run::READ {
                planner.silent();
            }
            if what == Run::CHECK_AND_ADD {
                planner.abortable();
            }
        }
        Ok(())
    }

    #[inline]
    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let count = cx.cell().string().and_then(counter);
        if code == u16::from(Run::READ) {
            match count {
                Some(count) => cx.writer().int(count as i64),
                None => cx.writer().nil(),
            }
            return Ok(());
        }
        let count = count.unwrap_or(0);
        if code == u16::from(Run::CHECK_AND_ADD) && count < tail_number(cx.args) {
            cx.writer().error("CONSTRAINT a counter is below the floor");
            return Err(Abort::Logic);
        }
        let more = match code {
            Run::GIVE => {
                cx.writer().int((count % 2) as i64);
                2 - count % 2
            }
            Run::TAKE => cx.inputs.get(0).as_int().unwrap_or(0) as u64,
            _ => 1,
        };
        cx.cell_mut().put_string(&count.wrapping_add(more).to_le_bytes());
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let what = tail(cx.args(), PACKED_BYTES).first();
        answer_sum(cx, (0..cx.count).filter(|_| what == Some(&Run::READ)), out);
    }
}

parameters! {
    /// The Calvin paper's microbenchmark. The defaults are the paper's, on one partition.
    pub struct Calvin {
        /// The number of partitions.
        pub partitions: usize = 1,
        /// The number of records of each, about.
        pub records_per_partition: u64 = 1_000_000,
        /// The share of a partition's hot records that a transaction there updates: the inverse of their number.
        pub contention_index: f64 = 0.0001,
        /// The share of transactions on two partitions.
        pub multi_partition: f64 = 0.0,
        /// The number of records that a transaction updates, one or two hot ones included.
        pub ops_per_txn: usize = 10,
        /// The share of transactions whose check of a constraint fails; `None` if none is checked.
        pub constraint_fails: Option<f64> = Some(0.0),
        /// The share of transactions in which half of the records are updated by what was found in the others: with two
        /// partitions, in the other one. They check nothing.
        pub dependent: f64 = 0.0,
        /// True if the (first) partition of a transaction is that of the node which its client is connected to, as in the
        /// paper, where every machine makes up its own; otherwise clients use any node.
        pub at_home: bool = false,
    }
}

parameters! {
    /// The regions paper's microbenchmark. The defaults are the paper's: high contention is 50
    /// records.
    pub struct Regions {
        /// The number of regions, each a partition with clients of its own. Transactions of one region use its records alone.
        pub regions: usize = 1,
        /// The number of records of each.
        pub records: u64 = 1_000_000,
        /// The number of them that a transaction uses.
        pub ops_per_txn: usize = 10,
        /// The share of transactions that only read; the others read, modify and write.
        pub read_only: f64 = 0.0,
        /// The share of transactions of two regions.
        pub multi_region: f64 = 0.0,
        /// The share of a region's clients that ask for those and nothing else, where clients have
        /// [classes](Workload::classes).
        pub multi_region_clients: f64 = 0.5,
    }
}

/// One of the two workloads.
#[derive(Clone, Debug)]
pub struct Micro {
    paper: Paper,
    partitions: Arc<[Partition]>,
    /// For each partition the pool of its hot records, if there are some, and that of the others.
    pools: Arc<[(Option<Pool>, Pool)]>,
}

#[derive(Clone, Debug)]
enum Paper {
    Calvin(Calvin),
    Regions(Regions),
}

impl Micro {
    /// The Calvin paper's microbenchmark.
    ///
    /// # Errors
    /// A parameter that makes no sense, by name.
    pub fn calvin(parameters: Calvin) -> Result<Micro, ParameterError> {
        let Calvin {
            partitions,
            records_per_partition: per_partition,
            contention_index: index,
            multi_partition,
            ops_per_txn: ops,
            ..
        } = parameters;
        require_in("partitions", partitions, 1..=SLOTS)?;
        let records = per_partition.saturating_mul(partitions as u64);
        require((1..=MAX_RECORDS).contains(&records), || {
            format!(
                "records_per_partition {per_partition} on {partitions} partitions must be 1 to {MAX_RECORDS} together"
            )
        })?;
        require(index > 0.0 && index <= 1.0, || {
            format!("contention_index must be more than 0 and at most 1, not {index}")
        })?;
        require_share("multi_partition", multi_partition)?;
        require_share("constraint_fails", parameters.constraint_fails.unwrap_or(0.0))?;
        require_share("dependent", parameters.dependent)?;
        require(multi_partition == 0.0 || partitions > 1, || {
            format!("multi_partition {multi_partition} needs partitions to be 2 or more")
        })?;
        require_in("ops_per_txn", ops, 1..=MAX_KEYS)?;
        let has_halves = multi_partition > 0.0 || parameters.dependent > 0.0;
        require(!has_halves || ops.is_multiple_of(2), || {
            format!(
                "ops_per_txn must be even where transactions have two partitions or are dependent, not {ops}"
            )
        })?;
        // One record stays cold even if none is used, so that there is a choice.
        let (hot, cold) = ((1.0 / index).round() as u64, (ops - 1).max(1));
        let partitions = Partition::divide(records, partitions, key);
        let pools = partitions.iter().enumerate().map(|(number, partition)| {
            let there = partition.count();
            require(there.saturating_sub(hot) >= cold as u64, || {
                format!(
                    "contention_index {index} makes {hot} of partition {number}'s {there} records hot: \
                     {cold} must be cold"
                )
            })?;
            let (hot, cold) = Pool::hot_and_cold(partition, hot, Distribution::UNIFORM)?;
            Ok((Some(hot), cold))
        });
        let pools = pools.collect::<Result<_, ParameterError>>()?;
        Ok(Micro { paper: Paper::Calvin(parameters), partitions, pools })
    }

    /// The regions paper's microbenchmark.
    ///
    /// # Errors
    /// A parameter that makes no sense, by name.
    pub fn regions(parameters: Regions) -> Result<Micro, ParameterError> {
        let Regions { regions, records, ops_per_txn, read_only, multi_region, multi_region_clients } =
            parameters;
        require_share("read_only", read_only)?;
        require_share("multi_region", multi_region)?;
        require_share("multi_region_clients", multi_region_clients)?;
        require(multi_region == 0.0 || regions > 1, || {
            format!("multi_region {multi_region} needs regions to be 2 or more")
        })?;
        require(multi_region == 0.0 || ops_per_txn.is_multiple_of(2), || {
            format!("ops_per_txn must be even where transactions have two regions, not {ops_per_txn}")
        })?;
        require_in("regions", regions, 1..=REGIONS_MAX)?;
        // Slots are not quite even: the last region has its records before others have twice as many.
        require_in("records", records, 1..=MAX_RECORDS / if regions > 1 { 2 * regions as u64 } else { 1 })?;
        require_in("ops_per_txn", ops_per_txn as u64, 1..=records.min(MAX_KEYS as u64))?;
        let partitions = Partition::first_of_each(records, regions, key);
        let pools = partitions.iter().map(|of| Ok((None, Pool::whole(of, Distribution::UNIFORM)?)));
        let pools = pools.collect::<Result<_, ParameterError>>()?;
        Ok(Micro { paper: Paper::Regions(parameters), partitions, pools })
    }

    /// The number of regions, if each has clients of its own.
    fn homes(&self) -> Option<usize> {
        match &self.paper {
            Paper::Regions(Regions { regions, .. }) if *regions > 1 => Some(*regions),
            _ => None,
        }
    }

    fn ops(&self) -> usize {
        match &self.paper {
            Paper::Calvin(Calvin { ops_per_txn, .. }) | Paper::Regions(Regions { ops_per_txn, .. }) => {
                *ops_per_txn
            }
        }
    }

    fn records(&self) -> u64 {
        match &self.paper {
            Paper::Calvin(calvin) => calvin.records_per_partition * calvin.partitions as u64,
            Paper::Regions(regions) => regions.records * regions.regions as u64,
        }
    }

    /// True if transactions of a kind add to what they use.
    fn adds(&self, kind: u8) -> bool {
        matches!(self.paper, Paper::Calvin(_)) || kind == WRITES || kind == MULTI_WRITES
    }
}

/// The kind of transactions that read, modify and write records of one region.
pub const ONE_REGION: &str = "read-modify-write";
/// The kind of those that read, modify and write records of two regions.
pub const MULTI_REGION: &str = "multi-region read-modify-write";
/// The most regions.
const REGIONS_MAX: usize = 64;
/// The kinds of Calvin's.
const SINGLE: u8 = 0;
const MULTI: u8 = 1;
/// The kinds of that of the regions.
const WRITES: u8 = 0;
const READS: u8 = 1;
const MULTI_WRITES: u8 = 2;
const MULTI_READS: u8 = 3;
/// The class of clients that ask for transactions of two regions, where [there are classes](Micro::classes).
const MULTI_CLASS: usize = 1;

impl Workload for Micro {
    fn name(&self) -> &'static str {
        match self.paper {
            Paper::Calvin(_) => "micro",
            Paper::Regions(_) => "micro-regions",
        }
    }

    fn kinds(&self) -> &'static [&'static str] {
        match self.paper {
            Paper::Calvin(_) => &["single-partition", "multi-partition"],
            Paper::Regions(_) => &[ONE_REGION, "read-only", MULTI_REGION, "multi-region read-only"],
        }
    }

    fn params(&self) -> Vec<(&'static str, Param)> {
        match &self.paper {
            Paper::Calvin(p) => {
                let mut params = vec![
                    ("partitions", Param::Int(p.partitions as u64)),
                    ("records_per_partition", Param::Int(p.records_per_partition)),
                    ("contention_index", Param::Real(p.contention_index)),
                    ("multi_partition", Param::Real(p.multi_partition)),
                    ("ops_per_txn", Param::Int(p.ops_per_txn as u64)),
                ];
                params.push(match p.constraint_fails {
                    Some(share) => ("constraint_fails", Param::Real(share)),
                    None => ("constraint_fails", Param::Text("unchecked".to_owned())),
                });
                if p.dependent > 0.0 {
                    params.push(("dependent", Param::Real(p.dependent)));
                }
                if p.at_home {
                    params.push(("clients_at", Param::Text("home".to_owned())));
                }
                params
            }
            Paper::Regions(p) => {
                let mut params = vec![
                    ("regions", Param::Int(p.regions as u64)),
                    ("records", Param::Int(p.records)),
                    ("ops_per_txn", Param::Int(p.ops_per_txn as u64)),
                    ("read_only", Param::Real(p.read_only)),
                ];
                if p.multi_region > 0.0 {
                    params.push(("multi_region", Param::Real(p.multi_region)));
                    params.push(("multi_region_clients", Param::Real(p.multi_region_clients)));
                }
                params
            }
        }
    }

    fn accesses(&self) -> Vec<f64> {
        vec![self.ops() as f64; self.kinds().len()]
    }

    fn classes(&self) -> Vec<Class> {
        match self.paper {
            Paper::Regions(Regions { multi_region, multi_region_clients: clients, .. })
                if multi_region > 0.0 && multi_region < 1.0 =>
            {
                // Those of one region are not held back, however slow the others are.
                vec![Class { clients: 1.0 - clients, at_most: 1.0 }, Class { clients, at_most: multi_region }]
            }
            _ => Vec::new(),
        }
    }

    fn source(&self, seed: u64, number: usize, populations: usize) -> Box<dyn Source> {
        Box::new(Clients::new(self, seed, number, populations))
    }

    fn audit(&self) -> ProcedureId {
        AUDIT
    }

    fn audits(&self) -> Vec<ProcedureId> {
        if self.is_audited_at_home() { Vec::new() } else { vec![AUDIT, system::DIGEST] }
    }

    fn is_audited_at_home(&self) -> bool {
        self.homes().is_some()
    }

    fn check(&self, results: &Results) -> Vec<Finding> {
        if self.is_audited_at_home() {
            let Some(numbers) = audit::of_parts::<Numbers>(results) else {
                return vec![Finding::of("audit", Some("an audit was not answered".to_owned()))];
            };
            return self.findings(results, numbers).into();
        }
        audit::check(results, |numbers: Numbers, digest| {
            let [increments, records, answers, aborts] = self.findings(results, numbers);
            vec![increments, records, digest, answers, aborts]
        })
    }
}

impl Micro {
    /// What must hold of the counters.
    fn findings(&self, results: &Results, numbers: Numbers) -> [Finding; 4] {
        let (sum, ops) = (numbers.sum, self.ops() as u64);
        let adding = (0..).zip(&results.by_kind).filter(|(kind, _)| self.adds(*kind));
        let committed: u64 = adding.map(|(_, counts)| counts.committed).sum();
        let aborts = match &self.paper {
            Paper::Calvin(Calvin { constraint_fails: Some(share), .. }) if *share > 0.0 => {
                let Counts { committed, restarted_out, .. } = results.total();
                Finding::new("constraint", restarted_out == 0 && (*share < 1.0 || committed == 0), || {
                    format!(
                        "{committed} committed, {restarted_out} restarted in vain; {share} of all were to fail"
                    )
                })
            }
            _ => results.no_aborts(),
        };
        [
            Finding::new("increments", sum == committed * ops, || {
                format!(
                    "the counters add up to {sum}, and {committed} updates of {ops} counters were committed"
                )
            }),
            numbers.finding(self.records()),
            Answers::finding(results),
            aborts,
        ]
    }
}

/// One population of clients.
#[derive(Clone, Debug)]
struct Clients {
    micro: Micro,
    population: Population,
    /// The partitions of the clients' own node, if they use no others.
    home: Option<std::ops::Range<u64>>,
    /// The bytes behind the keys of the transaction made up last: what is to be done with the records, or nothing.
    packed: Vec<u8>,
    /// The records that it has loaded and not audited yet, where each population audits its own.
    to_audit: Vec<u64>,
    /// The partitions of the transaction made up last.
    partitions: Drawn,
    answers: Answers,
}

impl Clients {
    fn new(micro: &Micro, seed: u64, number: usize, populations: usize) -> Clients {
        let is_at_home =
            matches!(micro.paper, Paper::Calvin(Calvin { at_home: true, .. })) || micro.homes().is_some();
        let home = is_at_home.then(|| {
            let home = share_of(micro.pools.len() as u64, number, populations);
            // Where there are more loops than partitions, several have one.
            home.start..home.end.max(home.start + 1)
        });
        let population = match micro.homes().zip(home.as_ref()) {
            Some((regions, home)) => {
                // As many populations are in each region, one after the other.
                let each = (populations / regions).max(1);
                let of = &micro.partitions[home.start as usize];
                Population::loading(seed, number, of.drawn(share_of(of.count(), number % each, each)))
            }
            None => Population::new(seed, number, populations, micro.records()),
        };
        Clients {
            home,
            micro: micro.clone(),
            population,
            to_audit: Vec::new(),
            packed: Vec::new(),
            partitions: Drawn::default(),
            answers: Answers::default(),
        }
    }

    /// Draws so many records for a transaction on so many partitions: one hot of each, if some are, and the
    /// rest.
    fn draw(&mut self, ops: usize, partitions: usize) {
        let Population { random, drawn, .. } = &mut self.population;
        let pools = &self.micro.pools;
        self.partitions.begin(partitions);
        if let Some(home) = &self.home {
            self.partitions.add(home.start + random.below(home.end - home.start));
        }
        self.partitions.draw_rest(random, pools.len() as u64, partitions);
        drawn.begin(ops);
        for partition in self.partitions.records() {
            let (hot, rest) = &pools[*partition as usize];
            for i in 0..ops / partitions {
                hot.as_ref().filter(|_| i == 0).unwrap_or(rest).draw(random, drawn);
            }
        }
        drawn.look_up(&self.micro.partitions);
    }

    /// Draws a transaction of one region or of two, which only reads or not; returns its kind.
    fn draw_in_regions(&mut self, read_only: f64, is_multi: bool) -> u8 {
        let reads = self.is_in(read_only);
        self.draw(self.micro.ops(), if is_multi { 2 } else { 1 });
        self.pack(if reads { Run::READ } else { Run::ADD }, NEVER);
        match (is_multi, reads) {
            (false, false) => WRITES,
            (false, true) => READS,
            (true, false) => MULTI_WRITES,
            (true, true) => MULTI_READS,
        }
    }

    /// Writes down what is to be done with the records.
    fn pack(&mut self, what: u8, floor: u64) {
        self.packed.clear();
        self.packed.push(what);
        self.packed.extend_from_slice(&floor.to_le_bytes());
    }

    fn is_in(&mut self, share: f64) -> bool {
        self.population.random.is_in(share)
    }
}

impl Source for Clients {
    fn load(&mut self) -> Option<ProcedureId> {
        self.packed.clear();
        let is_any = self.population.load(Population::LOAD_BATCH);
        if self.micro.is_audited_at_home() {
            self.population.drawn.look_up(&self.micro.partitions);
            self.to_audit.extend(self.population.drawn.records());
        }
        is_any.then_some(LOAD)
    }

    fn audit(&mut self) -> Option<ProcedureId> {
        self.packed.clear();
        let drawn = &mut self.population.drawn;
        drawn.begin(Population::LOAD_BATCH);
        let rest = self.to_audit.len().saturating_sub(Population::LOAD_BATCH);
        self.to_audit.drain(rest..).for_each(|record| _ = drawn.add(record));
        (!drawn.records().is_empty()).then_some(COUNT)
    }

    fn next(&mut self) -> Made {
        let ops = self.micro.ops();
        let kind = match self.micro.paper {
            Paper::Calvin(Calvin { multi_partition, constraint_fails, dependent, .. }) => {
                let several = self.is_in(multi_partition);
                self.draw(ops, if several { 2 } else { 1 });
                match constraint_fails {
                    _ if self.is_in(dependent) => self.pack(Run::DEPEND, NEVER),
                    Some(share) => {
                        let floor = if self.is_in(share) { ALWAYS } else { NEVER };
                        self.pack(Run::CHECK_AND_ADD, floor);
                    }
                    None => self.pack(Run::ADD, NEVER),
                }
                if several { MULTI } else { SINGLE }
            }
            Paper::Regions(Regions { read_only, multi_region, .. }) => {
                let is_multi = self.is_in(multi_region);
                self.draw_in_regions(read_only, is_multi)
            }
        };
        Made { procedure: RUN, kind }
    }

    fn next_of(&mut self, class: usize) -> Made {
        match self.micro.paper {
            Paper::Regions(Regions { read_only, .. }) => {
                let kind = self.draw_in_regions(read_only, class == MULTI_CLASS);
                Made { procedure: RUN, kind }
            }
            Paper::Calvin(_) => self.next(),
        }
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
