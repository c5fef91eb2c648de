//! How the transactions of an order get their turns on the records of a shard: all in which the engines that share it
//! differ.

use std::fmt::Debug;

use ordain_model::Gsn;
use ordain_store::RecordStore;

use super::core::Core;
use super::messages::{Item, Round};
use super::state::{Active, Known};
use crate::calvin::Locking;
use crate::calvin_paper::Handed;
use crate::qstore::Queues;

/// How transactions get their turns on the records of a shard, in the order that is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By locks, granted first come, first served ([`calvin`](crate::calvin)).
    #[default]
    Locks,
    /// As the lock manager of the node hands them over ([`calvin_paper`](crate::calvin_paper)).
    Handed,
    /// In queues of fragments, one a range of records ([`qstore`](crate::qstore)).
    Queues,
}

impl Order {
    /// Every one.
    pub const ALL: [Order; 3] = [Order::Locks, Order::Handed, Order::Queues];

    /// Whether a node has a lock manager for it.
    pub const fn is_handed(self) -> bool {
        matches!(self, Order::Handed)
    }

    pub(crate) fn turns<S: RecordStore>(self) -> Box<dyn Turns<S>> {
        match self {
            Order::Locks => Box::<Locking>::default(),
            Order::Handed => Box::<Handed>::default(),
            Order::Queues => Box::<Queues>::default(),
        }
    }
}

/// What gives transactions their turns. One whose turn has come is executed by the [`Core`].
pub(crate) trait Turns<S: RecordStore>: Debug + Send {
    /// Takes up the next transactions of the order, as far as nothing forbids it; says whether it did anything.
    fn run(&mut self, core: &mut Core<S>) -> bool;

    /// A transaction that had to wait goes on, as far as it has turns.
    fn prepare(&mut self, _core: &Core<S>, _number: u32, _active: &mut Active) {}

    /// It has to wait again: whoever waits for records that it needs no more may have a turn.
    fn pause(&mut self, _core: &mut Core<S>, _number: u32, _active: &mut Active) {}

    /// Everything of a transaction that has had to wait is done here: whoever waits for its records may have a turn.
    fn release(&mut self, core: &mut Core<S>, number: u32, active: &mut Active);

    /// The lock manager gives a transaction its turn.
    fn take_turn(&mut self, core: &mut Core<S>, gsn: Gsn) {
        let number = core.number;
        core.broken
            .get_or_insert(format!("shard {number} was given the turn of {gsn}, and gives its turns itself"));
    }

    /// Takes what another shard says of a transaction that is not known by number; says no if it is not known at all.
    fn take_item(&mut self, core: &mut Core<S>, gsn: Gsn, item: &Item, bytes: &[u8]) -> bool;

    /// Takes what another shard says of a unit, of transactions that are executed before it is known which of them abort.
    fn hear(&mut self, _core: &Core<S>, _from: usize, _unit: Gsn, _round: Round) -> Known {
        Known::Other("a unit, of which there are none here,")
    }

    /// The first transaction, of those that are not known by number, of which something is still to be done or answered.
    fn first_under_way(&self) -> Option<Gsn>;

    /// What nobody may hold while no transaction is unfinished.
    ///
    /// # Errors
    /// Somebody holds it, and what it is.
    fn check(&self) -> Result<(), String>;

    /// Reports what it measures.
    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64));
}
