//! What the council has decided: whose batches count for each partition, and whose word counts no more.

use std::collections::BTreeMap;

use ordain_model::wire::{self, Reader};
use ordain_model::{Epoch, PartitionId};
use ordain_role::{NodeId, ReplicaId, Topology};

/// Who is master of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The number of the mastership. What comes from an earlier one is refused.
    pub term: u64,
    /// Whose batches the twins take.
    pub master: NodeId,
    /// The term's first epoch. What earlier terms have sealed is all before it.
    pub first: Epoch,
    /// A later term is being prepared: until it is decided, nothing of the partition is taken from anybody.
    pub fence: Option<Fence>,
}

/// A term that is being prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Its number.
    pub term: u64,
    /// Who gathers what is left of the terms before, and will be its master.
    pub candidate: NodeId,
}

impl Seat {
    /// The largest term that there is, decided or not.
    pub fn latest(&self) -> u64 {
        self.fence.map_or(self.term, |fence| fence.term)
    }
}

/// Everything that the council has decided, as of one of its decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seats {
    /// How many decisions that is.
    pub version: u64,
    /// By partition.
    pub seats: Vec<Seat>,
    /// Up to which incarnation a node has to discard what it has: nothing counts that it says before it comes in a
    /// later one.
    pub expelled: BTreeMap<NodeId, u64>,
}

impl Seats {
    /// Before the first decision: the first replica has all masters.
    pub fn new(topology: &Topology) -> Seats {
        let seat = |master| Seat { term: 1, master, first: Epoch(1), fence: None };
        let seats = topology.replica(ReplicaId(0)).map(seat).collect();
        Seats { version: 0, seats, expelled: BTreeMap::new() }
    }

    /// That of a partition.
    pub fn of(&self, partition: PartitionId) -> &Seat {
        &self.seats[usize::from(partition.0)]
    }

    /// Whether a term is being prepared anywhere.
    pub fn is_fenced(&self) -> bool {
        self.seats.iter().any(|seat| seat.fence.is_some())
    }

    /// Whether a node in this incarnation has to discard what it has.
    pub fn is_expelled(&self, node: NodeId, incarnation: u64) -> bool {
        self.expelled.get(&node).is_some_and(|last| incarnation <= *last)
    }

    /// Whether a node is master anywhere, or is to be.
    pub fn has_seat(&self, node: NodeId) -> bool {
        self.seats
            .iter()
            .any(|seat| seat.master == node || seat.fence.is_some_and(|fence| fence.candidate == node))
    }

    /// Appends its bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        wire::u64(out, self.version);
        wire::u32(out, self.seats.len() as u32);
        for seat in &self.seats {
            wire::u64(out, seat.term);
            wire::u16(out, seat.master.0);
            wire::u64(out, seat.first.0);
            let fence = seat.fence.unwrap_or(Fence { term: 0, candidate: NodeId(0) });
            wire::u64(out, fence.term);
            wire::u16(out, fence.candidate.0);
        }
        wire::u32(out, self.expelled.len() as u32);
        for (node, incarnation) in &self.expelled {
            wire::u16(out, node.0);
            wire::u64(out, *incarnation);
        }
    }

    /// Reads what was written so.
    pub fn decode(bytes: &mut Reader<'_>) -> Option<Seats> {
        let version = bytes.u64()?;
        let seat = |bytes: &mut Reader<'_>| {
            let (term, master, first) = (bytes.u64()?, NodeId(bytes.u16()?), Epoch(bytes.u64()?));
            let fence = Fence { term: bytes.u64()?, candidate: NodeId(bytes.u16()?) };
            Some(Seat { term, master, first, fence: Some(fence).filter(|fence| fence.term > 0) })
        };
        let seats = (0..bytes.count(28)?).map(|_| seat(bytes)).collect::<Option<Vec<Seat>>>()?;
        let expelled = (0..bytes.count(10)?).map(|_| Some((NodeId(bytes.u16()?), bytes.u64()?)));
        let expelled = expelled.collect::<Option<BTreeMap<NodeId, u64>>>();
        Some(Seats { version, seats, expelled: expelled? })
    }
}
