//! Regions with storage of their own: one server and one storage node each, and views of the others that the storage nodes feed.

use std::sync::Arc;

use ordain_commit::CommitEngine;
use ordain_model::{Front, GatewayId, Layout, Micros, OpenId, Options, Step};
use ordain_role::{Bugs, NodeId, PeerState, Topology};

use super::{BETWEEN, Do, Ticket, WITHIN, World};

impl World {
    /// So many regions with a server, a shard and a storage node each, when each is served and sees the others.
    pub fn regions(engine: CommitEngine, count: usize, bugs: Bugs) -> World {
        World::regions_with(engine, Options::new(engine.name, &[]), count, bugs)
    }

    /// Such regions with options of their engine.
    pub fn regions_with(engine: CommitEngine, options: Options, count: usize, bugs: Bugs) -> World {
        World::regions_sharded(engine, options, (count, 1), bugs)
    }

    /// Such regions, each of some shards.
    pub fn regions_sharded(
        engine: CommitEngine,
        options: Options,
        (count, shards): (usize, usize),
        bugs: Bugs,
    ) -> World {
        let layout = Arc::new(Layout::even(count, shards).expect("a layout"));
        let mut w =
            World::built(engine, (options, bugs), Topology::regions(layout, 1, 1), |settings| settings);
        w.run(Micros::from_millis(300));
        w
    }

    /// Sets how long a message takes between two regions.
    pub fn set_apart(&mut self, apart: Micros) {
        self.apart = apart;
    }

    /// Cuts the nodes of a region off from all others: what they send each other is lost.
    pub fn isolate(&mut self, region: usize) {
        let ways = self.ways_out_of(region);
        self.severed.extend(ways.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]));
    }

    /// The nodes of a region and all others find that they have not heard of each other for long.
    pub fn miss(&mut self, region: usize) {
        for (a, b) in self.ways_out_of(region) {
            self.tell(a, b, PeerState::Lost);
            self.tell(b, a, PeerState::Lost);
        }
    }

    /// Ends what [`World::isolate`] has begun.
    pub fn heal(&mut self, region: usize) {
        let ways = self.ways_out_of(region);
        self.severed.retain(|(a, b)| !ways.contains(&(*a, *b)) && !ways.contains(&(*b, *a)));
        ways.into_iter().for_each(|(a, b)| self.renew(a, b));
    }

    /// How long a transaction took that is answered.
    pub fn took(&self, ticket: Ticket) -> Micros {
        let answered = self.answer(ticket).map_or(self.now, |answer| answer.at);
        answered.since(self.asked[ticket.0].at)
    }

    /// Asks a node for a step of an open transaction, by the numbers of both. What it reads and writes is in no history.
    pub fn step_of(
        &mut self,
        node: NodeId,
        (open, number, is_commit): (u64, u32, bool),
        ops: &[Do],
    ) -> Ticket {
        let call = self.appends(ops, false);
        let ticket = self.note(None, &[], call, None);
        let of = OpenId { gateway: GatewayId::of(node.0, 0), number: open };
        let step = Step { of, number, session: None, is_commit, may_write: true };
        let chunk = self.chunk(node, ticket);
        self.hand_in(node, Front::Step(step, chunk));
        ticket
    }

    fn ways_out_of(&self, region: usize) -> Vec<(NodeId, NodeId)> {
        let own = self.members(region);
        let others = (0..self.settings.topology.nodes()).map(NodeId).filter(|node| !own.contains(node));
        others.flat_map(|other| own.iter().map(move |node| (*node, other))).collect()
    }

    /// The time that a message takes.
    pub(super) fn way(&self, from: NodeId, to: NodeId) -> Micros {
        let topology = &self.settings.topology;
        match topology.partition_of(from) == topology.partition_of(to) {
            _ if from == to => WITHIN,
            true => BETWEEN,
            false => self.apart,
        }
    }
}
