//! Append: lists to which transactions append numbers of their own, and which they read, as in
//! Jepsen's list-append test. What was read, and the lists at the end, prove how isolated the transactions
//! were.
//!
//! A list is a string to which 8 bytes are appended, as APPEND does. The answer of a transaction has what it
//! did and saw ([`history`]); the judge of [`ordain_checker`] looks at all of them together.
//!
//! Two things are bounded. A list is given up for a fresh one when it has got so many appends, so that reads
//! stay short. And only the first transactions of each population are kept to be checked; later ones go to
//! lists of their own, of which only the appends are counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_model::key::MAX_VALUE_LEN;
use ordain_model::procedure::Target;
use ordain_model::{
    Abort, Access, Args, ArgsBuilder, Cell, Datum, Db, FragmentContext, OutcomeStatus, PlanError, Planner,
    Procedure, ProcedureId, Registry, ReplyContext, SlotNo, Writer,
};

use crate::aggregate::{Aggregate, word};
use crate::audit;
use crate::choice::{Choice, Distribution};
use crate::packed::{self, KEY_BYTES, damaged, split, tail_number};
use crate::parameters::{ParameterError, parameters, require_in, require_share};
use crate::{Counts, Finding, Made, Param, Results, Source, Times, Workload};
use ordain_checker::dependencies::findings;
use ordain_checker::dependencies::history::{self, HistoryWriter, MAX_OPS, Op, Recorded, Txn};
use ordain_checker::{Anomaly, Bound, Level};
use ordain_model::Random;

/// Appends to lists and reads them. Arguments: keys, one for each operation, then a bit for each that says
/// whether it appends, 1 byte that says whether the last operation fails, and the transaction's base, 8
/// bytes. Operation i appends base + i. Answers the transaction, encoded ([`Txn`]); or aborts with `DOOMED`
/// and the base.
pub const RUN: ProcedureId = ProcedureId(1030);
/// Reads everything. No arguments. Answers [`Lists`].
pub const AUDIT: ProcedureId = ProcedureId(1031);

/// The database of the lists.
pub const DB: Db = Db(0);
/// Lists from this number on are not kept to be checked.
pub const LOOSE: u64 = 1 << 63;

const DAMAGED: PlanError = damaged!("an append procedure");

pub(crate) fn register(registry: &mut Registry) {
    registry.register_native(RUN, "append.run", Arc::new(Run));
    registry.register_native(
        AUDIT,
        "append.audit",
        audit::procedure(|table| audit::fold(table, DB, Lists::add)),
    );
}

/// The key of a list.
#[inline]
pub const fn key(list: u64) -> [u8; KEY_BYTES] {
    packed::key(b'a', list)
}

struct Run;

impl Run {
    const READ: u16 = 0;
    const APPEND: u16 = 1;
    /// Added to the code of an operation that fails.
    const FAILS: u16 = 2;

    fn mask_bytes(ops: usize) -> usize {
        ops.div_ceil(8)
    }

    fn packed_bytes(ops: usize) -> usize {
        Run::mask_bytes(ops) + 1 + 8
    }

    fn appends(packed: &[u8], op: usize) -> bool {
        packed.get(op / 8).is_some_and(|byte| byte >> (op % 8) & 1 == 1)
    }

    /// The number of the operation whose key stands there.
    fn op_at(key_at: u32) -> u64 {
        const WORD: u64 = 4;
        (u64::from(key_at) - WORD) / (WORD + KEY_BYTES as u64)
    }
}

impl Procedure for Run {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let ops = args.len().saturating_sub(1);
        if !(1..=MAX_OPS).contains(&ops) {
            return Err(DAMAGED);
        }
        let (keys, packed) = split(args, KEY_BYTES, Run::packed_bytes(ops)).ok_or(DAMAGED)?;
        let fails = packed[Run::mask_bytes(ops)] != 0;
        for (op, key) in keys.enumerate() {
            let key = key.ok_or(DAMAGED)?;
            let is_last_and_fails = fails && op + 1 == ops;
            let code = if is_last_and_fails { Run::FAILS } else { 0 };
            if Run::appends(packed, op) {
                planner.key_in(DB, code + Run::APPEND, Access::Write, key)?;
                planner.silent();
            } else {
                planner.key_in(DB, code + Run::READ, Access::Read, key)?;
            }
            if is_last_and_fails {
                planner.abortable();
            }
        }
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code % Run::FAILS == Run::READ {
            let FragmentContext { target, out, .. } = cx;
            let list = match target {
                Target::Read(cell) => cell.string(),
                Target::Write(cell) => cell.string(),
                Target::Table(_) | Target::Compute(_) => None,
            };
            Writer(out).bulk(list.unwrap_or_default());
        } else {
            let value = tail_number(cx.args).wrapping_add(Run::op_at(cx.key.at)).to_le_bytes();
            let has_room = |list: &[u8]| list.len() + value.len() <= MAX_VALUE_LEN;
            // Neither a record of another type nor one that is full is appended to: the audit finds that.
            if cx.cell().value.is_none() || cx.cell().string().is_some_and(has_room) {
                cx.cell_mut().change_string(|list| list.extend_from_slice(&value));
            }
        }
        if code >= Run::FAILS { Err(Abort::Logic) } else { Ok(()) }
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let args = cx.args();
        let ops = args.len().saturating_sub(1);
        let Some((keys, packed)) = split(args, KEY_BYTES, Run::packed_bytes(ops)) else { return };
        if packed[Run::mask_bytes(ops)] != 0 {
            return Writer(out).error("ERR a transaction that was to fail has committed");
        }
        let mut txn = Vec::new();
        Txn::encode_head(tail_number(args), ops, &mut txn);
        for (op, key) in keys.enumerate() {
            let list = key.and_then(|key| packed::record_of(b'a', key.bytes)).unwrap_or_default();
            if Run::appends(packed, op) {
                Txn::encode_append(list, &mut txn);
            } else {
                let read = Datum::first(cx.slot(op as u32)).as_bytes().unwrap_or_default();
                Txn::encode_read(list, read, &mut txn);
            }
        }
        Writer(out).bulk(&txn);
    }

    fn abort_reply(&self, abort: Abort, _slot: SlotNo, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        match abort {
            Abort::Logic => Writer(out).error(format!("DOOMED {}", tail_number(cx.args()))),
            other => Writer(out).abort(other),
        }
    }
}

/// The base of a transaction that was to fail and did.
fn doomed(reply: &[u8]) -> Option<u64> {
    let Datum::Error(text) = Datum::first(reply) else { return None };
    std::str::from_utf8(text.strip_prefix(b"DOOMED ")?).ok()?.parse().ok()
}

/// The lists that an audit finds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    /// The lists that are checked.
    pub lists: BTreeMap<u64, Vec<u64>>,
    /// The number of values in the other lists.
    pub loose: u64,
    /// The number of records that are no lists of values.
    pub damaged: u64,
}

impl Lists {
    fn add(&mut self, key: &[u8], cell: &Cell) {
        let list = cell.string().and_then(history::values_of);
        match (packed::record_of(b'a', key), list) {
            (Some(key), Some(list)) if key < LOOSE => _ = self.lists.insert(key, list),
            (Some(_), Some(list)) => self.loose += list.len() as u64,
            _ => self.damaged += 1,
        }
    }
}

impl Aggregate for Lists {
    fn merge(&mut self, other: Lists) {
        self.lists.extend(other.lists);
        self.loose += other.loose;
        self.damaged += other.damaged;
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.loose.to_le_bytes());
        out.extend_from_slice(&self.damaged.to_le_bytes());
        for (key, list) in &self.lists {
            out.extend_from_slice(&key.to_le_bytes());
            out.extend_from_slice(&(8 * list.len() as u32).to_le_bytes());
            out.extend(list.iter().flat_map(|value| value.to_le_bytes()));
        }
    }

    fn decode_front(bytes: &mut &[u8]) -> Option<Lists> {
        let (loose, damaged) = (word(bytes)?, word(bytes)?);
        let mut lists = BTreeMap::new();
        while !bytes.is_empty() {
            let key = word(bytes)?;
            let (list, rest) = history::chunk(bytes)?;
            lists.insert(key, history::values_of(list)?);
            *bytes = rest;
        }
        Some(Lists { lists, loose, damaged })
    }
}

parameters! {
    /// The transactions.
    pub struct Parameters {
        /// The number of lists in use at a time.
        pub lists: u64 = 10,
        /// The choice of lists.
        pub distribution: Distribution = Distribution::UNIFORM,
        /// The most operations of a transaction; the least is 1.
        pub ops_max: usize = 4,
        /// The share of transactions that only read. The others append by half of their operations, and once at
        /// least.
        pub read_only: f64 = 0.2,
        /// The share of the others that fail at their end, when all has been done.
        pub fails: f64 = 0.05,
        /// The appends, about, after which a list is given up for a fresh one.
        pub appends_per_list: u64 = 64,
        /// The number of transactions of each population that are kept to be checked.
        pub history: u64 = 20_000,
    }
}

/// The level at which answers are judged: each anomaly is a finding of its own, so a system that promises less may be held to
/// those that its level forbids.
const LEVEL: Level = Level::Serializable;

/// The longest list: one of 8 KiB is enough for anything, and every read is kept.
const APPENDS_MAX: u64 = 1_024;
/// The longest history.
const HISTORY_MAX: u64 = 1_000_000;

/// The workload.
#[derive(Clone, Debug)]
pub struct Append {
    parameters: Parameters,
    choice: Choice,
}

impl Append {
    /// The workload with these parameters.
    ///
    /// # Errors
    /// A parameter that makes no sense, by name.
    pub fn new(parameters: Parameters) -> Result<Append, ParameterError> {
        require_in("ops_max", parameters.ops_max, 1..=MAX_OPS)?;
        require_share("read_only", parameters.read_only)?;
        require_share("fails", parameters.fails)?;
        require_in("appends_per_list", parameters.appends_per_list, 1..=APPENDS_MAX)?;
        require_in("history", parameters.history, 0..=HISTORY_MAX)?;
        Ok(Append { choice: Choice::new(parameters.lists, parameters.distribution)?, parameters })
    }
}

const APPENDS: u8 = 0;
const READS: u8 = 1;

impl Workload for Append {
    fn name(&self) -> &'static str {
        "append"
    }

    fn kinds(&self) -> &'static [&'static str] {
        &["append", "read-only"]
    }

    fn params(&self) -> Vec<(&'static str, Param)> {
        let p = &self.parameters;
        let mut params = vec![("lists", Param::Int(p.lists))];
        params.extend(p.distribution.params());
        params.extend([
            ("ops_max", Param::Int(p.ops_max as u64)),
            ("read_only", Param::Real(p.read_only)),
            ("fails", Param::Real(p.fails)),
            ("appends_per_list", Param::Int(p.appends_per_list)),
            ("history", Param::Int(p.history)),
        ]);
        params
    }

    fn accesses(&self) -> Vec<f64> {
        vec![(1 + self.parameters.ops_max) as f64 / 2.0; 2]
    }

    fn source(&self, seed: u64, number: usize, populations: usize) -> Box<dyn Source> {
        Box::new(Clients::new(self, seed, number, populations))
    }

    fn audit(&self) -> ProcedureId {
        AUDIT
    }

    fn check(&self, results: &Results) -> Vec<Finding> {
        audit::check(results, |Lists { lists, loose, damaged }, digest| {
            let mut recorded = Recorded::default();
            if results.summaries.iter().any(|summary| recorded.add(summary).is_none()) {
                let wrong = Some("the summary of a population is damaged".to_owned());
                return vec![Finding::of("history", wrong)];
            }
            let kept = recorded.committed.len() as u64 + recorded.loose_txns;
            let Counts { committed, aborted, .. } = results.total();
            let doomed = recorded.aborted.len() as u64;
            let appended = recorded.loose_appends;
            let mut all = vec![
                Finding::new("history", kept == committed, || {
                    format!("{committed} transactions were committed, and the populations know of {kept}")
                }),
                Finding::new("aborts", aborted == doomed, || {
                    format!("{aborted} transactions aborted, and {doomed} of them were to")
                }),
                Finding::new("records", damaged == 0, || format!("{damaged} records are no lists of values")),
                digest,
                Finding::new("loose_appends", loose == appended, || {
                    format!("{appended} values were appended beyond the history, and {loose} are there")
                }),
            ];
            let found = findings(LEVEL, &recorded.into_history(lists));
            let forbidden = |anomaly: &Anomaly| LEVEL.forbids(*anomaly) != Bound::Nobody;
            all.extend(Anomaly::ALL.into_iter().filter(forbidden).map(|anomaly| {
                let (times, example) =
                    found.of(anomaly).map_or((0, None), |(times, it)| (*times as u64, Some(it)));
                Finding::counted(anomaly.check(), times, || {
                    example.map(ToString::to_string).unwrap_or_default()
                })
            }));
            all
        })
    }

    fn names_writes(&self) -> bool {
        true
    }

    fn staleness(&self, results: &Results, times: &BTreeMap<u64, Times>) -> Vec<u64> {
        let mut recorded = Recorded::default();
        if results.summaries.iter().any(|summary| recorded.add(summary).is_none()) {
            return Vec::new();
        }
        let Ok((audited, _)) = audit::read::<Lists>(results) else { return Vec::new() };
        let answered = Answered::of(&audited.found.lists, times);
        let reads = recorded.committed.iter().filter(|txn| !txn.is_update());
        let counted =
            reads.filter_map(|txn| Some((txn, times.get(&txn.base)?))).filter(|(_, its)| its.counts);
        counted
            .map(|(txn, its)| txn.ops.iter().map(|op| answered.missed_for(op, its.asked)).max().unwrap_or(0))
            .collect()
    }
}

/// The times from which on it was known, of each list, that it is longer than so many values.
struct Answered<'a>(BTreeMap<&'a u64, Vec<u64>>);

impl<'a> Answered<'a> {
    fn of(lists: &'a BTreeMap<u64, Vec<u64>>, times: &BTreeMap<u64, Times>) -> Answered<'a> {
        let answered =
            |value: &u64| times.get(&history::base_of(*value)).map_or(u64::MAX, |its| its.answered);
        let first_of_rest = |list: &Vec<u64>| {
            let mut first: Vec<u64> = list.iter().map(answered).collect();
            for at in (1..first.len()).rev() {
                first[at - 1] = first[at - 1].min(first[at]);
            }
            first
        };
        Answered(lists.iter().map(|(key, list)| (key, first_of_rest(list))).collect())
    }

    /// For how long, at a time, it had been known that an operation's list has more than it has read.
    fn missed_for(&self, op: &Op, asked: u64) -> u64 {
        let Op::Read { key, values } = op else { return 0 };
        let first = self.0.get(key).and_then(|first| first.get(values.len()));
        first.map_or(0, |first| asked.saturating_sub(*first))
    }
}

/// One population of clients.
#[derive(Clone, Debug)]
struct Clients {
    append: Append,
    random: Random,
    number: u64,
    /// The number of transactions made up.
    made: u64,
    /// The number of appends of its own after which a list is given up: its share of all populations'.
    share: u64,
    /// The generation of the list in each place, and the number of this population's appends to it.
    lists: Vec<(u64, u64)>,
    /// The transaction made up last: its lists, and what is behind them.
    keys: Vec<u64>,
    packed: Vec<u8>,
    history: HistoryWriter,
}

impl Clients {
    fn new(append: &Append, seed: u64, number: usize, populations: usize) -> Clients {
        let share = append.parameters.appends_per_list / populations.max(1) as u64;
        Clients {
            append: append.clone(),
            random: Random::stream(seed, number as u64),
            number: number as u64,
            made: 0,
            share: share.max(1),
            lists: vec![(0, 0); append.parameters.lists as usize],
            keys: Vec::new(),
            packed: Vec::new(),
            history: HistoryWriter::default(),
        }
    }

    /// The list in a place; the one after it, once it has had our share of appends. Populations that keep
    /// pace use the same lists.
    fn list(&mut self, place: u64, appends: bool) -> u64 {
        let in_use = self.lists.len() as u64;
        let (generation, count) = &mut self.lists[place as usize];
        let list = *generation * in_use + place;
        if appends {
            *count += 1;
            if *count == self.share {
                (*generation, *count) = (*generation + 1, 0);
            }
        }
        list
    }
}

impl Source for Clients {
    fn load(&mut self) -> Option<ProcedureId> {
        None
    }

    fn next(&mut self) -> Made {
        let Parameters { ops_max, read_only, fails, history, .. } = self.append.parameters;
        if self.made == history {
            self.lists.fill((0, 0));
        }
        let loose = if self.made < history { 0 } else { LOOSE };
        self.made += 1;
        let ops = 1 + self.random.below(ops_max as u64) as usize;
        let reads = self.random.is_in(read_only);
        let certain = self.random.below(ops as u64) as usize;
        self.keys.clear();
        self.packed.clear();
        self.packed.resize(Run::packed_bytes(ops), 0);
        for op in 0..ops {
            let appends = !reads && (op == certain || self.random.below(2) == 0);
            let place = self.append.choice.rank(&mut self.random);
            let list = self.list(place, appends);
            self.keys.push(loose | list);
            self.packed[op / 8] |= u8::from(appends) << (op % 8);
        }
        let at = Run::mask_bytes(ops);
        self.packed[at] = u8::from(!reads && self.random.is_in(fails));
        let base = self.number << 48 | self.made << 8;
        self.packed[at + 1..].copy_from_slice(&base.to_le_bytes());
        Made { procedure: RUN, kind: if reads { READS } else { APPENDS } }
    }

    fn write_args(&self, args: &mut ArgsBuilder<'_>) {
        self.keys.iter().for_each(|list| _ = args.push(&key(*list)));
        args.push(&self.packed);
    }

    fn answered(&mut self, _kind: u8, status: OutcomeStatus, reply: &[u8]) {
        match status {
            OutcomeStatus::Committed => {
                let bytes = Datum::first(reply).as_bytes().unwrap_or_default();
                // A reply that cannot be read is missed: the transactions kept are counted.
                let Some(txn) = Txn::decode(bytes) else { return };
                if txn.ops.first().is_some_and(|op| op.key() < LOOSE) {
                    self.history.committed(bytes);
                } else {
                    let appends = txn.ops.iter().filter(|op| matches!(op, Op::Append { .. }));
                    self.history.loose(appends.count() as u64);
                }
            }
            OutcomeStatus::Aborted(Abort::Logic) => {
                doomed(reply).into_iter().for_each(|base| self.history.aborted(base));
            }
            _ => {}
        }
    }

    fn name_of(&self, reply: &[u8]) -> Option<u64> {
        Txn::decode(Datum::first(reply).as_bytes()?).map(|txn| txn.base)
    }

    fn summary(&mut self) -> Vec<u8> {
        self.history.encode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bed, run, wrong};

    fn append(history: u64) -> Append {
        Append::new(Parameters { history, fails: 0.2, appends_per_list: 12, ..Parameters::default() })
            .unwrap()
    }

    fn args(keys: &[u64], mask: u8, fails: u8, base: u64) -> impl FnOnce(&mut ArgsBuilder<'_>) {
        move |args: &mut ArgsBuilder<'_>| {
            keys.iter().for_each(|list| _ = args.push(&key(*list)));
            let mut packed = vec![mask, fails];
            packed.extend_from_slice(&base.to_le_bytes());
            args.push(&packed);
        }
    }

    #[test]
    fn a_serial_run_is_found_to_be_serializable() {
        let append = append(200);
        let (_, results) = run(&append, 3, 900);
        let findings = append.check(&results);
        assert_eq!(wrong(&findings), [""; 0], "{findings:?}");
        let names: Vec<_> = findings.iter().map(|finding| finding.name).collect();
        let ours = ["history", "aborts", "records", "digest", "loose_appends"];
        let of_values = ["appends", "internal", "no_g1a", "no_g1b", "prefixes"];
        let of_weak_levels = ["no_g0", "no_g1c"];
        let of_strong_levels =
            ["no_lost_update", "no_fuzzy_read", "no_fractured_read", "no_g_single", "no_long_fork", "no_g2"];
        assert_eq!(names, [&ours[..], &of_values, &of_weak_levels, &of_strong_levels].concat());
        let Lists { lists, loose, damaged } = audit::read::<Lists>(&results).unwrap().0.found;
        // Lists are given up in time, whatever the populations' pace; both sorts are in use.
        assert!(
            lists.len() > 30 && lists.values().all(|list| list.len() <= 12) && loose > 100 && damaged == 0
        );
        let mut recorded = Recorded::default();
        results.summaries.iter().for_each(|summary| recorded.add(summary).unwrap());
        assert!((60..200).contains(&recorded.aborted.len()), "{}", recorded.aborted.len());
        assert!(recorded.committed.iter().any(|txn| {
            txn.ops.iter().any(|op| matches!(op, Op::Read { values, .. } if values.len() > 5))
        }));
    }

    #[test]
    fn a_lost_update_is_found_by_its_name() {
        let append = append(10);
        let (mut bed, mut writer) = (Bed::new(), HistoryWriter::default());
        for base in [0x100, 0x200] {
            bed.run(RUN, args(&[1, 1], 0b10, 0, base));
            // Both say that they read the empty list before they appended.
            let mut txn = Vec::new();
            Txn::encode_head(base, 2, &mut txn);
            Txn::encode_read(1, &[], &mut txn);
            Txn::encode_append(1, &mut txn);
            writer.committed(&txn);
        }
        let by_kind = vec![Counts { committed: 2, ..Counts::default() }, Counts::default()];
        let audits = append.audits().into_iter().map(|audit| bed.run(audit, |_| {})).collect();
        let summaries = vec![writer.encode()];
        assert_eq!(wrong(&append.check(&Results { by_kind, audits, summaries })), ["no_lost_update"]);
    }

    #[test]
    fn what_happens_behind_the_back_of_a_run_is_found() {
        let append = append(1_000);
        let (mut bed, mut results) = run(&append, 2, 200);
        let list = *audit::read::<Lists>(&results).unwrap().0.found.lists.keys().next().unwrap();
        bed.run(RUN, args(&[list], 1, 0, 77 << 48));
        bed.run(RUN, args(&[LOOSE], 1, 0, 78 << 48));
        results.audits = append.audits().into_iter().map(|audit| bed.run(audit, |_| {})).collect();
        assert_eq!(wrong(&append.check(&results)), ["loose_appends", "appends"]);
        results.by_kind[0].committed += 1;
        assert_eq!(wrong(&append.check(&results)), ["history", "loose_appends", "appends"]);
        results.by_kind[0].aborted += 1;
        assert_eq!(wrong(&append.check(&results)), ["history", "aborts", "loose_appends", "appends"]);
        results.summaries[0].pop();
        assert_eq!(wrong(&append.check(&results)), ["history"]);
    }

    #[test]
    fn a_read_is_as_stale_as_the_first_answer_that_it_misses_is_old() {
        let append = append(1_000);
        let (mut bed, mut writer, mut times) = (Bed::new(), HistoryWriter::default(), BTreeMap::new());
        let source = append.source(1, 0, 1);
        let mut run = |keys: &[u64], mask, base, (asked, answered)| {
            let reply = bed.run(RUN, args(keys, mask, 0, base));
            writer.committed(Datum::first(&reply).as_bytes().unwrap());
            assert_eq!(source.name_of(&reply), Some(base));
            times.insert(base, Times { asked, answered, counts: base != 0x700 });
        };
        // Reads see nothing, the first append, and both; each is asked for at several times.
        for (base, asked) in [(0x100, 5), (0x200, 25), (0x300, 60)] {
            run(&[1, 2], 0, base, (asked, asked + 1));
        }
        run(&[1], 1, 0x400, (10, 30));
        run(&[1, 2], 0, 0x500, (50, 51));
        // The second append is answered before the first is.
        run(&[1], 1, 0x600, (12, 20));
        run(&[1], 0, 0x700, (70, 71));
        run(&[1], 0, 0x800, (70, 71));
        let audits = append.audits().into_iter().map(|audit| bed.run(audit, |_| {})).collect();
        let results = Results { audits, summaries: vec![writer.encode()], ..Results::default() };
        assert_eq!(append.staleness(&results, &times), [0, 5, 40, 30, 0]);
        assert!(append.names_writes());
        // Of a write whose answer nobody knows it is not known since when a read misses it.
        times.remove(&0x600);
        assert_eq!(append.staleness(&results, &times), [0, 0, 30, 0, 0]);
        let damaged = Results { summaries: vec![vec![7]], ..results };
        assert_eq!(append.staleness(&damaged, &times), []);
    }

    #[test]
    fn a_transaction_answers_what_it_did_and_saw() {
        let mut bed = Bed::new();
        // Append, read what was appended, append again to the same list, read another.
        let reply = bed.run(RUN, args(&[1, 1, 1, 2], 0b0101, 0, 0x500));
        let ops = vec![
            Op::Append { key: 1, value: 0x500 },
            Op::Read { key: 1, values: vec![0x500] },
            Op::Append { key: 1, value: 0x502 },
            Op::Read { key: 2, values: vec![] },
        ];
        let read = |reply: &[u8]| Txn::decode(Datum::first(reply).as_bytes().unwrap()).unwrap();
        assert_eq!(read(&reply), Txn { base: 0x500, ops });
        let digest = bed.executor.digest();
        let result = bed.call(RUN, args(&[2, 1], 0b11, 1, 0x600));
        assert_eq!(result.status, OutcomeStatus::Aborted(Abort::Logic));
        assert_eq!(doomed(&result.reply), Some(0x600));
        assert_eq!(bed.executor.digest(), digest);
        let reply = bed.run(RUN, args(&[1], 0, 0, 0x700));
        assert_eq!(read(&reply).ops, [Op::Read { key: 1, values: vec![0x500, 0x502] }]);
    }

    #[test]
    fn shares_are_kept_and_those_who_write_append() {
        let append = append(u64::from(u16::MAX));
        let mut clients = Clients::new(&append, 1, 0, 1);
        let (mut reads, mut fails, mut ops_of) = (0u32, 0u32, [0u32; 5]);
        for _ in 0..10_000 {
            let made = clients.next();
            let ops = clients.keys.len();
            ops_of[ops] += 1;
            assert_eq!(made.kind == APPENDS, clients.packed[0] != 0);
            reads += u32::from(made.kind == READS);
            fails += u32::from(clients.packed[1]);
        }
        assert!(ops_of[0] == 0 && ops_of[1..].iter().all(|n| (2_280..2_720).contains(n)), "{ops_of:?}");
        assert!((1_800..2_200).contains(&reads) && (1_420..1_780).contains(&fails), "{reads} {fails}");
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let good = Parameters::default();
        for (parameters, name) in [
            (Parameters { lists: 0, ..good.clone() }, "records"),
            (Parameters { ops_max: 0, ..good.clone() }, "ops_max"),
            (Parameters { ops_max: 256, ..good.clone() }, "ops_max"),
            (Parameters { read_only: 2.0, ..good.clone() }, "read_only"),
            (Parameters { fails: f64::NAN, ..good.clone() }, "fails"),
            (Parameters { appends_per_list: 0, ..good.clone() }, "appends_per_list"),
            (Parameters { history: u64::MAX, ..good.clone() }, "history"),
        ] {
            assert!(Append::new(parameters).unwrap_err().to_string().contains(name), "{name}");
        }
    }

    #[test]
    fn damaged_arguments_are_refused() {
        let bed = Bed::new();
        let packed = [0; 10];
        assert!(!bed.refuses(RUN, &[&key(1)[..], &packed]));
        assert!(bed.refuses(RUN, &[&packed]) && bed.refuses::<&[u8]>(RUN, &[]));
        assert!(bed.refuses(RUN, &[&key(1)[..], &packed[1..]]));
        assert!(bed.refuses(RUN, &[&key(1)[1..], &[0; 11]]));
        let keys: Vec<Vec<u8>> = (0..256).map(|list| key(list).to_vec()).chain([vec![0; 32 + 9]]).collect();
        assert!(bed.refuses(RUN, &keys));
    }
}
