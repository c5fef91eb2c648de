//! Chunks: the transactions that a gateway submits together, planned, with their bytes as they are logged.
//!
//! A chunk is built once, at the front door, and then only shared: the sequencer puts it in a batch without
//! copying, the log writes [`Chunk::logged`] as it is, the shards read plans and arguments in place. Replay
//! turns the same bytes back into the same chunk.

use std::ops::Range;

use crate::args::{Args, ArgsBuilder};
use crate::error::PlanError;
use crate::ids::{ChunkNo, Db, GatewayId, Gsn, ProcedureId, RequestNo, SessionId};
use crate::plan::{Access, CallSpan, Fragment, Planner, Plans};
use crate::procedure::Registry;

/// Which procedure to call, for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The procedure.
    pub procedure: ProcedureId,
    /// The selected database.
    pub db: Db,
    /// The session and the request's number in it, for exactly-once retry.
    pub session: Option<(SessionId, RequestNo)>,
}

impl Call {
    /// A call without a session.
    pub const fn new(procedure: ProcedureId, db: Db) -> Call {
        Call { procedure, db, session: None }
    }
}

/// One transaction of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Txn {
    /// What was called, for whom.
    pub call: Call,
    /// Its place in the chunk; unique and ascending, not dense once a log has left out the reads.
    pub index: u32,
    /// Whether it cannot change the state. Such a transaction is not logged.
    pub read_only: bool,
    /// Whether one of its fragments may abort it.
    pub abortable: bool,
    /// Its first fragment from which on none may abort it.
    pub abortable_until: u32,
    /// Whether one of its fragments is over the whole table.
    pub table: bool,
    args: Range<u32>,
    fragments: Range<u32>,
    calls: Range<u32>,
}

/// Planned transactions and their bytes.
#[derive(Clone, Debug, Default)]
pub struct Chunk {
    /// Who built it and waits for the outcomes.
    pub gateway: GatewayId,
    /// Its number among that gateway's chunks.
    pub number: ChunkNo,
    logged: Vec<u8>,
    unlogged: Vec<u8>,
    txns: Vec<Txn>,
    plans: Plans,
}

/// A logged chunk that cannot be what was written: the log is damaged or of another version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// The bytes do not parse.
    #[error("transaction at byte {at} of its chunk does not parse")]
    Damaged {
        /// Offset in the chunk.
        at: usize,
    },
    /// A transaction parses but is refused by its procedure, which it was not when it was logged.
    #[error("transaction at byte {at} of its chunk is refused by this version: {source}")]
    Refused {
        /// Offset in the chunk.
        at: usize,
        /// The refusal.
        source: PlanError,
    },
}

/// The most bytes of arguments that one transaction may have.
pub const MAX_TXN_BYTES: usize = 512 << 20;

const HEAD: usize = 12;
const HAS_SESSION: u8 = 1;

impl Chunk {
    /// An empty chunk.
    pub fn new(gateway: GatewayId, number: ChunkNo) -> Chunk {
        Chunk { gateway, number, ..Chunk::default() }
    }

    /// An empty chunk after another of the same gateway, with room for as much as that one holds.
    pub fn after(last: &Chunk) -> Chunk {
        Chunk {
            gateway: last.gateway,
            number: ChunkNo(last.number.0 + 1),
            logged: Vec::with_capacity(last.logged.len()),
            unlogged: Vec::with_capacity(last.unlogged.len()),
            txns: Vec::with_capacity(last.txns.len()),
            plans: Plans {
                fragments: Vec::with_capacity(last.plans.fragments.len()),
                inputs: Vec::with_capacity(last.plans.inputs.len()),
                calls: Vec::with_capacity(last.plans.calls.len()),
            },
        }
    }

    /// Plans a call and appends it; `write_args` writes its arguments, once, where they will be logged.
    ///
    /// # Errors
    /// The refusal of the arguments; the chunk is unchanged then.
    pub fn push(
        &mut self,
        registry: &Registry,
        call: Call,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> Result<&Txn, PlanError> {
        let index = self.txns.last().map_or(0, |t| t.index + 1);
        let start = self.logged.len();
        let blob = &mut self.logged;
        blob.extend_from_slice(&[0; 4]);
        blob.extend_from_slice(&index.to_le_bytes());
        blob.extend_from_slice(&call.procedure.0.to_le_bytes());
        blob.push(call.db.0);
        blob.push(if call.session.is_some() { HAS_SESSION } else { 0 });
        if let Some((session, request)) = call.session {
            blob.extend_from_slice(&session.0.to_le_bytes());
            blob.extend_from_slice(&request.0.to_le_bytes());
        }
        let args = blob.len();
        write_args(&mut ArgsBuilder::new(blob));
        let len = blob.len() - start - 4;
        if len > MAX_TXN_BYTES || index >= Gsn::MAX_BATCH {
            blob.truncate(start);
            return Err(PlanError::fixed("ERR transaction exceeds the limit of 512 MiB of arguments"));
        }
        blob[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
        match self.admit(registry, call, index, args..self.logged.len()) {
            Ok(true) => {
                // A read has no effect to recover, so it does not reach the log.
                let at = self.unlogged.len() as u32;
                self.unlogged.extend_from_slice(&self.logged[args..]);
                self.logged.truncate(start);
                let end = self.unlogged.len() as u32;
                if let Some(txn) = self.txns.last_mut() {
                    txn.args = at..end;
                }
            }
            Ok(false) => {}
            Err(refusal) => {
                self.logged.truncate(start);
                return Err(refusal);
            }
        }
        Ok(self.txns.last().expect("admitted just above"))
    }

    /// Rebuilds a chunk from its logged bytes.
    ///
    /// # Errors
    /// [`ChunkError`]; nothing of the chunk may be used then.
    pub fn decode(registry: &Registry, gateway: GatewayId, logged: Vec<u8>) -> Result<Chunk, ChunkError> {
        let mut chunk = Chunk { gateway, logged, ..Chunk::default() };
        let mut at = 0;
        while at < chunk.logged.len() {
            let damaged = ChunkError::Damaged { at };
            let Some((call, index, args)) = parse_head(&chunk.logged, at) else { return Err(damaged) };
            if chunk.txns.last().is_some_and(|t| t.index >= index)
                || Args::parse(&chunk.logged[args.clone()]).is_none()
            {
                return Err(damaged);
            }
            let end = args.end;
            match chunk.admit(registry, call, index, args) {
                Ok(false) => at = end,
                Ok(true) => return Err(damaged),
                Err(source) => return Err(ChunkError::Refused { at, source }),
            }
        }
        Ok(chunk)
    }

    /// Plans the transaction whose arguments stand in `logged` and appends it; says whether it only reads.
    fn admit(
        &mut self,
        registry: &Registry,
        call: Call,
        index: u32,
        args: Range<usize>,
    ) -> Result<bool, PlanError> {
        let first = self.plans.fragments.len();
        let first_call = self.plans.calls.len();
        let view = Args::trusted(&self.logged[args.clone()]);
        Planner::plan(registry, call.procedure, call.db, view, &mut self.plans)?;
        let (mut writes, mut abortable_until, mut table, mut table_written) = (false, 0, false, false);
        for (n, fragment) in self.plans.fragments[first..].iter().enumerate() {
            if table_written && fragment.abortable {
                self.plans.fragments.truncate(first);
                self.plans.calls.truncate(first_call);
                return Err(PlanError::fixed(
                    "ERR a step that may abort cannot follow a write of the whole table",
                ));
            }
            table_written |= fragment.access == Access::TableWrite;
            writes |= fragment.writes();
            if fragment.abortable {
                abortable_until = n as u32 + 1;
            }
            table |= fragment.is_table();
        }
        self.txns.push(Txn {
            call,
            index,
            read_only: !writes,
            abortable: abortable_until > 0,
            abortable_until,
            table,
            args: args.start as u32..args.end as u32,
            fragments: first as u32..self.plans.fragments.len() as u32,
            calls: first_call as u32..self.plans.calls.len() as u32,
        });
        Ok(!writes)
    }

    /// The transactions, in order.
    #[inline]
    pub fn txns(&self) -> &[Txn] {
        &self.txns
    }

    /// One more than the largest index.
    pub fn span(&self) -> u32 {
        self.txns.last().map_or(0, |t| t.index + 1)
    }

    /// How many bytes the chunk holds.
    pub fn bytes(&self) -> usize {
        self.logged.len() + self.unlogged.len()
    }

    /// The fragments of a transaction.
    #[inline]
    pub fn fragments(&self, txn: &Txn) -> &[Fragment] {
        &self.plans.fragments[txn.fragments.start as usize..txn.fragments.end as usize]
    }

    /// The plans of all transactions: where a fragment's inputs are found.
    #[inline]
    pub fn plans(&self) -> &Plans {
        &self.plans
    }

    /// The arguments of a transaction.
    #[inline]
    pub fn args(&self, txn: &Txn) -> Args<'_> {
        let blob = if txn.read_only { &self.unlogged } else { &self.logged };
        Args::trusted(&blob[txn.args.start as usize..txn.args.end as usize])
    }

    /// The calls inside a transaction.
    #[inline]
    pub fn calls(&self, txn: &Txn) -> &[CallSpan] {
        &self.plans.calls[txn.calls.start as usize..txn.calls.end as usize]
    }

    /// The bytes that the log keeps: every transaction that may change the state.
    pub fn logged(&self) -> &[u8] {
        &self.logged
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.logged
    }
}

fn parse_head(blob: &[u8], at: usize) -> Option<(Call, u32, Range<usize>)> {
    let head = blob.get(at..at + HEAD)?;
    let word = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
    let end = at.checked_add(4)?.checked_add(word(0) as usize)?;
    let record = blob.get(..end)?;
    let mut args = at + HEAD;
    let session = match head[11] {
        0 => None,
        HAS_SESSION => {
            let (session, rest) = record.get(args..)?.split_first_chunk::<8>()?;
            let request = rest.first_chunk::<8>()?;
            args += 16;
            Some((SessionId(u64::from_le_bytes(*session)), RequestNo(u64::from_le_bytes(*request))))
        }
        _ => return None,
    };
    let procedure = ProcedureId(u16::from_le_bytes([head[8], head[9]]));
    (args <= end).then_some((Call { procedure, db: Db(head[10]), session }, word(4), args..end))
}
