//! The registry of engines: one entry each, with its paper, its level, what it can do and its options.
//!
//! Tools ask what is written here and never an engine's name. A name that is no engine's is refused, and never silently taken for another one.

use std::fmt;
use std::str::FromStr;

use ordain_model::{Offer, OptionError, OptionInfo, Options};

use ordain_commit::CommitEngine;
use ordain_commit::options::{BACKOFF, EARLY_APPLY, M_RETRIES, OCC_ROUNDS, OVERLAY, RO_LOCAL, RO_MODE};
use ordain_deterministic::shard::Scheduling;
use ordain_family::Services;

use crate::{
    calvin, calvin_paper, fwkv, maat, mvcc, no_wait, occ_2pc, optimistic, parallel_snapshots, paxflow,
    qstore, regions_2pl, regions_mvocc, regions_silo, timestamp, two_phase_locking, wait_die, walter,
};

/// An engine: a reference to its entry.
#[derive(Clone, Copy)]
pub struct Engine(&'static EngineInfo);

/// The two kinds of engines (DESIGN.md, "Engines are siblings").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Order the inputs first, then execute them.
    Deterministic,
    /// Execute first, then agree on the outcome.
    Commit,
}

impl Family {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Family::Deterministic => "deterministic",
            Family::Commit => "commit",
        }
    }
}

/// Where an engine is described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paper {
    /// The title.
    pub title: &'static str,
    /// Where it was published, if anywhere.
    pub venue: Option<&'static str>,
    /// When, if that is known.
    pub year: Option<u16>,
}

/// What an engine can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// How a partition's log can be replicated.
    pub replication: &'static [&'static str],
    /// Slots can move between threads and partitions.
    pub moves_slots: bool,
    /// Members of a replication group come to equal digests, which can be compared.
    pub has_digests: bool,
    /// Checkpoints are taken, and logs trimmed behind them.
    pub takes_checkpoints: bool,
    /// A request of a session has at most one effect, however often it is sent.
    pub has_sessions: bool,
    /// Transactions can be interactive: `TXN.BEGIN` to `TXN.COMMIT`.
    pub is_interactive: bool,
    /// Equal logs give equal results, so that a run can be held to the reference executor.
    pub is_replayable: bool,
    /// Partitions are regions: each has a server that executes and storage nodes that keep its log.
    pub has_regions: bool,
    /// A transaction that only reads may see a state of before what others were answered a moment ago, whatever the options are.
    pub shows_past: bool,
}

impl Abilities {
    /// The services among them: what clients may ask for.
    pub const fn services(&self) -> Services {
        Services {
            interactive: self.is_interactive,
            sessions: self.has_sessions,
            moves: self.moves_slots,
            checkpoints: self.takes_checkpoints,
        }
    }

    /// The names of what it can do, for lists.
    pub fn names(&self) -> Vec<&'static str> {
        let all = [
            ("moves", self.moves_slots),
            ("digests", self.has_digests),
            ("checkpoints", self.takes_checkpoints),
            ("sessions", self.has_sessions),
            ("interactive", self.is_interactive),
            ("replay", self.is_replayable),
        ];
        all.into_iter().filter(|(_, can)| *can).map(|(name, _)| name).collect()
    }
}

/// What makes the roles of an engine, by its family.
#[derive(Clone, Copy, Debug)]
pub enum Make {
    /// How transactions are scheduled on the records of a shard.
    Deterministic(Scheduling),
    /// The concurrency control of a participant.
    Commit(CommitEngine),
}

/// The parts of an entry that the engines of a family have in common for the most part.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// What it can do.
    pub can: Abilities,
    /// What makes its roles.
    pub make: Make,
    /// Its options.
    pub options: &'static [Offer],
}

/// The entry of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineInfo {
    /// The name that `--engine` takes.
    pub name: &'static str,
    /// The engine in a clause: how it orders and executes.
    pub what: &'static str,
    /// The paper.
    pub paper: Paper,
    /// The isolation level.
    pub level: &'static str,
    /// The family.
    pub family: Family,
    /// What it can do, what makes its roles, and its options.
    pub parts: Parts,
}

const CALVIN_PAPER: Paper = Paper {
    title: "Calvin: Fast Distributed Transactions for Partitioned Database Systems",
    venue: Some("SIGMOD"),
    year: Some(2012),
};
const PAXFLOW_PAPER: Paper = Paper {
    title: "PaxFlow: A Fast-Path Optimization for Read-Only Workloads in Deterministic Database Systems",
    venue: None,
    year: None,
};
const QSTORE_PAPER: Paper = Paper {
    title: "Q-Store: Distributed, Multi-partition Transactions via Queue-oriented Execution and Communication",
    venue: Some("EDBT"),
    year: Some(2020),
};
const FWKV_PAPER: Paper =
    Paper { title: "FW-KV: Improving Read Guarantees in PSI", venue: Some("Middleware"), year: Some(2021) };
const REGIONS_PAPER: Paper = Paper {
    title: "Scaling Write Throughput with Validation-Based Approach Between Regions",
    venue: None,
    year: None,
};

/// What all deterministic engines can do.
const DETERMINISTIC: Abilities = Abilities {
    replication: &["none", "async", "sync"],
    moves_slots: true,
    has_digests: true,
    takes_checkpoints: true,
    has_sessions: true,
    is_interactive: true,
    is_replayable: true,
    has_regions: false,
    shows_past: false,
};

const fn deterministic(scheduling: Scheduling, options: &'static [Offer]) -> Parts {
    Parts { can: DETERMINISTIC, make: Make::Deterministic(scheduling), options }
}

/// What the engines of the other family can do.
const COMMIT: Abilities = Abilities {
    replication: &["none", "sync"],
    moves_slots: false,
    has_digests: true,
    takes_checkpoints: true,
    has_sessions: true,
    is_interactive: true,
    is_replayable: false,
    has_regions: false,
    shows_past: false,
};

/// Abilities of an engine of the commit family whose partitions are regions.
const REGIONAL: Abilities =
    Abilities { replication: &["none", "quorum", "full"], has_regions: true, ..COMMIT };

/// Abilities of an engine of the commit family that holds transactions to the order of stamps.
const STAMPED: Abilities = Abilities { shows_past: true, ..COMMIT };

const fn commit(engine: CommitEngine, options: &'static [Offer]) -> Parts {
    Parts { can: COMMIT, make: Make::Commit(engine), options }
}

const fn regional(engine: CommitEngine, options: &'static [Offer]) -> Parts {
    Parts { can: REGIONAL, make: Make::Commit(engine), options }
}

const fn stamped(engine: CommitEngine, options: &'static [Offer]) -> Parts {
    Parts { can: STAMPED, make: Make::Commit(engine), options }
}

/// The options of all engines whose partitions are regions.
const OF_REGIONS: [Offer; 5] = [
    Offer::of(&BACKOFF),
    Offer::of(&EARLY_APPLY),
    Offer::of(&OVERLAY),
    Offer::of(&RO_MODE),
    Offer::of(&M_RETRIES),
];
static OF_LOCKS: [Offer; 5] = OF_REGIONS;
static OF_SILO: [Offer; 6] = of_regions_and(Offer::of(&OCC_ROUNDS));
static OF_MVOCC: [Offer; 6] = of_regions_and(Offer::of(&RO_LOCAL));

const fn of_regions_and(own: Offer) -> [Offer; 6] {
    let [a, b, c, d, e] = OF_REGIONS;
    [a, b, c, d, e, own]
}

/// Every engine of the contract.
#[rustfmt::skip]
pub static ENGINES: [EngineInfo; 15] = [
    EngineInfo { name: "calvin", what: "sequenced input log, deterministic locks", paper: CALVIN_PAPER,
                 level: "strict serializable", family: Family::Deterministic, parts: deterministic(calvin::SCHEDULING, &calvin::OPTIONS) },
    EngineInfo { name: "calvin-paper", what: "as calvin, with one lock manager a node, as the papers have it: a baseline", paper: CALVIN_PAPER,
                 level: "strict serializable", family: Family::Deterministic, parts: deterministic(calvin_paper::SCHEDULING, &calvin::OPTIONS) },
    EngineInfo { name: "paxflow", what: "as calvin, and what only reads is run on snapshots", paper: PAXFLOW_PAPER,
                 level: "serializable", family: Family::Deterministic, parts: deterministic(paxflow::SCHEDULING, &paxflow::OPTIONS) },
    EngineInfo { name: "qstore", what: "sequenced input log, planned queues", paper: QSTORE_PAPER,
                 level: "strict serializable, or read committed", family: Family::Deterministic, parts: deterministic(qstore::SCHEDULING, &qstore::OPTIONS) },
    EngineInfo { name: "no-wait", what: "locks that nobody waits for, two-phase commit", paper: QSTORE_PAPER,
                 level: "strict serializable", family: Family::Commit, parts: commit(no_wait::ENGINE, &two_phase_locking::OPTIONS) },
    EngineInfo { name: "wait-die", what: "locks that the older wait for, two-phase commit", paper: QSTORE_PAPER,
                 level: "strict serializable", family: Family::Commit, parts: commit(wait_die::ENGINE, &two_phase_locking::OPTIONS) },
    EngineInfo { name: "timestamp", what: "basic timestamp ordering, two-phase commit", paper: QSTORE_PAPER,
                 level: "serializable, session order", family: Family::Commit, parts: stamped(timestamp::ENGINE, &timestamp::OPTIONS) },
    EngineInfo { name: "mvcc", what: "multiversion timestamp ordering, two-phase commit", paper: QSTORE_PAPER,
                 level: "serializable, session order", family: Family::Commit, parts: stamped(mvcc::ENGINE, &mvcc::OPTIONS) },
    EngineInfo { name: "maat", what: "dynamic timestamp ranges, two-phase commit", paper: QSTORE_PAPER,
                 level: "serializable, session order", family: Family::Commit, parts: stamped(maat::ENGINE, &maat::OPTIONS) },
    EngineInfo { name: "walter", what: "parallel snapshots of what a home has heard, two-phase commit", paper: FWKV_PAPER,
                 level: "parallel snapshot isolation, session order", family: Family::Commit, parts: stamped(walter::ENGINE, &parallel_snapshots::OPTIONS) },
    EngineInfo { name: "fwkv", what: "as walter, with fresh reads", paper: FWKV_PAPER,
                 level: "parallel snapshot isolation, session order, fresh reads", family: Family::Commit, parts: commit(fwkv::ENGINE, &parallel_snapshots::OPTIONS_OF_READERS) },
    EngineInfo { name: "occ-2pc", what: "optimistic reads, validation, two-phase commit", paper: FWKV_PAPER,
                 level: "strict serializable", family: Family::Commit, parts: commit(occ_2pc::ENGINE, &optimistic::OPTIONS) },
    EngineInfo { name: "regions-2pl", what: "regions that write their own data by locks, validation between them", paper: REGIONS_PAPER,
                 level: "strict serializable", family: Family::Commit, parts: regional(regions_2pl::ENGINE, &OF_LOCKS) },
    EngineInfo { name: "regions-silo", what: "regions that write their own data by Silo, validation between them", paper: REGIONS_PAPER,
                 level: "strict serializable", family: Family::Commit, parts: regional(regions_silo::ENGINE, &OF_SILO) },
    EngineInfo { name: "regions-mvocc", what: "regions that write their own data by multiversion OCC, validation between them", paper: REGIONS_PAPER,
                 level: "strict serializable", family: Family::Commit, parts: regional(regions_mvocc::ENGINE, &OF_MVOCC) },
];

/// A name that is no engine's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no engine '{name}'; the engines that are there: {}", names().join(", "))]
pub struct EngineError {
    /// What was asked for.
    pub name: String,
}

/// Every engine, in the order of the registry.
pub fn engines() -> impl Iterator<Item = Engine> {
    ENGINES.iter().map(Engine)
}

fn names() -> Vec<&'static str> {
    engines().map(Engine::name).collect()
}

/// Every option of any engine, once, in the order in which help lists them.
pub fn all_options() -> Vec<&'static OptionInfo> {
    let mut all: Vec<&'static OptionInfo> = Vec::new();
    // The engine with the most options says where those stand that others have not got.
    let mut sorted: Vec<Engine> = engines().collect();
    sorted.sort_by_key(|engine| std::cmp::Reverse(engine.offers().len()));
    for info in sorted.iter().flat_map(|engine| engine.offers()).map(|offer| offer.info) {
        if !all.iter().any(|known| known.name == info.name) {
            all.push(info);
        }
    }
    all
}

/// The option with a name, whichever engines have it. Papers write `gc_ids` for what is `gc-ids` here.
pub fn option(name: &str) -> Option<&'static OptionInfo> {
    all_options().into_iter().find(|info| info.name == name.replace('_', "-"))
}

/// The engines that have an option.
pub fn engines_with(option: &OptionInfo) -> Vec<&'static str> {
    engines().filter(|engine| engine.defaults().has(option)).map(Engine::name).collect()
}

impl Engine {
    /// Its entry.
    pub const fn info(self) -> &'static EngineInfo {
        self.0
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// What it can do.
    pub fn can(self) -> &'static Abilities {
        &self.0.parts.can
    }

    /// What makes its roles.
    pub fn make(self) -> Make {
        self.0.parts.make
    }

    /// The options that it has.
    pub fn offers(self) -> &'static [Offer] {
        self.0.parts.options
    }

    /// Its options as they are if nobody says anything.
    pub fn defaults(self) -> Options {
        Options::new(self.name(), self.offers())
    }

    /// Its options with what was given, by name.
    ///
    /// # Errors
    /// An option that it has not got, a value out of its range, or values that do not go together. The value that every
    /// engine without the option behaves by is not refused.
    pub fn options<'a>(
        self,
        given: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Options, OptionError> {
        let mut options = self.defaults();
        for (name, text) in given {
            let Some(info) = option(name) else {
                let known = self.offers().iter().map(|offer| offer.info.name).collect();
                return Err(OptionError::Unknown { name: name.to_owned(), engine: self.name(), known });
            };
            let value = info.parse(text)?;
            if !options.has(info) && value != info.default {
                return Err(OptionError::NotOffered {
                    option: info,
                    value: text.to_owned(),
                    engine: self.name(),
                    engines: engines_with(info),
                });
            }
            options.set(info, value);
        }
        options.check()?;
        Ok(options)
    }
}

impl Default for Engine {
    /// The engine that runs where none is named: see [`DEFAULT_BECAUSE`].
    fn default() -> Engine {
        Engine(&ENGINES[0])
    }
}

/// The reason for the default engine, for help; decision 53 has the figures.
pub const DEFAULT_BECAUSE: &str =
    "as it is strictly serializable, and no engine that is too was faster by more than 15% in any workload";

impl PartialEq for Engine {
    fn eq(&self, other: &Engine) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Engine {}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({})", self.name())
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Engine {
    type Err = EngineError;

    fn from_str(name: &str) -> Result<Engine, EngineError> {
        engines().find(|engine| engine.name() == name).ok_or_else(|| EngineError { name: name.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_commit::Order;
    use ordain_commit::options::{BACKOFF, THOMAS, TS_SOURCE};
    use ordain_deterministic::options::{CASCADE, EXECUTION, Knobs, LINGER_US, READS, WINDOW};
    use ordain_model::{Cascade, CheckpointMode, Execution, Isolation, Micros, PartitionId, Reads};

    fn engine(name: &str) -> Engine {
        name.parse().unwrap()
    }

    fn refusal(name: &str, given: &[(&str, &str)]) -> String {
        engine(name).options(given.iter().copied()).unwrap_err().to_string()
    }

    #[test]
    fn an_engine_that_is_not_there_is_refused_by_name() {
        assert_eq!(engine("calvin").name(), "calvin");
        assert_eq!(
            "calvinn".parse::<Engine>().unwrap_err().to_string(),
            "there is no engine 'calvinn'; the engines that are there: calvin, calvin-paper, paxflow, qstore, no-wait, \
             wait-die, timestamp, mvcc, maat, walter, fwkv, occ-2pc, regions-2pl, regions-silo, regions-mvocc"
        );
        assert_eq!(Engine::default().name(), "calvin");
    }

    #[test]
    fn defaults_are_the_engines_own() {
        for (name, reads, execution) in [
            ("calvin", Reads::Ordered, Execution::Conservative),
            ("calvin-paper", Reads::Ordered, Execution::Conservative),
            ("paxflow", Reads::Session, Execution::Conservative),
            ("qstore", Reads::Ordered, Execution::Auto),
        ] {
            let knobs = Knobs {
                reads,
                checkpoint_mode: CheckpointMode::Multiversion,
                execution,
                cascade: Cascade::Repair,
                isolation: Isolation::Serializable,
                balance: true,
                plan_ahead: 3,
                linger: Micros(0),
                window: 2000,
            };
            assert_eq!(Knobs::of(&engine(name).defaults()), knobs, "{name}");
        }
    }

    #[test]
    fn every_option_can_be_set_and_is_read_by_the_family() {
        let given = [
            ("reads", "strict"),
            ("execution", "speculative"),
            ("cascade", "abort"),
            ("isolation", "read-committed"),
            ("checkpoint-mode", "zigzag"),
            ("balance", "false"),
            ("plan-ahead", "64"),
            ("linger-us", "7"),
            ("window", "1"),
        ];
        let options = engine("qstore").options(given).unwrap();
        assert_eq!(options.iter().count(), given.len(), "every option is in this test");
        let knobs = Knobs {
            reads: Reads::Strict,
            checkpoint_mode: CheckpointMode::ZigZag,
            execution: Execution::Speculative,
            cascade: Cascade::Abort,
            isolation: Isolation::ReadCommitted,
            balance: false,
            plan_ahead: 64,
            linger: Micros(7),
            window: 1,
        };
        assert_eq!(Knobs::of(&options), knobs);
    }

    #[test]
    fn an_option_of_other_engines_is_refused_by_name_but_for_what_the_engine_does_anyway() {
        for name in ["calvin", "calvin-paper", "paxflow"] {
            assert_eq!(
                refusal(name, &[("execution", "auto")]),
                format!(
                    "--execution auto is not for engine {name}, which has no such option: leave it out, or say --engine qstore"
                )
            );
            assert!(
                refusal(name, &[("isolation", "read-committed")])
                    .contains("--isolation read-committed is not for")
            );
            assert!(refusal(name, &[("cascade", "abort")]).contains("say --engine qstore"));
            let neutral =
                [("execution", "conservative"), ("cascade", "repair"), ("isolation", "serializable")];
            assert_eq!(engine(name).options(neutral).unwrap(), engine(name).defaults());
        }
        assert_eq!(engines_with(&EXECUTION), ["qstore"]);
        assert_eq!(engines_with(&READS), ["calvin", "calvin-paper", "paxflow", "qstore"]);
        // A snapshot is an epoch of the one order, which engines that lock have not got; they read in no order but their locks'.
        for name in ["no-wait", "wait-die"] {
            assert!(refusal(name, &[("reads", "session")]).contains("--reads session is not for engine"));
            assert_eq!(engine(name).options([("reads", "ordered")]).unwrap(), engine(name).defaults());
        }
        assert_eq!(
            engines_with(&BACKOFF),
            [
                "no-wait",
                "wait-die",
                "timestamp",
                "mvcc",
                "maat",
                "walter",
                "fwkv",
                "occ-2pc",
                "regions-2pl",
                "regions-silo",
                "regions-mvocc"
            ]
        );
        assert_eq!(engines_with(&THOMAS), ["timestamp"]);
        assert_eq!(engines_with(&TS_SOURCE), ["timestamp", "mvcc"]);
        assert_eq!(
            refusal("calvin", &[("backoff", "none")]),
            "--option backoff=none is not for engine calvin, which has no such option: leave it out, or say --engine \
             no-wait, wait-die, timestamp, mvcc, maat, walter, fwkv, occ-2pc, regions-2pl, regions-silo or regions-mvocc"
        );
    }

    #[test]
    fn values_out_of_range_and_unknown_names_are_refused() {
        assert!(refusal("qstore", &[("execution", "hopeful")]).contains("'hopeful' is no way to execute"));
        assert!(refusal("qstore", &[("cascade", "retry")]).contains("'retry' is no way to handle a cascade"));
        assert!(refusal("qstore", &[("isolation", "snapshot")]).contains("'snapshot' is no isolation level"));
        assert_eq!(
            refusal("calvin", &[("window", "0")]),
            "--option window: '0' is out of range: it takes 1 to 65536 transactions"
        );
        assert!(refusal("calvin", &[("plan-ahead", "65")]).contains("0 to 64 batches"));
        let unknown = refusal("calvin", &[("prepare-wait", "1ms")]);
        assert!(
            unknown.contains("there is no option 'prepare-wait'; engine calvin has: reads,"),
            "{unknown}"
        );
    }

    #[test]
    fn sources_of_stamps_and_their_skew_are_read_and_others_refused_by_name() {
        let timestamp = engine("timestamp");
        let Make::Commit(of) = timestamp.make() else { panic!("{timestamp}") };
        let order = |given: &[(&str, &str)]| of.order(&timestamp.options(given.iter().copied()).unwrap());
        assert_eq!(order(&[]), Order::Sessions);
        assert_eq!(order(&[("ts-source", "clock")]), Order::Stamps);
        assert_eq!(order(&[("ts-source", "counter"), ("skew-us", "100000")]), Order::RealTime);
        let options = timestamp.options([("skew-us", "7")]).unwrap();
        let skew = |home| ordain_commit::options::skew_of(&options, PartitionId(home));
        assert_eq!([0, 1, 2, 3].map(skew), [0, 7, 0, 7].map(Micros));
        let refusal = |name, value| timestamp.options([(name, value)]).unwrap_err().to_string();
        assert_eq!(
            refusal("ts-source", "wall"),
            "--option ts-source: 'wall' is no source of stamps: hlc, clock or counter"
        );
        for value in ["100001", "-1", "1ms"] {
            let range = "is out of range: it takes 0 to 100000 microseconds";
            assert_eq!(refusal("skew-us", value), format!("--option skew-us: '{value}' {range}"));
        }
        for name in ["no-wait", "wait-die", "calvin"] {
            let refused = refusal_of_stamps(name);
            assert!(
                refused.contains(&format!("is not for engine {name}, which has no such option")),
                "{refused}"
            );
        }
    }

    fn refusal_of_stamps(name: &str) -> String {
        refusal(name, &[("ts-source", "clock")])
    }

    #[test]
    fn only_what_is_speculated_cascades() {
        for execution in ["speculative", "auto"] {
            assert!(engine("qstore").options([("cascade", "abort"), ("execution", execution)]).is_ok());
        }
        assert_eq!(
            refusal("qstore", &[("execution", "conservative"), ("cascade", "abort")]),
            "--cascade abort is for --execution speculative or auto, and nothing is executed speculatively: leave it out, or \
             say --execution speculative"
        );
    }

    #[test]
    fn descriptions_are_sound() {
        let all = all_options();
        for (i, info) in all.iter().enumerate() {
            let is_kebab = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(!info.name.is_empty() && info.name.chars().all(is_kebab), "{info:?}");
            assert!(
                !info.doc.is_empty() && !info.doc.ends_with('.') && !info.value_name.is_empty(),
                "{info:?}"
            );
            assert!(all[..i].iter().all(|other| other.name != info.name), "{info:?} is there twice");
            if let Some(need) = info.needs {
                let other = option(need.other).unwrap();
                assert!(info.parse(need.value).is_ok() && need.values.iter().all(|v| other.parse(v).is_ok()));
            }
        }
        for engine in engines() {
            for offer in engine.offers() {
                // One description for all engines, and defaults within its range.
                assert!(std::ptr::eq(offer.info, option(offer.info.name).unwrap()), "{engine}: {offer:?}");
                assert_eq!(offer.info.parse(&offer.default.to_string()), Ok(offer.default), "{engine}");
            }
            assert_eq!(engine.defaults().check(), Ok(()), "{engine}");
        }
        assert!(all.iter().any(|info| std::ptr::eq(*info, &LINGER_US)));
        assert!([&WINDOW, &CASCADE].iter().all(|info| all.iter().any(|known| std::ptr::eq(*known, *info))));
    }
}
