//! The end of a run: what it leaves behind, and what its system makes of that.

use std::collections::BTreeSet;
use std::sync::Arc;

use ordain_checker::{History, NodeLog, Run, Violation, ViolationKind, check};
use ordain_model::{Batch, Digest, Gsn, Layout, ProcedureId, Registry};
use ordain_role::{Directory, NodeId};

use crate::run::Config;
use crate::workload::procedures::FATAL;

/// The remains of a run.
pub struct Ending<'a> {
    /// The disk of each node as a loss of power would leave it. It is a copy: recovery may change it.
    pub disks: Vec<(NodeId, Box<dyn Directory>)>,
    /// The requests and answers of the clients.
    pub history: &'a mut History,
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
    /// Answers that need not hold, because the system has given up what they rest on.
    pub voided: u64,
    /// Nothing, or the first violation.
    pub verdict: Result<(), Violation>,
}

impl Verdict {
    /// A run whose log of a node cannot be read.
    pub fn unreadable(node: NodeId, reason: &str) -> Verdict {
        let text = format!("the log of node {} cannot be read: {reason}", node.0);
        let verdict = Err(Violation::new(ViolationKind::Recovery, text));
        Verdict { digest: Digest::default(), entries: 0, voided: 0, verdict }
    }
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
        };
        let (digest, verdict) = match check(&run) {
            Ok(digest) => (digest, Ok(())),
            Err(violation) => (Digest::default(), Err(violation)),
        };
        let entries = logs.iter().map(|log| log.batches.len() as u64).sum();
        Verdict { digest, entries, voided: 0, verdict }
    }
}
