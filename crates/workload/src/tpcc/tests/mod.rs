//! The workload as a whole, on the reference executor: transactions in flight together, so that reconnaissances go
//! stale. Here is the test bed.

mod at_home;
mod damage;
mod drawing;
mod loading;
mod running;

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_model::args::encode;
use ordain_model::{
    Abort, Access, Args, ArgsBuilder, Call, Chunk, ChunkNo, Datum, Digest, Epoch, FragmentContext, GatewayId,
    Gsn, Known, Millis, OutcomeStatus, PartitionId, PlanError, Planner, Procedure, ProcedureId,
    Reconnaissance, ReferenceExecutor, Registry, Value, reference, system,
};

use super::delivery::{self, DELIVERY, DeliveryCall};
use super::new_order::{Line, NEW_ORDER, NewOrderCall, UNUSED_ITEM};
use super::order_status::{ORDER_STATUS, OrderStatusCall};
use super::payment::{PAYMENT, PaymentCall, Who};
use super::population::LOADED_MS;
use super::rows::{Customer, District, History, Item, Order, OrderLine, Stock, Warehouse};
use super::schema::{Child, DB, Key, Named, Row};
use super::source::{Clients, Transaction};
use super::stock_level::{self, STOCK_LEVEL, StockLevelCall};
use super::*;
use crate::{Counts, Made};
use ordain_model::Random;

/// A database of few rows, so that transactions meet.
const SMALL: Scale = Scale { districts: 3, customers: 24, items: 40, orders: 20, undelivered: 6 };

fn parameters(warehouses: u32) -> Parameters {
    Parameters { warehouses, scale: SMALL, ..Parameters::default() }
}

/// Writes over a record, or over one below it: how tests do damage.
struct Poke;

const POKE: ProcedureId = ProcedureId(1069);

impl Procedure for Poke {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        planner.key_in(DB, 0, Access::Write, args.iter().next().ok_or(DAMAGED)?)?;
        planner.with_children();
        Ok(())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let args = cx.args;
        let (suffix, row) = (args.get(1).unwrap_or_default(), args.get(2));
        let value = || row.map(|row| Value::String(row.to_vec()));
        if !suffix.is_empty() {
            cx.children().edit(suffix, &mut |cell| match value() {
                Some(value) => cell.put(value),
                None => cell.delete(),
            });
        } else if let Some(value) = value() {
            cx.cell_mut().put(value);
        } else {
            cx.cell_mut().delete();
        }
        Ok(())
    }
}

/// A state, and what becomes of transactions on it.
struct Bed {
    workload: Tpcc,
    registry: Arc<Registry>,
    executor: ReferenceExecutor,
    epoch: u64,
    by_kind: Vec<Counts>,
    /// How often transactions restarted, by procedure.
    restarts: BTreeMap<ProcedureId, u32>,
}

/// A transaction on its way.
struct Flight {
    population: usize,
    made: Made,
    args: Vec<u8>,
    known: Known,
    /// What it waits for, and is done by its next step.
    step: Reconnaissance,
    restarts: u32,
}

impl Bed {
    fn new(parameters: Parameters, register: fn(&mut Registry)) -> Bed {
        let mut registry = Registry::default();
        system::register(&mut registry);
        register(&mut registry);
        registry.register(POKE, "test.poke", Arc::new(Poke));
        let registry = Arc::new(registry);
        let workload = Tpcc::new(parameters).unwrap();
        Bed {
            by_kind: vec![Counts::default(); workload.kinds().len()],
            workload,
            executor: ReferenceExecutor::new(registry.clone()),
            registry,
            epoch: 0,
            restarts: BTreeMap::new(),
        }
    }

    fn loaded(parameters: Parameters) -> Bed {
        let mut bed = Bed::new(parameters, super::register);
        bed.load(7, 1);
        bed
    }

    /// Loads with several populations, each in its turn.
    fn load(&mut self, seed: u64, populations: usize) {
        let mut sources: Vec<_> =
            (0..populations).map(|n| self.workload.source(seed, n, populations)).collect();
        let mut loading = true;
        while loading {
            loading = false;
            for source in &mut sources {
                if let Some(procedure) = source.load() {
                    let result = self.run(procedure, &args_of(|args| source.write_args(args)));
                    assert_eq!(result.status, OutcomeStatus::Committed);
                    loading = true;
                }
            }
        }
    }

    /// Runs a transaction whose keys are known.
    fn run(&mut self, procedure: ProcedureId, args: &[u8]) -> reference::Result {
        self.try_run(procedure, args).unwrap()
    }

    fn try_run(&mut self, procedure: ProcedureId, args: &[u8]) -> Result<reference::Result, PlanError> {
        let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
        let args = Args::parse(args).unwrap();
        let write = |out: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg.bytes));
        let txn = chunk.push(&self.registry, Call::new(procedure, DB), write)?.clone();
        let audits = [audit::AUDIT, audit::at_home::AUDIT_HOME];
        let only_reads = [ORDER_STATUS, STOCK_LEVEL, delivery::PEEK, stock_level::PEEK];
        assert_eq!(
            txn.read_only,
            [only_reads.as_slice(), &audits].concat().contains(&procedure)
                || [system::READ, system::DIGEST].contains(&procedure)
        );
        self.epoch += 1;
        let gsn = Gsn::new(Epoch(self.epoch), PartitionId(0), 0);
        Ok(self.executor.run_txn(gsn, Millis(LOADED_MS + self.epoch), &chunk, &txn))
    }

    /// What is to be done next for a transaction with these arguments.
    fn plan(&self, procedure: ProcedureId, args: &[u8], known: &Known) -> Result<Reconnaissance, PlanError> {
        let code = self.registry.get(procedure).unwrap();
        let args = Args::parse(args).unwrap();
        if code.is_dependent() {
            code.reconnoitre(args, known)
        } else {
            Ok(Reconnaissance::Ready(args.encoded().to_vec()))
        }
    }

    /// Takes a transaction a step further, as a gateway does; the result when it has ended.
    fn step(&mut self, flight: &mut Flight) -> Option<reference::Result> {
        self.try_step(flight).unwrap()
    }

    fn try_step(&mut self, flight: &mut Flight) -> Result<Option<reference::Result>, PlanError> {
        match &flight.step {
            Reconnaissance::Read(keys) => {
                let reads = || keys.iter().map(|(db, key)| (*db, &**key));
                let result = self.run(system::READ, &args_of(|args| system::read_args(reads(), args)));
                let read = system::read_reply(reads(), &result.reply).unwrap().records;
                read.into_iter().for_each(|read| flight.known.learn(read));
            }
            Reconnaissance::Ask(procedure, args) => {
                let answer = self.try_run(*procedure, args)?;
                flight.known.answers.push(answer.reply);
            }
            Reconnaissance::Ready(args) => {
                let result = self.try_run(flight.made.procedure, args)?;
                if result.status != OutcomeStatus::Aborted(Abort::Restart) {
                    return Ok(Some(result));
                }
                flight.restarts += 1;
                // What starts over twice as wide or with what it found gets through, whatever else is in flight.
                assert!(flight.restarts <= if flight.made.procedure == DELIVERY { 5 } else { 1 });
                *self.restarts.entry(flight.made.procedure).or_default() += 1;
                match Datum::first(&result.reply) {
                    Datum::Bulk(_) => flight.known.answers = vec![result.reply],
                    _ => {
                        let fresh = system::restart_reads(&result.reply).unwrap();
                        fresh.into_iter().for_each(|read| flight.known.learn(read));
                    }
                }
            }
        }
        flight.step = self.plan(flight.made.procedure, &flight.args, &flight.known)?;
        Ok(None)
    }

    fn take_off(&self, population: usize, made: Made, args: Vec<u8>) -> Flight {
        let step = self.plan(made.procedure, &args, &Known::default()).unwrap();
        Flight { population, made, args, known: Known::default(), step, restarts: 0 }
    }

    /// Runs one transaction to its end, alone.
    fn call(&mut self, transaction: &Transaction) -> reference::Result {
        let procedure = match transaction {
            Transaction::NewOrder(_) => NEW_ORDER,
            Transaction::Payment(_) => PAYMENT,
            Transaction::OrderStatus(_) => ORDER_STATUS,
            Transaction::Delivery(_) => DELIVERY,
            Transaction::StockLevel(_) => STOCK_LEVEL,
        };
        let args = args_of(|args| transaction.write_args(&self.workload.prefixes, args));
        let mut flight = self.take_off(0, Made { procedure, kind: 0 }, args);
        loop {
            if let Some(result) = self.step(&mut flight) {
                return result;
            }
        }
    }

    /// Runs transactions of several populations, `in_flight` of them together, and says what was found.
    fn drive(&mut self, seed: u64, txns: usize, in_flight: usize) -> Vec<Finding> {
        // Regions have as many each.
        let populations =
            if self.workload.parameters.at_home { 2 * self.workload.parameters.partitions } else { 3 };
        let mut random = Random::new(seed);
        let mut sources: Vec<_> =
            (0..populations).map(|n| self.workload.source(seed, n, populations)).collect();
        let mut flying: Vec<Flight> = Vec::new();
        for n in 0.. {
            if n < txns {
                let population = n % populations;
                let made = sources[population].next();
                let args = args_of(|args| sources[population].write_args(args));
                flying.push(self.take_off(population, made, args));
            }
            while flying.len() >= in_flight || (n >= txns && !flying.is_empty()) {
                let at = random.below(flying.len() as u64) as usize;
                if let Some(result) = self.step(&mut flying[at]) {
                    let Flight { population, made, .. } = flying.swap_remove(at);
                    self.by_kind[usize::from(made.kind)].count(result.status);
                    sources[population].answered(made.kind, result.status, &result.reply);
                }
            }
            if n >= txns {
                break;
            }
        }
        let summaries = sources.iter_mut().map(|source| source.summary()).collect();
        if self.workload.is_audited_at_home() {
            let audits = self.audits_at_home(&mut sources);
            return self.workload.check(&Results { by_kind: self.by_kind.clone(), audits, summaries });
        }
        self.findings(summaries)
    }

    /// The answers to the audits of all populations.
    fn audits_at_home(&mut self, sources: &mut [Box<dyn Source>]) -> Vec<Vec<u8>> {
        let mut audits = Vec::new();
        for source in sources {
            while let Some(audit) = source.audit() {
                audits.push(self.run(audit, &args_of(|args| source.write_args(args))).reply);
            }
        }
        audits
    }

    fn findings(&mut self, summaries: Vec<Vec<u8>>) -> Vec<Finding> {
        let none = encode::<&str>(&[]);
        let audits = self.workload.audits();
        let audits = audits.into_iter().map(|audit| self.run(audit, &none).reply).collect();
        self.workload.check(&Results { by_kind: self.by_kind.clone(), audits, summaries })
    }

    fn key(&self, warehouse: u32, row: Row<'_>) -> Key {
        self.workload.prefixes[warehouse as usize - 1].key(row)
    }

    /// The bytes of a row, or of one that it covers.
    fn row(&self, warehouse: u32, row: Row<'_>, child: Option<Child>) -> Option<Vec<u8>> {
        let key = self.key(warehouse, row);
        let name = match child {
            None => key.to_vec(),
            Some(child) => ordain_model::children::child_key(&key, &child.suffix()).to_vec(),
        };
        let db = if child.is_some() { DB.children() } else { DB };
        let found = self.executor.records().find(|(of, key, _)| *of == db && *key == name);
        found.and_then(|(_, _, cell)| cell.string().map(<[u8]>::to_vec))
    }

    fn poke(&mut self, warehouse: u32, row: Row<'_>, child: Option<Child>, bytes: Option<&[u8]>) {
        let key = self.key(warehouse, row);
        let suffix = child.map(|child| child.suffix().to_vec()).unwrap_or_default();
        let args: Vec<&[u8]> = [&*key, &suffix].into_iter().chain(bytes).collect();
        self.run(POKE, &encode(&args));
    }
}

fn args_of(write: impl FnOnce(&mut ArgsBuilder<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut ArgsBuilder::new(&mut bytes));
    bytes
}

fn wrong(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().filter(|finding| finding.wrong.is_some()).map(|finding| finding.name).collect()
}

fn assert_sound(findings: &[Finding]) {
    for finding in findings {
        assert_eq!(finding.wrong, None, "{}", finding.name);
    }
}
