//! The log entry of the family: the decision to commit a transaction, with what it writes.

use std::sync::Arc;

use ordain_execution::Write;
use ordain_model::wire::Codec as _;
use ordain_model::{Epoch, Millis, RequestNo, SessionId, codec};
use ordain_replication::EntryType;

use crate::concurrency::AttemptId;

/// The decision to commit an attempt. There is no entry for an abort: what is not decided has not happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The decision's place in the log: the stamp of the transaction, and the version of all that it writes.
    pub stamp: Epoch,
    /// The attempt.
    pub attempt: AttemptId,
    /// The time that the attempt has seen.
    pub now: Millis,
    /// The request of a session that is decided, if it is one.
    pub session: Option<(SessionId, RequestNo)>,
    /// The reply.
    pub reply: Vec<u8>,
    /// Records as the attempt leaves them, in order of names within a participant.
    pub writes: Vec<Write>,
}

codec!(struct Decision { stamp, attempt, now, session, reply, writes });

/// Decisions as the entries of a log.
#[derive(Clone, Copy, Debug)]
pub struct Decisions;

impl EntryType for Decisions {
    type Entry = Arc<Decision>;
    type Context = ();

    fn epoch(entry: &Arc<Decision>) -> Epoch {
        entry.stamp
    }

    fn must_be_durable(_: &Arc<Decision>) -> bool {
        true
    }

    fn encode(entry: &Arc<Decision>) -> Vec<u8> {
        entry.to_bytes()
    }

    fn decode((): &(), bytes: &[u8]) -> Result<Arc<Decision>, String> {
        Arc::from_bytes(bytes).ok_or_else(|| {
            "it is no decision of a commit engine: another version wrote it, or it is damaged".to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::{Cell, Db, Value};

    use super::*;
    use crate::concurrency::TransactionId;

    #[test]
    fn a_decision_is_read_back_and_every_truncation_is_refused() {
        let cell = Cell { value: Some(Value::String(b"v".to_vec())), expires_at: Millis(7).into() };
        let writes = vec![
            Write { db: Db(0), key: b"a".to_vec(), cell },
            Write { db: Db(15), key: Vec::new(), cell: Cell::ABSENT },
        ];
        let attempt = AttemptId { transaction: TransactionId(1 << 40), attempt: 3 };
        for session in [None, Some((SessionId(5), RequestNo(9)))] {
            let reply = b"+OK".to_vec();
            let decision = Arc::new(Decision {
                stamp: Epoch(8),
                attempt,
                now: Millis(1 << 41),
                session,
                reply,
                writes: writes.clone(),
            });
            let bytes = Decisions::encode(&decision);
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let head = "08000000000000000000000000010000030000000000000000020000";
            let session = if session.is_some() { "0105000000000000000900000000000000" } else { "00" };
            let tail = "030000002b4f4b020000000001000000610e00000007000000000000000101000000760f000000000900000000000000\
                        0000000000";
            assert_eq!(hex, [head, session, tail].concat());
            assert_eq!(Decisions::decode(&(), &bytes), Ok(decision));
            assert_eq!(ordain_replication::epoch_of(&bytes), Some(Epoch(8)));
            assert!((0..bytes.len()).all(|cut| Decisions::decode(&(), &bytes[..cut]).is_err()));
        }
    }
}
