//! The council's decisions, one at a time. What they make of [`Seats`] is a function of their order alone.
//!
//! The council's log is a [`GroupLog`](crate::GroupLog) like a partition's, and a decree is a transaction in it: of a
//! procedure of its own, which no client can call and nothing executes.

use std::sync::Arc;

use ordain_model::args::Args;
use ordain_model::wire::{self, Reader};
use ordain_model::{
    Abort, Access, Batch, Call, Chunk, ChunkNo, Db, Epoch, FragmentContext, GatewayId, PartitionId, Placed,
    PlanError, Planner, Procedure, ProcedureId, Registry,
};
use ordain_role::NodeId;

use super::seats::{Arrival, Expulsion, Fence, Seats};

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decree {
    /// A node has started.
    Arrive {
        /// The node.
        node: NodeId,
        /// As whom.
        arrival: Arrival,
    },
    /// These twins of a partition have all that its master has, but for what is on its way.
    Sync {
        /// The partition.
        partition: PartitionId,
        /// The master's term.
        term: u64,
        /// The twins.
        in_sync: Vec<NodeId>,
    },
    /// A term is to be prepared: what comes from those before is refused from now on.
    Fence {
        /// The partition.
        partition: PartitionId,
        /// The term.
        fence: Fence,
    },
    /// The candidate is master.
    Seat {
        /// The partition.
        partition: PartitionId,
        /// The term that was prepared.
        term: u64,
        /// The last epoch that was decided of the terms before, and the first of this one. What anybody has sealed
        /// between them is lost.
        end: Epoch,
        /// See `end`.
        first: Epoch,
        /// Who has to start over.
        expelled: Vec<(NodeId, Expulsion)>,
    },
}

impl Seats {
    /// Takes a decision into account, if it still fits what was decided before.
    pub fn apply(&mut self, decree: &Decree) {
        self.version += 1;
        match decree {
            Decree::Arrive { node, arrival } => {
                let known = self.arrivals.entry(*node).or_insert(*arrival);
                if arrival.incarnation >= known.incarnation {
                    *known = *arrival;
                }
            }
            Decree::Sync { partition, term, in_sync } => {
                if let Some(seat) = self.seats.get_mut(usize::from(partition.0))
                    && (seat.term, seat.fence) == (*term, None)
                {
                    seat.in_sync.clone_from(in_sync);
                }
            }
            Decree::Fence { partition, fence } => {
                if let Some(seat) = self.seats.get_mut(usize::from(partition.0))
                    && fence.term > seat.latest()
                {
                    seat.fence = Some(*fence);
                }
            }
            Decree::Seat { partition, term, first, expelled, .. } => {
                let Some(seat) = self.seats.get_mut(usize::from(partition.0)) else { return };
                let Some(fence) = seat.fence.take_if(|fence| fence.term == *term) else { return };
                let master = fence.candidate;
                let is_out = |node: &NodeId| expelled.iter().any(|(out, _)| out == node);
                seat.in_sync.retain(|twin| *twin != master && !is_out(twin));
                (seat.term, seat.master, seat.first) = (*term, master, *first);
                self.expel(expelled);
            }
        }
    }

    fn expel(&mut self, expelled: &[(NodeId, Expulsion)]) {
        for (node, expulsion) in expelled {
            // Whoever was to discard its log, and has not been heard of since, still is.
            let still_out = self.is_out(*node);
            let known = self.expelled.entry(*node).or_insert(*expulsion);
            known.without_log = expulsion.without_log || (still_out && known.without_log);
            known.incarnation = known.incarnation.max(expulsion.incarnation);
        }
    }
}

/// The only procedure of a council's registry.
const DECREE: ProcedureId = ProcedureId(1);

struct Enact;

impl Procedure for Enact {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        // It is to be logged, so it has to write something, if only by that name.
        let text = args.iter().next().ok_or(PlanError::fixed("ERR a decree without a text"))?;
        planner.key_in(Db(0), 0, Access::Write, text)?;
        Ok(())
    }

    fn run(&self, _code: u16, _cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        Ok(())
    }
}

/// What the council's log is read with.
pub fn registry() -> Arc<Registry> {
    let mut registry = Registry::default();
    registry.register(DECREE, "ordain.decree", Arc::new(Enact));
    Arc::new(registry)
}

impl Decree {
    /// The batch that puts a decision into the log.
    pub(super) fn to_batch(&self, registry: &Registry, epoch: Epoch) -> Result<Batch, PlanError> {
        let mut chunk = Chunk::new(GatewayId::HOUSE, ChunkNo(epoch.0));
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        chunk.push(registry, Call::new(DECREE, Db(0)), |args| _ = args.push(&bytes))?;
        let chunks = vec![Placed::whole(0, Arc::new(chunk))];
        Ok(Batch { epoch, total: 1, chunks, ..Batch::default() })
    }

    /// The decisions of a batch; `None` if it is damaged.
    pub fn of_batch(batch: &Batch) -> Option<Vec<Decree>> {
        let decree = |bytes: &[u8]| {
            let mut bytes = Reader(bytes);
            let decree = Decree::decode(&mut bytes)?;
            bytes.end(decree)
        };
        batch.txns().map(|(_, chunk, txn)| decree(chunk.args(txn).get(0)?)).collect()
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Decree::Arrive { node, arrival } => {
                wire::u8(out, 0);
                wire::u16(out, node.0);
                wire::u64(out, arrival.incarnation);
                wire::u64(out, arrival.life);
            }
            Decree::Sync { partition, term, in_sync } => {
                wire::u8(out, 1);
                wire::u16(out, partition.0);
                wire::u64(out, *term);
                Seats::encode_nodes(in_sync, out);
            }
            Decree::Fence { partition, fence } => {
                wire::u8(out, 2);
                wire::u16(out, partition.0);
                wire::u64(out, fence.term);
                wire::u16(out, fence.candidate.0);
            }
            Decree::Seat { partition, term, end, first, expelled } => {
                wire::u8(out, 3);
                wire::u16(out, partition.0);
                wire::u64(out, *term);
                wire::u64(out, end.0);
                wire::u64(out, first.0);
                Seats::encode_expelled(expelled.iter().copied(), out);
            }
        }
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Decree> {
        Some(match bytes.u8()? {
            0 => {
                let node = NodeId(bytes.u16()?);
                Decree::Arrive { node, arrival: Arrival { incarnation: bytes.u64()?, life: bytes.u64()? } }
            }
            1 => {
                let (partition, term) = (PartitionId(bytes.u16()?), bytes.u64()?);
                Decree::Sync { partition, term, in_sync: Seats::decode_nodes(bytes)? }
            }
            2 => {
                let (partition, term) = (PartitionId(bytes.u16()?), bytes.u64()?);
                Decree::Fence { partition, fence: Fence { term, candidate: NodeId(bytes.u16()?) } }
            }
            3 => {
                let (partition, term) = (PartitionId(bytes.u16()?), bytes.u64()?);
                let (end, first) = (Epoch(bytes.u64()?), Epoch(bytes.u64()?));
                Decree::Seat { partition, term, end, first, expelled: Seats::decode_expelled(bytes)? }
            }
            _ => return None,
        })
    }
}
