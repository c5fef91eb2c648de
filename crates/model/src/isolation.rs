//! What transactions see of each other.

use crate::named::named;

/// The isolation level (the Q-Store paper, section 4.5; qstore.md, section 4.10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// The results are those of one transaction after the other.
    #[default]
    Serializable,
    /// What a transaction only reads it sees as it was at the end of the epoch before its own; what it writes or checks is as
    /// its place in the order has it. The plan says which fragments these are
    /// ([`Fragment::snapshot_readable`](crate::Fragment::snapshot_readable)).
    ReadCommitted,
}

impl Isolation {
    /// All of them, by name.
    pub const ALL: [(&'static str, Isolation); 2] =
        [("serializable", Isolation::Serializable), ("read-committed", Isolation::ReadCommitted)];
}

named!(Isolation, UnknownIsolation, "no isolation level: serializable or read-committed");

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
