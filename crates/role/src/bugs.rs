//! Bugs that tests plant, to prove that the checkers would find them (STYLE.md, 16).
//!
//! A role is built with a set of them, empty everywhere but in the simulator. Each is one line at the place where the
//! real mistake would be made. The engines that a bug is planted in, and what must find it there, are in the table of
//! `ordain sim bugs`.

/// Declares the bugs, each with the name by which a command line plants it.
macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident = $name:literal,)*) => {
        /// A mistake that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Bug {
            $($(#[$doc])* $bug,)*
        }

        impl Bug {
            /// Every bug, in the order of its declaration.
            pub const ALL: [Bug; [$($name),*].len()] = [$(Bug::$bug),*];

            /// Returns the name by which a command line plants the bug.
            pub const fn name(self) -> &'static str {
                [$($name),*][self as usize]
            }
        }
    };
}

bugs! {
    /// A batch is handed to execution before it is durable.
    DispatchBeforeDurable = "dispatch-before-durable",
    /// The log reports a batch as durable without having synced it.
    SkipSync = "skip-sync",
    /// Now and then a shard grants a lock although another transaction is ahead in the queue.
    GrantLockEarly = "grant-lock-early",
    /// Every so often a shard skips one transaction of a batch.
    SkipTransaction = "skip-transaction",
    /// An aborted transaction keeps one of its writes.
    KeepAbortedWrite = "keep-aborted-write",
    /// A retried request is sequenced again.
    ForgetSession = "forget-session",
    /// The next attempt at a transaction begins while participants hold what the one before has locked.
    KeepOldLocks = "keep-old-locks",
    /// What a step of an interactive transaction has locked is released before the next.
    ReleaseBetweenSteps = "release-between-steps",
    /// A client is answered before what it is told of is durable.
    AnswerEarly = "answer-early",
    /// A snapshot that waits for nothing in doubt is just below the first stamp in doubt, whatever has become of others meanwhile.
    ResolveBelow = "resolve-below",
    /// A decision that is taken has its place behind the next one.
    PlaceLate = "place-late",
    /// A view lets an attempt read on, whatever of what it has read is not as it was.
    TornView = "torn-view",
    /// A view goes on showing what its own region has committed, though the log has told of it.
    KeepOverlay = "keep-overlay",
    /// A view shows what has come of a checkpoint before the rest has.
    ShowPieces = "show-pieces",
    /// A participant votes yes before its promise stands in the log.
    VoteBeforeLog = "vote-before-log",
    /// A region votes yes before its promise is durable.
    VoteUndurable = "vote-undurable",
    /// A region validates what a transaction has read there before all regions have locked what it writes.
    ValidateBeforeLocked = "validate-before-locked",
    /// A region's no counts whoever of its incarnations has said it.
    CountAnyNo = "count-any-no",
    /// A region that has said no for want of a request takes the request when it comes.
    ForgetRefusal = "forget-refusal",
    /// A participant acknowledges an outcome before that stands in its log.
    AckEarly = "ack-early",
    /// A home denies an attempt that it may yet commit.
    DenyLive = "deny-live",
    /// A leader that leads again goes on under its former claim with what it was at.
    KeepClaim = "keep-claim",
    /// A new leader serves without the locks of what is promised.
    ForgetLocks = "forget-locks",
    /// A coordinator does not give up an attempt that takes too long.
    WaitForEver = "wait-for-ever",
    /// A node does not pass on which cut of checkpoints it has heard of.
    KeepCut = "keep-cut",
    /// A leader marks a cut of checkpoints behind what it logs next.
    MarkLate = "mark-late",
    /// A checkpoint leaves out what is promised and not decided.
    SkipPromises = "skip-promises",
    /// A checkpoint leaves out the outcomes that participants may yet ask for.
    SkipDecisions = "skip-decisions",
    /// A transaction that aborted on one shard commits on another.
    IgnoreRemoteVote = "ignore-remote-vote",
    /// A node takes another partition's batch for an empty one.
    SkipSlot = "skip-slot",
    /// A remote result between shards of two nodes is lost on the way.
    LoseRemoteResult = "lose-remote-result",
    /// A node executes the batches of an epoch in another order of the partitions.
    WrongInterleave = "wrong-interleave",
    /// Now and then a node of the last replica changes a record without reason.
    FlipRecord = "flip-record",
    /// An exchange takes what comes in while a term is prepared, and from nodes that have to be rebuilt: a batch of a primary
    /// who is none any more is accepted.
    IgnoreFence = "ignore-fence",
    /// A node that has to be rebuilt keeps all that came in, not only what is stable.
    KeepUncertain = "keep-uncertain",
    /// While a checkpoint is taken, what was kept for it so far is freed.
    ForgetVersion = "forget-version",
    /// A read on a snapshot does not wait until everything of its epoch is executed.
    ReadEarly = "read-early",
    /// A shard executes a transaction that was planned under a map by which its slots are elsewhere.
    StaleLayout = "stale-layout",
    /// Every so often two places of a queue are taken in the wrong order.
    SkipRankOrder = "skip-rank-order",
    /// A shard that begins to keep past states claims the last published one, though some of a later epoch is
    /// executed.
    KeepLate = "keep-late",
    /// One change of a speculated transaction that aborts is not undone.
    LoseUndo = "lose-undo",
    /// A transaction reads records as they are now, where read committed shows the state before its epoch.
    ReadUncommitted = "read-uncommitted",
    /// With cascading aborts, a transaction that is undone with another is answered as if it had committed.
    SpareAffected = "spare-affected",
    /// A gateway sends each request of a connection to the sequencer that suits it, whatever others of the connection
    /// are under way.
    ForgetStay = "forget-stay",
    /// A node leaves out of a fresh stream what an operator has aborted.
    ForgetAborts = "forget-aborts",
    /// A slot moves without the first of its records that has changed since it was copied.
    KeepStaleCopy = "keep-stale-copy",
    /// A node that starts gives out epochs again that it had given to batches which are not logged.
    ReuseEpoch = "reuse-epoch",
    /// A batch has the time of the wall clock, though an earlier batch had a later one.
    TimeGoesBack = "time-goes-back",
    /// A node whose log begins after the state that it has executes the log all the same.
    GuessBeginning = "guess-beginning",
    /// A node that starts with an empty disk takes itself for a new one, and asks no other.
    SkipFounding = "skip-founding",
    /// A node that begins from a checkpoint takes no outcomes of sessions from it.
    ForgetOutcomes = "forget-outcomes",
    /// A node that begins from a checkpoint passes over the first entry of its log behind it.
    SkipFirstEntry = "skip-first-entry",
    /// A checkpoint is given the records as they are, in place of those at the end of its epoch.
    CutLate = "cut-late",
    /// A read on a snapshot takes a slot to be where it was planned, though the slot had moved by its epoch.
    ReadMoved = "read-moved",
    /// An attempt is validated without a look at what it has read.
    SkipValidation = "skip-validation",
    /// Who reads what a reader must not see does not take that along.
    ForgetReaders = "forget-readers",
    /// What clients have seen is not passed on with what they ask for next.
    ForgetSeen = "forget-seen",
    /// Every so often a transaction that is done keeps one of its locks, or its place in one queue.
    LeaveLock = "leave-lock",
    /// A leader executes and answers a batch that its group has not agreed on.
    ExecuteBeforeAgreed = "execute-before-agreed",
    /// An exchange says that it needs nothing more of what is executed, before that is on its disk.
    ReportEarly = "report-early",
    /// A new term begins behind the epochs that are decided, among those that its predecessor has used.
    BeginAtEnd = "begin-at-end",
    /// An evicted node keeps its log, which may hold what was not decided.
    KeepUndecided = "keep-undecided",
    /// The low watermark of a partition is that of the member that has the most.
    ForgetUnstable = "forget-unstable",
    /// A checkpoint is sealed although what it holds may still be lost with a primary.
    SealUnstable = "seal-unstable",
    /// A read on a snapshot does not wait for what its connection has seen.
    IgnoreToken = "ignore-token",
    /// The abort of a computation that was given away is forgotten.
    ForgetWorkAbort = "forget-work-abort",
    /// The shard that composes an answer of the whole table takes its own part for all of it.
    OwnPartOnly = "own-part-only",
    /// All transactions of a batch write with one version.
    ShareVersion = "share-version",
    /// A record keeps the version of a write that is undone.
    KeepUndoneVersion = "keep-undone-version",
    /// The last replica executes what an operator has aborted.
    IgnoreAbort = "ignore-abort",
    /// A block runs although a key that its connection watches has changed.
    IgnoreWatch = "ignore-watch",
    /// A gateway submits a request of a session without its number.
    IgnoreRequest = "ignore-request",
    /// A script is logged without what its user may do.
    LoseRights = "lose-rights",
    /// A script is logged under the number of one that is refused nothing, though memory is short.
    ForgetShortage = "forget-shortage",
    /// A shard seeds a transaction by its own number too.
    OwnSeed = "own-seed",
    /// A record keeps the time of expiry that an undone write has set.
    KeepUndoneExpiry = "keep-undone-expiry",
    /// A shared lock becomes an exclusive one beside a second holder.
    UpgradeShared = "upgrade-shared",
    /// A younger reader is granted a lock that an older writer waits for.
    PassWriter = "pass-writer",
    /// A member confirms that it leads because it takes itself for the leader, and asks no other member.
    ConfirmFromBelief = "confirm-from-belief",
    /// A participant lets in an attempt at an earlier time than one that was used to tell what has expired.
    LookBack = "look-back",
    /// A new leader takes no time for used that its predecessor may have used.
    ForgetCeiling = "forget-ceiling",
    /// The version of a record is the number of its writes since it was made.
    CountVersions = "count-versions",
    /// A coordinator takes the answer to an earlier attempt for one of the present.
    TakeStale = "take-stale",
    /// A newcomer is granted a lock although an access to the whole table waits, or has closed its gate.
    PassTable = "pass-table",
    /// A write of an absent record locks the whole table.
    LockTable = "lock-table",
    /// A read of a content that is forgotten is shown the newest.
    ShowNewest = "show-newest",
    /// A write replaces a later one in the order of stamps.
    InstallLate = "install-late",
    /// A read takes the stamp of an earlier content than the one that it sees (baselines.md, B-6a).
    TearRead = "tear-read",
    /// An update is noted as a write, and not as the read that it is too (baselines.md, B-6b).
    WriteOnlyUpdates = "write-only-updates",
    /// The bounds of attempts that are validated are moved as those of others (baselines.md, B-6d).
    MoveValidated = "move-validated",
    /// An access to a record takes no intention lock on the table.
    ForgetIntention = "forget-intention",
    /// A storage replica takes lines of a ballot although it has promised a larger one.
    TakeSealed = "take-sealed",
    /// A server that is to lead a region takes the configuration that the first replica has for the newest.
    ReadOneConfiguration = "read-one-configuration",
    /// A storage replica that has lost its disk counts as if it had not.
    CountForgetful = "count-forgetful",
    /// The leader of a region takes a line for durable that one replica has.
    DurableByOne = "durable-by-one",
    /// The graph of waits is not looked at for cycles.
    MissCycle = "miss-cycle",
    /// An attempt is taken to wait for those alone that are in its own way, not for those that they wait for.
    DirectWaitsOnly = "direct-waits-only",
    /// What an attempt of several shards has read at one may change once it is validated there, before it is at the others.
    UnmarkReads = "unmark-reads",
    /// An attempt commits with the stamp with which it began, though participants have seen later ones since.
    StampEarly = "stamp-early",
    /// An attempt commits though another comes to nothing that it has read from.
    ForgetDependency = "forget-dependency",
    /// An attempt is validated although what it has read is written by another one that is validated before it and not over.
    PassPrepared = "pass-prepared",
    /// An attempt reads from a later stamp without a look at whether what it has read is as it was.
    ExtendBlindly = "extend-blindly",
}

impl std::str::FromStr for Bug {
    type Err = UnknownBug;

    fn from_str(name: &str) -> Result<Bug, UnknownBug> {
        Bug::ALL.into_iter().find(|bug| bug.name() == name).ok_or_else(|| UnknownBug(name.to_owned()))
    }
}

/// A name that is no planted bug's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no bug '{0}' to plant; `ordain sim bugs` lists them")]
pub struct UnknownBug(String);

/// A set of planted bugs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bugs(u128);

impl Bugs {
    /// No bug: what everything but a test of the checkers runs with.
    pub const NONE: Bugs = Bugs(0);

    /// Returns the set with one more bug.
    #[must_use]
    pub const fn with(self, bug: Bug) -> Bugs {
        Bugs(self.0 | 1 << bug as u32)
    }

    /// Returns whether a bug is planted.
    #[inline]
    pub const fn has(self, bug: Bug) -> bool {
        self.0 & (1 << bug as u32) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_every_bug_and_names_are_read() {
        for (number, bug) in Bug::ALL.into_iter().enumerate() {
            assert_eq!(bug as usize, number);
            assert_eq!(bug.name().parse(), Ok(bug));
            let only = Bugs::NONE.with(bug);
            assert_eq!(Bug::ALL.into_iter().filter(|other| only.has(*other)).collect::<Vec<_>>(), [bug]);
        }
        assert!("skip-everything".parse::<Bug>().unwrap_err().to_string().contains("'skip-everything'"));
    }
}
