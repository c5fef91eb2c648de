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
    /// The log says that a batch is durable without having synced it.
    SkipSync,
    /// Every so often a shard grants a lock although somebody is ahead in the queue.
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
    /// What a shard tells one of another node is lost on the way.
    LoseRemoteResult,
    /// A node executes the batches of an epoch in another order of the partitions.
    WrongInterleave,
    /// Every so often a node of the last replica changes a record that it was not told to.
    FlipRecord,
    /// An exchange takes what comes in while a term is prepared, and from nodes that have to be rebuilt: a batch of a primary
    /// who is none any more is accepted.
    IgnoreFence,
    /// A node that has to be rebuilt keeps all that came in, and not only what is certain.
    KeepUncertain,
    /// While a checkpoint is taken, what was kept for it so far is freed.
    ForgetVersion,
    /// A read on a snapshot does not wait until everything of its epoch is executed.
    ReadEarly,
    /// A shard executes a transaction that was planned under a map by which its slots are elsewhere.
    StaleLayout,
    /// Every so often two places of a queue are taken in the wrong order.
    SkipRankOrder,
    /// A shard that begins to keep what changes replace says that it can show the last published state, though some of a
    /// later epoch has been executed.
    KeepLate,
    /// One change of a transaction that was executed before it was known that it aborts is not undone.
    LoseUndo,
    /// What a transaction only reads it sees as it is just now, where it is to see the state before its epoch.
    ReadUncommitted,
    /// Who has used what aborts is undone, where all that is tainted aborts too, and is answered as if it had not been.
    SpareAffected,
    /// A gateway sends each request of a connection to the sequencer that suits it, whatever others of the connection are under
    /// way.
    ForgetStay,
    /// A node does not say on a fresh stream what an operator has aborted.
    ForgetAborts,
    /// A slot moves without the first of its records that has changed since it was copied.
    KeepStaleCopy,
}

impl Bug {
    /// How many partitions and replicas there must be for it to show.
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

    /// Whether it shows only where primaries change.
    pub const fn is_of_primaries(self) -> bool {
        matches!(self, Bug::IgnoreFence | Bug::KeepUncertain)
    }

    /// Says whether it shows only where transactions end nodes and an operator aborts them.
    pub const fn is_of_operators(self) -> bool {
        matches!(self, Bug::ForgetAborts)
    }

    /// Whether it shows only where reads are run on snapshots.
    pub const fn is_of_reads(self) -> bool {
        matches!(self, Bug::ReadEarly | Bug::KeepLate)
    }

    /// Whether it shows only where transactions are executed in queues.
    pub const fn is_of_queues(self) -> bool {
        matches!(self, Bug::SkipRankOrder | Bug::LoseUndo | Bug::ReadUncommitted | Bug::SpareAffected)
    }

    /// Whether it shows only where transactions read what is committed, at whatever moment.
    pub const fn is_of_read_committed(self) -> bool {
        matches!(self, Bug::ReadUncommitted)
    }

    /// Whether it shows only where aborts cascade.
    pub const fn is_of_cascades(self) -> bool {
        matches!(self, Bug::SpareAffected)
    }

    /// All of them, with the names by which a command line plants them.
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

    /// This set and one more.
    #[must_use]
    pub const fn with(self, bug: Bug) -> Bugs {
        Bugs(self.0 | 1 << bug as u32)
    }

    /// Whether a bug is planted.
    #[inline]
    pub const fn has(self, bug: Bug) -> bool {
        self.0 & (1 << bug as u32) != 0
    }
}
