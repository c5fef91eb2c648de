//! The systems that a workload runs against, and the points that are compared.

use std::fmt;
use std::sync::Arc;

use ordain_checker::{Anomaly, Bound, Level};
use ordain_deterministic::options::{ISOLATION, LINGER_US, READS};
use ordain_engines::registry::{Engine, Family};
use ordain_family::{Keep, Replication};
use ordain_model::{CheckpointMode, Isolation, OptionInfo, OptionValue, Options, Reads};
use ordain_workload::Workload;

use crate::conditions::Conditions;
use crate::embedded::{Grid, Regions};
use crate::options::{Bench, OptionFlags as _};
use crate::plot::si;
use crate::resp::{FormName, Target};

/// An engine of ours, and its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ours {
    /// The engine.
    pub engine: Engine,
    /// The options of the engine.
    pub options: Options,
}

impl Ours {
    /// The engine with its defaults.
    pub fn new(engine: Engine) -> Ours {
        Ours { engine, options: engine.defaults() }
    }

    /// Sets an option, if the engine has it.
    #[must_use]
    pub fn with(mut self, info: &'static OptionInfo, value: OptionValue) -> Ours {
        self.options.set(info, value);
        self
    }

    /// Changes the engine, and keeps the options set that it has too.
    #[must_use]
    pub fn by(&self, engine: Engine) -> Ours {
        self.options.given().fold(Ours::new(engine), |ours, (info, value)| ours.with(info, value))
    }

    /// The way of read-only transactions.
    pub fn reads(&self) -> Reads {
        self.options.choice(&READS)
    }

    /// The time at which a batch is closed, in words; empty of an engine that has no batches.
    fn batches(&self) -> String {
        if !self.options.has(&LINGER_US) {
            return String::new();
        }
        match self.options.number(&LINGER_US) {
            0 => "batches close when the pipeline is free".to_owned(),
            us => format!("batches close when the pipeline is free, {us} us after they open at the earliest"),
        }
    }

    /// True if read-only transactions run on snapshots.
    pub fn reads_on_snapshots(&self) -> bool {
        self.reads() != Reads::Ordered
    }
}

impl fmt::Display for Ours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with", self.engine)?;
        for (info, value) in self.options.iter() {
            match Bench::flag(info) {
                Some(flag) => write!(f, " --{flag} {value}")?,
                None if self.options.is_given(info) => write!(f, " --option {}={value}", info.name)?,
                None => {}
            }
        }
        Ok(())
    }
}

/// A system that a workload runs against.
#[derive(Clone, Debug)]
pub enum System {
    /// An engine in this process.
    Embedded {
        /// The engine and its options.
        ours: Ours,
        durability: Durability,
        /// On which nodes.
        grid: Grid,
    },
    /// A node of ours in a process of its own, behind a socket.
    Served {
        /// The engine and its options.
        ours: Ours,
        durability: Durability,
        form: FormName,
    },
    /// A server that is there already.
    Remote { target: Target, form: FormName },
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            System::Embedded { ours, durability, grid } => {
                write!(f, "{ours} --durability {durability}")?;
                match grid {
                    Grid { nodes, regions: Some(regions), .. } => {
                        let Regions { storage, count, between, fault } = regions;
                        let (name, fault) = (storage.name(), fault.text());
                        write!(
                            f,
                            " in {nodes} regions {} us apart, {count} storage nodes each, {name}{fault}",
                            between.0
                        )
                    }
                    Grid { nodes: 1, replicas: 1, .. } => Ok(()),
                    Grid { apart: true, nodes, .. } => write!(f, " on {nodes} nodes that are apart"),
                    Grid { nodes, replicas: 1, .. } => write!(f, " on {nodes} nodes"),
                    Grid { nodes, replicas, replication, .. } => {
                        write!(f, " on {nodes} nodes in {replicas} replicas, {}", replication.name())
                    }
                }
            }
            System::Served { ours, durability, form } => {
                write!(f, "{ours} --durability {durability} behind a socket, --form {}", form.name())
            }
            System::Remote { target, form } => write!(f, "{target}, --form {}", form.name()),
        }
    }
}

impl System {
    /// True if the engine is in this process, and runs read-only transactions on snapshots.
    pub fn reads_on_snapshots(&self) -> bool {
        matches!(self, System::Embedded { ours, .. } if ours.reads_on_snapshots())
    }

    /// The isolation level by which answers are judged: the engine's where that is weaker than serializable. Another's server promises to be
    /// serializable.
    pub fn level(&self) -> Level {
        let (System::Embedded { ours, .. } | System::Served { ours, .. }) = self else {
            return Level::Serializable;
        };
        if ours.options.has(&ISOLATION)
            && ours.options.choice::<Isolation>(&ISOLATION) == Isolation::ReadCommitted
        {
            return Level::ReadCommitted;
        }
        let named = Level::ALL.into_iter().find(|level| level.name() == ours.engine.info().level);
        named
            .filter(|level| level.forbids(Anomaly::WriteSkew) == Bound::Nobody)
            .unwrap_or(Level::Serializable)
    }

    /// True if a transaction that others get in the way of for too long is turned away.
    pub fn gives_up(&self) -> bool {
        let (System::Embedded { ours, .. } | System::Served { ours, .. }) = self else { return false };
        ours.engine.info().family == Family::Commit
    }

    /// True if the engine is in this process and has a disk.
    pub(super) fn can_take_checkpoints(&self) -> bool {
        matches!(self, System::Embedded { durability, .. } if *durability != Durability::Ephemeral)
    }
}

/// The time at which a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Durability {
    /// Once it survives the loss of power
    Fsync,
    /// Once it survives the death of the process
    Os,
    /// Without waiting for the log
    None,
    /// There is no log: as `serve --ephemeral`
    Ephemeral,
}

impl Durability {
    pub(super) fn keep(self) -> Keep {
        match self {
            Durability::Fsync => Keep::Fsync,
            Durability::Os => Keep::Os,
            Durability::None => Keep::Late,
            Durability::Ephemeral => Keep::Nothing,
        }
    }

    /// The log that is kept, in words.
    const fn log(self) -> &'static str {
        match self {
            Durability::Fsync => "logged and synced before an answer",
            Durability::Os => "logged and given to the system before an answer, not synced",
            Durability::None => "logged, and nobody waits for the log",
            Durability::Ephemeral => "no log",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Durability::Fsync => "fsync",
            Durability::Os => "os",
            Durability::None => "none",
            Durability::Ephemeral => "ephemeral",
        })
    }
}

/// One of the things that are compared.
#[derive(Clone, Debug)]
pub struct Point {
    pub system: System,
    /// Loops of a node; 0 for a server where they are not known.
    pub threads: usize,
    /// Most transactions under way.
    pub clients: usize,
    /// Transactions a second, in an open loop.
    pub rate: Option<f64>,
    pub workload: Arc<dyn Workload>,
    /// True: staleness and contents kept are measured; in this process only.
    pub watch: bool,
    /// Mode of the checkpoint that is taken while measuring, if one is: in this process, with a log.
    pub checkpoint: Option<CheckpointMode>,
}

impl Point {
    /// Loops of all nodes of a replica together; 0 if that is not known.
    pub fn loops(&self) -> usize {
        match &self.system {
            System::Embedded { grid, .. } => self.threads * usize::from(grid.nodes),
            _ => self.threads,
        }
    }

    /// The conditions that captions name.
    pub fn conditions(&self) -> Conditions {
        let rate = self.rate.map_or_else(
            || "each asks again when it is answered".to_owned(),
            |rate| format!("{} txn/s asked for", si(rate)),
        );
        let known = |ours: &Ours, durability: Durability, (replication, members): (&str, u16)| Conditions {
            durability: durability.to_string(),
            log: durability.log().to_owned(),
            replication: replication.to_owned(),
            members,
            clients: format!("{} clients, {rate}", self.clients),
            batches: ours.batches(),
        };
        match &self.system {
            System::Embedded { ours, durability, grid: Grid { regions: Some(regions), .. } } => {
                let storage = format!("by storage nodes, {}", regions.storage.name());
                known(ours, *durability, (&storage, regions.count))
            }
            System::Embedded { ours, durability, grid } => {
                known(ours, *durability, (grid.replication.name(), grid.replicas))
            }
            System::Served { ours, durability, .. } => {
                known(ours, *durability, (Replication::None.name(), 1))
            }
            System::Remote { target, .. } => Conditions {
                durability: "unknown".to_owned(),
                log: format!("{target} logs as it was told"),
                replication: "unknown".to_owned(),
                members: 0,
                clients: format!("{} clients, {rate}", self.clients),
                batches: String::new(),
            },
        }
    }
}
