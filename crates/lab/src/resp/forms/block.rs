//! MULTI … EXEC: a transaction as a block of ordinary commands.

use anyhow::bail;
use ordain_model::{Abort, Datum, OutcomeStatus};
use ordain_resp::client::Commands;

use super::outcome_of;

/// Writes a block around what `commands` writes.
pub fn write(out: &mut Commands, commands: impl FnOnce(&mut Commands)) {
    out.command(&["MULTI"]);
    commands(out);
    out.command(&["EXEC"]);
}

/// The outcome of a block, and the replies of its commands, one after the other; nothing if it did not take effect.
///
/// # Errors
/// The block or a command in it was refused.
pub fn read(replies: &[u8]) -> anyhow::Result<(OutcomeStatus, &[u8])> {
    let mut rest = replies;
    loop {
        let Some((reply, tail)) = Datum::split_whole(rest) else { bail!("a block was answered nothing") };
        match Datum::split(reply) {
            Some((Datum::Error(text), _)) => return Ok((outcome_of(text)?, &[])),
            // OK, and QUEUED of every command.
            Some(_) if !tail.is_empty() => rest = tail,
            Some((Datum::Array(_), items)) => {
                let mut left = items;
                while let Some((item, tail)) = Datum::split_whole(left) {
                    if let Datum::Error(text) = Datum::first(item) {
                        bail!("a command of a block failed: {}", String::from_utf8_lossy(text));
                    }
                    left = tail;
                }
                return Ok((OutcomeStatus::Committed, items));
            }
            Some((Datum::Nil | Datum::NilArray, _)) => {
                return Ok((OutcomeStatus::Aborted(Abort::Conflict), &[]));
            }
            other => bail!("EXEC answered {:?}", other.map(|(datum, _)| datum)),
        }
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::Writer;

    use super::*;

    fn replies(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut w = Writer(&mut bytes);
        w.ok();
        w.status("QUEUED");
        write(&mut w);
        bytes
    }

    #[test]
    fn a_block_answers_what_its_commands_did() {
        let bytes = replies(|w| {
            w.array(1);
            w.int(7);
        });
        let (status, items) = read(&bytes).unwrap();
        assert_eq!((status, Datum::first(items)), (OutcomeStatus::Committed, Datum::Int(7)));
        let bytes = replies(|w| w.nil_array());
        assert_eq!(read(&bytes).unwrap().0, OutcomeStatus::Aborted(Abort::Conflict));
        let bytes = replies(|w| w.error("BUSY the pipeline is full"));
        assert_eq!(read(&bytes).unwrap().0, OutcomeStatus::Busy);
    }

    #[test]
    fn what_fails_inside_is_not_taken_for_a_commit() {
        let bytes = replies(|w| {
            w.array(2);
            w.int(7);
            w.error("WRONGTYPE Operation against a key");
        });
        assert!(read(&bytes).is_err());
        assert!(read(&replies(|w| w.error("EXECABORT Transaction discarded"))).is_err());
        assert!(read(&replies(|w| w.int(1))).is_err());
        assert!(read(&[]).is_err());
    }
}
