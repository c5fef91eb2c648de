//! The lock manager of a node: one thread that requests and releases the locks of all its transactions (the Calvin paper,
//! section 3.2; `docs/protocols/calvin-paper.md`, P1 to P6).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ordain_deterministic::sequencing::{Log, Sequencing};
use ordain_model::key::SLOTS;
use ordain_model::serial::key_of;
use ordain_model::{Access, Batch, Chunk, Fragment, Gsn, KeyHash, Layout, Map, Micros, Txn, system};
use ordain_role::{Address, Bug, Event, Now, Outbox, Role, TimerId};
use ordain_store::{MemoryStore, RecordId, RecordStore};

use ordain_deterministic::locks::LockTable;
use ordain_deterministic::shard::{LockManager, Message, Places, Settings, ShardSet, owner};

/// The most transactions that it takes up in one event: then its grants leave, and workers begin.
const BUDGET: usize = 64;
const GO_ON: TimerId = TimerId(1);

/// The lock manager.
#[derive(Debug)]
pub struct NodeLockManager {
    settings: Settings,
    /// Transactions that an operator has aborted by their place in the order.
    aborted: Arc<BTreeSet<Gsn>>,
    /// The shards of this node by number.
    shards: BTreeMap<usize, Address>,
    /// The owner of each hash slot, at the place in the order that this has come to.
    layout: Arc<Layout>,
    /// Batches that are not taken up to the end, and where in the first of them the next transaction stands.
    stream: VecDeque<Arc<Batch>>,
    cursor: (usize, usize),
    /// Transactions under way, by number; vacant places are in `vacant`.
    held: Vec<Held>,
    vacant: Vec<u32>,
    by_gsn: BTreeMap<Gsn, u32>,
    /// A whole-table transaction is under way: nothing is taken up before it is done.
    has_barrier: bool,
    locks: LockTable,
    /// The lock table: places for keys that are locked, and never a record.
    table: MemoryStore,
    counts: Counts,
}

/// A transaction that asks for its locks, or has them.
#[derive(Debug, Default)]
struct Held {
    gsn: Gsn,
    locks: Vec<(RecordId, KeyHash)>,
    /// How many of them it does not have.
    missing: usize,
    /// The shards of this node that execute a part of it.
    shards: ShardSet,
    /// How many of those are not done.
    working: u32,
}

#[derive(Debug, Default)]
struct Counts {
    /// Locks that were requested and released again.
    locks: u64,
    /// Transactions that did not get all of theirs at once.
    waited: u64,
    /// Grants that were sent.
    grants: u64,
}

impl NodeLockManager {
    /// The lock manager of the node whose shards have these places.
    pub fn new(places: &Places, settings: Settings) -> NodeLockManager {
        let is_here = |(_, shard): &(usize, &Address)| shard.node == places.sequencer.node;
        NodeLockManager {
            settings,
            aborted: Arc::default(),
            shards: places.shards.iter().enumerate().filter(is_here).map(|(i, shard)| (i, *shard)).collect(),
            layout: places.layout.clone(),
            stream: VecDeque::new(),
            cursor: (0, 0),
            held: Vec::new(),
            vacant: Vec::new(),
            by_gsn: BTreeMap::new(),
            has_barrier: false,
            locks: LockTable::default(),
            table: MemoryStore::placed(0..SLOTS, places.layout.placement().clone()),
            counts: Counts::default(),
        }
    }

    /// Takes up transactions in the order, as far as there is room for them.
    fn run(&mut self, out: &mut Outbox<Message>) {
        let mut left = BUDGET;
        while let Some(batch) = self.stream.front().cloned() {
            while let Some(placed) = batch.chunks.get(self.cursor.0) {
                while let Some(txn) = placed.chunk.txns().get(self.cursor.1) {
                    if !placed.is_skipped(txn.index) {
                        let is_full = self.by_gsn.len() >= self.settings.window;
                        if self.has_barrier || is_full || (txn.table && !self.by_gsn.is_empty()) {
                            return;
                        }
                        if left == 0 {
                            out.set_timer(GO_ON, Micros(0));
                            return;
                        }
                        left -= 1;
                        self.take_up(batch.gsn(placed.base, txn), &placed.chunk, txn, out);
                    }
                    self.cursor.1 += 1;
                }
                self.cursor = (self.cursor.0 + 1, 0);
            }
            self.cursor = (0, 0);
            self.stream.pop_front();
        }
    }

    /// Takes up the next transaction of the order: requests its locks.
    fn take_up(&mut self, gsn: Gsn, chunk: &Chunk, txn: &Txn, out: &mut Outbox<Message>) {
        if self.aborted.contains(&gsn) || chunk.map != *self.layout.map() && chunk.is_moved(txn, &self.layout)
        {
            return;
        }
        let args = chunk.args(txn);
        if txn.table
            && let Some(after) = system::rearranged(txn.call.procedure, args, &self.layout)
        {
            self.layout = Arc::new(after);
        }
        let mut shards: ShardSet = 0;
        let mut wanted: Vec<(RecordId, bool, KeyHash)> = Vec::new();
        self.table.prefetch(self.local(chunk, txn).filter(|f| f.is_keyed()).map(|f| f.hash));
        for fragment in chunk.fragments(txn) {
            match owner(fragment, &self.layout) {
                None => shards |= self.shards.keys().fold(0, |all, shard| all | 1 << shard),
                Some(shard) if self.shards.contains_key(&shard) => {
                    shards |= 1 << shard;
                    if fragment.is_keyed() {
                        let key = key_of(args, fragment).bytes;
                        let place = self.table.find_or_reserve(fragment.db, key, fragment.hash);
                        wanted.push((place, fragment.access == Access::Write, fragment.hash));
                    }
                }
                Some(_) => {}
            }
        }
        if shards == 0 {
            return;
        }
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.held.push(Held::default());
            self.held.len() as u32 - 1
        });
        let held = &mut self.held[number as usize];
        (held.gsn, held.shards, held.working, held.missing) = (gsn, shards, shards.count_ones(), 0);
        // One request a key, exclusive if any of its fragments writes.
        wanted.sort_unstable();
        for (i, &(place, exclusive, hash)) in wanted.iter().enumerate() {
            if wanted.get(i + 1).is_some_and(|next| next.0 == place) {
                continue;
            }
            let early = self.settings.bugs.has(Bug::GrantLockEarly) && gsn.0 % 31 == 7;
            held.locks.push((place, hash));
            if !self.locks.request(&mut self.table, (place, hash), number, exclusive, early) {
                held.missing += 1;
            }
        }
        self.counts.locks += held.locks.len() as u64;
        self.by_gsn.insert(gsn, number);
        self.has_barrier = txn.table;
        if held.missing == 0 {
            self.hand_over(number, out);
        } else {
            self.counts.waited += 1;
        }
    }

    /// The fragments of a transaction that one shard of this node executes.
    fn local<'a>(&'a self, chunk: &'a Chunk, txn: &Txn) -> impl Iterator<Item = &'a Fragment> + Clone {
        let is_here = |fragment: &&Fragment| {
            owner(fragment, &self.layout).is_some_and(|shard| self.shards.contains_key(&shard))
        };
        chunk.fragments(txn).iter().filter(is_here)
    }

    /// Grants a transaction that has all its locks to its shards.
    fn hand_over(&mut self, number: u32, out: &mut Outbox<Message>) {
        let Held { gsn, mut shards, .. } = self.held[number as usize];
        while shards != 0 {
            if let Some(shard) = self.shards.get(&(shards.trailing_zeros() as usize)) {
                out.send(*shard, Sequencing::Grant(gsn));
                self.counts.grants += 1;
            }
            shards &= shards - 1;
        }
    }

    /// Notes that a shard has executed its part of a transaction; with the last part its locks are released.
    fn take_done(&mut self, gsn: Gsn, out: &mut Outbox<Message>) {
        let Some(&number) = self.by_gsn.get(&gsn) else {
            out.halt(format!(
                "transaction {gsn} was reported done to the lock manager, and is not under way"
            ));
            return;
        };
        let held = &mut self.held[number as usize];
        held.working = held.working.saturating_sub(1);
        if held.working > 0 {
            return;
        }
        let mut places = std::mem::take(&mut held.locks);
        // Planted, IDLE-CLEAN.
        if self.settings.bugs.has(Bug::LeaveLock) && gsn.0 % 31 == 7 {
            places.pop();
        }
        let mut granted: Vec<u32> = Vec::new();
        for place in places.drain(..) {
            let NodeLockManager { locks, table, held, .. } = self;
            locks.release(table, place, number, |other| {
                let other_held = &mut held[other as usize];
                other_held.missing -= 1;
                if other_held.missing == 0 {
                    granted.push(other);
                }
            });
        }
        // Its memory is for the next one of that number.
        self.held[number as usize].locks = places;
        self.by_gsn.remove(&gsn);
        self.vacant.push(number);
        self.has_barrier = false;
        granted.into_iter().for_each(|other| self.hand_over(other, out));
    }
}

impl LockManager for NodeLockManager {
    fn set_aborted(&mut self, aborted: Arc<BTreeSet<Gsn>>) {
        self.aborted = aborted;
    }

    fn begin_under(&mut self, map: &Map) {
        self.layout = Arc::new(self.layout.under(map));
    }
}

impl Role for NodeLockManager {
    type Message = Message;

    fn handle(&mut self, _: Now, event: Event<Message>, out: &mut Outbox<Message>) {
        match event {
            Event::Message { message: Message::Log(Log::Sealed(batch)), .. } => {
                self.stream.push_back(batch);
            }
            Event::Message { message: Message::Sequencing(Sequencing::Done(gsn)), .. } => {
                self.take_done(gsn, out)
            }
            Event::Message { .. } | Event::Disk(_) | Event::Work(_) => {
                out.halt("the lock manager was sent a message that is not for it".to_owned());
            }
            Event::Start | Event::Stop | Event::Timer(_) => {}
        }
        self.run(out);
    }

    fn name(&self) -> &'static str {
        "lock-manager"
    }

    fn check(&self) -> Result<(), String> {
        self.locks.check().map_err(|reason| format!("the lock manager: {reason}"))?;
        match self.locks.locked_records() {
            locked if self.by_gsn.is_empty() && locked > 0 => {
                Err(format!("the lock manager: idle with {locked} keys locked"))
            }
            _ => Ok(()),
        }
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report("ordain_lock_manager_in_flight", self.by_gsn.len() as f64);
        report("ordain_lock_manager_locked_keys", self.locks.locked_records() as f64);
        report("ordain_lock_manager_locks_total", self.counts.locks as f64);
        report("ordain_lock_manager_waited_for_lock_total", self.counts.waited as f64);
        report("ordain_lock_manager_grants_total", self.counts.grants as f64);
    }
}
