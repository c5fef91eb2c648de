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
use std::sync::Arc;

use anyhow::{Context, bail};
use ordain_model::{
    Args, ArgsBuilder, Call, Cell, Chunk, ChunkNo, Datum, Db, GatewayId, Gsn, Millis, OutcomeStatus,
    ProcedureId, ReferenceExecutor, Registry, Value,
};
use ordain_resp::client::Commands;
use ordain_workload::tpcc::audit::AUDIT;
use ordain_workload::tpcc::delivery::DELIVERY;
use ordain_workload::tpcc::load::{LOAD, LOAD_NAMES, LOAD_ORDERS};
use ordain_workload::tpcc::new_order::NEW_ORDER;
use ordain_workload::tpcc::order_status::ORDER_STATUS;
use ordain_workload::tpcc::payment::PAYMENT;
use ordain_workload::tpcc::schema::DB;
use ordain_workload::tpcc::stock_level::STOCK_LEVEL;

use super::script::Script;
use super::{Form, audit, split_packed};
use crate::resp::link::Link;

/// Prefix of the keys of child rows.
const CHILD: u8 = b'+';

const COMMON: &str = include_str!("tpcc/common.lua");
const BODIES: [(ProcedureId, &str); 5] = [
    (NEW_ORDER, include_str!("tpcc/new_order.lua")),
    (PAYMENT, include_str!("tpcc/payment.lua")),
    (ORDER_STATUS, include_str!("tpcc/order_status.lua")),
    (DELIVERY, include_str!("tpcc/delivery.lua")),
    (STOCK_LEVEL, include_str!("tpcc/stock_level.lua")),
];

/// The form of TPC-C.
#[derive(Debug)]
pub struct Tpcc {
    scripts: BTreeMap<ProcedureId, Script>,
    registry: Arc<Registry>,
}

impl Tpcc {
    /// As scripts.
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

    /// Runs a procedure of the workload on rows, and returns its reply.
    fn run(
        &self,
        executor: &mut ReferenceExecutor,
        procedure: ProcedureId,
        args: Args<'_>,
    ) -> anyhow::Result<Vec<u8>> {
        let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
        let write = |into: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = into.push(arg.bytes));
        let txn = chunk.push(&self.registry, Call::new(procedure, DB), write)?.clone();
        let result = executor.run_txn(Gsn::NONE, Millis(0), &chunk, &txn);
        if result.status != OutcomeStatus::Committed {
            bail!("a procedure of TPC-C aborted: {:?}", Datum::first(&result.reply));
        }
        Ok(result.reply)
    }

    /// Writes the rows that a procedure of loading makes up.
    fn load(&self, procedure: ProcedureId, args: Args<'_>, out: &mut Commands) -> anyhow::Result<()> {
        let mut executor = ReferenceExecutor::new(self.registry.clone());
        self.run(&mut executor, procedure, args)?;
        for (db, key, cell) in executor.records() {
            let row = cell.string().context("a row of TPC-C is no string")?;
            out.begin(3).word("SET").word(name(db, key)).word(row);
        }
        Ok(())
    }

    /// Runs the native audit on rows of the server, by their keys there.
    fn audit_rows(&self, rows: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> anyhow::Result<Vec<u8>> {
        let mut executor = ReferenceExecutor::new(self.registry.clone());
        for (key, row) in rows {
            let (db, key) = match key.split_first() {
                Some((&CHILD, child)) => (DB.children(), child),
                _ => (DB, &*key),
            };
            let cell = Cell { value: Some(Value::String(row)), ..Cell::default() };
            executor.put_back(db, key, cell, Gsn(1));
        }
        let no_args = ordain_model::args::encode::<&[u8]>(&[]);
        self.run(&mut executor, AUDIT, Args::parse(&no_args).context("no arguments")?)
    }
}

/// The key on the server of a row of ours.
fn name(db: Db, key: &[u8]) -> Vec<u8> {
    if db == DB { key.to_vec() } else { [&[CHILD], key].concat() }
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

    fn loads(&self, procedure: ProcedureId) -> bool {
        !self.scripts.contains_key(&procedure)
    }

    fn audit(&self, _: &[ProcedureId], link: &mut Link) -> anyhow::Result<Vec<Vec<u8>>> {
        let mut rows = BTreeMap::new();
        let keys = audit::all_keys(link)?;
        link.ask_all(
            keys,
            |key, out| _ = out.begin(2).word("GET").word(key),
            |key, reply| {
                let row = Datum::first(reply).as_bytes().context("a key of TPC-C has gone")?;
                rows.insert(key, row.to_vec());
                Ok(())
            },
        )?;
        Ok(vec![self.audit_rows(rows)?])
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
        let parameters = Parameters {
            warehouses: 2,
            scale,
            mix: Mix::FULL,
            remote: Remote::Standard,
            ..Parameters::default()
        };
        tpcc::Tpcc::new(parameters).unwrap()
    }

    type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

    /// The rows that a form loads.
    fn loaded(form: &Tpcc, workload: &dyn Workload) -> Rows {
        let (mut rows, mut source) = (Rows::new(), workload.source(7, 0, 1));
        while let Some(procedure) = source.load() {
            let mut args = Vec::new();
            source.write_args(&mut ArgsBuilder::new(&mut args));
            for line in super::super::tests::commands(form, procedure, &args) {
                let [set, key, row] = &line[..] else { panic!("{line:?}") };
                assert_eq!(set, b"SET");
                rows.insert(key.clone(), row.clone());
            }
        }
        rows
    }

    fn wrong(rows: &Rows, form: &Tpcc, workload: &dyn Workload) -> BTreeSet<&'static str> {
        let audits = vec![form.audit_rows(rows.clone()).unwrap()];
        let seen = Results { audits, by_kind: vec![Default::default(); 5], ..Results::default() };
        let findings = workload.check(&seen).into_iter();
        findings.filter(|Finding { wrong, .. }| wrong.is_some()).map(|finding| finding.name).collect()
    }

    #[test]
    fn what_is_loaded_meets_the_conditions_and_damage_shows() {
        let (form, workload) = (form(), small());
        let mut rows = loaded(&form, &workload);
        // No server, no digest.
        assert_eq!(wrong(&rows, &form, &workload), BTreeSet::from(["digest"]));
        let lost = rows.keys().find(|key| key.starts_with(b"+")).unwrap().clone();
        rows.remove(&lost);
        assert!(wrong(&rows, &form, &workload).len() > 1);
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
