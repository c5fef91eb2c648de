//! The roles of a node that has no usable beginning: they take part in nothing, as if the node were down, until its
//! checkpointer has got a checkpoint of another member and the node begins again with that.

use std::fmt;
use std::marker::PhantomData;

use ordain_model::Epoch;
use ordain_role::{Event, Now, Outbox, Role};

/// A role that does nothing, in place of one that must not work on a state that is not the right one.
///
/// Messages to it are lost, as if the node were down; their senders send them again to the node that begins anew.
pub struct Waiting<M> {
    name: &'static str,
    needed: Epoch,
    marker: PhantomData<fn() -> M>,
}

impl<M> Waiting<M> {
    /// A substitute for a role of this name, until there is a checkpoint of this epoch or a later one.
    pub fn new(name: &'static str, needed: Epoch) -> Waiting<M> {
        Waiting { name, needed, marker: PhantomData }
    }
}

impl<M> fmt::Debug for Waiting<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} that waits for a checkpoint of epoch {}", self.name, self.needed)
    }
}

impl<M> Role for Waiting<M> {
    type Message = M;

    fn handle(&mut self, _: Now, _: Event<M>, _: &mut Outbox<M>) {}

    fn name(&self) -> &'static str {
        self.name
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report("ordain_log_behind_epoch", self.needed.0 as f64);
    }
}
