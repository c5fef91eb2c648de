//! TPC-C as Lua scripts, for Redis and its like.
//!
//! The rows are those of the native procedures, byte by byte, under the same names; a row that another covers has a key
//! of its own, with a plus sign in front. So what is loaded is what the native procedures make up, run here in an
//! executor of our own, and the audit is the native audit, run here over the rows that were read back.
//!
//! The scripts are not for Ordain: the keys of an order hold a number that is read from the district, and so they cannot
//! be declared in advance, which Ordain insists on and Redis, on one node, does not. On Ordain the native procedures
//! do the same.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, bail};
use ordain_model::key::KeyHash;
use ordain_model::procedure::{Inputs, Locals};
use ordain_model::value::record_hash;
use ordain_model::{
    Args, ArgsBuilder, Call, Cell, Chunk, ChunkNo, Datum, Db, Digest, FragmentContext, GatewayId, Gsn,
    Millis, OutcomeStatus, Position, ProcedureId, ReferenceExecutor, Registry, Table, Target, Value, Version,
};
use ordain_workload::tpcc::audit::AUDIT;
use ordain_workload::tpcc::delivery::DELIVERY;
use ordain_workload::tpcc::load::{LOAD, LOAD_NAMES, LOAD_ORDERS};
use ordain_workload::tpcc::new_order::NEW_ORDER;
use ordain_workload::tpcc::order_status::ORDER_STATUS;
use ordain_workload::tpcc::payment::PAYMENT;
use ordain_workload::tpcc::schema::DB;
use ordain_workload::tpcc::stock_level::STOCK_LEVEL;

use super::script::Script;
use super::{Form, audit, plain, read_one, split_packed};
use crate::resp::link::Link;
use crate::resp::wire::Commands;

/// What stands in front of the keys of covered rows.
const COVERED: u8 = b'+';

const COMMON: &str = include_str!("tpcc/common.lua");
const BODIES: [(ProcedureId, &str); 5] = [
    (NEW_ORDER, include_str!("tpcc/new_order.lua")),
    (PAYMENT, include_str!("tpcc/payment.lua")),
    (ORDER_STATUS, include_str!("tpcc/order_status.lua")),
    (DELIVERY, include_str!("tpcc/delivery.lua")),
    (STOCK_LEVEL, include_str!("tpcc/stock_level.lua")),
];

/// How TPC-C travels.
#[derive(Debug)]
pub struct Tpcc {
    scripts: BTreeMap<ProcedureId, Script>,
    registry: Arc<Registry>,
}

impl Tpcc {
    /// As scripts.
    ///
    /// # Errors
    /// The server does not take them.
    pub fn prepare(link: &mut Link) -> anyhow::Result<Tpcc> {
        let load = |link: &mut Link, body| Script::load(link, &format!("{COMMON}\n{body}"));
        let scripts = BODIES.map(|(procedure, body)| load(link, body).map(|script| (procedure, script)));
        Ok(Tpcc::with(scripts.into_iter().collect::<anyhow::Result<_>>()?))
    }

    fn with(scripts: BTreeMap<ProcedureId, Script>) -> Tpcc {
        let mut registry = Registry::default();
        ordain_workload::register(&mut registry);
        Tpcc { scripts, registry: Arc::new(registry) }
    }

    /// Writes the rows that a procedure of loading makes up.
    fn load(&self, procedure: ProcedureId, args: Args<'_>, out: &mut Commands) -> anyhow::Result<()> {
        let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
        let write = |into: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = into.push(arg.bytes));
        let txn = chunk.push(&self.registry, Call::new(procedure, DB), write)?.clone();
        let mut executor = ReferenceExecutor::new(self.registry.clone());
        let result = executor.run_txn(Gsn::NONE, Millis(0), &chunk, &txn);
        if result.status != OutcomeStatus::Committed {
            bail!("TPC-C's data could not be made up: {:?}", Datum::first(&result.reply));
        }
        for (db, key, cell) in executor.records() {
            let row = cell.string().context("a row of TPC-C is no string")?;
            out.begin(3).word("SET").word(name(db, key)).word(row);
        }
        Ok(())
    }
}

/// The key on the server of a row of ours.
fn name(db: Db, key: &[u8]) -> Vec<u8> {
    if db == DB { key.to_vec() } else { [&[COVERED], key].concat() }
}

impl Form for Tpcc {
    fn write(&self, procedure: ProcedureId, args: Args<'_>, out: &mut Commands) -> anyhow::Result<()> {
        if [LOAD, LOAD_NAMES, LOAD_ORDERS].contains(&procedure) {
            return self.load(procedure, args, out);
        }
        let script = self.scripts.get(&procedure);
        let script = script.with_context(|| format!("TPC-C has no script for procedure {procedure}"))?;
        if procedure == ORDER_STATUS {
            script.call(out, args.len(), 0).args(args);
            return Ok(());
        }
        let (keys, packed) = split_packed(args)?;
        let out = script.call(out, keys.len(), 1);
        keys.for_each(|key| _ = out.word(key));
        match procedure {
            NEW_ORDER => out.word(packed),
            PAYMENT => out.number(packed.try_into().map_or(0, i64::from_le_bytes)),
            _ => out.number(packed.first().copied().unwrap_or(0).into()),
        };
        Ok(())
    }

    fn read(
        &self,
        procedure: ProcedureId,
        replies: &[u8],
        reply: &mut Vec<u8>,
    ) -> anyhow::Result<OutcomeStatus> {
        if self.scripts.contains_key(&procedure) { read_one(replies, reply) } else { plain(replies, reply) }
    }

    fn audit(&self, _: &[ProcedureId], link: &mut Link) -> anyhow::Result<Vec<Vec<u8>>> {
        let mut rows = Rows::default();
        let keys = audit::all_keys(link)?;
        link.ask_all(
            keys,
            |key, out| _ = out.begin(2).word("GET").word(key),
            |key, reply| {
                let row = Datum::first(reply).as_bytes().context("a key of TPC-C has gone")?;
                rows.insert(&key, row);
                Ok(())
            },
        )?;
        Ok(vec![rows.audit(&self.registry)?])
    }
}

/// Rows that were read back, as a table that the native audit can look at.
#[derive(Debug, Default)]
struct Rows {
    rows: BTreeMap<(Db, Vec<u8>), Cell>,
}

impl Rows {
    fn insert(&mut self, key: &[u8], row: &[u8]) {
        let (db, key) = match key.split_first() {
            Some((&COVERED, covered)) => (DB.children(), covered),
            _ => (DB, key),
        };
        let cell = Cell { value: Some(Value::String(row.to_vec())), ..Cell::default() };
        self.rows.insert((db, key.to_vec()), cell);
    }

    /// What the native audit answers.
    fn audit(&mut self, registry: &Registry) -> anyhow::Result<Vec<u8>> {
        let mut reply = Vec::new();
        let procedure = registry.get(AUDIT).context("TPC-C has no audit")?;
        let no_args = ordain_model::args::encode::<&[u8]>(&[]);
        let args = Args::parse(&no_args).context("no arguments")?;
        let mut cx = FragmentContext {
            args,
            db: DB,
            key: ordain_model::args::Arg { bytes: &[], at: 0 },
            now: Millis(0),
            seed: 0,
            version: Version::NONE,
            inputs: Inputs::none(),
            target: Target::Table(self),
            children: None,
            locals: &mut Locals::default(),
            registry,
            share: registry.limits().carried,
            most: registry.limits().reply,
            out: &mut reply,
        };
        if procedure.run(0, &mut cx).is_err() {
            bail!("the audit of TPC-C aborted");
        }
        Ok(reply)
    }
}

impl Table for Rows {
    fn len(&self, db: Db) -> u64 {
        self.rows.keys().filter(|(of, _)| *of == db).count() as u64
    }

    fn digest(&mut self) -> Digest {
        let mut digest = Digest::default();
        for ((db, key), cell) in &self.rows {
            if let Some(value) = &cell.value {
                digest.add(record_hash(*db, key, value, cell.expires_at));
            }
        }
        digest
    }

    fn scan(&self, db: Db, from: Position, visit: &mut dyn FnMut(Position, &[u8], &Cell) -> bool) {
        let rows = self.rows.iter().filter(|((of, _), _)| *of == db);
        let mut rows: Vec<_> =
            rows.map(|((_, key), cell)| (KeyHash::of_record(db, key).position(), key, cell)).collect();
        rows.retain(|(position, ..)| *position >= from);
        rows.sort_by_key(|(position, ..)| *position);
        for (position, key, cell) in rows {
            if !visit(position, key, cell) {
                return;
            }
        }
    }

    fn clear(&mut self, db: Option<Db>) {
        self.rows.retain(|(of, _), _| db.is_some_and(|db| of.home() != db));
    }

    fn swap(&mut self, a: Db, b: Db) {
        let rows = std::mem::take(&mut self.rows);
        let other = |db: Db| match db {
            db if db == a => b,
            db if db == b => a,
            db if db == a.children() => b.children(),
            db if db == b.children() => a.children(),
            db => db,
        };
        self.rows = rows.into_iter().map(|((db, key), cell)| ((other(db), key), cell)).collect();
    }

    fn expire(&mut self, now: Millis, positions: Range<Position>) -> u64 {
        // Rows of TPC-C do not expire.
        let _ = (now, positions);
        0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ordain_workload::tpcc::{Mix, Parameters, Remote, Scale};
    use ordain_workload::{Finding, Results, Workload, tpcc};

    use super::super::tests::transcript;
    use super::*;

    fn form() -> Tpcc {
        Tpcc::with(BODIES.map(|(procedure, _)| (procedure, Script::kept(&procedure.to_string()))).into())
    }

    fn small() -> tpcc::Tpcc {
        let scale = Scale { districts: 2, customers: 30, items: 100, orders: 30, undelivered: 10 };
        let parameters =
            Parameters { warehouses: 2, scale, partitions: 1, mix: Mix::FULL, remote: Remote::Standard };
        tpcc::Tpcc::new(parameters).unwrap()
    }

    /// The rows that a form loads.
    fn loaded(form: &Tpcc, workload: &dyn Workload) -> Rows {
        let (mut rows, mut source) = (Rows::default(), workload.source(7, 0, 1));
        while let Some(procedure) = source.load() {
            let mut args = Vec::new();
            source.write_args(&mut ArgsBuilder::new(&mut args));
            for line in super::super::tests::commands(form, procedure, &args) {
                let [set, key, row] = &line[..] else { panic!("{line:?}") };
                assert_eq!(set, b"SET");
                rows.insert(key, row);
            }
        }
        rows
    }

    fn wrong(rows: &mut Rows, form: &Tpcc, workload: &dyn Workload) -> BTreeSet<&'static str> {
        let audits = vec![rows.audit(&form.registry).unwrap()];
        let seen = Results { audits, by_kind: vec![Default::default(); 5], ..Results::default() };
        let findings = workload.check(&seen).into_iter();
        findings.filter(|Finding { wrong, .. }| wrong.is_some()).map(|finding| finding.name).collect()
    }

    #[test]
    fn what_is_loaded_meets_the_conditions_and_damage_shows() {
        let (form, workload) = (form(), small());
        let mut rows = loaded(&form, &workload);
        // No server, no digest.
        assert_eq!(wrong(&mut rows, &form, &workload), BTreeSet::from(["digest"]));
        assert_eq!(rows.digest().records as usize, rows.rows.len());
        let lost = rows.rows.keys().find(|(db, _)| *db == DB.children()).unwrap().clone();
        rows.rows.remove(&lost);
        assert!(wrong(&mut rows, &form, &workload).len() > 1);
    }

    #[test]
    fn rows_are_a_table() {
        let mut rows = Rows::default();
        rows.insert(b"{1}w", b"row");
        rows.insert(b"+{1}d\x01o\x01\0\0\0\x05\0", b"covered");
        let below = DB.children();
        assert_eq!((rows.len(DB), rows.len(below)), (1, 1));
        rows.swap(DB, Db(3));
        assert_eq!((rows.len(DB), rows.len(Db(3)), rows.len(Db(3).children())), (0, 1, 1));
        rows.clear(Some(DB));
        assert_eq!(rows.len(Db(3)), 1);
        rows.clear(None);
        assert_eq!((rows.len(Db(3)), rows.len(Db(3).children())), (0, 0));
    }

    #[test]
    fn every_transaction_is_a_script_with_its_rows_for_keys() {
        let (form, workload) = (form(), small());
        let mut source = workload.source(7, 0, 1);
        while source.load().is_some() {}
        let mut seen = BTreeSet::new();
        for _ in 0..200 {
            let made = source.next();
            let mut args = Vec::new();
            source.write_args(&mut ArgsBuilder::new(&mut args));
            let line = transcript(&form, made.procedure, &args);
            let words: Vec<&str> = line.split_whitespace().collect();
            let keys: usize = words[2].parse().unwrap();
            let rest = if made.procedure == ORDER_STATUS { 0 } else { 1 };
            let args = Args::parse(&args).unwrap();
            assert_eq!((words[0], words[1]), ("EVALSHA", &*made.procedure.to_string()));
            assert_eq!((keys, args.len()), (args.len() - rest, keys + rest));
            seen.insert(made.procedure);
        }
        assert_eq!(seen.len(), 5);
    }
}
