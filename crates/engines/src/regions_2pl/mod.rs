//! Strict two-phase locking with a graph of waits: the locks of a region (the regions paper, "Locking"; sheet regions.md, 4.5).
//!
//! A request that conflicts waits, in the order in which requests came. Each wait is told to the manager of the node, whose graph has those of all
//! its shards ([`WaitsFor`](ordain_commit::WaitsFor)): where a wait closes a cycle, the youngest transaction of that is refused. The rules stand in
//! `docs/protocols/regions.md`, section "Locks".

use ordain_commit::CommitEngine;
use ordain_model::Abort;

use crate::two_phase_locking::queued::{Ahead, Discipline, QueuedLocks};

/// The engine.
pub const ENGINE: CommitEngine = CommitEngine {
    name: "regions-2pl",
    refusal: Abort::Deadlock,
    is_strict: true,
    control: |_, bugs| Box::new(QueuedLocks::new(&IN_ORDER, bugs)),
};

/// Rules L2 and L3. An upgrade goes ahead of the queue if a waiter waits for what the attempt holds: behind that one it would wait for ever. For
/// shared and exclusive modes that is always so. In a queue of intention modes all waiters may be compatible with what the attempt holds: then the
/// upgrade is a request like any other, so that a command on the whole table is not passed again and again.
static IN_ORDER: Discipline = Discipline {
    may_wait: |_, _| true,
    goes_ahead: Ahead::OfOne(|request, waiter| waiter.modes.conflicts_with(request.own)),
    tells_waits: true,
    refused: None,
};
