//! The conditions of a run that every caption names: durability and log, replication, clients and batches.
//!
//! A rate without them is no result: a cluster without a log does more than one that syncs, and a batch of forty
//! thousand hides what one of ten shows.

use std::fmt;

use serde::Serialize;

use crate::report::{Run, grouped};

/// The conditions of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Conditions {
    /// The time at which a write is acknowledged: `fsync`, `os`, `none`, `ephemeral`, or `unknown` of another's server.
    pub durability: String,
    /// The log that is kept, in words.
    pub log: String,
    /// `none`, `sync` or `async`; `unknown` of another's server.
    pub replication: String,
    /// Nodes that hold each partition; 0 where that is not known.
    pub members: u16,
    /// Number of the clients, and how they ask.
    pub clients: String,
    /// The time at which a batch or an epoch is closed.
    pub batches: String,
}

impl Conditions {
    /// The conditions in the order of the caption, each with its name.
    fn parts(&self) -> [String; 5] {
        let members = match self.members {
            0 => String::new(),
            1 => ", 1 member".to_owned(),
            members => format!(", {members} members"),
        };
        [
            format!("durability {}", self.durability),
            self.log.clone(),
            format!("replication {}{members}", self.replication),
            self.clients.clone(),
            self.batches.clone(),
        ]
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.parts().into_iter().filter(|part| !part.is_empty());
        f.write_str(&parts.collect::<Vec<_>>().join("; "))
    }
}

/// The caption of some runs: their conditions, with all values of those that differ; empty if no run has clients.
pub fn caption<'a>(runs: impl IntoIterator<Item = &'a Run>) -> String {
    let asked = runs.into_iter().filter(|run| run.clients > 0);
    let mut all: [Vec<String>; 5] = Default::default();
    for run in asked {
        all.iter_mut().zip(run.conditions.parts()).for_each(|(values, part)| values.push(part));
    }
    let distinct = all.map(|values| {
        let known = values.into_iter().filter(|value| !value.is_empty());
        let distinct = grouped(known.map(|value| (value, ()))).into_iter().map(|(value, _)| value);
        distinct.collect::<Vec<_>>().join(" or ")
    });
    distinct.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(durability: &str, members: u16, clients: usize) -> Run {
        let conditions = Conditions {
            durability: durability.to_owned(),
            log: "logged".to_owned(),
            replication: "none".to_owned(),
            members,
            clients: format!("{clients} clients"),
            batches: String::new(),
        };
        Run { clients, conditions, ..Run::default() }
    }

    #[test]
    fn a_caption_names_what_runs_have_in_common_once_and_what_differs_with_all_its_values() {
        let runs = [run("fsync", 1, 20), run("none", 1, 20), run("fsync", 3, 20)];
        assert_eq!(
            caption(&runs),
            "durability fsync or durability none; logged; replication none, 1 member or replication none, 3 members; \
             20 clients"
        );
        assert_eq!(caption(&runs[..1]), runs[0].conditions.to_string());
        assert_eq!(caption(&[run("fsync", 1, 0)]), "", "the ceiling has no clients");
    }
}
