//! `ordain sim bugs`: the planted bugs, each with the settings under which the checkers must find it.
//!
//! A seed *finds* a bug if its run is judged unsound by what a real fault of that kind would show: the history of the
//! clients, the digests of the nodes, requests without an answer, or a node that cannot start. Roles are not asked for broken
//! invariants in such a run ([`Config::asks_roles`](ordain_sim::Config)), so that it goes on to what clients see. A node that
//! stops itself counts only in a setting that says why a real fault would be met so.
//!
//! `cargo xtask bugs` runs every setting and writes the table of docs/testing.md; the tests of this crate run a few seeds of
//! each.

mod setting;

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use ordain_checker::ViolationKind;
use ordain_lab::report;
use ordain_role::Bug;

use setting::{Planted, Setting, in_test, planted, with};

/// Two partitions of three or two members each, whose primaries a quick configuration service replaces. Few clients, so that most
/// epochs of a partition are empty.
const ASYNC_2X3: &str = "--engine calvin --partitions 2 --replicas 3 --replication async --faults partition \
    --fault-every 15 --outage-ms 15 --service-pace-ms 1 --clients 6 --txns 600";
const ASYNC_2X2: &str = "--engine calvin --partitions 2 --replicas 2 --replication async --faults partition \
    --fault-every 15 --outage-ms 15 --service-pace-ms 1 --clients 12 --txns 800";

/// One partition of three members, whose primary is cut off until another one is elected: it goes on for a while, and makes
/// checkpoints. With several partitions nothing is in a checkpoint that may be lost, as exchanges wait for that before.
const ASYNC_CUT_OFF: &str = "--engine calvin --replicas 3 --replication async --faults partition --at-leaders 100 \
    --fault-every 600 --outage-ms 400 --service-pace-ms 10 --clients 12 --think-us 40000 --txns 3000 --checkpoints 10";
/// Cuts of primaries with clients that often only read, and cuts that end while the next term is prepared: the old primary is not evicted,
/// and has used epochs that are in no log.
const ASYNC_READ_ALONE: &str = "--engine calvin --replicas 3 --replication async --faults partition --at-leaders 100 \
    --fault-every 700 --outage-ms 700 --service-pace-ms 40 --clients 12 --think-us 60000 --txns 4000 --workload append";

/// Why a stop counts where members compare what they have executed.
const DIVERGED: &str = "members compare their digests";
/// Why a stop counts where a shard is handed batches.
const ORDER_REFUSED: &str = "a shard refuses a batch that does not follow";
/// Why a stop counts where a checkpoint is given away.
const CUT_COMPARED: &str = "the state given is compared with its digest";

/// Why a stop counts where members agree on entries.
const LOST: &str = "a leader knows that a member has lost what it acknowledged";
/// Why a stop counts where a shard is sent something of a transaction that it has finished.
const FINISHED: &str = "a shard refuses what is of a transaction that it has finished";
/// Why a stop counts where an operator aborts.
const GREETED: &str = "the disks of both nodes are compared as a stream begins";

/// Why few seeds find a mistake in what follows a lost primary.
const LATE: &str = "a batch has to reach one node and not another just before its primary is given up";
/// Why settings are left out of tests.
const LONG: &str = "a run has thousands of requests, and few seeds find the bug";
const BUSY: &str = "a run is busy with nothing for millions of events";
/// The reason why a node that stops counts for an attempt that is denied and commits.
const DENIED: &str = "a member refuses a log in which an attempt is denied and commits";

/// The test that finds bugs of the commit family by fixed schedules.
const SCHEDULES: &str = "cargo test -p ordain-engines --test schedules";
/// The test that finds bugs of votes between regions.
const VOTING: &str = "cargo test -p ordain-commit --lib voting";
/// The test that finds bugs of the graph of waits.
const WAITS: &str = "cargo test -p ordain-commit waits_for";
/// The schedules of a region, and the tests of views that begin with a checkpoint.
const REGIONAL: &str = "cargo test -p ordain-engines --test schedules regional";
const REPLACING: &str = "cargo test -p ordain-commit --lib replacing";
/// The tests that find bugs in the log of a region.
const STORAGE: &str = "cargo test -p ordain-replication storage";
/// The test that finds bugs in the order of stamps.
const STAMPS: &str = "cargo test -p ordain-engines --test stamps";
/// The test that finds bugs of attempts with two stamps.
const MVOCC: &str = "cargo test -p ordain-engines --test schedules mvocc";

/// The planted bugs, in the order of the invariants of docs/invariants.md.
pub(super) const TABLE: &[Planted] = &[
    planted(
        Bug::WrongInterleave,
        "ONE-ORDER",
        "a node executes the batches of an epoch in another order of the partitions",
        &[
            with("--engine calvin --partitions 2").or_stops(ORDER_REFUSED),
            with("--engine qstore --partitions 2").or_stops(ORDER_REFUSED),
        ],
    ),
    planted(
        Bug::SkipSlot,
        "ONE-ORDER",
        "a node takes another partition's batch for an empty one",
        &[
            with("--engine calvin --partitions 2"),
            with("--engine calvin-paper --partitions 2"),
            with("--engine qstore --partitions 2"),
        ],
    ),
    planted(
        Bug::ExecuteBeforeAgreed,
        "AGREED",
        "a leader executes and answers a batch that its group has not agreed on",
        &[
            with("--engine calvin --replicas 3").or_stops(DIVERGED),
            with("--engine qstore --replicas 3").or_stops(DIVERGED),
        ],
    ),
    planted(
        Bug::FlipRecord,
        "AGREED",
        "now and then a node of the last replica changes a record that no transaction changes",
        &[
            with("--engine calvin --replicas 3").or_stops(DIVERGED),
            with("--engine calvin-paper --replicas 3").or_stops(DIVERGED),
            with("--engine paxflow --replicas 3").or_stops(DIVERGED),
            with("--engine qstore --replicas 3").or_stops(DIVERGED),
            with("--engine calvin --replicas 3 --replication async"),
        ],
    ),
    planted(
        Bug::IgnoreFence,
        "ONE-PRIMARY",
        "an exchange takes what comes in while a term is prepared, and from nodes that have to be rebuilt",
        &[with(ASYNC_2X3).rarely(LATE)],
    ),
    planted(
        Bug::BeginAtEnd,
        "ONE-PRIMARY",
        "a new term begins among the epochs that its predecessor has used",
        &[with(ASYNC_READ_ALONE).left_out(LONG)],
    ),
    planted(
        Bug::KeepUndecided,
        "DECIDED-ONLY",
        "an evicted node keeps its log, which may hold what was not decided",
        &[with(ASYNC_2X3).rarely(LATE)],
    ),
    planted(
        Bug::LoseRemoteResult,
        "KEPT",
        "a remote result is lost on its way to another node",
        &[
            with("--engine calvin --partitions 2"),
            with("--engine calvin-paper --partitions 2"),
            with("--engine paxflow --partitions 2"),
            with("--engine qstore --partitions 2"),
        ],
    ),
    planted(
        Bug::ReportEarly,
        "KEPT",
        "an exchange says that it needs nothing more of what is not on its disk yet",
        &[with("--engine calvin --partitions 2 --profile storm --clients 32 --sessions 80 --txns 600")],
    ),
    planted(
        Bug::KeepUncertain,
        "STABLE",
        "a node that is rebuilt keeps all that came in, not only what is stable",
        &[with(ASYNC_2X2).rarely(LATE)],
    ),
    planted(
        Bug::ForgetUnstable,
        "STABLE",
        "the low watermark of a partition is that of the member that has the most",
        &[with(ASYNC_CUT_OFF).found_by(&[0])],
    ),
    planted(
        Bug::SealUnstable,
        "STABLE",
        "a checkpoint is sealed although what it holds may still be lost with a primary",
        &[with(ASYNC_CUT_OFF).found_by(&[0])],
    ),
    planted(
        Bug::SkipTransaction,
        "ORDER",
        "every so often a shard skips a transaction",
        &[
            with("--engine calvin").found_by(&[3]),
            with("--engine calvin-paper").or_stops(FINISHED),
            with("--engine paxflow"),
            with("--engine qstore"),
            with("--engine no-wait"),
            with("--engine timestamp --partitions 2 --profile storm"),
            with("--engine mvcc --partitions 2 --profile storm"),
            with("--engine maat --partitions 2"),
            with("--engine occ-2pc --partitions 2"),
            with("--engine fwkv --partitions 2"),
        ],
    ),
    planted(
        Bug::SkipFirstEntry,
        "ORDER",
        "a node that begins from a checkpoint passes over the first entry of its log behind it",
        &[with("--engine calvin")],
    ),
    planted(
        Bug::CutLate,
        "CUT",
        "a checkpoint is given the records as they are, in place of those at the end of its epoch",
        &[with("--engine calvin --option checkpoint-mode=multiversion --profile storm --clients 32 --sessions 80 --txns 600").or_stops(CUT_COMPARED)],
    ),
    planted(
        Bug::ForgetVersion,
        "CUT",
        "what was kept for a checkpoint is freed while that is taken",
        &[with("--engine calvin --option checkpoint-mode=multiversion --profile storm --clients 32 --sessions 80 --txns 600").or_stops(CUT_COMPARED)],
    ),
    planted(
        Bug::DispatchBeforeDurable,
        "DURABLE-FIRST",
        "a batch is executed, or a decision answered, before it is durable",
        &[
            with("--engine calvin"),
            with("--engine calvin-paper"),
            with("--engine paxflow"),
            with("--engine qstore"),
            with("--engine no-wait"),
        ],
    ),
    planted(
        Bug::SkipSync,
        "DURABLE-FIRST",
        "the log reports an entry as durable without a sync",
        &[
            with("--engine calvin"),
            with("--engine calvin --replicas 3").or_stops(LOST),
            with("--engine no-wait"),
        ],
    ),
    planted(
        Bug::ReuseEpoch,
        "EPOCH-ONCE",
        "a node that starts gives out epochs again that it had given to batches which are not logged",
        &[with("--engine calvin"), with("--engine qstore")],
    ),
    planted(
        Bug::TimeGoesBack,
        "TIME-FORWARD",
        "a batch has the time of the wall clock, though one before it had a later one",
        &[
            with("--engine calvin"),
            with("--engine calvin --replicas 3 --faults clock,crash --fault-every 3"),
        ],
    ),
    planted(
        Bug::StaleLayout,
        "ONE-OWNER",
        "a transaction is executed where its slots no longer are",
        &[
            with("--engine calvin --partitions 2"),
            with("--engine calvin-paper --partitions 2"),
            with("--engine qstore --partitions 2"),
        ],
    ),
    planted(
        Bug::KeepStaleCopy,
        "ONE-OWNER",
        "a slot moves without a record that has changed since it was copied",
        &[with("--engine calvin --partitions 2 --faults none --keys 4 --txns 1200").or_stops(CUT_COMPARED)],
    ),
    planted(
        Bug::GrantLockEarly,
        "FIFO-LOCKS",
        "a lock is granted although another transaction is ahead",
        &[
            with("--engine calvin").found_by(&[8]),
            with("--engine calvin-paper --partitions 2 --keys 8 --option window=1000"),
            with("--engine no-wait"),
            with("--engine wait-die"),
            with("--engine timestamp --partitions 2 --profile storm"),
            with("--engine mvcc --partitions 2 --profile storm"),
            with("--engine maat --partitions 2"),
            with("--engine occ-2pc --partitions 2"),
            with("--engine fwkv --partitions 2"),
            with("--engine regions-2pl --shards 2"),
            with("--engine regions-silo --shards 2"),
            with("--engine regions-mvocc"),
        ],
    ),
    planted(
        Bug::UpgradeShared,
        "HELD-ALONE",
        "a shared lock becomes an exclusive one beside a second holder",
        &[
            with("--engine no-wait --partitions 2 --keys 4").found_by(&[1]),
            with("--engine wait-die"),
            with("--engine timestamp --partitions 2 --profile storm"),
            with("--engine mvcc --partitions 2 --profile storm"),
            with("--engine maat --partitions 2"),
            with("--engine occ-2pc --partitions 2").found_by(&[3]),
        ],
    ),
    in_test(
        Bug::PassWriter,
        "IN-TURN",
        "a younger reader is granted a lock that an older writer waits for",
        "cargo test -p ordain-engines --test locks scenario_4",
    ),
    in_test(
        Bug::PassTable,
        "IN-TURN",
        "a newcomer is granted a lock although an access to the whole table waits, or has closed its gate",
        SCHEDULES,
    ),
    planted(
        Bug::ForgetIntention,
        "WHOLE-TABLE",
        "an access to a record takes no intention lock on the table",
        &[
            with("--engine no-wait --partitions 2"),
            with("--engine wait-die --partitions 2").found_by(&[5]),
            with("--engine timestamp --partitions 2 --profile storm"),
            with("--engine mvcc --partitions 2 --profile storm"),
            with("--engine maat --partitions 2"),
            with("--engine occ-2pc --partitions 2").found_by(&[1]),
        ],
    ),
    in_test(Bug::LockTable, "WHOLE-TABLE", "a write of an absent record locks the whole table", SCHEDULES),
    planted(
        Bug::SkipRankOrder,
        "FIFO-QUEUES",
        "two places of a queue are taken in the wrong order",
        &[with("--engine qstore --keys 4")],
    ),
    planted(
        Bug::LoseUndo,
        "UNDONE",
        "one change of an aborted transaction is not undone",
        &[with("--engine qstore --execution speculative")],
    ),
    planted(
        Bug::SpareAffected,
        "UNDONE",
        "a transaction that used an aborted one's write is answered as if it had not",
        &[with("--engine qstore --execution speculative --cascade abort")],
    ),
    planted(
        Bug::IgnoreRemoteVote,
        "ONE-VERDICT",
        "a transaction that aborted on one shard commits on another",
        &[
            with("--engine calvin"),
            with("--engine calvin-paper"),
            with("--engine paxflow"),
            with("--engine qstore --execution conservative"),
            with("--engine no-wait"),
        ],
    ),
    planted(
        Bug::KeepAbortedWrite,
        "ONE-VERDICT",
        "an aborted transaction keeps a write",
        &[
            with("--engine calvin"),
            with("--engine calvin-paper"),
            with("--engine paxflow"),
            with("--engine qstore --execution conservative"),
        ],
    ),
    planted(
        Bug::ForgetSession,
        "ONCE",
        "a request that is retried is sequenced again",
        &[
            with("--engine calvin"),
            with("--engine calvin --replicas 3"),
            with("--engine no-wait"),
            with("--engine timestamp --partitions 2 --profile storm"),
            with("--engine mvcc --partitions 2 --profile storm"),
            with("--engine maat --partitions 2 --profile storm"),
            with("--engine occ-2pc --partitions 2 --profile storm"),
        ],
    ),
    planted(
        Bug::ForgetOutcomes,
        "ONCE",
        "a node that begins from a checkpoint takes no outcomes of sessions from it",
        &[with("--engine calvin --replicas 3 --sessions 100")],
    ),
    planted(
        Bug::IgnoreRequest,
        "ONCE",
        "a gateway submits a request of a session without its number",
        &[with("--engine calvin --clients-speak resp")],
    ),
    planted(
        Bug::IgnoreWatch,
        "WATCHED",
        "a block runs although a key that its connection watches has changed",
        &[with("--engine calvin --clients-speak resp"), with("--engine qstore --clients-speak resp")],
    ),
    planted(
        Bug::ReadEarly,
        "ONE-STATE",
        "a read on a snapshot does not wait for its epoch",
        &[with("--engine paxflow --partitions 2"), with("--engine calvin --reads session --partitions 2")],
    ),
    planted(
        Bug::KeepLate,
        "ONE-STATE",
        "a shard offers a snapshot of a state that it has changed already",
        &[with("--engine paxflow --partitions 2 --txns 1500")],
    ),
    planted(
        Bug::ReadMoved,
        "ONE-STATE",
        "a read on a snapshot takes a slot to be where it was planned, though the slot had moved by its epoch",
        &[with("--engine paxflow --partitions 2")],
    ),
    planted(
        Bug::ReadUncommitted,
        "PAST",
        "a read sees the current state in place of the one before its epoch",
        &[with("--engine qstore --isolation read-committed")],
    ),
    planted(
        Bug::IgnoreToken,
        "NOT-BACK",
        "a read on a snapshot does not wait for what its connection has seen",
        &[with("--engine paxflow --reads session --partitions 2")],
    ),
    planted(
        Bug::OwnSeed,
        "PURE",
        "a shard seeds a transaction by its own number too",
        &[with("--engine calvin --clients-speak resp")],
    ),
    planted(
        Bug::ShareVersion,
        "CELLMUT",
        "all transactions of a batch write with one version",
        &[with("--engine calvin"), with("--engine calvin-paper"), with("--engine paxflow")],
    ),
    planted(
        Bug::OwnPartOnly,
        "NO-SHARDS-SEEN",
        "the shard that composes an answer of the whole table takes its own part for all of it",
        &[
            with("--engine calvin --shards 3"),
            with("--engine qstore --shards 3"),
        ],
    ),
    planted(
        Bug::LeaveLock,
        "IDLE-CLEAN",
        "a transaction that is done keeps one of its locks, or its place in one queue",
        &[
            with("--engine calvin"),
            with("--engine calvin-paper"),
            with("--engine qstore"),
            with("--engine no-wait").left_out(BUSY),
            with("--engine wait-die").left_out(BUSY),
            with("--engine timestamp --partitions 2").left_out(BUSY),
            with("--engine mvcc --partitions 2").left_out(BUSY),
            with("--engine fwkv --partitions 2").left_out(BUSY),
        ],
    ),
    planted(
        Bug::KeepOldLocks,
        "IDLE-CLEAN",
        "the next attempt at a transaction begins while participants hold what the one before has locked",
        &[with("--engine no-wait --partitions 2 --profile storm").left_out(BUSY)],
    ),
    planted(
        Bug::ReleaseBetweenSteps,
        "HELD-OPEN",
        "what a step of an interactive transaction has locked is released before the next",
        &[
            with("--engine no-wait --clients-speak steps"),
            with("--engine wait-die --clients-speak steps --partitions 2"),
        ],
    ),
    planted(
        Bug::VoteBeforeLog,
        "PROMISED",
        "a participant votes yes before its promise stands in the log",
        &[
            with("--engine no-wait --partitions 2 --profile storm").found_by(&[0]),
            with("--engine timestamp --partitions 2 --profile storm"),
            with("--engine mvcc --partitions 2 --profile storm"),
            with("--engine maat --partitions 2 --profile storm"),
            with("--engine occ-2pc --partitions 2 --profile storm"),
        ],
    ),
    in_test(
        Bug::AckEarly,
        "ALL-KNOW",
        "a participant acknowledges an outcome before that stands in its log",
        SCHEDULES,
    ),
    planted(
        Bug::DenyLive,
        "DENIED-NEVER",
        "a home denies an attempt that it may yet commit",
        &[
            with("--engine no-wait --partitions 2 --profile storm").or_stops(DENIED),
            with("--engine timestamp --partitions 2 --profile storm").or_stops(DENIED),
            with("--engine mvcc --partitions 2 --profile storm").or_stops(DENIED),
            with("--engine maat --partitions 2 --profile storm").or_stops(DENIED),
            with("--engine occ-2pc --partitions 2 --profile storm").or_stops(DENIED),
        ],
    ),
    in_test(
        Bug::KeepClaim,
        "OF-ITS-TERM",
        "a leader that leads again goes on under its former claim with what it was at",
        SCHEDULES,
    ),
    in_test(Bug::ForgetLocks, "PROMISED", "a new leader serves without the locks of what is promised", SCHEDULES),
    in_test(
        Bug::WaitForEver,
        "BOUNDED",
        "a coordinator does not give up an attempt that takes too long",
        SCHEDULES,
    ),
    planted(
        Bug::TakeStale,
        "OF-ITS-ATTEMPT",
        "a coordinator takes the answer to an earlier attempt for one of the present",
        &[with("--engine no-wait --partitions 2 --keys 4").found_by(&[23])],
    ),
    in_test(
        Bug::LookBack,
        "TIME-RISES",
        "a participant lets in an attempt at an earlier time than one that was used to tell what has expired",
        SCHEDULES,
    ),
    planted(
        Bug::ForgetCeiling,
        "TIME-RISES",
        "a new leader takes no time for used that its predecessor may have used",
        &[with("--engine mvcc --partitions 2 --profile storm")],
    ),
    planted(
        Bug::InstallLate,
        "STAMP-ORDER",
        "a write replaces a later one in the order of stamps",
        &[
            with("--engine timestamp --partitions 2 --profile storm"),
            with("--engine mvcc --partitions 2 --profile storm"),
            with("--engine maat --partitions 2"),
        ],
    ),
    planted(
        Bug::SkipValidation,
        "VALIDATED",
        "an attempt is validated without a look at what it has read",
        &[
            with("--engine occ-2pc --partitions 2"),
            with("--engine fwkv --partitions 2"),
            with("--engine walter --partitions 2"),
            with("--engine regions-silo --shards 2"),
            with("--engine regions-mvocc"),
        ],
    ),
    planted(
        Bug::UnmarkReads,
        "VALIDATED",
        "what an attempt of several shards has read at one may change once it is validated there, before it is at the others",
        &[with("--engine regions-silo --partitions 2 --workload append --keys 8 --txns 1200")],
    ),
    planted(
        Bug::AnswerEarly,
        "DURABLE-FIRST",
        "a client is answered before what it is told of is durable",
        &[with("--engine regions-silo --regions 1 --replicas 3 --profile storm")],
    ),
    in_test(
        Bug::TornView,
        "ONE-MOMENT",
        "a view lets an attempt read on, whatever of what it has read is not as it was",
        "cargo test -p ordain-commit --lib viewing",
    ),
    in_test(
        Bug::ValidateBeforeLocked,
        "LOCKED-FIRST",
        "a region validates what a transaction has read there before all regions have locked what it writes",
        "cargo test -p ordain-engines --test schedules rounds",
    ),
    planted(
        Bug::KeepOverlay,
        "ONE-MOMENT",
        "a view goes on showing what its own region has committed, though the log has told of it",
        &[with("--engine regions-silo --regions 2 --replicas 3 --option overlay=true").left_out(BUSY)],
    ),
    in_test(Bug::VoteUndurable, "ITS-INCARNATION", "a region votes yes before its promise is durable", VOTING),
    in_test(Bug::CountAnyNo, "ITS-INCARNATION", "a no counts whoever of a region's incarnations has said it", VOTING),
    in_test(
        Bug::ForgetRefusal,
        "ITS-INCARNATION",
        "a region that has said no for want of a request takes the request when it comes",
        VOTING,
    ),
    in_test(
        Bug::ResolveBelow,
        "STAMP-ORDER",
        "what only reads sees its region as of just before the first stamp in doubt, whatever has become of others meanwhile",
        "cargo test -p ordain-engines --test schedules resolved",
    ),
    in_test(Bug::PlaceLate, "VALIDATED", "a decision has its place behind the next one", REGIONAL),
    in_test(Bug::ShowPieces, "ONE-MOMENT", "a view shows a part of a checkpoint", REPLACING),
    in_test(Bug::MissCycle, "NO-DEADLOCK", "the graph of waits is not looked at for cycles", WAITS),
    in_test(
        Bug::DirectWaitsOnly,
        "NO-DEADLOCK",
        "an attempt is taken to wait for those alone that are in its own way, not for those that they wait for",
        WAITS,
    ),
    planted(
        Bug::PassPrepared,
        "VALIDATED",
        "an attempt is validated although a validated one that is not over writes what it has read",
        &[with("--engine regions-mvocc")],
    ),
    planted(
        Bug::ExtendBlindly,
        "VALIDATED",
        "an attempt reads from a later stamp without a look at what it has read before",
        &[with("--engine regions-mvocc")],
    ),
    in_test(
        Bug::ForgetDependency,
        "CASCADES",
        "an attempt commits though one comes to nothing that it has read from",
        MVOCC,
    ),
    planted(
        Bug::StampEarly,
        "STAMP-ORDER",
        "an attempt commits with the stamp with which it began, though participants have seen later ones since",
        &[with("--engine regions-mvocc")],
    ),
    in_test(
        Bug::ForgetReaders,
        "FORK-ALONE",
        "who reads what a reader must not see does not take that along",
        "cargo test -p ordain-engines --lib parallel_snapshots",
    ),
    planted(
        Bug::ForgetSeen,
        "FORK-ALONE",
        "what clients have seen is not passed on with what they ask for next",
        &[with("--engine walter --partitions 2")],
    ),
    planted(
        Bug::TearRead,
        "STAMP-ORDER",
        "a read takes the stamp of an earlier content than the one that it sees",
        &[with("--engine maat --partitions 2")],
    ),
    planted(
        Bug::WriteOnlyUpdates,
        "STAMP-ORDER",
        "an update is noted as a write, and not as the read that it is too",
        &[with("--engine maat --partitions 2")],
    ),
    planted(
        Bug::MoveValidated,
        "STAMP-ORDER",
        "bounds of attempts that are validated are moved as those of others",
        &[with("--engine maat --partitions 2")],
    ),
    in_test(
        Bug::ShowNewest,
        "STAMP-ORDER",
        "a read of a content that is forgotten is shown the newest",
        STAMPS,
    ),
    in_test(
        Bug::CountVersions,
        "WATCHED",
        "the version of a record is the number of its writes since it was made",
        SCHEDULES,
    ),
    in_test(
        Bug::KeepCut,
        "CUT-WHOLE",
        "a node does not pass on which cut of checkpoints it has heard of",
        SCHEDULES,
    ),
    planted(
        Bug::MarkLate,
        "CUT-WHOLE",
        "a leader marks a cut of checkpoints behind what it logs next",
        &[with("--engine no-wait --partitions 2 --profile storm")],
    ),
    planted(
        Bug::SkipPromises,
        "CUT-WHOLE",
        "a checkpoint leaves out what is promised and not decided",
        &[with("--engine no-wait --partitions 2 --profile storm")],
    ),
    planted(
        Bug::SkipDecisions,
        "CUT-WHOLE",
        "a checkpoint leaves out the outcomes that participants may yet ask for",
        &[with("--engine no-wait --partitions 2 --profile storm")],
    ),
    planted(
        Bug::ForgetStay,
        "SENT-ORDER",
        "a connection's requests go to several sequencers",
        &[with("--engine calvin --partitions 2"), with("--engine qstore --partitions 2")],
    ),
    planted(
        Bug::LoseRights,
        "RIGHTS-TRAVEL",
        "a script is logged without what its user may do",
        &[with("--engine calvin --clients-speak resp")],
    ),
    in_test(
        Bug::ConfirmFromBelief,
        "CONFIRMED",
        "a member confirms that it leads because it takes itself for the leader, and asks no other member",
        SCHEDULES,
    ),
    in_test(
        Bug::TakeSealed,
        "ONE-LOG",
        "a storage replica takes lines of a ballot although it has promised a larger one",
        STORAGE,
    ),
    in_test(
        Bug::ReadOneConfiguration,
        "ONE-LOG",
        "a server that is to lead a region takes the configuration that the first replica has for the newest",
        STORAGE,
    ),
    in_test(
        Bug::CountForgetful,
        "ONE-LOG",
        "a storage replica that has lost its disk counts as if it had not",
        STORAGE,
    ),
    in_test(
        Bug::DurableByOne,
        "ONE-LOG",
        "the leader of a region takes a line for durable that one replica has",
        STORAGE,
    ),
    in_test(
        Bug::ForgetShortage,
        "OOM-BEFORE",
        "a script is logged under the number of one that is refused nothing, though memory is short",
        "cargo test -p ordain-conformance planted_bugs",
    ),
    planted(
        Bug::ForgetWorkAbort,
        "SAME-RUN",
        "the abort of a computation that was given away is forgotten",
        &[with("--engine calvin"), with("--engine qstore")],
    ),
    in_test(
        Bug::GuessBeginning,
        "NO-GUESS",
        "a node whose log begins after the state that it has executes the log all the same",
        SCHEDULES,
    ),
    planted(
        Bug::SkipFounding,
        "FOUNDED-ONCE",
        "a node that starts with an empty disk takes itself for a new one, and asks no other",
        &[
            with("--engine calvin --partitions 3 --profile quiet --operations replace"),
            with("--engine no-wait --partitions 3 --profile quiet --operations replace --faults delay"),
        ],
    ),
    planted(
        Bug::ForgetAborts,
        "SAME-ABORTS",
        "a node does not say what an operator has aborted",
        &[with("--engine calvin --partitions 2 --replicas 3 --operator").or_stops(GREETED)],
    ),
    planted(
        Bug::IgnoreAbort,
        "SAME-ABORTS",
        "the last replica executes what an operator has aborted",
        &[with("--engine calvin --replicas 3 --operator").left_out(BUSY)],
    ),
    planted(
        Bug::KeepUndoneVersion,
        "EXACT-UNDO",
        "a record keeps the version of a write that is undone",
        &[with("--engine calvin --clients-speak resp")],
    ),
    planted(
        Bug::KeepUndoneExpiry,
        "EXACT-UNDO",
        "a record keeps the time of expiry that an undone write has set",
        &[with("--engine calvin --clients-speak resp")],
    ),
];

/// The flags of `ordain sim bugs`.
#[derive(Clone, Debug, Args)]
pub(super) struct BugsArgs {
    /// Write the bugs to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Lists the planted bugs.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn run(args: &BugsArgs) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    for planted in TABLE {
        let mut engines: Vec<&str> = planted.settings.iter().map(Setting::engine).collect();
        engines.dedup();
        let name = planted.bug.name();
        writeln!(out, "{name:<26} {:<40} {}", engines.join(", "), planted.invariant)?;
        writeln!(out, "{:<26} {}", "", planted.mistake)?;
    }
    report::write_json(args.json.as_deref(), &TABLE.iter().map(to_json).collect::<Vec<_>>())?;
    Ok(true)
}

fn to_json(planted: &Planted) -> serde_json::Value {
    let setting = |setting: &Setting| {
        serde_json::json!({
            "engine": setting.engine(),
            "shown": setting.flags,
            "flags": setting.words(planted.bug).collect::<Vec<_>>(),
            "kinds": setting.kinds().map(ViolationKind::name).collect::<Vec<_>>(),
            "stops": setting.stops,
            "rare": setting.rare,
            "seeds": setting.seeds,
            "left_out": setting.left_out,
        })
    };
    serde_json::json!({
        "name": planted.bug.name(),
        "mistake": planted.mistake,
        "invariant": planted.invariant,
        "by_test": planted.by_test,
        "settings": planted.settings.iter().map(setting).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests;
