//! The workloads of benchmarks in the simulator: loaded by transactions, run with faults, and audited at the end.
//!
//! What a workload's checks are given is not what clients happened to hear: a client that never got its answer cannot tell what
//! its transaction did. It is what the serial execution of the log says of each transaction, and every answer that a client
//! did get is held to that execution anyway.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use ordain_checker::history::History;
use ordain_checker::{Violation, ViolationKind};
use ordain_model::{
    Abort, ArgsBuilder, Batch, Call, Db, Gsn, Isolation, Layout, OutcomeStatus, ProcedureId, Random,
    ReferenceExecutor, Registry, Stamp,
};
use ordain_sim::{Mix, Workload};
use ordain_workload::tpcc::{self, Scale, Tpcc};
use ordain_workload::ycsb::{self, Ycsb};
use ordain_workload::{Counts, Made, Results, Source, bank, micro};

use super::{SimArgs, WorkloadName};

/// One request in so many hundred is none of the workload's but a checkpoint or a move of slots, per million.
const OF_SYSTEM: u32 = 60_000;

/// A workload of a benchmark. A clone is the same one.
#[derive(Clone)]
pub(super) struct Measured(Rc<RefCell<Inner>>);

struct Inner {
    workload: Box<dyn ordain_workload::Workload>,
    source: Box<dyn Source>,
    registry: Arc<Registry>,
    /// The kind of each transaction that was asked for.
    kinds: BTreeMap<Asked, u8>,
    system: Mix,
    is_loaded: bool,
}

/// A procedure and its arguments; those of a reconnaissance are found later.
type Asked = (ProcedureId, Vec<u8>);

/// The end of a transaction of the workload.
struct Outcome {
    asked: Asked,
    status: OutcomeStatus,
    reply: Vec<u8>,
}

/// The workload of that name with as few records as the simulator wants, if it is a benchmark's.
fn workload(args: &SimArgs) -> anyhow::Result<Option<Box<dyn ordain_workload::Workload>>> {
    let partitions = usize::from(args.partitions);
    Ok(Some(match args.workload {
        WorkloadName::Mix | WorkloadName::Transfers | WorkloadName::Direct | WorkloadName::Append => {
            return Ok(None);
        }
        WorkloadName::Ycsb => Box::new(Ycsb::new(ycsb::Parameters {
            records: args.load.keys().max(8) * partitions as u64,
            record_bytes: 24,
            ops_per_txn: 4,
            writes_per_txn: 2,
            read_only: 0.3,
            partitions,
            multi_partition: if partitions > 1 { 0.5 } else { 0.0 },
            partitions_per_txn: partitions.min(2),
            ..ycsb::Parameters::default()
        })?),
        WorkloadName::Tpcc => Box::new(Tpcc::new(tpcc::Parameters {
            warehouses: u32::from(args.partitions.max(2)),
            scale: Scale { districts: 2, customers: 12, items: 40, orders: 12, undelivered: 4 },
            partitions,
            ..tpcc::Parameters::default()
        })?),
        WorkloadName::Bank => Box::new(bank::Bank::new(bank::Parameters {
            accounts: args.load.keys(),
            accounts_per_read: 2.min(args.load.keys() as usize),
            balances: 0.2,
            totals: 0.1,
            ..bank::Parameters::default()
        })?),
        WorkloadName::Micro => Box::new(micro::Micro::calvin(micro::Calvin {
            partitions,
            records_per_partition: args.load.keys().max(20),
            contention_index: 0.25,
            multi_partition: if partitions > 1 { 0.5 } else { 0.0 },
            ops_per_txn: 4,
            constraint_fails: Some(0.1),
            dependent: 0.2,
            at_home: false,
        })?),
    }))
}

impl Measured {
    /// The workload that the flags name, if it is a benchmark's; `moves_among` so many partitions slots move.
    pub(super) fn of(
        args: &SimArgs,
        (seed, moves_among): (u64, Option<u16>),
        registry: &Arc<Registry>,
    ) -> anyhow::Result<Option<Measured>> {
        let Some(workload) = workload(args)? else { return Ok(None) };
        let inner = Inner {
            source: workload.source(seed, 0, 1),
            workload,
            registry: registry.clone(),
            kinds: BTreeMap::new(),
            system: Mix::of_system(args.load.keys(), moves_among),
            is_loaded: false,
        };
        Ok(Some(Measured(Rc::new(RefCell::new(inner)))))
    }

    /// Checks what must hold of the workload: by its audits, and by how each transaction has ended.
    pub(super) fn check(
        &self,
        audits: &[Vec<u8>],
        log: &[Batch],
        (layout, isolation, aborted): (&Layout, Isolation, &BTreeSet<Gsn>),
        history: &History,
    ) -> Result<(), Violation> {
        let inner = &mut *self.0.borrow_mut();
        let reference = ReferenceExecutor::new(inner.registry.clone());
        let reference = reference.in_cluster(layout.clone()).isolated(isolation);
        let outcomes = inner.outcomes(reference, log, aborted, history);
        let mut by_kind = vec![Counts::default(); inner.workload.kinds().len()];
        for Outcome { asked, status, reply } in outcomes {
            let Some(kind) = inner.kinds.get(&asked) else { continue };
            if let Some(counts) = by_kind.get_mut(usize::from(*kind)) {
                counts.count(status);
            }
            inner.source.answered(*kind, status, &reply);
        }
        let results = Results { by_kind, audits: audits.to_vec(), summaries: vec![inner.source.summary()] };
        let findings = inner.workload.check(&results);
        match findings.into_iter().find_map(|finding| Some((finding.name, finding.wrong?))) {
            None => Ok(()),
            Some((name, wrong)) => {
                let text = format!("the audit {name} of {} finds: {wrong}", inner.workload.name());
                Err(Violation::new(ViolationKind::WrongState, text))
            }
        }
    }
}

impl Inner {
    /// True of a procedure whose keys a reconnaissance finds.
    fn finds_keys(&self, procedure: ProcedureId) -> bool {
        self.registry.get(procedure).is_some_and(|procedure| procedure.is_dependent())
    }

    fn key(&self, procedure: ProcedureId, args: &[u8]) -> Asked {
        (procedure, if self.finds_keys(procedure) { Vec::new() } else { args.to_vec() })
    }

    fn args(&self) -> Vec<u8> {
        let mut args = Vec::new();
        self.source.write_args(&mut ArgsBuilder::new(&mut args));
        args
    }

    /// How each transaction has ended: those that are logged by a serial execution, the others as they were answered.
    fn outcomes(
        &self,
        mut reference: ReferenceExecutor,
        log: &[Batch],
        aborted: &BTreeSet<Gsn>,
        history: &History,
    ) -> Vec<Outcome> {
        let (mut outcomes, mut logged) = (Vec::new(), BTreeSet::new());
        for batch in log {
            reference.open(batch);
            for (gsn, chunk, txn) in batch.txns() {
                let procedure = txn.call.procedure;
                if txn.read_only && !self.finds_keys(procedure) {
                    continue;
                }
                let asked = self.key(procedure, chunk.args(txn).encoded());
                let result = reference.run_placed(gsn, batch.now, chunk, txn);
                logged.insert(Stamp::from(gsn));
                let is_tried_again =
                    matches!(result.status, OutcomeStatus::Aborted(Abort::Restart) | OutcomeStatus::Moved);
                if !is_tried_again && !aborted.contains(&gsn) {
                    outcomes.push(Outcome { asked, status: result.status, reply: result.reply });
                }
            }
        }
        for (_, request) in history.requests() {
            let Some(answer) = request.answers.first().filter(|answer| !logged.contains(&answer.stamp))
            else {
                continue;
            };
            let asked = self.key(request.call.procedure, &request.args);
            outcomes.push(Outcome { asked, status: answer.status, reply: answer.reply.clone() });
        }
        outcomes
    }
}

impl Workload for Measured {
    fn next(&mut self, random: &mut Random) -> (Call, Vec<u8>) {
        let inner = &mut *self.0.borrow_mut();
        if random.chance(OF_SYSTEM) {
            return inner.system.next(random);
        }
        let Made { procedure, kind } = inner.source.next();
        let args = inner.args();
        let asked = inner.key(procedure, &args);
        inner.kinds.insert(asked, kind);
        (Call::new(procedure, Db(0)), args)
    }

    fn loads(&self) -> bool {
        !self.0.borrow().is_loaded
    }

    fn load(&mut self, _: &mut Random) -> Option<(Call, Vec<u8>)> {
        let inner = &mut *self.0.borrow_mut();
        let Some(procedure) = inner.source.load() else {
            inner.is_loaded = true;
            return None;
        };
        Some((Call::new(procedure, Db(0)), inner.args()))
    }

    fn audits(&self) -> Vec<ProcedureId> {
        self.0.borrow().workload.audits()
    }
}
