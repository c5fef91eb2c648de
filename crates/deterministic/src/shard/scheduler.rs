//! The contract between a shard and an engine: a scheduler grants transactions, the shard executes what is granted.

use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::sync::Arc;

use ordain_model::{Gsn, Map};
use ordain_role::{Outbox, Role};
use ordain_store::{MemoryStore, RecordStore};

use super::core::{Core, Settings};
use super::messages::{Item, Message, Round};
use super::remote::Places;
use super::state::{Active, Known};

/// Makes the lock manager of the node whose shards have these places and settings.
pub type NewLockManager = fn(&Places, Settings) -> Box<dyn LockManager>;

/// An engine's way to schedule the transactions of a node: what makes the schedulers of its shards, and its lock manager if
/// the engine has one.
#[derive(Clone, Copy)]
pub struct Scheduling {
    /// The name of the engine, for messages.
    pub name: &'static str,
    /// Makes the scheduler of one shard.
    pub scheduler: fn() -> Box<dyn Scheduler<MemoryStore>>,
    /// Makes the node's lock manager, with an engine that has one role of a node grant to all its shards.
    pub lock_manager: Option<NewLockManager>,
}

impl Scheduling {
    /// Whether a node has a lock manager.
    pub const fn has_lock_manager(&self) -> bool {
        self.lock_manager.is_some()
    }

    /// Makes the lock manager of the node whose shards have these places and settings; none if the engine has none.
    pub fn lock_manager(&self, places: &Places, settings: Settings) -> Option<Box<dyn LockManager>> {
        self.lock_manager.map(|new| new(places, settings))
    }
}

impl PartialEq for Scheduling {
    /// Compares names: each engine has one of its own.
    fn eq(&self, other: &Scheduling) -> bool {
        self.name == other.name
    }
}

impl Eq for Scheduling {}

impl Debug for Scheduling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A role of a node that grants transactions to all shards of the node, where shards do not grant by themselves.
///
/// It takes every batch of the order from the first shard of the node, sends [grants] to shards, and hears from each when a
/// granted transaction is done there.
///
/// [grants]: crate::sequencing::Sequencing::Grant
pub trait LockManager: Role<Message = Message> + Debug {
    /// Leaves out these transactions, which an operator has aborted by their place in the order.
    fn set_aborted(&mut self, aborted: Arc<BTreeSet<Gsn>>);

    /// Puts another map in force: that of the end of the checkpoint with which the node begins.
    fn begin_under(&mut self, map: &Map);
}

/// The schedule of one shard: which transaction of the order may run next on the shard's records.
///
/// A shard has one scheduler and shows it its [`Core`]. The scheduler starts transactions with [`Core::begin`] and runs them
/// with [`Core::advance`]. A transaction that cannot end at once is *blocked*: it gets a number ([`Core::number_of`]), and the
/// shard resumes it when something has arrived for it or the scheduler has granted what it lacked
/// ([`Active::grants_missing`]).
pub trait Scheduler<S: RecordStore>: Debug + Send {
    /// Starts the next transactions of the order, as far as nothing forbids it; returns whether it did anything.
    fn run(&mut self, core: &mut Core<S>) -> bool;

    /// Prepares a blocked transaction that is about to run on: says up to which fragment it is granted.
    fn prepare(&mut self, _core: &Core<S>, _number: u32, _active: &mut Active) {}

    /// Gives up what a transaction needs no longer, as it is blocked again: others may be granted.
    fn pause(&mut self, _core: &mut Core<S>, _number: u32, _active: &mut Active) {}

    /// Gives up everything of a transaction that was blocked and is done on this shard: others may be granted.
    fn release(&mut self, core: &mut Core<S>, number: u32, active: &mut Active);

    /// Takes the lock manager's grant of a transaction.
    fn take_grant(&mut self, core: &mut Core<S>, gsn: Gsn) {
        let number = core.site.number;
        core.broken.get_or_insert(format!("shard {number} was granted {gsn}, and grants by itself"));
    }

    /// Takes an item from another shard for a transaction that has no number; returns whether the transaction is known.
    fn take_item(&mut self, core: &mut Core<S>, gsn: Gsn, item: &Item, bytes: &[u8]) -> bool;

    /// Takes another shard's findings on a speculative batch, named by a transaction's place.
    fn take_round(&mut self, _core: &Core<S>, _from: usize, _batch: Gsn, _round: Round) -> Known {
        Known::Other("a speculative batch, of which there are none here,")
    }

    /// Returns whether items of the second execution of a transaction are still to be consumed.
    fn expects_again(&self, _gsn: Gsn) -> bool {
        false
    }

    /// Begins after a checkpoint that ends with this place in the order.
    fn begin_after(&mut self, _last: Gsn) {}

    /// Sends what has gathered for the lock manager, at the end of each event.
    fn send(&mut self, _core: &Core<S>, _out: &mut Outbox<Message>) {}

    /// Returns the first transaction, of those without a number, that is not done or not answered.
    fn first_under_way(&self) -> Option<Gsn>;

    /// Checks what is held: in its order, and nothing while the shard is idle. The last transaction that was started
    /// is `started`; no transaction is unfinished if `is_idle`.
    ///
    /// # Errors
    /// What is broken.
    fn check(&self, started: Gsn, is_idle: bool) -> Result<(), String>;

    /// Reports metrics, by name.
    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64));
}
