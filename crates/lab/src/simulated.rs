//! A cluster in the simulator, whose roles take the processor time that was measured of them: scale-out by the protocol itself.
//!
//! The nodes run the roles of the product, one core each. A batch keeps the core of a node busy for the demand of each of its
//! transactions there, on one partition or on two, and an epoch for what every other node's slice costs. Everything else
//! follows from the roles: epochs, locks, remote results, windows. Messages take a fixed time from node to node, disks sync at
//! once. What is simulated is no measurement, and figures show it as a model.
//!
//! Beside it stands [`scale_out`](crate::scale_out), which models the protocol with the same demands.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{anyhow, bail};
use ordain_deterministic::assembly::{Deterministic, places};
use ordain_deterministic::options::LINGER_US;
use ordain_deterministic::sequencing::Log;
use ordain_deterministic::shard::Message;
use ordain_engines::registry::{Engine, Make};
use ordain_family::{Family as _, Keep, NodeSettings, Opened as _};
use ordain_model::args::ArgsBuilder;
use ordain_model::{Batch, Call, Db, Digest, Layout, Micros, OptionValue, OutcomeStatus, Registry};
use ordain_role::{Address, Directory, Event, NodeId, Topology};
use ordain_sim::faults::Intensity;
use ordain_sim::{
    Config, Ending, Faults, FrontDoor, Load, Profile, Random, Roles, Simulator, System, Verdict,
    Workload as Requests,
};
use ordain_workload::{Source, Workload};

/// The processor time that a node needs, microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// For a transaction on its partition alone.
    pub single_us: f64,
    /// For its part of a transaction on two.
    pub multi_us: f64,
    /// For another node's slice of an epoch.
    pub peer_us: f64,
}

/// A cluster of nodes of an engine with a core each.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    pub engine: Engine,
    pub nodes: u16,
    pub demand: Demand,
    /// From node to node, one way, microseconds.
    pub link_us: u64,
    /// Length of an epoch, microseconds.
    pub epoch_us: u64,
    /// Clients of each node; each has one transaction under way, and thinks for four epochs at most.
    pub clients: u32,
    /// Time measured, virtual microseconds, after as long a warm-up. It must hold many batches, as a batch is answered at once.
    pub watched_us: u64,
    /// Seed of everything that is drawn.
    pub seed: u64,
}

/// The longest loading, in virtual time.
const LOADED_BY: Micros = Micros(600_000_000);

impl Cluster {
    /// Committed transactions a second of virtual time, of all nodes together.
    ///
    /// # Errors
    /// The engine is of another family, or the run has broken an invariant or never ended loading.
    pub fn txn_per_s(&self, workload: &dyn Workload, registry: &Arc<Registry>) -> anyhow::Result<f64> {
        let config = Config {
            nodes: self.nodes,
            doors: 1,
            txns: u64::MAX,
            faults: Faults::NONE,
            load: Load {
                clients: self.clients * u32::from(self.nodes),
                pipeline: 1,
                session_chance: 0,
                // Not all of them may be in one batch: nothing would be asked for while that is executed.
                think_us_max: 4 * self.epoch_us,
                ..Load::of(Profile::Storm, 1)
            },
            events_max: u64::MAX,
            power_cycle: false,
            ..Config::new(self.seed)
        };
        let mut requests = Sources::of(workload, self.nodes, self.seed);
        let left = requests.left.clone();
        let mut simulator = Simulator::new(self.system(registry)?, &mut requests, &config, None);
        let is_loading = || left.load(Ordering::Relaxed) > 0;
        if !simulator.run(LOADED_BY, |_| is_loading()) {
            bail!("the simulated cluster did not load its data: {:?}", simulator.violation());
        }
        let committed = |simulator: &Simulator<'_, Nodes>| {
            let is_committed = |answers: &[ordain_checker::history::Answer]| {
                answers.first().is_some_and(|answer| answer.status == OutcomeStatus::Committed)
            };
            simulator.history().requests().filter(|(_, request)| is_committed(&request.answers)).count()
        };
        // The clients' first requests come together: what is measured begins when they have spread.
        let from = simulator.now().plus(Micros(self.watched_us));
        simulator.run(from, |_| true);
        let before = committed(&simulator);
        simulator.run(from.plus(Micros(self.watched_us)), |_| true);
        if let Some(violation) = simulator.violation() {
            return Err(anyhow!("the simulated cluster broke an invariant: {violation}"));
        }
        Ok((committed(&simulator) - before) as f64 / (self.watched_us as f64 / 1e6))
    }

    fn system(&self, registry: &Arc<Registry>) -> anyhow::Result<Nodes> {
        let Make::Deterministic(scheduling) = self.engine.make() else {
            bail!("{} is not simulated with measured costs", self.engine);
        };
        let mut options = self.engine.defaults();
        options.set(&LINGER_US, OptionValue::Integer(self.epoch_us));
        let layout = Arc::new(Layout::even(self.nodes.into(), 1)?);
        let settings = NodeSettings {
            topology: Topology::replicated(layout.clone(), 1),
            gateways: 1,
            keep: Keep::Fsync,
            identity: b"simulated".to_vec(),
            ..NodeSettings::new(options)
        };
        let family = Deterministic::new(scheduling);
        Ok(Nodes { family, settings, layout, registry: registry.clone(), cluster: *self })
    }
}

/// The requests of all nodes' sources in turns: first those that load.
struct Sources {
    sources: Vec<Box<dyn Source>>,
    loads: VecDeque<(Call, Vec<u8>)>,
    /// Requests that load and have not been made.
    left: Arc<AtomicUsize>,
    next: usize,
}

impl Sources {
    fn of(workload: &dyn Workload, nodes: u16, seed: u64) -> Sources {
        let nodes = usize::from(nodes);
        let mut sources: Vec<_> = (0..nodes).map(|node| workload.source(seed, node, nodes)).collect();
        let mut loads = VecDeque::new();
        for source in &mut sources {
            while let Some(procedure) = source.load() {
                loads.push_back((Call::new(procedure, Db(0)), args_of(&**source)));
            }
        }
        let left = Arc::new(AtomicUsize::new(loads.len()));
        Sources { sources, loads, left, next: 0 }
    }
}

fn args_of(source: &dyn Source) -> Vec<u8> {
    let mut args = Vec::new();
    source.write_args(&mut ArgsBuilder::new(&mut args));
    args
}

impl Requests for Sources {
    fn next(&mut self, _random: &mut Random) -> (Call, Vec<u8>) {
        if let Some(load) = self.loads.pop_front() {
            self.left.store(self.loads.len(), Ordering::Relaxed);
            return load;
        }
        self.next = (self.next + 1) % self.sources.len();
        let source = &mut self.sources[self.next];
        let made = source.next();
        (Call::new(made.procedure, Db(0)), args_of(&**source))
    }
}

/// The nodes under simulation.
struct Nodes {
    family: Deterministic,
    settings: NodeSettings,
    layout: Arc<Layout>,
    registry: Arc<Registry>,
    cluster: Cluster,
}

impl Nodes {
    fn of(&self, node: NodeId) -> NodeSettings {
        NodeSettings { node, ..self.settings.clone() }
    }

    /// Processor time of a node for its part of a batch.
    fn batch_us(&self, batch: &Batch, node: NodeId) -> f64 {
        let own = self.settings.topology.partition_of(node);
        let Demand { single_us, multi_us, .. } = self.cluster.demand;
        let mut sum = 0.0;
        for placed in &batch.chunks {
            for txn in placed.chunk.txns() {
                let participants = placed.chunk.participants(txn, &self.layout);
                if participants.contains(own) {
                    sum += if participants.only() == Some(own) { single_us } else { multi_us };
                }
            }
        }
        sum
    }
}

impl System for Nodes {
    type Message = Message;

    fn registry(&self) -> Arc<Registry> {
        self.registry.clone()
    }

    fn start(
        &mut self,
        node: NodeId,
        _incarnation: u32,
        disk: &mut dyn Directory,
    ) -> Result<Roles<Message>, String> {
        let opened = self.family.open(Some(disk), &self.of(node), &self.registry);
        Ok(opened.map_err(|error| error.to_string())?.into_roles())
    }

    fn door(&self, node: NodeId, incarnation: u32, n: u16) -> FrontDoor {
        let settings = self.of(node);
        let gateway = self.family.gateway(&settings, n, u64::from(incarnation) << 32, &self.registry);
        let router = self.family.router(&settings);
        FrontDoor { address: Address { node, role: places::GATEWAYS + n }, gateway, router }
    }

    fn peer_watchers(&self, node: NodeId) -> Vec<u16> {
        self.family.peer_watchers(&self.of(node))
    }

    /// The data are checked where this is measured.
    fn check(&mut self, _ending: Ending<'_>) -> Verdict {
        Verdict { digest: Digest::default(), entries: 0, batches: Vec::new(), voided: 0, verdict: Ok(()) }
    }

    fn intensity(&self) -> Option<Intensity> {
        Some(Intensity {
            link_delay_us_min: self.cluster.link_us,
            retransmit_us: 1 << 30,
            redial_us_max: 1,
            lost_after_us: 1 << 40,
            link_bytes_max: u64::MAX,
            ..Intensity::default()
        })
    }

    fn cost_ns(&self, node: NodeId, role: u16, event: &Event<Message>) -> Option<u64> {
        let us = match event {
            Event::Message { message: Message::Log(Log::Sealed(batch)), .. }
                if (places::SHARDS..places::GATEWAYS).contains(&role) =>
            {
                let is_own = batch.partition == self.settings.topology.partition_of(node);
                let slice_us = if is_own { 0.0 } else { self.cluster.demand.peer_us };
                slice_us + self.batch_us(batch, node)
            }
            _ => 0.0,
        };
        Some((us * 1e3) as u64)
    }
}

#[cfg(test)]
mod tests {
    use ordain_workload::micro::{Calvin, Micro};

    use super::*;
    use crate::bench::registry;

    /// Nodes whose core does a transaction in 200 us, and its part of one on two nodes in 300.
    fn rate(nodes: u16, multi_partition: f64, peer_us: f64) -> f64 {
        let workload = Micro::calvin(Calvin {
            partitions: nodes.into(),
            records_per_partition: 600,
            contention_index: 0.01,
            multi_partition,
            ..Calvin::default()
        });
        let cluster = Cluster {
            engine: "calvin".parse().unwrap(),
            nodes,
            demand: Demand { single_us: 200.0, multi_us: 300.0, peer_us },
            link_us: 500,
            epoch_us: 5_000,
            clients: 150,
            watched_us: 600_000,
            seed: 7,
        };
        cluster.txn_per_s(&workload.unwrap(), &registry()).unwrap()
    }

    fn near(rate: f64, expected: f64) {
        assert!((rate / expected - 1.0).abs() < 0.15, "{rate} is not about {expected}");
    }

    #[test]
    fn a_core_does_what_its_demands_allow() {
        near(rate(1, 0.0, 0.0), 5_000.0);
        near(rate(2, 0.0, 0.0), 10_000.0);
        // Each node does its part of half as many.
        near(rate(2, 1.0, 0.0), 1e6 / 300.0);
        // An epoch gives 1 ms to the other node's slice. It lasts at least 5, and longer where the pipeline is busy.
        let with_slices = rate(2, 0.0, 1_000.0);
        assert!((7_600.0..9_900.0).contains(&with_slices), "{with_slices}");
        assert_eq!(rate(2, 0.5, 0.0).to_bits(), rate(2, 0.5, 0.0).to_bits(), "a seed gives the same again");
    }
}
