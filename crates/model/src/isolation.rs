//! What transactions see of each other.

use std::fmt;
use std::str::FromStr;

/// The isolation level (the Q-Store paper, section 4.5; qstore.md, section 4.10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// The results are those of one transaction after the other.
    #[default]
    Serializable,
    /// What a transaction only reads it sees as it was at the end of the epoch before its own; what it writes or checks is as
    /// its place in the order has it. Which fragments these are the plan says ([`Fragment::pure`](crate::Fragment::pure)).
    ReadCommitted,
}

impl Isolation {
    /// All of them, by name.
    pub const ALL: [(&'static str, Isolation); 2] =
        [("serializable", Isolation::Serializable), ("read-committed", Isolation::ReadCommitted)];
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Isolation::ALL.iter().find(|(_, level)| level == self).map_or("", |(name, _)| name))
    }
}

/// A name that is no isolation level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no isolation level: serializable or read-committed")]
pub struct UnknownIsolation(pub String);

impl FromStr for Isolation {
    type Err = UnknownIsolation;

    fn from_str(name: &str) -> Result<Isolation, UnknownIsolation> {
        let known = Isolation::ALL.iter().find(|(known, _)| *known == name);
        known.map(|(_, level)| *level).ok_or_else(|| UnknownIsolation(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (name, level) in Isolation::ALL {
            assert_eq!((name.parse(), level.to_string()), (Ok(level), name.to_owned()));
        }
        assert!("snapshot".parse::<Isolation>().is_err());
    }
}
