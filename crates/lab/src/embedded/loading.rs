//! The transactions by which the clients of one loop load the data, kept until each has taken effect.
//!
//! A node may turn one away without effect, as any transaction that met others too often: in TPC-C the transactions that load a
//! district's orders all change the district's record. Then it is asked for again, as by any client, but not for ever.

use ordain_model::{OutcomeStatus, ProcedureId};

/// Transactions of loading under way at most: enough to hide a sync.
pub const WINDOW: usize = 64;
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
    const NOTHING: Asked = Asked { procedure: ProcedureId(0), args: Vec::new(), times: 0 };
}

/// The transactions of loading that have not taken effect yet.
#[derive(Debug)]
pub struct Loading {
    /// Those under way, by client.
    asked: Vec<Asked>,
    /// Those that were turned away.
    again: Vec<Asked>,
}

impl Loading {
    pub fn new() -> Loading {
        Loading { asked: vec![Asked::NOTHING; WINDOW], again: Vec::new() }
    }

    /// Keeps a transaction that a client asks for.
    pub fn ask(&mut self, client: u32, procedure: ProcedureId, args: &[u8]) {
        let asked = &mut self.asked[client as usize];
        (asked.procedure, asked.times) = (procedure, 1);
        asked.args.clear();
        asked.args.extend_from_slice(args);
    }

    /// Gives a client a transaction that was turned away, if there is one: it asks for that again.
    pub fn ask_again(&mut self, client: u32) -> Option<&Asked> {
        let Asked { procedure, args, times } = self.again.pop()?;
        let asked = &mut self.asked[client as usize];
        *asked = Asked { procedure, args, times: times + 1 };
        Some(asked)
    }

    /// Takes note of how a client's transaction has ended; true unless loading has failed: the transaction was turned away too
    /// often, or its effect is not known.
    #[must_use]
    pub fn answered(&mut self, client: u32, status: OutcomeStatus) -> bool {
        let asked = &mut self.asked[client as usize];
        match status {
            OutcomeStatus::Committed => true,
            OutcomeStatus::Busy if asked.times < ASKED_MAX => {
                self.again.push(std::mem::replace(asked, Asked::NOTHING));
                true
            }
            _ => false,
        }
    }
}
