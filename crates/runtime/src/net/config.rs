//! Settings of a network edge: peers, secret, limits, TLS, and the greeting.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use ordain_link::{Life, Room};
use ordain_model::Micros;
use ordain_role::{Address, Bytes, NodeId};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};

use crate::tls::Current;

/// The bounds of a link, and the times that pace it.
#[derive(Clone, Copy, Debug)]
pub struct NetLimits {
    /// The number of bytes of messages that are kept for one peer until it acknowledges them.
    pub kept: Room,
    /// The largest message that is taken from a peer.
    pub message_bytes: usize,
    /// How often a sign of life is sent to a peer that nothing else is sent to.
    pub heartbeat: Micros,
    /// After how much silence a peer is lost.
    pub lost_after: Micros,
}

impl Default for NetLimits {
    fn default() -> NetLimits {
        NetLimits {
            // Answers are not sent in pieces: a peer that takes them slowly needs room for what its clients have asked for.
            kept: Room { parted: 64 << 20, open: 1 << 30 },
            message_bytes: 2 << 30,
            heartbeat: Micros::from_millis(100),
            lost_after: Micros::from_millis(500),
        }
    }
}

/// The configuration of a network edge.
pub struct NetConfig {
    /// This edge's own address: this node, and the number that [`Options::network`](crate::Options::network) names too.
    pub me: Address,
    /// The socket that peers of lower numbers connect to.
    pub listener: std::net::TcpListener,
    /// All other nodes.
    pub peers: Vec<(NodeId, SocketAddr)>,
    /// The cluster's name; the same on all nodes.
    pub cluster: String,
    /// The cluster's secret; the same on all nodes.
    pub secret: Vec<u8>,
    /// A number that is equal where all else is that must be equal on all nodes.
    pub fingerprint: u64,
    /// The life of this process.
    pub life: Life,
    /// The roles of this node that are sent every [`PeerChange`](ordain_role::PeerChange).
    pub watchers: Vec<u16>,
    /// How long everything that leaves for a peer is held back, for experiments; not at all if the peer is not named.
    pub delays: BTreeMap<NodeId, Micros>,
    /// The procedures that messages may name.
    pub procedures: Arc<ordain_model::Registry>,
    /// Has the connections be in TLS, with a certificate on both sides.
    pub tls: Option<LinkTls>,
    /// Bounds and times of the links.
    pub limits: NetLimits,
}

/// The TLS of the connections between nodes.
#[derive(Clone, Debug)]
pub struct LinkTls {
    /// TLS with peers that dial this node. It must ask for their certificates.
    pub server: Current<ServerConfig>,
    /// TLS with peers that this node dials. It must have a certificate to show.
    pub client: Current<ClientConfig>,
    /// The names that the certificates of dialled peers must be for.
    pub names: BTreeMap<NodeId, ServerName<'static>>,
}

/// The first message of every stream between two nodes.
///
/// Nothing else of a peer is taken before. So a node that must know something before it executes what comes from a peer can
/// write it down and start again.
pub struct Greeting {
    /// The content of this node's; none is sent if it is empty.
    pub content: Bytes,
    /// Takes a peer's.
    pub take: TakeGreeting,
}

/// Takes the content of a peer's greeting.
pub type TakeGreeting = Box<dyn FnMut(NodeId, &[u8]) -> Greeted + Send>;

/// The effect of a peer's greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeted {
    /// It changes nothing.
    Nothing,
    /// The node is to be started again from what it has on disk, for a reason; nothing of that peer is taken until then.
    Restart(String),
    /// The node has to stop, for a reason.
    Halt(String),
}

impl fmt::Debug for NetConfig {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetConfig").field("me", &self.me).field("peers", &self.peers).finish_non_exhaustive()
    }
}
