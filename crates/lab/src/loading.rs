//! The transactions by which clients load the data, kept until each has taken effect.
//!
//! A node may turn one away without effect, as any transaction that met others too often: in TPC-C the transactions that load a
//! district's orders all change the district's record. Then it is asked for again, as by any client, but not for ever.

use ordain_model::{OutcomeStatus, ProcedureId};

/// Times that a transaction is asked for before loading has failed.
pub const ASKED_MAX: u32 = 40;

/// A transaction of loading.
#[derive(Clone, Debug)]
pub struct Asked {
    pub procedure: ProcedureId,
    pub args: Vec<u8>,
    /// Times that it was asked for.
    times: u32,
}

impl Asked {
    /// One that is asked for the first time.
    pub fn first(procedure: ProcedureId, args: &[u8]) -> Asked {
        Asked { procedure, args: args.to_vec(), times: 1 }
    }
}

/// The transactions of loading that were turned away.
#[derive(Debug, Default)]
pub struct TurnedAway(Vec<Asked>);

impl TurnedAway {
    /// One that is asked for again now.
    pub fn next(&mut self) -> Option<Asked> {
        let asked = self.0.pop()?;
        Some(Asked { times: asked.times + 1, ..asked })
    }

    /// Takes note of how a transaction has ended; true unless loading has failed: it was turned away too often, or its effect is
    /// not known.
    #[must_use]
    pub fn ended(&mut self, asked: Asked, status: OutcomeStatus) -> bool {
        match status {
            OutcomeStatus::Committed => true,
            OutcomeStatus::Busy if asked.times < ASKED_MAX => {
                self.0.push(asked);
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_turned_away_is_asked_for_so_often() {
        let mut turned = TurnedAway::default();
        let mut asked = Asked::first(ProcedureId(7), b"args");
        for _ in 1..ASKED_MAX {
            assert!(turned.ended(asked, OutcomeStatus::Busy));
            asked = turned.next().unwrap();
            assert_eq!((asked.procedure, &asked.args[..]), (ProcedureId(7), &b"args"[..]));
            assert!(turned.next().is_none());
        }
        assert!(turned.ended(asked.clone(), OutcomeStatus::Committed));
        assert!(!turned.ended(asked, OutcomeStatus::Busy));
        let asked = Asked::first(ProcedureId(7), b"");
        assert!(!turned.ended(asked, OutcomeStatus::Unknown), "it may have had an effect");
    }
}
