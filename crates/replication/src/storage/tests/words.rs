//! The words of transcripts for messages.

use ordain_role::NodeId;

use crate::storage::StorageConfiguration;
use crate::storage::message::{Content, Storage};
use crate::tests::Note;

/// The words for a message; none for those that come at the pace of timers, or only fetch. Replicas are named from the number of
/// servers on.
pub fn words_of(message: &Storage, servers: usize) -> Option<String> {
    let words = match message {
        Storage::Seal(ballot) => format!("Seal {}", ballot.0),
        Storage::Sealed { ballot, state } => {
            format!("Sealed {} last {}@{}", ballot.0, state.last.lsn, state.last.ballot.0)
        }
        Storage::Append { ballot, previous, lines, durable, .. } if !lines.is_empty() => {
            let lines: Vec<String> = lines
                .iter()
                .zip(previous.lsn + 1..)
                .map(|(line, lsn)| match &line.content {
                    Content::Entry(bytes) => format!("{lsn}@{}:{}", line.ballot.0, Note::id_of(bytes)),
                    Content::Begin => format!("{lsn}@{}:begin", line.ballot.0),
                    Content::Configuration(configuration) => {
                        format!("{lsn}@{}:{}", line.ballot.0, configuration_of(configuration, servers))
                    }
                })
                .collect();
            format!("Append {} {} durable {durable}", ballot.0, lines.join(" "))
        }
        Storage::Appended { ballot, through, is_full, .. } if *through > 0 || *is_full => {
            let full = if *is_full { " full" } else { "" };
            format!("Appended {} through {through}{full}", ballot.0)
        }
        Storage::Unfit { ballot, durable, .. } => format!("Unfit {} durable {durable}", ballot.0),
        Storage::Refused { ballot, promised } => format!("Refused {} promised {}", ballot.0, promised.0),
        Storage::Confirm { ballot, n } => format!("Confirm {} {n}", ballot.0),
        Storage::Confirmed { ballot, n, .. } => format!("Confirmed {} {n}", ballot.0),
        Storage::Behind { ballot, base } => format!("Behind {} after {}", ballot.0, base.last.lsn),
        Storage::Resign(ballot) => format!("Resign {}", ballot.0),
        Storage::Trimmed { base, .. } => format!("Trimmed after {}", base.last.lsn),
        Storage::Watch { .. }
        | Storage::Ask
        | Storage::State(_)
        | Storage::Append { .. }
        | Storage::Appended { .. }
        | Storage::Fetch { .. }
        | Storage::Fetched { .. } => return None,
    };
    Some(words)
}

/// The words for a configuration: each replica that counts with its generation, and those that are required.
fn configuration_of(of: &StorageConfiguration, servers: usize) -> String {
    let name = |node: NodeId| format!("r{}", usize::from(node.0) - servers);
    let members = |of: &[crate::storage::StorageMember]| {
        of.iter().map(|of| format!("{}.{}", name(of.node), of.generation)).collect::<Vec<_>>().join(",")
    };
    let required: Vec<String> = of.required.iter().map(|node| name(*node)).collect();
    let before =
        if of.before.is_empty() { String::new() } else { format!(" before {}", members(&of.before)) };
    format!("counted {} required {}{before}", members(&of.counted), required.join(","))
}
