//! What an operator can see of the connections between nodes.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use ordain_model::Micros;
use ordain_role::NodeId;

use super::handshake::Refusal;

/// The state of the connection to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// No connection, or not for long enough to call it lost.
    Connecting,
    /// Connected.
    Connected,
    /// Nothing has come from it for a while.
    Lost,
    /// The two do not belong together.
    Refused(Refusal),
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reach::Connecting => f.write_str("connecting"),
            Reach::Connected => f.write_str("connected"),
            Reach::Lost => f.write_str("lost"),
            Reach::Refused(reason) => write!(f, "refused: {reason}"),
        }
    }
}

/// A peer, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// The number.
    pub node: NodeId,
    /// The address in the configuration.
    pub address: SocketAddr,
    /// The state of the connection.
    pub reach: Reach,
    /// The way there and back, at the last heartbeat.
    pub rtt: Option<Micros>,
    /// Bytes received.
    pub input_bytes: u64,
    /// Bytes sent.
    pub output_bytes: u64,
    /// Bytes of messages that it has not acknowledged.
    pub kept_bytes: u64,
    /// The number of reconnections.
    pub reconnects: u64,
}

/// The status of all peers: at most a heartbeat old, and at once when a connection comes or goes.
#[derive(Clone, Debug, Default)]
pub struct NetStatus(Arc<Mutex<Vec<PeerStatus>>>);

impl NetStatus {
    /// The peers, in the order of the configuration.
    pub fn peers(&self) -> Vec<PeerStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn publish(&self, peers: impl Iterator<Item = PeerStatus>) {
        // It is overwritten whole, so a reader that panicked has left nothing behind.
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        latest.clear();
        latest.extend(peers);
    }
}
