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
//! or of 1,000,000 (low), chosen evenly; transactions only read, or read, modify and write all, or are mixed.
//!
//! Partitions are ranges of hash slots ([`crate::pool`]), so each has about, not exactly, its share of the
//! records.

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
use crate::{Counts, Finding, Made, Param, Results, Source, Workload};

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
        /// The number of regions, each a partition with clients of its own, who use its records alone.
        pub regions: usize = 1,
        /// The number of records of each.
        pub records: u64 = 1_000_000,
        /// The number of them that a transaction uses.
        pub ops_per_txn: usize = 10,
        /// The share of transactions that only read; the others read, modify and write.
        pub read_only: f64 = 0.0,
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
        let Regions { regions, records, ops_per_txn, read_only } = parameters;
        require_share("read_only", read_only)?;
        require_in("regions", regions, 1..=REGIONS_MAX)?;
        // Slots are not quite even: the last region has its records before others have twice as many.
        require_in("records", records, 1..=MAX_RECORDS / if regions > 1 { 2 * regions as u64 } else { 1 })?;
        require_in("ops_per_txn", ops_per_txn as u64, 1..=records.min(MAX_KEYS as u64))?;
        let partitions = Partition::first_of_each(records, regions, key);
        let pools = partitions.iter().map(|of| Ok((None, Pool::whole(of, Distribution::UNIFORM)?)));
        let pools = pools.collect::<Result<_, ParameterError>>()?;
        Ok(Micro { paper: Paper::Regions(parameters), partitions, pools })
    }

    /// The number of regions, if transactions are of one each.
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
        matches!(self.paper, Paper::Calvin(_)) || kind == WRITES
    }
}

/// The most regions.
const REGIONS_MAX: usize = 64;
/// The kinds of Calvin's.
const SINGLE: u8 = 0;
const MULTI: u8 = 1;
/// The kinds of that of the regions.
const WRITES: u8 = 0;
const READS: u8 = 1;

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
            Paper::Regions(_) => &["read-modify-write", "read-only"],
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
            Paper::Regions(p) => vec![
                ("regions", Param::Int(p.regions as u64)),
                ("records", Param::Int(p.records)),
                ("ops_per_txn", Param::Int(p.ops_per_txn as u64)),
                ("read_only", Param::Real(p.read_only)),
            ],
        }
    }

    fn accesses(&self) -> Vec<f64> {
        vec![self.ops() as f64; 2]
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
            Paper::Regions(Regions { read_only, .. }) => {
                let reads = self.is_in(read_only);
                self.draw(ops, 1);
                self.pack(if reads { Run::READ } else { Run::ADD }, NEVER);
                if reads { READS } else { WRITES }
            }
        };
        Made { procedure: RUN, kind }
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

#[cfg(test)]
mod tests {
    use ordain_model::Datum;
    use ordain_model::KeyHash;
    use ordain_model::OutcomeStatus::Aborted;
    use ordain_model::key::shard_of_slot;

    use super::*;
    use crate::choice::Scatter;
    use crate::testing::{Bed, load_again, run, wrong};

    fn calvin() -> Calvin {
        Calvin {
            partitions: 4,
            records_per_partition: 500,
            contention_index: 0.1,
            multi_partition: 0.4,
            ..Calvin::default()
        }
    }

    #[test]
    fn loading_writes_over_what_there_is() {
        load_again(&Micro::calvin(calvin()).unwrap());
    }

    #[test]
    fn counters_add_up_whatever_aborts() {
        for (constraint_fails, aborts) in
            [(None, 0..1), (Some(0.0), 0..1), (Some(0.3), 60..120), (Some(1.0), 300..301)]
        {
            let micro = Micro::calvin(Calvin { constraint_fails, ..calvin() }).unwrap();
            let (_, mut seen) = run(&micro, 2, 300);
            assert_eq!(wrong(&micro.check(&seen)), [""; 0], "{constraint_fails:?}");
            assert!(aborts.contains(&seen.total().aborted), "{constraint_fails:?} {:?}", seen.total());
            seen.by_kind[1].committed += 1;
            assert!(wrong(&micro.check(&seen)).contains(&"increments"));
        }
        for dependent in [0.5, 1.0] {
            let micro = Micro::calvin(Calvin { dependent, ..calvin() }).unwrap();
            assert_eq!(wrong(&micro.check(&run(&micro, 2, 300).1)), [""; 0], "{dependent}");
        }
        for (records, read_only, reads) in [(50, 0.0, 0..1), (1_000, 0.5, 110..190), (50, 1.0, 300..301)] {
            let micro =
                Micro::regions(Regions { records, ops_per_txn: 5, read_only, ..Regions::default() }).unwrap();
            let (_, mut seen) = run(&micro, 2, 300);
            assert_eq!(wrong(&micro.check(&seen)), [""; 0]);
            assert!(reads.contains(&seen.by_kind[1].committed), "{read_only} {seen:?}");
            seen.by_kind[0].aborted += 1;
            assert_eq!(wrong(&micro.check(&seen)), ["no_aborts"]);
        }
    }

    #[test]
    fn a_failed_check_leaves_no_trace_and_a_passed_one_adds_everywhere() {
        let mut bed = Bed::new();
        bed.run(LOAD, |args| _ = args.push(&key(1)).push(&key(2)).push(&[]));
        let add = |what: u8, floor: u64| {
            move |args: &mut ArgsBuilder<'_>| {
                let mut packed = vec![what];
                packed.extend_from_slice(&floor.to_le_bytes());
                args.push(&key(1)).push(&key(2)).push(&packed);
            }
        };
        bed.run(RUN, add(Run::ADD, ALWAYS));
        bed.run(RUN, add(Run::CHECK_AND_ADD, 1));
        let digest = bed.executor.digest();
        let failed = bed.call(RUN, add(Run::CHECK_AND_ADD, 3));
        assert_eq!(failed.status, Aborted(Abort::Logic));
        assert!(matches!(Datum::first(&failed.reply), Datum::Error(text) if text.starts_with(b"CONSTRAINT")));
        assert_eq!(bed.executor.digest(), digest);
        assert_eq!(Datum::first(&bed.run(RUN, add(Run::READ, 0))), Datum::Int(4));
    }

    #[test]
    fn what_is_added_depends_on_what_is_found_elsewhere() {
        let mut bed = Bed::new();
        bed.run(LOAD, |args| _ = args.push(&key(1)).push(&key(2)).push(&[]));
        let call = |what: u8, keys: &'static [u64]| {
            move |args: &mut ArgsBuilder<'_>| {
                keys.iter().for_each(|record| _ = args.push(&key(*record)));
                args.push(&[what, 0, 0, 0, 0, 0, 0, 0, 0]);
            }
        };
        let mut found =
            |record: &'static [u64]| Datum::first(&bed.run(RUN, call(Run::READ, record))).as_int();
        assert_eq!((found(&[1]), found(&[2])), (Some(0), Some(0)));
        bed.run(RUN, call(Run::ADD, &[1]));
        // It is odd: one more for itself, and one for the other; and then it is even.
        for expected in [(2, 1), (4, 1)] {
            bed.run(RUN, call(Run::DEPEND, &[1, 2]));
            let mut found =
                |record: &'static [u64]| Datum::first(&bed.run(RUN, call(Run::READ, record))).as_int();
            assert_eq!((found(&[1]), found(&[2])), (Some(expected.0), Some(expected.1)));
        }
        assert!(bed.refuses(RUN, &[&key(1)[..], &[Run::DEPEND, 0, 0, 0, 0, 0, 0, 0, 0]]), "a half");
    }

    #[test]
    fn one_record_of_each_partition_is_hot_and_hot_ones_and_partitions_are_even() {
        let micro = Micro::calvin(calvin()).unwrap();
        let divided = Partition::divide(2_000, 4, key);
        let hot_of = |partition: &Partition| {
            let scatter = Scatter::new(partition.count());
            (0..10).map(|rank| partition.record(scatter.place(rank))).collect::<Vec<_>>()
        };
        let hot: Vec<u64> = divided.iter().flat_map(hot_of).collect();
        let mut clients = Clients::new(&micro, 3, 0, 1);
        let (mut several, mut draws, mut used) = (0u32, vec![0u32; hot.len()], 0u32);
        const TXNS: u32 = 20_000;
        for _ in 0..TXNS {
            let made = clients.next();
            let partitions = 1 + u32::from(made.kind == MULTI);
            several += partitions - 1;
            used += partitions;
            let mut ops = [(0, 0); 4];
            for record in clients.population.drawn.records() {
                let at = shard_of_slot(KeyHash::of(&key(*record)).slot(), 4);
                ops[at].0 += 1;
                if let Some(i) = hot.iter().position(|hot| hot == record) {
                    ops[at].1 += 1;
                    draws[i] += 1;
                }
            }
            ops.sort_unstable();
            let expected = if partitions == 2 {
                [(0, 0), (0, 0), (5, 1), (5, 1)]
            } else {
                [(0, 0), (0, 0), (0, 0), (10, 1)]
            };
            assert_eq!(ops, expected);
        }
        assert!((8_000 - 350..8_000 + 350).contains(&several), "{several}");
        // A hot record is drawn as often as any other of the 40: within five standard deviations.
        let mean = f64::from(used) / 40.0;
        assert!(draws.iter().all(|n| (f64::from(*n) - mean).abs() < 5.0 * mean.sqrt()), "{draws:?}");
    }

    #[test]
    fn clients_at_home_want_something_of_their_own_node_s_partition_first() {
        let micro = Micro::calvin(Calvin { at_home: true, ..calvin() }).unwrap();
        for (number, populations, home) in [(0, 4, 0..1), (3, 4, 3..4), (5, 8, 2..3), (1, 2, 2..4)] {
            let mut clients = Clients::new(&micro, 3, number, populations);
            let mut seen = [false; 4];
            for _ in 0..500 {
                clients.next();
                let partition = |record: &u64| shard_of_slot(KeyHash::of(&key(*record)).slot(), 4);
                let used: Vec<usize> = clients.population.drawn.records().iter().map(partition).collect();
                assert!(home.contains(&used[0]));
                used.iter().for_each(|partition| seen[*partition] = true);
            }
            assert_eq!(seen, [true; 4], "the second partition is any other");
        }
    }

    #[test]
    fn clients_of_a_region_load_use_and_audit_its_records_alone() {
        let micro = Micro::regions(Regions { regions: 2, records: 100, ..Regions::default() }).unwrap();
        assert_eq!((micro.audits().len(), micro.records()), (0, 200));
        let region = |record: &u64| shard_of_slot(KeyHash::of(&key(*record)).slot(), 2);
        let mut loaded = [0; 2];
        for number in 0..4 {
            let mut clients = Clients::new(&micro, 3, number, 4);
            let mut own = std::collections::BTreeSet::new();
            while clients.load().is_some() {
                own.extend(clients.population.drawn.records().iter().copied());
            }
            assert!(own.iter().all(|record| region(record) == number / 2));
            loaded[number / 2] += own.len();
            for _ in 0..50 {
                clients.next();
                assert!(clients.population.drawn.records().iter().all(|of| region(of) == number / 2));
            }
            let mut audited = std::collections::BTreeSet::new();
            while clients.audit().is_some() {
                audited.extend(clients.population.drawn.records().iter().copied());
            }
            assert_eq!(own, audited);
        }
        assert_eq!(loaded, [100, 100]);
    }

    #[test]
    fn audits_of_parts_add_up() {
        let micro = Micro::regions(Regions { regions: 2, records: 10, ..Regions::default() }).unwrap();
        let part = |records, sum| {
            let mut out = Vec::new();
            let found = Numbers { records, sum, damaged: 0 };
            Audited { found, ..Audited::default() }.write(&mut out);
            out
        };
        let by_kind = vec![Counts { committed: 3, ..Counts::default() }, Counts::default()];
        let of =
            |audits| wrong(&micro.check(&Results { audits, by_kind: by_kind.clone(), ..Results::default() }));
        assert_eq!(of(vec![part(12, 10), part(8, 20)]), [""; 0]);
        assert_eq!(of(vec![part(12, 10), part(8, 19)]), ["increments"]);
        assert_eq!(of(vec![part(12, 10), part(7, 20)]), ["records"]);
        assert_eq!(of(vec![part(20, 30), Vec::new()]), ["audit"]);
        let mut bed = Bed::new();
        bed.run(LOAD, |args| _ = args.push(&key(1)).push(&key(2)).push(&[]));
        bed.run(RUN, |args| _ = args.push(&key(2)).push(&[Run::ADD, 0, 0, 0, 0, 0, 0, 0, 0]));
        let reply = bed.run(COUNT, |args| _ = args.push(&key(1)).push(&key(2)).push(&key(3)).push(&[]));
        let found = Audited::<Numbers>::read(&reply).unwrap().found;
        assert_eq!(found, Numbers { records: 2, sum: 1, damaged: 0 });
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let refused = |calvin: Calvin| Micro::calvin(calvin).unwrap_err().to_string();
        for (parameters, name) in [
            (Calvin { partitions: 0, ..calvin() }, "partitions"),
            (Calvin { records_per_partition: 0, ..calvin() }, "records_per_partition"),
            (Calvin { records_per_partition: u64::MAX, ..calvin() }, "records_per_partition"),
            (Calvin { contention_index: 0.0, ..calvin() }, "contention_index"),
            (Calvin { contention_index: f64::NAN, ..calvin() }, "contention_index"),
            (Calvin { contention_index: 0.001, ..calvin() }, "contention_index 0.001 makes 1000"),
            (Calvin { multi_partition: 2.0, ..calvin() }, "multi_partition"),
            (Calvin { partitions: 1, ..calvin() }, "multi_partition"),
            (Calvin { ops_per_txn: 0, ..calvin() }, "ops_per_txn"),
            (Calvin { ops_per_txn: 9, ..calvin() }, "even"),
            (Calvin { constraint_fails: Some(-0.1), ..calvin() }, "constraint_fails"),
        ] {
            assert!(refused(parameters).contains(name), "{name}");
        }
        let refused = |regions: Regions| Micro::regions(regions).unwrap_err().to_string();
        assert!(refused(Regions { records: 0, ..Regions::default() }).contains("records"));
        assert!(refused(Regions { regions: 0, ..Regions::default() }).contains("regions"));
        assert!(refused(Regions { records: 9, ..Regions::default() }).contains("ops_per_txn"));
        assert!(refused(Regions { read_only: 1.5, ..Regions::default() }).contains("read_only"));
    }

    #[test]
    fn damaged_arguments_are_refused() {
        let bed = Bed::new();
        assert!(bed.refuses(RUN, &[&key(1)[..], &[3; 9]]));
        assert!(bed.refuses(RUN, &[&key(1)[..], &[0; 8]]));
        assert!(bed.refuses(RUN, &[&key(1)[1..], &[0; 10]]));
        assert!(bed.refuses::<&[u8]>(RUN, &[]));
        assert!(bed.refuses(LOAD, &[&key(1)[..], &[0]]));
    }
}
