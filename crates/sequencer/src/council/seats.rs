//! What the council has decided: whose batches count for each partition, and who has to start over.

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
    /// The twins that have all that the master has, but for what is on its way: only they may follow it.
    pub in_sync: Vec<NodeId>,
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

    /// Who may be the next master.
    pub fn heirs(&self) -> impl Iterator<Item = NodeId> {
        std::iter::once(self.master).chain(self.in_sync.iter().copied())
    }
}

/// A node that has to start over: nothing that it says counts before it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expulsion {
    /// Its last incarnation of which that is true.
    pub incarnation: u64,
    /// Not even its log can be trusted: it may hold batches that were not decided.
    pub without_log: bool,
}

/// A node that has introduced itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// How often it has started over.
    pub incarnation: u64,
    /// Which of its lives this is.
    pub life: u64,
}

/// Everything that the council has decided, as of one of its decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seats {
    /// How many decisions that is.
    pub version: u64,
    /// By partition.
    pub seats: Vec<Seat>,
    /// Who has to start over, or had to.
    pub expelled: BTreeMap<NodeId, Expulsion>,
    /// As whom each node has introduced itself last.
    pub arrivals: BTreeMap<NodeId, Arrival>,
}

impl Seats {
    /// Before the first decision: the first replica has all masters.
    pub fn new(topology: &Topology) -> Seats {
        let seat = |master| {
            let twins = topology.group(topology.partition_of(master));
            let in_sync = twins.filter(|twin| *twin != master).collect();
            Seat { term: 1, master, first: Epoch(1), fence: None, in_sync }
        };
        let seats = topology.replica(ReplicaId(0)).map(seat).collect();
        Seats { version: 0, seats, expelled: BTreeMap::new(), arrivals: BTreeMap::new() }
    }

    /// That of a partition.
    pub fn of(&self, partition: PartitionId) -> &Seat {
        &self.seats[usize::from(partition.0)]
    }

    /// Whether a term is being prepared anywhere.
    pub fn is_fenced(&self) -> bool {
        self.seats.iter().any(|seat| seat.fence.is_some())
    }

    /// A number that grows with every term that begins to be prepared, and with every one that is decided.
    pub fn terms(&self) -> u64 {
        self.seats.iter().map(|seat| seat.latest() + seat.term).sum()
    }

    /// Why a node in this incarnation has to start over, if it has to.
    pub fn expulsion(&self, node: NodeId, incarnation: u64) -> Option<Expulsion> {
        self.expelled.get(&node).copied().filter(|expulsion| incarnation <= expulsion.incarnation)
    }

    /// Whether a node has to start over, and has not.
    pub fn is_out(&self, node: NodeId) -> bool {
        self.expulsion(node, self.incarnation_of(node)).is_some()
    }

    /// In which incarnation a node was seen last.
    pub fn incarnation_of(&self, node: NodeId) -> u64 {
        self.arrivals.get(&node).map_or(0, |arrival| arrival.incarnation)
    }

    /// The last incarnation in which a node may be by now. One that has to start over may have, and not been heard of since;
    /// but not twice, as it hears of nothing before it has arrived.
    pub fn last_incarnation_of(&self, node: NodeId) -> u64 {
        self.incarnation_of(node) + u64::from(self.is_out(node))
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
            Seats::encode_nodes(&seat.in_sync, out);
        }
        Seats::encode_expelled(self.expelled.iter().map(|(node, out)| (*node, *out)), out);
        wire::u32(out, self.arrivals.len() as u32);
        for (node, arrival) in &self.arrivals {
            wire::u16(out, node.0);
            wire::u64(out, arrival.incarnation);
            wire::u64(out, arrival.life);
        }
    }

    /// Reads what was written so.
    pub fn decode(bytes: &mut Reader<'_>) -> Option<Seats> {
        let version = bytes.u64()?;
        let seat = |bytes: &mut Reader<'_>| {
            let (term, master, first) = (bytes.u64()?, NodeId(bytes.u16()?), Epoch(bytes.u64()?));
            let fence = Fence { term: bytes.u64()?, candidate: NodeId(bytes.u16()?) };
            let fence = Some(fence).filter(|fence| fence.term > 0);
            Some(Seat { term, master, first, fence, in_sync: Seats::decode_nodes(bytes)? })
        };
        let seats = (0..bytes.count(32)?).map(|_| seat(bytes)).collect::<Option<Vec<Seat>>>()?;
        let expelled = Seats::decode_expelled(bytes)?.into_iter().collect();
        let arrivals = (0..bytes.count(18)?)
            .map(|_| Some((NodeId(bytes.u16()?), Arrival { incarnation: bytes.u64()?, life: bytes.u64()? })));
        let arrivals = arrivals.collect::<Option<BTreeMap<NodeId, Arrival>>>()?;
        Some(Seats { version, seats, expelled, arrivals })
    }

    /// Appends some nodes.
    pub(crate) fn encode_nodes(nodes: &[NodeId], out: &mut Vec<u8>) {
        wire::u32(out, nodes.len() as u32);
        nodes.iter().for_each(|node| wire::u16(out, node.0));
    }

    /// Reads what was written so.
    pub(crate) fn decode_nodes(bytes: &mut Reader<'_>) -> Option<Vec<NodeId>> {
        (0..bytes.count(2)?).map(|_| bytes.u16().map(NodeId)).collect()
    }

    /// Appends who has to start over.
    pub(super) fn encode_expelled(
        expelled: impl ExactSizeIterator<Item = (NodeId, Expulsion)>,
        out: &mut Vec<u8>,
    ) {
        wire::u32(out, expelled.len() as u32);
        for (node, Expulsion { incarnation, without_log }) in expelled {
            wire::u16(out, node.0);
            wire::u64(out, incarnation);
            wire::u8(out, u8::from(without_log));
        }
    }

    /// Reads what was written so.
    pub(super) fn decode_expelled(bytes: &mut Reader<'_>) -> Option<Vec<(NodeId, Expulsion)>> {
        let one = |bytes: &mut Reader<'_>| {
            let (node, incarnation) = (NodeId(bytes.u16()?), bytes.u64()?);
            Some((node, Expulsion { incarnation, without_log: wire::flag(bytes)? }))
        };
        (0..bytes.count(11)?).map(|_| one(bytes)).collect()
    }
}
