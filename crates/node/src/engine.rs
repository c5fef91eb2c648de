//! The registry of engines: what `--engine` takes, what is there and what is not yet.

use std::fmt;
use std::str::FromStr;

use ordain_deterministic::shard::Scheduling;
use ordain_engines::{calvin, calvin_paper, paxflow, qstore};
use ordain_model::{
    Cascade, Execution, Isolation, Reads, UnknownCascade, UnknownExecution, UnknownIsolation,
};

/// An engine that is built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Sequenced input log, deterministic locks.
    #[default]
    Calvin,
    /// The same as the papers have it: one thread of a node grants and releases all its locks. For comparisons.
    CalvinPaper,
    /// Calvin, and what only reads is run on snapshots.
    Paxflow,
    /// Sequenced input log, planned queues.
    Qstore,
}

/// What an engine is called and what it promises.
#[derive(Clone, Copy, Debug)]
pub struct EngineInfo {
    /// The name that `--engine` takes.
    pub name: &'static str,
    /// Its isolation level.
    pub level: &'static str,
    /// The engine, if it is built.
    pub engine: Option<Engine>,
}

/// Every engine of the contract, one line each.
pub const ENGINES: [EngineInfo; 15] = [
    EngineInfo { name: "calvin", level: "strict serializable", engine: Some(Engine::Calvin) },
    EngineInfo { name: "calvin-paper", level: "strict serializable", engine: Some(Engine::CalvinPaper) },
    EngineInfo { name: "paxflow", level: "serializable", engine: Some(Engine::Paxflow) },
    EngineInfo {
        name: "qstore",
        level: "strict serializable, or read committed",
        engine: Some(Engine::Qstore),
    },
    EngineInfo { name: "no-wait", level: "serializable", engine: None },
    EngineInfo { name: "wait-die", level: "serializable", engine: None },
    EngineInfo { name: "timestamp", level: "serializable", engine: None },
    EngineInfo { name: "mvcc", level: "serializable", engine: None },
    EngineInfo { name: "maat", level: "serializable", engine: None },
    EngineInfo { name: "walter", level: "parallel snapshot isolation", engine: None },
    EngineInfo { name: "fwkv", level: "parallel snapshot isolation", engine: None },
    EngineInfo { name: "occ-2pc", level: "serializable", engine: None },
    EngineInfo { name: "regions-2pl", level: "strict serializable", engine: None },
    EngineInfo { name: "regions-silo", level: "strict serializable", engine: None },
    EngineInfo { name: "regions-mvocc", level: "strict serializable", engine: None },
];

/// A name that is no engine, or an engine that is not built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// It is in the plan.
    #[error("engine '{name}' is not built yet; the engines that are there: {}", built())]
    NotBuilt {
        /// Its name.
        name: String,
    },
    /// It is nothing.
    #[error("there is no engine '{name}'; the engines that are there: {}", built())]
    Unknown {
        /// What was asked for.
        name: String,
    },
}

fn built() -> String {
    let built = ENGINES.iter().filter(|info| info.engine.is_some()).map(|info| info.name);
    built.collect::<Vec<_>>().join(", ")
}

impl Engine {
    /// Its name.
    pub fn name(self) -> &'static str {
        ENGINES.iter().find(|info| info.engine == Some(self)).map_or("", |info| info.name)
    }

    /// Its scheduling of transactions on the records of a shard.
    pub fn scheduling(self) -> Scheduling {
        match self {
            Engine::Calvin => calvin::SCHEDULING,
            Engine::CalvinPaper => calvin_paper::SCHEDULING,
            Engine::Paxflow => paxflow::SCHEDULING,
            Engine::Qstore => qstore::SCHEDULING,
        }
    }

    /// How it runs what only reads, unless it is told otherwise.
    pub fn reads(self) -> Reads {
        match self {
            Engine::Calvin | Engine::CalvinPaper | Engine::Qstore => Reads::Ordered,
            Engine::Paxflow => Reads::Session,
        }
    }
}

impl Engine {
    /// How it executes what depends on verdicts, unless it is told otherwise.
    pub fn execution(self) -> Execution {
        match self {
            Engine::Calvin | Engine::CalvinPaper | Engine::Paxflow => Execution::Conservative,
            Engine::Qstore => Execution::Auto,
        }
    }

    /// How it is to execute what depends on verdicts, as somebody has written it, if he has.
    ///
    /// # Errors
    /// As [`Engine::executed`], or there is no such way.
    pub fn executed_as(self, wanted: Option<&str>) -> Result<Execution, ExecutionError> {
        wanted.map_or(Ok(self.execution()), |wanted| self.executed(wanted.parse()?))
    }

    /// How it is to execute what depends on verdicts.
    ///
    /// # Errors
    /// It cannot do it so.
    pub fn executed(self, execution: Execution) -> Result<Execution, ExecutionError> {
        match self {
            Engine::Calvin | Engine::CalvinPaper | Engine::Paxflow
                if execution != Execution::Conservative =>
            {
                Err(ExecutionError::NotSo { engine: self.name(), execution })
            }
            _ => Ok(execution),
        }
    }
}

impl Engine {
    /// The isolation level that it is to have, as somebody has written it, if he has.
    ///
    /// # Errors
    /// As [`Engine::isolated`], or there is no such level.
    pub fn isolated_as(self, wanted: Option<&str>) -> Result<Isolation, IsolationError> {
        wanted.map_or(Ok(Isolation::default()), |wanted| self.isolated(wanted.parse()?))
    }

    /// The isolation level that it is to have.
    ///
    /// # Errors
    /// It has not got it.
    pub fn isolated(self, level: Isolation) -> Result<Isolation, IsolationError> {
        match self {
            Engine::Calvin | Engine::CalvinPaper | Engine::Paxflow if level != Isolation::Serializable => {
                Err(IsolationError::NotSo { engine: self.name(), level })
            }
            _ => Ok(level),
        }
    }
}

/// What is to become of what was executed on what is undone, as somebody has written it, if he has, where transactions are
/// executed so.
///
/// # Errors
/// As [`cascades`], or there is no such thing.
pub fn cascades_as(execution: Execution, wanted: Option<&str>) -> Result<Cascade, CascadeError> {
    wanted.map_or(Ok(Cascade::default()), |wanted| cascades(execution, wanted.parse()?))
}

/// What is to become of what was executed on what is undone.
///
/// # Errors
/// Nothing is undone.
pub fn cascades(execution: Execution, cascade: Cascade) -> Result<Cascade, CascadeError> {
    match (execution, cascade) {
        (Execution::Conservative, Cascade::Abort) => Err(CascadeError::NotSo),
        _ => Ok(cascade),
    }
}

/// What cannot become of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CascadeError {
    /// There is no such thing.
    #[error(transparent)]
    Unknown(#[from] UnknownCascade),
    /// Nothing is executed before it is known what aborts.
    #[error(
        "--cascade abort is for what is executed speculatively, and nothing is: leave it out, or say --engine qstore --execution \
         speculative"
    )]
    NotSo,
}

/// An isolation level that is none, or not one of an engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IsolationError {
    /// There is no such level.
    #[error(transparent)]
    Unknown(#[from] UnknownIsolation),
    /// The engine has not got it.
    #[error(
        "--isolation {level} is not for engine {engine}, under which what is read is locked: leave it out, or say --engine qstore"
    )]
    NotSo {
        /// The engine.
        engine: &'static str,
        /// The level.
        level: Isolation,
    },
}

/// A way of executing that is none, or not one of an engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecutionError {
    /// There is no such way.
    #[error(transparent)]
    Unknown(#[from] UnknownExecution),
    /// The engine does not do it.
    #[error(
        "--execution {execution} is not for engine {engine}, whose locks wait for verdicts: leave it out, or say --engine qstore"
    )]
    NotSo {
        /// The engine.
        engine: &'static str,
        /// The way.
        execution: Execution,
    },
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Engine {
    type Err = EngineError;

    fn from_str(name: &str) -> Result<Engine, EngineError> {
        match ENGINES.iter().find(|info| info.name == name) {
            Some(EngineInfo { engine: Some(engine), .. }) => Ok(*engine),
            Some(_) => Err(EngineError::NotBuilt { name: name.into() }),
            None => Err(EngineError::Unknown { name: name.into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_queues_speculate() {
        assert_eq!(Engine::Qstore.executed_as(None), Ok(Execution::Auto));
        assert_eq!(Engine::Qstore.executed_as(Some("speculative")), Ok(Execution::Speculative));
        assert_eq!(Engine::Calvin.executed_as(Some("conservative")), Ok(Execution::Conservative));
        assert_eq!(Engine::Calvin.executed_as(None), Ok(Execution::Conservative));
        let refusal = |engine: Engine, wanted| engine.executed_as(Some(wanted)).unwrap_err().to_string();
        assert!(refusal(Engine::Paxflow, "auto").contains("--execution auto is not for engine paxflow"));
        assert!(refusal(Engine::Qstore, "hopeful").contains("'hopeful' is no way to execute"));
    }

    #[test]
    fn only_what_is_speculated_cascades() {
        assert_eq!(cascades_as(Execution::Conservative, None), Ok(Cascade::Repair));
        assert_eq!(cascades_as(Execution::Conservative, Some("repair")), Ok(Cascade::Repair));
        assert_eq!(cascades_as(Execution::Auto, Some("abort")), Ok(Cascade::Abort));
        let refusal = |wanted| cascades_as(Engine::Calvin.execution(), Some(wanted)).unwrap_err().to_string();
        assert!(refusal("abort").contains("say --engine qstore --execution speculative"));
        assert!(refusal("retry").contains("'retry' is nothing that can become"));
    }

    #[test]
    fn only_queues_read_what_is_committed() {
        assert_eq!(Engine::Qstore.isolated_as(None), Ok(Isolation::Serializable));
        assert_eq!(Engine::Qstore.isolated_as(Some("read-committed")), Ok(Isolation::ReadCommitted));
        assert_eq!(Engine::Calvin.isolated_as(Some("serializable")), Ok(Isolation::Serializable));
        let refusal = |engine: Engine, wanted| engine.isolated_as(Some(wanted)).unwrap_err().to_string();
        for engine in [Engine::Calvin, Engine::CalvinPaper, Engine::Paxflow] {
            let not_so = format!("--isolation read-committed is not for engine {engine}");
            assert!(refusal(engine, "read-committed").contains(&not_so));
        }
        assert!(refusal(Engine::Qstore, "snapshot").contains("'snapshot' is no isolation level"));
    }

    #[test]
    fn an_engine_that_is_not_there_is_refused_by_name() {
        assert_eq!("calvin".parse(), Ok(Engine::Calvin));
        assert_eq!("paxflow".parse(), Ok(Engine::Paxflow));
        let refusal = "maat".parse::<Engine>().unwrap_err().to_string();
        assert_eq!(
            refusal,
            "engine 'maat' is not built yet; the engines that are there: calvin, calvin-paper, paxflow, qstore"
        );
        assert!(
            "calvinn".parse::<Engine>().unwrap_err().to_string().starts_with("there is no engine 'calvinn'")
        );
    }
}
