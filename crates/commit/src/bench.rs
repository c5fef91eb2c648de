//! The surroundings of a manager's parts, for tests that drive one of them by hand.

use std::sync::Arc;

use ordain_model::{Abort, Backoff, Layout, Micros, Millis, PartitionId, Registry};
use ordain_role::{Address, Bugs, NodeId, Now, Outbox};

use crate::agreed::Agreed;
use crate::desk::{Appender, Departing, Desk, Leaders, Site};
use crate::figures::Traffic;
use crate::ids::{Age, Lead};
use crate::known::Known;
use crate::message::Message;
use crate::regions::Views;

/// A node of a cluster of two partitions with one shard each; node n holds partition n % 2.
pub struct Bench {
    pub site: Site,
    pub agreed: Agreed,
    pub leaders: Leaders,
    pub views: Views,
    pub lead: Option<Lead>,
    pub appender: Appender,
    /// The latest stamp that the node has given or heard of.
    pub heard: Age,
    /// The view that clients of the node have seen.
    pub known: Known,
    /// The time since the node started.
    pub elapsed: Micros,
}

impl Bench {
    pub fn new(node: u16) -> Bench {
        let site = Site {
            node: NodeId(node),
            nodes: 4,
            partition: PartitionId(node % 2),
            layout: Arc::new(Layout::even(2, 1).unwrap()),
            registry: Arc::new(Registry::default()),
            manager: 0,
            log: Address { node: NodeId(node), role: 1 },
            database: 7,
            life: 1,
            backoff: Backoff::None,
            refusal: Abort::Died,
            stamps: crate::Stamps::OfTransaction,
            validates: false,
            locks_first: false,
            snapshots: crate::Snapshots::Never,
            propagation: crate::desk::Propagation::default(),
            regions: None,
            resolves: false,
            overlays: false,
            is_early: false,
            source: ordain_model::StampSource::Hybrid,
            skew: Micros(0),
            checkpoint_bytes: 0,
            bugs: Bugs::NONE,
        };
        Bench {
            site,
            agreed: Agreed::default(),
            leaders: Leaders::default(),
            views: Views::default(),
            lead: None,
            appender: Appender::default(),
            heard: Age(0),
            known: Known::default(),
            elapsed: Micros(0),
        }
    }

    /// Has a part do something at its desk; answers what it sends.
    pub fn tell(&mut self, act: impl FnOnce(&mut Desk<'_>)) -> Vec<(Address, Message)> {
        let mut out = Outbox::default();
        let mut desk = Desk {
            site: &self.site,
            agreed: &self.agreed,
            leaders: &self.leaders,
            views: &self.views,
            lead: self.lead,
            appender: &mut self.appender,
            departing: &mut Departing::default(),
            traffic: &mut Traffic::default(),
            clock: Millis(5),
            heard: self.heard,
            known: &mut self.known,
            now: Now { elapsed: self.elapsed, ..Now::default() },
            out: &mut out,
        };
        act(&mut desk);
        out.sends
    }
}
