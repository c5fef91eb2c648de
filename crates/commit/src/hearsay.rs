//! The stamps of which nodes tell each other though nothing else is to be said.
//!
//! Homes hear of each other's stamps with the messages that they exchange. Two that have nothing to do with each other may drift apart, by as much
//! as their clocks. A transaction that only reads could then see a state of before what others were answered, for ever if a clock stands
//! still. So a node tells all others of the latest stamp that it has given or answered, a moment after it has.

use ordain_model::{Micros, StampSource};
use ordain_role::{Address, NodeId};

use crate::desk::Desk;
use crate::ids::Age;
use crate::message::Relay;
use crate::stamps::Stamps;

/// The time for which a stamp is not told.
const KEPT: Micros = Micros::from_millis(20);

/// See the module.
#[derive(Debug, Default)]
pub struct Hearsay {
    /// The latest stamp that all nodes were told of, by this one or another.
    told: Age,
    due: Option<Micros>,
}

impl Hearsay {
    /// Another node tells all of a stamp: they need not be told again.
    pub fn hear(&mut self, stamp: Age) {
        self.told = self.told.max(stamp);
    }

    /// Takes note of the stamps of a turn.
    pub fn note(&mut self, desk: &Desk<'_>) {
        let is_of_interest = desk.site.stamps == Stamps::OfAttempt && desk.site.source == StampSource::Hybrid;
        if is_of_interest && desk.site.nodes > 1 && desk.heard > self.told {
            self.due.get_or_insert(desk.elapsed().plus(KEPT));
        }
    }

    /// The time at which others are told, if there is something to tell.
    pub const fn due(&self) -> Option<Micros> {
        self.due
    }

    /// Tells the other nodes, if it is time.
    pub fn pass(&mut self, desk: &mut Desk<'_>) {
        if self.due.take_if(|due| *due <= desk.elapsed()).is_none() || desk.heard <= self.told {
            return;
        }
        self.told = desk.heard;
        for node in (0..desk.site.nodes).map(NodeId).filter(|node| *node != desk.site.node) {
            desk.out.send(Address { node, role: desk.site.manager }, Relay::Told(desk.heard));
        }
    }
}
