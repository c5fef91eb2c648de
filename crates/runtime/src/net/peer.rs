//! Another node: its link, its connection, and when it is dialled, measured and given up.

use std::net::SocketAddr;

use ordain_link::{Frame, Life, Link, Room};
use ordain_model::Micros;
use ordain_role::NodeId;

use super::BACKOFF_MIN;
use super::handshake::Refusal;
use super::status::{PeerStatus, Reach};
use super::wire::Parcel;

/// Another node of the configuration.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) node: NodeId,
    pub(super) address: SocketAddr,
    /// What leaves for it is held back for so long.
    pub(super) delay: Micros,
    pub(super) link: Link<Parcel>,
    /// The number of the proven connection.
    pub(super) connection: Option<usize>,
    /// The time at which to dial it; none while a connection is there or under way, and if it is the peer that dials.
    pub(super) dial_at: Option<Micros>,
    pub(super) backoff: Micros,
    /// The time at which something last came from it.
    pub(super) received_at: Micros,
    pub(super) ping_at: Micros,
    /// The time at which it was last asked for a sign of life, which also measures the round trip.
    pub(super) pinged_at: Micros,
    /// Something has left since a sign of life was last considered.
    pub(super) has_sent: bool,
    pub(super) is_lost: bool,
    pub(super) refused: Option<Refusal>,
    /// By the place in `watchers`: how many changes of peers the role must have handled to know of the stream.
    pub(super) fences: Vec<u64>,
    pub(super) rtt: Option<Micros>,
    /// The number of bytes that have come since something left that acknowledges.
    pub(super) unacknowledged: usize,
    pub(super) input_bytes: u64,
    pub(super) output_bytes: u64,
    /// Connections proven so far.
    pub(super) meetings: u64,
}

impl Peer {
    /// A peer that has not been met, for an edge with so many watchers.
    pub(super) fn new(
        (node, address): (NodeId, SocketAddr),
        delay: Micros,
        life: Life,
        kept: Room,
        watchers: usize,
    ) -> Peer {
        Peer {
            node,
            address,
            delay,
            link: Link::new(life, kept),
            connection: None,
            dial_at: None,
            backoff: BACKOFF_MIN,
            received_at: Micros(0),
            ping_at: Micros(0),
            pinged_at: Micros(0),
            has_sent: false,
            is_lost: false,
            refused: None,
            fences: vec![0; watchers],
            rtt: None,
            unacknowledged: 0,
            input_bytes: 0,
            output_bytes: 0,
            meetings: 0,
        }
    }

    pub(super) fn reach(&self) -> Reach {
        match (self.connection, self.refused) {
            (Some(_), _) => Reach::Connected,
            (None, Some(reason)) => Reach::Refused(reason),
            (None, None) if self.is_lost => Reach::Lost,
            (None, None) => Reach::Connecting,
        }
    }

    /// The next frame to leave: an acknowledgement alone only after so many bytes.
    pub(super) fn next_frame(&mut self, most: usize) -> Option<Frame<Parcel>> {
        let frame = match self.link.poll() {
            None if self.unacknowledged >= most => self.link.poll_ack(),
            next => next,
        }?;
        if !matches!(frame, Frame::Hello(_)) {
            self.unacknowledged = 0;
            self.has_sent = true;
        }
        Some(frame)
    }

    pub(super) fn status(&self) -> PeerStatus {
        PeerStatus {
            node: self.node,
            address: self.address,
            reach: self.reach(),
            rtt: self.rtt,
            input_bytes: self.input_bytes,
            output_bytes: self.output_bytes,
            kept_bytes: self.link.bytes() as u64,
            reconnects: self.meetings.saturating_sub(1),
        }
    }
}
