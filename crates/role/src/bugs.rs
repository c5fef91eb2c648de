//! Bugs that tests plant, to prove that the checkers would find them (STYLE.md, 16).
//!
//! A role is built with a set of them, empty everywhere but in the simulator's own tests. Each is one line at
//! the place where the real mistake would be made.

/// A mistake that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Bug {
    /// A batch is handed to execution before it is durable.
    DispatchBeforeDurable,
    /// The log reports a batch as durable without having synced it.
    SkipSync,
    /// Now and then a shard grants a lock although another transaction is ahead in the queue.
    GrantLockEarly,
    /// Every so often a shard skips one transaction of a batch.
    SkipTransaction,
    /// An aborted transaction keeps one of its writes.
    KeepAbortedWrite,
    /// A retried request is sequenced again.
    ForgetSession,
    /// A transaction that aborted on one shard commits on another.
    IgnoreRemoteVote,
    /// A node takes another partition's batch for an empty one.
    SkipSlot,
    /// A remote result between shards of two nodes is lost on the way.
    LoseRemoteResult,
    /// A node executes the batches of an epoch in another order of the partitions.
    WrongInterleave,
    /// Now and then a node of the last replica changes a record without reason.
    FlipRecord,
    /// An exchange takes what comes in while a term is prepared, and from nodes that have to be rebuilt: a batch of a primary
    /// who is none any more is accepted.
    IgnoreFence,
    /// A node that has to be rebuilt keeps all that came in, not only what is stable.
    KeepUncertain,
    /// While a checkpoint is taken, what was kept for it so far is freed.
    ForgetVersion,
    /// A read on a snapshot does not wait until everything of its epoch is executed.
    ReadEarly,
    /// A shard executes a transaction that was planned under a map by which its slots are elsewhere.
    StaleLayout,
    /// Every so often two places of a queue are taken in the wrong order.
    SkipRankOrder,
    /// A shard that begins to keep past states claims the last published one, though some of a later epoch is
    /// executed.
    KeepLate,
    /// One change of a speculated transaction that aborts is not undone.
    LoseUndo,
    /// A transaction reads records as they are now, where read committed shows the state before its epoch.
    ReadUncommitted,
    /// With cascading aborts, a transaction that is undone with another is answered as if it had committed.
    SpareAffected,
    /// A gateway sends each request of a connection to the sequencer that suits it, whatever others of the connection
    /// are under way.
    ForgetStay,
    /// A node leaves out of a fresh stream what an operator has aborted.
    ForgetAborts,
    /// A slot moves without the first of its records that has changed since it was copied.
    KeepStaleCopy,
}

impl Bug {
    /// The least number of partitions and of replicas with which the bug shows.
    pub const fn shows_with(self) -> (u16, u16) {
        match self {
            Bug::SkipSlot
            | Bug::LoseRemoteResult
            | Bug::WrongInterleave
            | Bug::ReadEarly
            | Bug::StaleLayout
            | Bug::KeepLate
            | Bug::ForgetStay
            | Bug::KeepStaleCopy => (2, 1),
            Bug::FlipRecord => (1, 3),
            Bug::IgnoreFence | Bug::ForgetAborts => (2, 3),
            Bug::KeepUncertain => (2, 2),
            _ => (1, 1),
        }
    }

    /// Tells whether the bug shows only where primaries change.
    pub const fn is_of_primaries(self) -> bool {
        matches!(self, Bug::IgnoreFence | Bug::KeepUncertain)
    }

    /// Tells whether the bug shows only where transactions end nodes and an operator aborts them.
    pub const fn is_of_operators(self) -> bool {
        matches!(self, Bug::ForgetAborts)
    }

    /// Tells whether the bug shows only where reads are run on snapshots.
    pub const fn is_of_reads(self) -> bool {
        matches!(self, Bug::ReadEarly | Bug::KeepLate)
    }

    /// Tells whether the bug shows only where transactions are executed in queues.
    pub const fn is_of_queues(self) -> bool {
        matches!(self, Bug::SkipRankOrder | Bug::LoseUndo | Bug::ReadUncommitted | Bug::SpareAffected)
    }

    /// Tells whether the bug shows only with read committed.
    pub const fn is_of_read_committed(self) -> bool {
        matches!(self, Bug::ReadUncommitted)
    }

    /// Tells whether the bug shows only where aborts cascade.
    pub const fn is_of_cascades(self) -> bool {
        matches!(self, Bug::SpareAffected)
    }

    /// Every bug with the name by which a command line plants it.
    pub const ALL: [(Bug, &'static str); 24] = [
        (Bug::DispatchBeforeDurable, "dispatch-before-durable"),
        (Bug::SkipSync, "skip-sync"),
        (Bug::GrantLockEarly, "grant-lock-early"),
        (Bug::SkipTransaction, "skip-transaction"),
        (Bug::KeepAbortedWrite, "keep-aborted-write"),
        (Bug::ForgetSession, "forget-session"),
        (Bug::IgnoreRemoteVote, "ignore-remote-vote"),
        (Bug::SkipSlot, "skip-slot"),
        (Bug::LoseRemoteResult, "lose-remote-result"),
        (Bug::WrongInterleave, "wrong-interleave"),
        (Bug::FlipRecord, "flip-record"),
        (Bug::IgnoreFence, "ignore-fence"),
        (Bug::KeepUncertain, "keep-uncertain"),
        (Bug::ForgetVersion, "forget-version"),
        (Bug::ReadEarly, "read-early"),
        (Bug::StaleLayout, "stale-layout"),
        (Bug::SkipRankOrder, "skip-rank-order"),
        (Bug::KeepLate, "keep-late"),
        (Bug::LoseUndo, "lose-undo"),
        (Bug::ReadUncommitted, "read-uncommitted"),
        (Bug::SpareAffected, "spare-affected"),
        (Bug::ForgetStay, "forget-stay"),
        (Bug::ForgetAborts, "forget-aborts"),
        (Bug::KeepStaleCopy, "keep-stale-copy"),
    ];
}

/// A set of planted bugs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bugs(u32);

impl Bugs {
    /// None: what everything but a test of the checkers runs with.
    pub const NONE: Bugs = Bugs(0);

    /// Adds a bug to the set.
    #[must_use]
    pub const fn with(self, bug: Bug) -> Bugs {
        Bugs(self.0 | 1 << bug as u32)
    }

    /// Tells whether a bug is planted.
    #[inline]
    pub const fn has(self, bug: Bug) -> bool {
        self.0 & (1 << bug as u32) != 0
    }
}
