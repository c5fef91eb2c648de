//! The connection servers of a node, as every driver makes them: from the settings of the node's roles and its family.

use std::sync::Arc;

use ordain_family::{Family, Keep, NodeSettings, places};
use ordain_gateway::Dispatcher;
use ordain_model::{Computations, Options, Registry};
use ordain_resp::diagnostics::Diagnostics;
use ordain_resp::memory::Memory;
use ordain_resp::{Access, NodeInfo, Observed, Settings, Shared};

use crate::host::Host;
use crate::mailboxes::Mailboxes;
use crate::server::ConnectionServer;

/// What CONFIG GET shows of a node's setup.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The port for clients.
    pub port: u16,
    /// The address for clients.
    pub bind: String,
    /// The data directory.
    pub dir: String,
    /// The number of event loops.
    pub threads: usize,
    /// What the node keeps.
    pub keep: Keep,
    /// The limit of memory, bytes; 0 for none.
    pub maxmemory_bytes: u64,
    /// The engine's options.
    pub options: Options,
}

impl Setup {
    /// The parameters of CONFIG.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.fix("port", self.port.to_string());
        settings.offer_size("maxmemory", self.maxmemory_bytes);
        settings.fix("bind", self.bind.clone());
        settings.fix("dir", self.dir.clone());
        settings.fix("io-threads", self.threads.to_string());
        let (appendonly, appendfsync) = match self.keep {
            Keep::Fsync => ("yes", "always"),
            Keep::Os => ("yes", "everysec"),
            Keep::Late => ("yes", "no"),
            Keep::Nothing => ("no", "no"),
        };
        settings.fix("appendonly", appendonly);
        settings.fix("appendfsync", appendfsync);
        self.options.iter().for_each(|(info, value)| settings.fix(info.name, value.to_string()));
        settings
    }
}

/// The parts that the connection servers of a node share. `A` is what an accepted connection is to the node's host.
#[derive(Debug)]
pub struct Parts<A> {
    /// What the servers say to each other.
    pub mailboxes: Arc<Mailboxes<A>>,
    /// The users.
    pub access: Arc<Access>,
    /// The memory of all connections, and the limit.
    pub memory: Arc<Memory>,
    /// Slow requests, latency spikes and the times of commands.
    pub diagnostics: Arc<Diagnostics>,
    /// The long computations that are running.
    pub computations: Computations,
}

impl<A> Parts<A> {
    /// The parts of so many connection servers of a node, whose memory is measured by `used`. `info` is what INFO says at
    /// first.
    pub fn new(
        (setup, settings): (&Setup, &NodeSettings),
        servers: u16,
        access: Arc<Access>,
        used: fn() -> u64,
        info: NodeInfo,
    ) -> Parts<A> {
        let topology = &settings.topology;
        let of = (settings.partition().0, topology.layout.partitions());
        let memory = Arc::new(Memory::new(used, of, topology.nodes()));
        memory.set_limit(setup.maxmemory_bytes);
        let servers = (0..servers).map(|i| settings.at(places::GATEWAYS + i)).collect();
        let mailboxes = Arc::new(Mailboxes::new(servers, info));
        let computations = settings.computations.clone();
        Parts { mailboxes, access, memory, diagnostics: Arc::default(), computations }
    }

    /// Connection server `number` of a node.
    pub fn server<F: Family, H: Host<Accepted = A>>(
        &self,
        number: u16,
        (family, settings, registry): (&F, &NodeSettings, &Arc<Registry>),
        setup: &Setup,
        host: H,
    ) -> ConnectionServer<F::Message, H> {
        let gateway = family.gateway(settings, number, settings.life, registry);
        let dispatcher = Dispatcher::new(family.router(settings));
        let mut shared = Shared::default();
        shared.settings = setup.settings();
        shared.access = self.access.clone();
        shared.observed = Observed::by(self.diagnostics.clone());
        shared.memory = self.memory.clone();
        shared.computations = self.computations.clone();
        ConnectionServer::new(usize::from(number), gateway, dispatcher, shared, self.mailboxes.clone(), host)
    }
}

/// The connection servers of a node that has no process of its own: one for each host, without users but the default one. `used`
/// measures the node's memory in bytes, and `info` is what INFO says at first.
pub fn servers<F: Family, H: Host>(
    node: (&F, &NodeSettings, &Arc<Registry>),
    setup: &Setup,
    (used, info): (fn() -> u64, NodeInfo),
    hosts: Vec<H>,
) -> Vec<ConnectionServer<F::Message, H>> {
    let (_, settings, _) = node;
    let parts = Parts::new((setup, settings), hosts.len() as u16, Arc::default(), used, info);
    (0..).zip(hosts).map(|(number, host)| parts.server(number, node, setup, host)).collect()
}
