//! What objects are called.
//!
//! ```text
//! <prefix>/<cluster>/<partition>/checkpoint-<epoch, 16 hex digits>.<node>.state
//!                                checkpoint-<epoch, 16 hex digits>.<node>.seal
//! ```
//!
//! Members complete the same checkpoints, each its own file: the node's number keeps apart what two of them put there at the same
//! time. The order of names is that of epochs.

use std::fmt;

use ordain_model::Epoch;
use ordain_role::NodeId;

const PREFIX: &str = "checkpoint-";

/// Which of a checkpoint's two objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The state: the very bytes of the node's file.
    State,
    /// The seal, which marks a complete checkpoint.
    Seal,
}

/// The last part of an object's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The checkpoint's epoch.
    pub epoch: Epoch,
    /// The node that took it.
    pub node: NodeId,
    /// Which of the two.
    pub kind: Kind,
}

impl Name {
    /// Reads a name; `None` if it is none of ours.
    pub fn parse(name: &str) -> Option<Name> {
        let mut parts = name.strip_prefix(PREFIX)?.split('.');
        let epoch = Epoch(u64::from_str_radix(parts.next()?, 16).ok()?);
        let node = NodeId(parts.next()?.parse().ok()?);
        let kind = match parts.next()? {
            "state" => Kind::State,
            "seal" => Kind::Seal,
            _ => return None,
        };
        let parsed = Name { epoch, node, kind };
        (parsed.to_string() == name).then_some(parsed)
    }

    /// The other one of the two.
    #[must_use]
    pub fn with(self, kind: Kind) -> Name {
        Name { kind, ..self }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::State => "state",
            Kind::Seal => "seal",
        };
        write!(f, "{PREFIX}{:016x}.{}.{kind}", self.epoch.0, self.node.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_names_are_ours_and_they_stand_in_the_order_of_epochs() {
        let name = |epoch, node, kind| Name { epoch: Epoch(epoch), node: NodeId(node), kind };
        let all = [name(9, 1, Kind::Seal), name(16, 0, Kind::State), name(u64::MAX, 12, Kind::Seal)];
        for name in all {
            assert_eq!(Name::parse(&name.to_string()), Some(name));
        }
        let words: Vec<String> = all.iter().map(Name::to_string).collect();
        assert!(words.is_sorted(), "{words:?}");
        for foreign in [
            "checkpoint-00000000000000ff.state",
            "checkpoint-ff.0.state",
            "checkpoint-00000000000000ff.+1.seal",
            "checkpoint-00000000000000ff.1.seal.bak",
            "checkpoint-00000000000000FF.1.seal",
            "log-00000000000000ff.1.seal",
        ] {
            assert_eq!(Name::parse(foreign), None, "{foreign}");
        }
    }
}
