//! A companion of a node: a part of its process that is no role, such as the thread that takes checkpoints to a store.
//!
//! It reads the node's disk and clock and sends nothing to roles. It goes with its node: a loss of power ends it in the
//! middle of whatever it did.

use ordain_model::Micros;
use ordain_role::{Directory, Now};

use crate::queue::Happening;
use crate::simulator::Simulator;
use crate::system::System;

/// A part of a node's process that reads the node's disk and sends nothing to its roles.
pub trait Companion {
    /// Goes on at a true time; `clock` is what the node takes for the time. Returns after which time, at least a
    /// microsecond, it is to go on again.
    fn go_on(&mut self, at: Micros, clock: Now, disk: &dyn Directory) -> Micros;
}

impl<S: System> Simulator<'_, S> {
    /// A node that has started has a companion, if its system gives it one.
    pub(crate) fn accompany(&mut self, node: usize) {
        let started = &mut self.nodes[node];
        started.companion = self.system.companion(ordain_role::NodeId(node as u16), started.incarnation);
        if started.companion.is_some() {
            let life = started.incarnation;
            self.after(0, Happening::Accompany { node, life });
        }
    }

    /// The companion of a node goes on.
    pub(crate) fn go_on(&mut self, node: usize) {
        let now = self.now;
        let of = &mut self.nodes[node];
        let Some(companion) = &mut of.companion else { return };
        let pause = companion.go_on(now, of.clock.read(now), &of.disk);
        let life = of.incarnation;
        self.after(pause.0.max(1), Happening::Accompany { node, life });
    }
}
