//! A test bed: what sources make up, run one at a time on the reference executor.

use std::sync::Arc;

use ordain_model::args::encode;
use ordain_model::reference::Result;
use ordain_model::{
    Args, ArgsBuilder, Call, Chunk, ChunkNo, Db, Epoch, GatewayId, Gsn, Millis, OutcomeStatus, PartitionId,
    ProcedureId, ReferenceExecutor, Registry, system,
};

use crate::{Counts, Finding, Made, Results, Source, Workload};

/// A state, and the procedures of all workloads.
pub struct Bed {
    pub registry: Arc<Registry>,
    pub executor: ReferenceExecutor,
    epoch: u64,
}

impl Bed {
    pub fn new() -> Bed {
        let mut registry = Registry::default();
        system::register(&mut registry);
        crate::register(&mut registry);
        let registry = Arc::new(registry);
        Bed { executor: ReferenceExecutor::new(registry.clone()), registry, epoch: 0 }
    }

    /// Runs a transaction, however it ends.
    pub fn call(&mut self, procedure: ProcedureId, write: impl FnOnce(&mut ArgsBuilder<'_>)) -> Result {
        let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
        let txn = chunk.push(&self.registry, Call::new(procedure, Db(0)), write).unwrap().clone();
        self.epoch += 1;
        let gsn = Gsn::new(Epoch(self.epoch), PartitionId(0), 0);
        self.executor.run_txn(gsn, Millis(1), &chunk, &txn)
    }

    /// Runs a transaction that must commit, and returns its reply.
    pub fn run(&mut self, procedure: ProcedureId, write: impl FnOnce(&mut ArgsBuilder<'_>)) -> Vec<u8> {
        let result = self.call(procedure, write);
        assert_eq!(result.status, OutcomeStatus::Committed);
        result.reply
    }

    /// True if the arguments are refused.
    pub fn refuses<T: AsRef<[u8]>>(&self, procedure: ProcedureId, args: &[T]) -> bool {
        self.refusal(procedure, args).is_some()
    }

    /// The error with which these arguments are refused.
    pub fn refusal<T: AsRef<[u8]>>(&self, procedure: ProcedureId, args: &[T]) -> Option<String> {
        let bytes = encode(args);
        let args = Args::parse(&bytes).unwrap();
        let write = |builder: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = builder.push(arg.bytes));
        let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
        chunk
            .push(&self.registry, Call::new(procedure, Db(0)), write)
            .err()
            .map(|refusal| refusal.to_string())
    }

    /// Loads a source's share.
    pub fn load(&mut self, source: &mut dyn Source) {
        while let Some(procedure) = source.load() {
            self.run(procedure, |args| source.write_args(args));
        }
    }

    /// Runs the next transaction of a source, and gives it the answer.
    pub fn step(&mut self, source: &mut dyn Source, by_kind: &mut [Counts]) {
        let Made { procedure, kind } = source.next();
        let result = self.call(procedure, |args| source.write_args(args));
        by_kind[kind as usize].count(result.status);
        source.answered(kind, result.status, &result.reply);
    }

    /// The results, for the check.
    pub fn results(
        &mut self,
        workload: &dyn Workload,
        sources: &mut [Box<dyn Source>],
        by_kind: Vec<Counts>,
    ) -> Results {
        let audits = workload.audits().into_iter().map(|audit| self.run(audit, |_| {})).collect();
        let summaries = sources.iter_mut().map(|source| source.summary()).collect();
        Results { by_kind, audits, summaries }
    }
}

/// Loads a workload and runs `txns` transactions of `populations` populations in turns.
pub fn run(workload: &dyn Workload, populations: usize, txns: usize) -> (Bed, Results) {
    let mut bed = Bed::new();
    let mut sources: Vec<Box<dyn Source>> =
        (0..populations).map(|number| workload.source(7, number, populations)).collect();
    sources.iter_mut().for_each(|source| bed.load(&mut **source));
    let mut by_kind = vec![Counts::default(); workload.kinds().len()];
    (0..txns).for_each(|n| bed.step(&mut *sources[n % populations], &mut by_kind));
    let results = bed.results(workload, &mut sources, by_kind);
    (bed, results)
}

/// Loads a workload, runs some of its transactions and loads it again, over what they have left: its blind writes, which the
/// executor checks, find other contents then. Panics unless the state is the first one again.
pub fn load_again(workload: &dyn Workload) {
    let mut bed = Bed::new();
    let mut source = workload.source(7, 0, 1);
    bed.load(&mut *source);
    let loaded = bed.executor.digest();
    let mut by_kind = vec![Counts::default(); workload.kinds().len()];
    (0..50).for_each(|_| bed.step(&mut *source, &mut by_kind));
    assert_ne!(bed.executor.digest(), loaded);
    bed.load(&mut *workload.source(7, 0, 1));
    assert_eq!(bed.executor.digest(), loaded);
}

/// The names of what does not hold.
pub fn wrong(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().filter(|finding| finding.wrong.is_some()).map(|finding| finding.name).collect()
}
