//! The roles of a node that has no usable beginning: they take part in nothing, as if the node were down, until its
//! checkpointer has got a checkpoint of another member and the node begins again with that.

use crate::shard::Message;
use ordain_model::Epoch;
use ordain_role::{Event, Now, Outbox, Role};

/// A role that does nothing, in place of one that must not work on a state that is not the right one.
///
/// Messages to it are lost, as if the node were down; their senders send them again to the node that begins anew.
#[derive(Debug)]
pub(super) struct Waiting {
    name: &'static str,
    needed: Epoch,
}

impl Waiting {
    /// A substitute for a role of this name, until there is a checkpoint of this epoch or a later one.
    pub fn new(name: &'static str, needed: Epoch) -> Waiting {
        Waiting { name, needed }
    }
}

impl Role for Waiting {
    type Message = Message;

    fn handle(&mut self, _: Now, _: Event<Message>, _: &mut Outbox<Message>) {}

    fn name(&self) -> &'static str {
        self.name
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report("ordain_log_behind_epoch", self.needed.0 as f64);
    }
}
