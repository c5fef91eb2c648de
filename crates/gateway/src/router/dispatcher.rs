//! The dispatcher of a front door: sends what its gateway has by the router's routes, and holds what has none.

use std::sync::Arc;

use ordain_model::{Chunk, Front, Micros};
use ordain_role::{Address, NodeId, PeerChange, PeerState, ReplicaId};

use super::{Route, Router};
use crate::{Departure, Gateway, Owed};

/// How long a request waits for a partition without a node that can be reached.
pub const HOLD_FOR: Micros = Micros::from_millis(5_000);

/// Departures of one gateway on their way to nodes.
#[derive(Debug)]
pub struct Dispatcher {
    router: Box<dyn Router>,
    /// Departures without a route, and since when each waits.
    held: Vec<(Departure, Micros)>,
}

impl Dispatcher {
    /// A dispatcher that holds nothing.
    pub fn new(router: Box<dyn Router>) -> Dispatcher {
        Dispatcher { router, held: Vec::new() }
    }

    /// The routes.
    pub fn router(&self) -> &dyn Router {
        &*self.router
    }

    /// Hands everything that the gateway has for other roles to `send`, in order; what has no route is held.
    pub fn flush(&mut self, gateway: &mut Gateway, now: Micros, mut send: impl FnMut(Address, Front)) {
        while let Some(departure) = gateway.flush() {
            self.dispatch(gateway, departure, now, &mut send);
        }
    }

    fn dispatch(
        &mut self,
        gateway: &mut Gateway,
        departure: Departure,
        since: Micros,
        send: &mut impl FnMut(Address, Front),
    ) {
        let route = match &departure {
            Departure::Order(home, _) | Departure::Step(_, home, _) => {
                self.router.home(*home, &mut gateway.answerers(&departure))
            }
            Departure::Read(..) => self.router.snapshot(),
            // Nobody answers a word.
            Departure::Word(node, _) => {
                self.router.words(NodeId(*node)).map(|to| Route { to, replica: ReplicaId(0) })
            }
        };
        let Some(Route { to, replica }) = route else {
            return self.held.push((departure, since));
        };
        if let Some(departure) = gateway.leaves(departure, to.node.0, replica.0) {
            send(to, departure.into_message());
        }
    }

    /// Sends again what is held, as far as there are routes now.
    pub fn retry(&mut self, gateway: &mut Gateway, mut send: impl FnMut(Address, Front)) {
        for (departure, since) in std::mem::take(&mut self.held) {
            self.dispatch(gateway, departure, since, &mut send);
        }
    }

    /// Takes note of a change of the stream to another node, and greets a node whose stream begins; answers what the node
    /// may owe. The caller gives that up and then [retries](Dispatcher::retry).
    #[must_use]
    pub fn change(&mut self, gateway: &mut Gateway, now: Micros, change: PeerChange) -> Option<Owed> {
        if change.state == PeerState::Fresh && self.router.words(change.node).is_some() {
            gateway.greet(change.node.0);
        }
        self.router.change(now, change)
    }

    /// Takes note that a node has answered a greeting; answers what the node may owe of before.
    #[must_use]
    pub fn greeted(&mut self, node: NodeId) -> Option<Owed> {
        self.router.greeted(node)
    }

    /// The nodes whose answers are overdue, each with what it owes.
    #[must_use]
    pub fn give_up(&mut self, now: Micros) -> Vec<Owed> {
        self.router.give_up(now)
    }

    /// Whether something waits that time may end: a departure without a route, or the answer of a node that cannot be reached.
    pub fn waits(&self) -> bool {
        self.router.lacks_any() || !self.held.is_empty()
    }

    /// The chunks that have been held for longer than [`HOLD_FOR`], or all of them: none of them has been sent to a node.
    pub fn expire(&mut self, now: Micros, all: bool) -> Vec<Arc<Chunk>> {
        let is_late = |held: &mut (_, Micros)| all || now.since(held.1) > HOLD_FOR;
        let late = self.held.extract_if(.., is_late);
        late.filter_map(|(departure, _)| departure.chunk().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ordain_model::{ArgsBuilder, Call, ChunkNo, Db, GatewayId, Layout, PartitionId, Registry, system};
    use ordain_role::Topology;

    use super::*;
    use crate::router::ReplicaRouter;
    use crate::{Gateway, Ticket};

    const ROLE: u16 = 7;

    /// Two partitions on two nodes; the front door is on node 0.
    fn dispatcher() -> (Gateway, Dispatcher) {
        let layout = Arc::new(Layout::even(2, 1).unwrap());
        let topology = Topology::replicated(layout.clone(), 1);
        let mut registry = Registry::default();
        system::register(&mut registry);
        let gateway =
            Gateway::new(GatewayId::of(0, 0), Arc::new(registry), layout, (0, PartitionId(0)), ChunkNo(0));
        (gateway, Dispatcher::new(Box::new(ReplicaRouter::new(topology, NodeId(0), ROLE))))
    }

    fn sent(send: impl FnOnce(&mut dyn FnMut(Address, Front))) -> BTreeMap<NodeId, usize> {
        let mut counts = BTreeMap::new();
        send(&mut |to, _| *counts.entry(to.node).or_default() += 1);
        counts
    }

    #[test]
    fn a_departure_waits_until_its_node_has_been_met_or_for_so_long() {
        let (mut gateway, mut dispatcher) = dispatcher();
        let layout = gateway.layout().clone();
        let is_there = |key: &Vec<u8>| layout.region_of(key) == PartitionId(1);
        let key = (0u32..).map(|n| n.to_le_bytes().to_vec()).find(is_there).unwrap();
        let ask = |gateway: &mut Gateway, ticket| {
            let read = |args: &mut ArgsBuilder<'_>| system::read_args([(Db(0), &key[..])], args);
            gateway.submit(Ticket(ticket), Call::new(system::READ, Db(0)), read).unwrap();
        };
        ask(&mut gateway, 1);
        let flushed = sent(|send| dispatcher.flush(&mut gateway, Micros(5), send));
        assert!(flushed.is_empty() && dispatcher.waits());
        let change = PeerChange { node: NodeId(1), state: PeerState::Fresh };
        assert_eq!(dispatcher.change(&mut gateway, Micros(6), change), None);
        let greeting = sent(|send| dispatcher.flush(&mut gateway, Micros(6), send));
        assert_eq!(
            greeting,
            BTreeMap::from([(NodeId(1), 1)]),
            "the node is greeted, and nothing else is sent to it"
        );
        assert!(dispatcher.greeted(NodeId(1)).is_some());
        let retried = sent(|send| dispatcher.retry(&mut gateway, send));
        assert_eq!(retried.values().sum::<usize>(), 1);
        assert!(!dispatcher.waits());

        let change = PeerChange { node: NodeId(1), state: PeerState::Lost };
        assert_eq!(dispatcher.change(&mut gateway, Micros(7), change), None);
        ask(&mut gateway, 2);
        assert!(sent(|send| dispatcher.flush(&mut gateway, Micros(8), send)).is_empty());
        assert!(dispatcher.expire(Micros(8).plus(HOLD_FOR), false).is_empty());
        assert_eq!(dispatcher.expire(Micros(9).plus(HOLD_FOR), false).len(), 1);
        assert!(dispatcher.expire(Micros(9).plus(HOLD_FOR), true).is_empty(), "a chunk expires once");
    }
}
