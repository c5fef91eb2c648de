//! The stamps of attempts of which nodes tell each other though nothing else is to be said.
//!
//! Homes hear of each other's stamps with the messages that they exchange. Two that have nothing to do with each other may drift apart, by as much
//! as their clocks. A transaction that only reads could then see a state of before what others were answered, for ever if a clock stands
//! still. So a node tells all others of the latest stamp that it has given or answered, a moment after it has.

use ordain_model::{Micros, StampSource};
use ordain_role::{Address, NodeId};

use crate::desk::Desk;
use crate::ids::Age;
use crate::message::Relay;
use crate::stamps::{LATEST, Stamps};

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
    /// Another node tells all of a stamp: they need not be told again. As clocks do not, it heeds none that is too late to be given.
    pub fn hear(&mut self, stamp: Age) {
        if stamp <= LATEST {
            self.told = self.told.max(stamp);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Bench;
    use crate::message::Message;

    /// A node that has heard of a stamp, and the others.
    struct Node {
        at: Bench,
        hearsay: Hearsay,
    }

    impl Node {
        fn new(source: StampSource) -> Node {
            let mut at = Bench::new(1);
            (at.site.stamps, at.site.source) = (Stamps::OfAttempt, source);
            Node { at, hearsay: Hearsay::default() }
        }

        /// Has a turn at a time in which it heard of a stamp; answers when it will tell others.
        fn turn(&mut self, millis: u64, heard: u64) -> Option<u64> {
            let Node { at, hearsay } = self;
            (at.elapsed, at.heard) = (Micros::from_millis(millis), Age(heard).max(at.heard));
            at.tell(|desk| hearsay.note(desk));
            hearsay.due().map(|due| due.0 / 1_000)
        }

        /// Passes the time; answers who is told of what.
        fn pass(&mut self, millis: u64) -> Vec<(u16, u64)> {
            let Node { at, hearsay } = self;
            at.elapsed = Micros::from_millis(millis);
            let told = at.tell(|desk| hearsay.pass(desk)).into_iter().map(|(to, message)| match message {
                Message::Relay(Relay::Told(stamp)) => (to.node.0, stamp.0),
                other => panic!("{other:?}"),
            });
            told.collect()
        }
    }

    #[test]
    fn others_are_told_of_the_latest_stamp_a_moment_after_the_first() {
        let mut node = Node::new(StampSource::Hybrid);
        assert_eq!(node.turn(0, 0), None);
        assert_eq!((node.turn(1, 7), node.turn(9, 8)), (Some(21), Some(21)), "later ones do not put it off");
        assert_eq!(node.pass(20), []);
        assert_eq!(node.pass(21), [(0, 8), (2, 8), (3, 8)]);
        assert_eq!((node.turn(22, 8), node.pass(99)), (None, vec![]), "nothing is told twice");
        assert_eq!(node.turn(100, 9), Some(120));
    }

    #[test]
    fn what_another_node_tells_all_is_not_told_again() {
        let mut node = Node::new(StampSource::Hybrid);
        assert_eq!(node.turn(0, 7), Some(20));
        node.hearsay.hear(Age(8));
        assert_eq!((node.turn(1, 8), node.pass(20)), (Some(20), vec![]));
        node.hearsay.hear(Age(u64::MAX));
        assert_eq!((node.turn(21, 9), node.pass(41)), (Some(41), vec![(0, 9), (2, 9), (3, 9)]));
    }

    #[test]
    fn other_sources_of_stamps_and_a_node_alone_have_nothing_to_tell() {
        assert_eq!(Node::new(StampSource::Clock).turn(0, 7), None);
        assert_eq!(Node::new(StampSource::Counter).turn(0, 7), None);
        let mut node = Node::new(StampSource::Hybrid);
        node.at.site.nodes = 1;
        assert_eq!(node.turn(0, 7), None);
        node.at.site.nodes = 4;
        node.at.site.stamps = Stamps::OfTransaction;
        assert_eq!(node.turn(0, 7), None);
    }
}
