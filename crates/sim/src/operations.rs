//! The operations of a run: what an operator of the cluster does beside its faults.

use std::fmt;
use std::str::FromStr;

/// Something that an operator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Nodes take their checkpoints to a store that fails, is slow, and loses uploads half-way.
    Archive,
    /// At the end a new cluster is put together from the store or from the nodes' directories, and serves clients.
    Restore,
    /// Nodes stop in good order, one after the other, and come back with other settings.
    Rolling,
    /// A node is replaced by an empty one, where the system allows that.
    Replace,
    /// Slots go to other partitions, step by step as `ordain cluster move` takes them.
    Relocate,
}

impl Operation {
    /// All of them, with their names on the command line.
    pub const ALL: [(Operation, &'static str); 5] = [
        (Operation::Archive, "archive"),
        (Operation::Restore, "restore"),
        (Operation::Rolling, "rolling"),
        (Operation::Replace, "replace"),
        (Operation::Relocate, "relocate"),
    ];
}

/// A set of operations. Its text form is `none`, `all`, or names separated by commas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations(u8);

impl Operations {
    /// No operations.
    pub const NONE: Operations = Operations(0);
    /// Every operation.
    pub const ALL: Operations = Operations((1 << Operation::ALL.len()) - 1);

    /// The set with one more.
    #[must_use]
    pub const fn with(self, operation: Operation) -> Operations {
        Operations(self.0 | 1 << operation as u8)
    }

    /// True if an operation is in the set.
    pub const fn has(self, operation: Operation) -> bool {
        self.0 & (1 << operation as u8) != 0
    }
}

/// A name that is no operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown operation `{0}`: say none, all, or some of archive,restore,rolling,replace,relocate separated by commas"
)]
pub struct UnknownOperation(String);

impl FromStr for Operations {
    type Err = UnknownOperation;

    fn from_str(text: &str) -> Result<Operations, UnknownOperation> {
        match text {
            "none" => return Ok(Operations::NONE),
            "all" => return Ok(Operations::ALL),
            _ => {}
        }
        text.split(',').try_fold(Operations::NONE, |set, name| {
            let name = name.trim();
            let found = Operation::ALL.iter().find(|(_, n)| *n == name);
            found.map(|(operation, _)| set.with(*operation)).ok_or_else(|| UnknownOperation(name.to_owned()))
        })
    }
}

impl fmt::Display for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Operations::NONE => return f.write_str("none"),
            Operations::ALL => return f.write_str("all"),
            _ => {}
        }
        let chosen = Operation::ALL.iter().filter(|(operation, _)| self.has(*operation));
        f.write_str(&chosen.map(|(_, name)| *name).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for text in ["none", "all", "archive", "restore,rolling"] {
            assert_eq!(text.parse::<Operations>().unwrap().to_string(), text);
        }
        assert!("rolling,paint".parse::<Operations>().unwrap_err().to_string().contains("`paint`"));
        let all = Operation::ALL.iter().fold(Operations::NONE, |set, (operation, _)| set.with(*operation));
        assert_eq!(all, Operations::ALL);
    }
}
