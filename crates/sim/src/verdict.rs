//! The end of a run: what it leaves behind, and what its system makes of that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_checker::{History, NodeLog, Run, Violation, ViolationKind, check};
use ordain_model::{Batch, Digest, Gsn, Layout, ProcedureId, Registry, Stamp};
use ordain_role::{Directory, NodeId};

use crate::faults::Fault;
use crate::figures::BatchSize;
use crate::run::Config;
use crate::workload::procedures::FATAL;

/// The remains of a run.
pub struct Ending<'a> {
    /// The disk of each node as a loss of power would leave it. It is a copy: recovery may change it.
    pub disks: Vec<(NodeId, Box<dyn Directory>)>,
    /// The requests and answers of the clients.
    pub history: &'a mut History,
    /// The latest place of an answer that was given while clients asked and faults happened.
    pub last_under_load: Stamp,
    /// The same of the answers of each node.
    pub last_at: BTreeMap<NodeId, Stamp>,
    /// The digests that nodes have reported without a transaction, when nothing was under way.
    pub digests: Vec<(NodeId, Digest)>,
    /// Procedures whose reply must always be this.
    pub conserved: Vec<(ProcedureId, Vec<u8>)>,
    /// The answers to the workload's audits, in order.
    pub audits: Vec<Vec<u8>>,
    /// The procedures there are.
    pub registry: Arc<Registry>,
    /// The batches of a system that this one goes on from, in their order.
    pub before: Vec<Batch>,
    /// The configuration of the run.
    pub config: &'a Config,
}

/// The result of checking a run.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The digest of the state that the run should have come to.
    pub digest: Digest,
    /// Entries in the durable logs of all nodes.
    pub entries: u64,
    /// The sizes of the batches up to the last answer under load, each once however many nodes have it. Those that come while a
    /// run is wound up are small whatever the load.
    pub batches: Vec<BatchSize>,
    /// Answers that need not hold, because the system has given up what they rest on.
    pub voided: u64,
    /// Nothing, or the first violation.
    pub verdict: Result<(), Violation>,
}

impl Verdict {
    /// A run whose log of a node cannot be read.
    pub fn unreadable(node: NodeId, reason: &str) -> Verdict {
        let text = format!("the log of node {} cannot be read: {reason}", node.0);
        Verdict::failed(Violation::new(ViolationKind::Recovery, text))
    }

    /// A run that is not judged, because something was broken before its end.
    pub fn failed(violation: Violation) -> Verdict {
        let digest = Digest::default();
        Verdict { digest, entries: 0, batches: Vec::new(), voided: 0, verdict: Err(violation) }
    }
}

fn size_of(batch: &Batch) -> BatchSize {
    let fragments = batch.txns().map(|(_, _, txn)| txn.fragments().len() as u64);
    BatchSize { txns: batch.txns().count() as u64, fragments: fragments.sum() }
}

impl Ending<'_> {
    /// Judges the run of a deterministic system by the serial execution of its logs. `layout` is where the slots were at
    /// first, if they can move; `aborted` is what an operator has aborted by its place.
    pub fn by_replay(&self, logs: &[NodeLog], layout: Option<&Layout>, aborted: &BTreeSet<Gsn>) -> Verdict {
        let run = Run {
            registry: &self.registry,
            layout,
            before: &self.before,
            aborted,
            fatal: &[FATAL],
            logs,
            history: self.history,
            digests: &self.digests,
            conserved: &self.conserved,
            promise: self.config.promise,
            isolation: self.config.isolation,
            clocks_are_true: !self.config.faults.has(Fault::Clock),
        };
        let (digest, verdict) = match check(&run) {
            Ok(digest) => (digest, Ok(())),
            Err(violation) => (Digest::default(), Err(violation)),
        };
        let entries = logs.iter().map(|log| log.batches.len() as u64).sum();
        let last = self.last_under_load;
        let place = |batch: &Batch| Gsn::new(batch.epoch, batch.partition, 0);
        let under_load =
            logs.iter().flat_map(|log| &log.batches).filter(|batch| Stamp::from(place(batch)) <= last);
        let batches: BTreeMap<_, _> = under_load.map(|batch| (place(batch), size_of(batch))).collect();
        Verdict { digest, entries, batches: batches.into_values().collect(), voided: 0, verdict }
    }
}
