//! The checkers of what clients saw: they know no driver and no engine.
//!
//! One kind compares with a serial execution. It looks at the [`History`] and at the durable log and nothing else:
//! [`check`] runs all of these and reports the first violation; what one may take for granted is what the ones before it
//! have established.
//!
//! | checker | holds the system to |
//! |---|---|
//! | [`order`] | the logs of all partitions are one sequence: ascending, those of replicas alike |
//! | [`sessions`] | each request of a session has at most one effect, and its retries get one answer |
//! | [`serial`] | every acknowledged transaction is in the log and answered as the reference executor does at the isolation level |
//! | [`strict`] | what was answered before another was asked stands before it in the serial order; of reads on snapshots, as far as their mode promises |
//! | [`pipelines`] | what one connection has sent stands in the order in which it was sent, answered or not |
//! | [`conserved`] | what every transaction conserves is conserved in every answer |
//!
//! The other needs no log: [`judge`] holds transactions that append and read, or write registers, to an isolation
//! [`Level`] by their dependencies ([`dependencies`]); [`appends`] makes such a history of a [`History`] of requests.
//! [`lengths`] are what appends were answered, and [`keyspace`] is about keys that expire and iterations over all keys.

pub mod appends;
pub mod conserved;
pub mod dependencies;
mod found;
pub mod history;
pub mod keyspace;
pub mod lengths;
pub mod order;
pub mod pipelines;
pub mod serial;
pub mod sessions;
pub mod strict;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use ordain_model::{Batch, Digest, Gsn, Isolation, Layout, PartitionId, ProcedureId, Registry};
use ordain_role::NodeId;

pub use dependencies::{Anomaly, Bound, Finding, Level, judge};
pub use history::{History, RequestId};
pub use strict::Promise;

/// Declares an enum of which each variant has a name in reports.
macro_rules! named {
    ($(#[$doc:meta])* pub enum $enum:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $enum {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $enum {
            /// All of them, in order.
            pub const ALL: [$enum; [$($name),*].len()] = [$($enum::$variant),*];

            /// The name in reports.
            pub const fn name(self) -> &'static str {
                [$($name),*][self as usize]
            }
        }
    };
}

named! {
    /// The kind of a broken promise.
    pub enum ViolationKind {
        /// The log is not one ascending sequence, or its replicas differ.
        LogOrder = "log-order",
        /// A request of a session took effect twice.
        EffectTwice = "effect-twice",
        /// Two answers to one request differ.
        AnswersDiffer = "answers-differ",
        /// An acknowledged transaction is not in the durable log.
        AcknowledgedLost = "acknowledged-lost",
        /// The log holds another transaction where an acknowledged one stands.
        WrongPlace = "wrong-place",
        /// The log holds a transaction more often than it was asked for, or one that was refused.
        Phantom = "phantom",
        /// An answer is not that of the serial execution.
        WrongAnswer = "wrong-answer",
        /// A node's state is not that of the serial execution.
        WrongState = "wrong-state",
        /// A request answered earlier stands later in the serial order than one asked afterwards.
        RealTime = "real-time",
        /// A request stands earlier in the serial order than one that was sent before it over the same connection.
        Overtaken = "overtaken",
        /// A conserved quantity was seen to change.
        NotConserved = "not-conserved",
        /// A role found one of its invariants broken.
        Invariant = "invariant",
        /// A role stopped its node.
        Halted = "halted",
        /// A role panicked.
        Panicked = "panicked",
        /// A node could not be started from what is on its disk, or its log could not be read.
        Recovery = "recovery",
        /// With everything healed, requests were not finished within the bound.
        Stuck = "stuck",
    }
}

impl ViolationKind {
    /// True of what a role found out about itself, as opposed to what clients see, nodes say or disks hold.
    pub const fn is_of_a_role(self) -> bool {
        matches!(self, ViolationKind::Invariant | ViolationKind::Halted | ViolationKind::Panicked)
    }

    /// True of an event that is missing, as opposed to a wrong one that happened.
    pub const fn is_liveness(self) -> bool {
        matches!(self, ViolationKind::Stuck)
    }
}

/// A broken promise, and where to look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The kind of the promise.
    pub kind: ViolationKind,
    /// The finding, in words.
    pub message: String,
    /// The places in the serial order that it is about.
    pub gsns: Vec<Gsn>,
    /// The requests that it is about.
    pub requests: Vec<RequestId>,
}

impl Violation {
    /// A violation that is about no transaction in particular yet.
    pub fn new(kind: ViolationKind, message: impl Into<String>) -> Violation {
        Violation { kind, message: message.into(), gsns: Vec::new(), requests: Vec::new() }
    }

    /// Adds a place in the serial order.
    #[must_use]
    pub fn at(mut self, gsn: Gsn) -> Violation {
        self.gsns.push(gsn);
        self
    }

    /// Adds a request.
    #[must_use]
    pub fn of(mut self, request: RequestId) -> Violation {
        self.requests.push(request);
        self
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.message)?;
        for gsn in &self.gsns {
            write!(f, " [gsn {gsn}]")?;
        }
        for request in &self.requests {
            write!(f, " [request {}]", request.0)?;
        }
        Ok(())
    }
}

/// The durable log of a node.
#[derive(Clone, Debug)]
pub struct NodeLog {
    /// The node.
    pub node: NodeId,
    /// The partition that it holds.
    pub partition: PartitionId,
    /// The batches of the partition, in the order of the log.
    pub batches: Vec<Batch>,
}

/// The remains of a run, to be checked.
#[derive(Debug)]
pub struct Run<'a> {
    /// All procedures.
    pub registry: &'a Arc<Registry>,
    /// The layout at first, of a system in which slots can move.
    pub layout: Option<&'a Layout>,
    /// The batches that were executed before the run, in their order: it begins with the state that they come to.
    pub before: &'a [Batch],
    /// The places of the transactions that an operator has aborted.
    pub aborted: &'a BTreeSet<Gsn>,
    /// Procedures that end the process that executes them: an operator aborts no other.
    pub fatal: &'a [ProcedureId],
    /// The durable log of each node.
    pub logs: &'a [NodeLog],
    /// The requests and answers of the clients.
    pub history: &'a History,
    /// The digest of each node's state after the whole log, where it is known.
    pub digests: &'a [(NodeId, Digest)],
    /// Procedures whose reply must always be this.
    pub conserved: &'a [(ProcedureId, Vec<u8>)],
    /// The promise about the place in time of reads on snapshots.
    pub promise: Promise,
    /// The isolation level.
    pub isolation: Isolation,
    /// The wall clocks of all nodes show the true time.
    pub clocks_are_true: bool,
}

/// Runs all checkers. Returns the digest of the serial execution.
///
/// # Errors
/// The first violation.
pub fn check(run: &Run<'_>) -> Result<Digest, Violation> {
    let log = order::merge(run.logs)?;
    sessions::check(&log, run.history)?;
    let (digest, found) = serial::check(run, &log)?;
    strict::check(run.history, &found, run.promise)?;
    pipelines::check(run.history, &found, run.promise)?;
    conserved::check(run.history, run.conserved)?;
    Ok(digest)
}

#[cfg(test)]
pub(crate) mod fixture {
    //! Hand-made logs and histories.

    use super::*;
    use ordain_model::{
        Call, Chunk, ChunkNo, Db, Epoch, GatewayId, Micros, Millis, OutcomeStatus, PartitionId, Placed,
        ReferenceExecutor, RequestNo, SessionId, system,
    };
    use ordain_sim::workload::procedures as p;

    pub(crate) fn registry() -> Arc<Registry> {
        let mut registry = Registry::default();
        system::register(&mut registry);
        p::register(&mut registry);
        Arc::new(registry)
    }

    pub(crate) type Ask<'a> = (ProcedureId, Db, &'a [&'a str], Option<(u64, u64)>);

    fn call_of(ask: &Ask<'_>, shift: u32) -> Call {
        let session = ask.3.map(|(s, r)| (SessionId(s), RequestNo(r << shift)));
        Call { procedure: ask.0, db: ask.1, session }
    }

    pub(crate) fn batch(registry: &Registry, epoch: u64, asks: &[Ask<'_>]) -> Batch {
        batch_of(registry, epoch, asks, Chunk::new(GatewayId(0), ChunkNo(epoch)))
    }

    /// The same where there are two partitions: reads of both are logged.
    pub(crate) fn batch_of_two(registry: &Registry, epoch: u64, asks: &[Ask<'_>]) -> Batch {
        let layout = ordain_model::Layout::even(2, 1).unwrap();
        let chunk = Chunk::new(GatewayId(0), ChunkNo(epoch)).in_cluster(0, Arc::new(layout));
        batch_of(registry, epoch, asks, chunk)
    }

    fn batch_of(registry: &Registry, epoch: u64, asks: &[Ask<'_>], mut chunk: Chunk) -> Batch {
        for ask in asks {
            let call = call_of(ask, RequestNo::RESTART_BITS);
            let push = |out: &mut ordain_model::ArgsBuilder<'_>| {
                ask.2.iter().for_each(|arg| _ = out.push(arg.as_bytes()));
            };
            chunk.push(registry, call, push).unwrap();
        }
        let total = chunk.span();
        Batch {
            epoch: Epoch(epoch),
            layout: 1,
            now: Millis(1_000 + epoch),
            total,
            chunks: vec![Placed::whole(0, Arc::new(chunk))],
            ..Batch::default()
        }
    }

    /// A history in which each transaction of the batches was asked and answered before the next, rightly;
    /// and the batches as they are logged.
    pub(crate) fn good(registry: &Arc<Registry>, batches: &[Batch]) -> (Vec<Batch>, History) {
        let mut history = History::default();
        let mut reference = ReferenceExecutor::new(registry.clone());
        let mut logged = Vec::new();
        for batch in batches {
            for (gsn, chunk, txn) in batch.txns() {
                let result = reference.run_txn(gsn, batch.now, chunk, txn);
                let mut call = txn.call;
                if let Some((_, request)) = &mut call.session {
                    request.0 >>= RequestNo::RESTART_BITS;
                }
                let id = history.sent(Micros(gsn.0), call, chunk.args(txn).encoded().to_vec());
                history.answered(id, result.status, gsn, &result.reply);
            }
            if batch.is_logged() {
                let mut entry = batch.encode_head();
                batch.logged().for_each(|placed| entry.extend_from_slice(placed.chunk.logged()));
                logged.push(Batch::decode(registry, &entry).unwrap());
            }
        }
        (logged, history)
    }

    /// The history with one answer changed.
    pub(crate) fn tampered(history: &History, request: usize, change: impl FnOnce(&mut Request)) -> History {
        let mut changed = History::default();
        let mut change = Some(change);
        let mut events: Vec<(u64, usize, Option<usize>)> = Vec::new();
        let mut requests: Vec<Request> = history.requests().map(|(_, r)| r.clone()).collect();
        if let Some(change) = change.take() {
            change(&mut requests[request]);
        }
        for (i, r) in requests.iter().enumerate() {
            events.push((r.moment.0, i, None));
            events.extend(r.answers.iter().enumerate().map(|(n, a)| (a.moment.0, i, Some(n))));
        }
        events.sort_unstable();
        let mut ids = std::collections::BTreeMap::new();
        for (_, i, answer) in events {
            let r = &requests[i];
            match answer {
                None => _ = ids.insert(i, changed.sent_by(r.client, r.at, r.call, r.args.clone())),
                Some(n) => {
                    let a = &r.answers[n];
                    changed.answered(ids[&i], a.status, a.gsn(), &a.reply);
                }
            }
        }
        changed
    }

    pub(crate) use crate::history::{Answer, Moment, Request};

    pub(crate) fn reply_int(n: i64) -> Vec<u8> {
        let mut reply = Vec::new();
        ordain_model::Writer(&mut reply).int(n);
        reply
    }

    pub(crate) fn run(
        registry: &Arc<Registry>,
        log: &[Batch],
        history: &History,
    ) -> Result<Digest, ViolationKind> {
        run_after(registry, &[], log, history)
    }

    /// A run with nothing but logs and a history, to be added to.
    pub(crate) fn plain<'a>(
        registry: &'a Arc<Registry>,
        logs: &'a [NodeLog],
        history: &'a History,
    ) -> Run<'a> {
        const NONE: &BTreeSet<Gsn> = &BTreeSet::new();
        Run {
            registry,
            layout: None,
            before: &[],
            aborted: NONE,
            fatal: &[],
            logs,
            history,
            digests: &[],
            conserved: &[],
            promise: Promise::Strict,
            isolation: Isolation::Serializable,
            clocks_are_true: true,
        }
    }

    /// The same, of a run that begins with the state of batches before it.
    pub(crate) fn run_after(
        registry: &Arc<Registry>,
        before: &[Batch],
        log: &[Batch],
        history: &History,
    ) -> Result<Digest, ViolationKind> {
        let logs = [NodeLog { node: NodeId(0), partition: PartitionId(0), batches: log.to_vec() }];
        let conserved = [(p::AUDIT, reply_int(0))];
        let run = Run { before, conserved: &conserved, ..plain(registry, &logs, history) };
        check(&run).map_err(|violation| violation.kind)
    }

    #[test]
    fn a_right_history_passes_and_its_digest_is_the_reference_s() {
        let registry = registry();
        let batches = [
            batch(&registry, 1, &[(p::TRANSFER, p::ACCOUNTS, &["a", "b", "30"], Some((1, 1)))]),
            batch(&registry, 2, &[(p::AUDIT, p::ACCOUNTS, &["a", "b"], None)]),
            batch(
                &registry,
                3,
                &[
                    (p::GET, p::ACCOUNTS, &["a", "b"], None),
                    (p::TRANSFER, p::ACCOUNTS, &["a", "b", "90"], Some((1, 2))),
                    (p::PANIC, p::CELLS, &["3", "x"], None),
                    (p::AUDIT, p::ACCOUNTS, &["b", "a"], None),
                ],
            ),
        ];
        let (log, history) = good(&registry, &batches);
        assert_eq!(log.len(), 2, "the batch of reads is not logged");
        let mut reference = ReferenceExecutor::new(registry.clone());
        log.iter().for_each(|b| _ = reference.run(b));
        assert_eq!(run(&registry, &log, &history), Ok(reference.digest()));
        let statuses: Vec<_> = history.answers().map(|(_, _, a)| a.status).collect();
        assert!(statuses.iter().any(|s| matches!(s, OutcomeStatus::Aborted(ordain_model::Abort::Panic))));
    }
}
