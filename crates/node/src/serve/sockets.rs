//! Sockets of a node: where it listens, and the edge to the other nodes.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use ordain_family::{Message, NodeSettings, places};
use ordain_link::Life;
use ordain_model::Registry;
use ordain_role::Address;
use ordain_runtime::{LinkTls, NetConfig, NetLimits, Network};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::ServeError;
use crate::cluster::Membership;

/// Opens the edge between a node and the other nodes of its cluster. Its connection servers and the roles in `watchers` are
/// sent every change of a peer.
pub(super) fn open_network<M: Message>(
    place: &Membership,
    listener: TcpListener,
    tls: Option<LinkTls>,
    (settings, watchers): (&NodeSettings, Vec<u16>),
    procedures: &Arc<Registry>,
) -> Result<Network<M>, ServeError> {
    let cluster = &place.cluster;
    let servers = (0..settings.gateways as u16).map(|i| places::GATEWAYS + i);
    let watchers = servers.chain(watchers).collect();
    Network::new(NetConfig {
        me: Address { node: place.node, role: places::NETWORK },
        listener,
        peers: cluster.members.iter().map(|member| (member.node, member.cluster)).collect(),
        cluster: cluster.id.clone(),
        secret: cluster.secret.reveal().as_bytes().to_vec(),
        fingerprint: cluster.fingerprint(),
        life: Life(settings.life),
        watchers,
        delays: cluster.members.iter().map(|to| (to.node, cluster.delay(place.node, to.node))).collect(),
        procedures: procedures.clone(),
        tls,
        limits: NetLimits::default(),
    })
    .map_err(ServeError::Network)
}

/// The source of the address at which a node's peers connect, for messages.
pub(super) const PEERS: &str = "the cluster's file";

/// Lets this process have as many connections as the system permits, not only as many as the shell that started it
/// would have.
pub(super) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, open_files = limit.current, "cannot raise the limit of open files");
    }
    widen_descriptor_table();
}

/// Has the system make its table of this process's descriptors as large as it is likely to become, while there is one thread:
/// to enlarge it later, Linux has every thread pass a point of its own first, and a loop that accepts stands still for as long,
/// at each power of two.
fn widen_descriptor_table() {
    const CONNECTIONS: i32 = 16_000;
    let most =
        getrlimit(Resource::Nofile).current.and_then(|most| i32::try_from(most).ok()).unwrap_or(i32::MAX);
    let last = CONNECTIONS.min(most.saturating_sub(1));
    // What it answers is closed at once; where it is refused the table grows as connections come.
    if let Err(error) = rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), last) {
        tracing::debug!(%error, last, "cannot enlarge the table of descriptors ahead");
    }
}

pub(super) fn listen(address: SocketAddr, flag: &'static str) -> Result<TcpListener, ServeError> {
    let open = || {
        let socket =
            socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
        // So that a restart does not wait for connections of the process before to time out.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(1024)?;
        Ok(socket.into())
    };
    open().map_err(|reason| ServeError::Listen { address, flag, reason })
}
