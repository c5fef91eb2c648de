//! The log entry of the family: the decision to commit a transaction, with what it writes.

use std::sync::Arc;

use ordain_execution::Write;
use ordain_model::wire::{self, Reader};
use ordain_model::{Cell, Db, Epoch, Millis, RequestNo, SessionId};
use ordain_replication::EntryType;

use crate::concurrency::{AttemptId, TransactionId};

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
        let mut out = Vec::new();
        wire::u64(&mut out, entry.stamp.0);
        wire::u64(&mut out, entry.attempt.transaction.0);
        wire::u32(&mut out, entry.attempt.attempt);
        wire::u64(&mut out, entry.now.0);
        wire::u8(&mut out, u8::from(entry.session.is_some()));
        if let Some((session, request)) = entry.session {
            wire::u64(&mut out, session.0);
            wire::u64(&mut out, request.0);
        }
        wire::bytes(&mut out, &entry.reply);
        wire::u32(&mut out, entry.writes.len() as u32);
        for Write { db, key, cell } in &entry.writes {
            wire::u8(&mut out, db.0);
            wire::bytes(&mut out, key);
            let mut image = Vec::new();
            cell.encode(&mut image);
            wire::bytes(&mut out, &image);
        }
        out
    }

    fn decode((): &(), bytes: &[u8]) -> Result<Arc<Decision>, String> {
        decode(bytes).map(Arc::new).ok_or_else(|| {
            "it is no decision of a commit engine: another version wrote it, or it is damaged".to_owned()
        })
    }
}

fn decode(bytes: &[u8]) -> Option<Decision> {
    let mut bytes = Reader(bytes);
    let stamp = Epoch(bytes.u64()?);
    let attempt = AttemptId { transaction: TransactionId(bytes.u64()?), attempt: bytes.u32()? };
    let now = Millis(bytes.u64()?);
    let session = match wire::flag(&mut bytes)? {
        true => Some((SessionId(bytes.u64()?), RequestNo(bytes.u64()?))),
        false => None,
    };
    let reply = bytes.bytes()?.to_vec();
    let mut writes = Vec::new();
    // A database, a key and an image, each with its length.
    for _ in 0..bytes.count(9)? {
        let (db, key) = (Db(bytes.u8()?), bytes.bytes()?.to_vec());
        let (cell, []) = Cell::decode(bytes.bytes()?)? else { return None };
        writes.push(Write { db, key, cell });
    }
    bytes.end(Decision { stamp, attempt, now, session, reply, writes })
}

#[cfg(test)]
mod tests {
    use ordain_model::Value;

    use super::*;

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
