//! Whether transactions are executed before it is known which of them abort.

use std::fmt;
use std::str::FromStr;

/// How what depends on verdicts of other shards is executed (the Q-Store paper, section 3.2.2; qstore.md, sections 4.7 and
/// 4.8). The results are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// Nobody waits for a verdict; what turns out wrong is undone, with all that depends on it, and executed again.
    Speculative,
    /// What is written is seen when all verdicts are known.
    #[default]
    Conservative,
    /// Batch by batch, speculative unless much of it has had to be done twice.
    Auto,
}

impl Execution {
    /// All of them, by name.
    pub const ALL: [(&'static str, Execution); 3] = [
        ("speculative", Execution::Speculative),
        ("conservative", Execution::Conservative),
        ("auto", Execution::Auto),
    ];
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Execution::ALL.iter().find(|(_, mode)| mode == self).map_or("", |(name, _)| name))
    }
}

/// A name that is no way to execute.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no way to execute transactions: speculative, conservative or auto")]
pub struct UnknownExecution(pub String);

impl FromStr for Execution {
    type Err = UnknownExecution;

    fn from_str(name: &str) -> Result<Execution, UnknownExecution> {
        let known = Execution::ALL.iter().find(|(known, _)| *known == name);
        known.map(|(_, mode)| *mode).ok_or_else(|| UnknownExecution(name.into()))
    }
}

/// What becomes of a transaction that was executed on what another one had written which then aborted (the Q-Store paper,
/// section 3.2.2; qstore.md, section 4.7, step 7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cascade {
    /// It is executed again: the results are those of one after the other.
    #[default]
    Repair,
    /// It aborts too, as the paper has it, and its client asks again.
    Abort,
}

impl Cascade {
    /// All of them, by name.
    pub const ALL: [(&'static str, Cascade); 2] = [("repair", Cascade::Repair), ("abort", Cascade::Abort)];
}

impl fmt::Display for Cascade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Cascade::ALL.iter().find(|(_, way)| way == self).map_or("", |(name, _)| name))
    }
}

/// A name that is no way out of a cascade.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is nothing that can become of what used what was undone: repair or abort")]
pub struct UnknownCascade(pub String);

impl FromStr for Cascade {
    type Err = UnknownCascade;

    fn from_str(name: &str) -> Result<Cascade, UnknownCascade> {
        let known = Cascade::ALL.iter().find(|(known, _)| *known == name);
        known.map(|(_, way)| *way).ok_or_else(|| UnknownCascade(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (name, mode) in Execution::ALL {
            assert_eq!((name.parse(), mode.to_string()), (Ok(mode), name.to_owned()));
        }
        assert!("optimistic".parse::<Execution>().is_err());
        for (name, way) in Cascade::ALL {
            assert_eq!((name.parse(), way.to_string()), (Ok(way), name.to_owned()));
        }
        assert!("restart".parse::<Cascade>().is_err());
    }
}
