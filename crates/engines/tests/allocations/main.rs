//! How often a shard asks the allocator for memory: once its buffers have grown, never for an operation, and for
//! transactions that can be taken apart not for a transaction either (qstore.md, section 9).
//!
//! The allocator of this test counts what is asked for while a shard handles an event. What is left is of a batch: the
//! answers, which leave, and grow by doubling as they are put together.

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_commit::{Age, AttemptId, CommitEngine, Ended, Ending, Mode, Target, TransactionId, Verdict};
use ordain_deterministic::sequencing::Log;
use ordain_deterministic::shard::{Message, Places, Scheduling, Settings, Shard};
use ordain_engines::{no_wait, qstore, wait_die};
use ordain_model::Options;
use ordain_model::{
    Batch, Call, Chunk, ChunkNo, Db, Epoch, GatewayId, Isolation, KeyHash, Layout, Micros, Millis,
    PartitionId, Placed, Registry, system,
};
use ordain_role::{Address, Bugs, Event, NodeId, Now, Outbox, Role};
use ordain_store::{MemoryStore, RecordId, RecordStore as _};
use ordain_workload::tpcc::{self, Mix, Scale, Tpcc};
use ordain_workload::ycsb::{self, Ycsb};
use ordain_workload::{Source, Workload};

/// The system's allocator, and how often this thread has asked it for memory.
struct Counting;

thread_local! {
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: each call is passed on as it is; counting touches nothing but a number.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, memory: Memory) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: the caller's promise is that of the method that is called.
        unsafe { System.alloc(memory) }
    }

    unsafe fn dealloc(&self, at: *mut u8, memory: Memory) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, memory) }
    }

    unsafe fn realloc(&self, at: *mut u8, memory: Memory, size: usize) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: as above.
        unsafe { System.realloc(at, memory, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The shards of a node, and clients that ask for a workload's transactions.
struct Node {
    registry: Arc<Registry>,
    shards: Vec<Shard<MemoryStore>>,
    source: Box<dyn Source>,
    chunk: Chunk,
    epoch: u64,
}

fn at(role: usize) -> Address {
    Address { node: NodeId(0), role: role as u16 }
}

const FIRST: usize = 16;
const GATEWAY: usize = 128;
/// How many batches are executed before it is counted, and then.
const BATCHES: usize = 16;

impl Node {
    /// One with everything loaded.
    fn new(scheduling: Scheduling, shards: usize, workload: &dyn Workload) -> Node {
        let mut registry = Registry::default();
        system::register(&mut registry);
        ordain_workload::register(&mut registry);
        let registry = Arc::new(registry);
        let layout = Arc::new(Layout::single(shards));
        let places = Places {
            layout: layout.clone(),
            replica: 0,
            replicas: 1,
            shards: (0..shards).map(|number| at(FIRST + number)).collect(),
            sequencer: at(0),
            lock_manager: None,
            exchange: None,
            gateways: BTreeMap::from([(GatewayId::of(0, 0), at(GATEWAY))]),
            first_gateway: GATEWAY as u16,
        };
        let settings = Settings { isolation: Isolation::default(), ..Settings::new(scheduling) };
        let shard = |number: usize| {
            let store = MemoryStore::new(layout.slots_of_shard(number));
            Shard::new(number, places.clone(), settings, registry.clone(), store)
        };
        let shards = (0..shards).map(shard).collect();
        let chunk = Chunk::new(GatewayId::of(0, 0), ChunkNo(0));
        let mut node = Node { registry, shards, source: workload.source(1, 0, 1), chunk, epoch: 0 };
        while let Some(procedure) = node.source.load() {
            node.push(procedure);
            node.execute();
        }
        node
    }

    fn push(&mut self, procedure: ordain_model::ProcedureId) {
        let Node { registry, source, chunk, .. } = self;
        chunk.push(registry, Call::new(procedure, Db(0)), |args| source.write_args(args)).expect("a plan");
    }

    /// Executes what has been asked for; answers how often that asked for memory.
    fn execute(&mut self) -> usize {
        let next = Chunk::after(&self.chunk);
        let chunk = std::mem::replace(&mut self.chunk, next);
        self.epoch += 1;
        let total = chunk.txns().len() as u32;
        let batch = Arc::new(Batch {
            epoch: Epoch(self.epoch),
            partition: PartitionId(0),
            layout: 0,
            now: Millis(1),
            choice: None,
            total,
            chunks: vec![Placed::whole(0, Arc::new(chunk))],
            lookups: Vec::new(),
        });
        let mut events: Vec<(usize, Event<Message>)> = Vec::new();
        for number in 0..self.shards.len() {
            let message = Log::Sealed(batch.clone()).into();
            events.push((number, Event::Message { from: at(0), message }));
        }
        let mut asked = 0;
        let mut out = Outbox::default();
        while !events.is_empty() {
            for (number, event) in std::mem::take(&mut events) {
                let before = ASKED.get();
                self.shards[number].handle(Now { elapsed: Micros(1), wall: Micros(1) }, event, &mut out);
                asked += ASKED.get() - before;
                assert_eq!(out.halt, None);
                for (to, message) in out.sends.drain(..) {
                    if let Some(to) =
                        usize::from(to.role).checked_sub(FIRST).filter(|to| *to < self.shards.len())
                    {
                        events.push((to, Event::Message { from: at(FIRST + number), message }));
                    }
                }
                for (timer, after) in out.timers.drain(..) {
                    if after == Some(Micros(0)) {
                        events.push((number, Event::Timer(timer)));
                    }
                }
            }
        }
        asked
    }

    /// Executes batches of so many transactions; answers how often one asked for memory on average, in the long run.
    fn asked(&mut self, txns: usize) -> f64 {
        let mut asked = 0;
        for batch in 0..2 * BATCHES {
            for _ in 0..txns {
                let made = self.source.next();
                self.push(made.procedure);
            }
            let now = self.execute();
            asked += if batch < BATCHES { 0 } else { now };
        }
        asked as f64 / BATCHES as f64
    }
}

fn ycsb(shards: usize, ops: usize, multi: f64) -> Ycsb {
    Ycsb::new(ycsb::Parameters {
        records: 4096,
        ops_per_txn: ops,
        writes_per_txn: ops / 2,
        partitions: shards,
        multi_partition: multi,
        partitions_per_txn: shards,
        ..ycsb::Parameters::default()
    })
    .expect("there are as many records as it takes")
}

#[test]
fn what_can_be_taken_apart_costs_no_memory_an_operation_nor_a_transaction() {
    for (shards, multi) in [(1, 0.0), (2, 0.0), (2, 1.0)] {
        for ops in [4, 64] {
            let asked = Node::new(qstore::SCHEDULING, shards, &ycsb(shards, ops, multi)).asked(1600);
            assert!(asked < 64.0, "{shards} shards, {ops} operations, {multi}: {asked} times a batch");
        }
    }
}

#[test]
fn groups_cost_memory_for_the_rows_that_they_add() {
    let parameters = tpcc::Parameters {
        warehouses: 2,
        scale: Scale { items: 1000, ..Scale::default() },
        partitions: 2,
        mix: Mix::NEW_ORDER,
        ..tpcc::Parameters::default()
    };
    let asked = Node::new(qstore::SCHEDULING, 2, &Tpcc::new(parameters).expect("a scale")).asked(400) / 400.0;
    // An order, its entry among the new ones and ten lines on average; a hundredth adds none. The rest is of those that
    // wait, and of tables that grow.
    assert!((11.5..13.5).contains(&asked), "{asked} times a NewOrder");
}

/// Allocations of a concurrency control while 1,000 attempts lock ten of 40 records each, four at a time, of which
/// younger ones are refused and older ones wait. As many attempts come before it is counted.
fn asked_for_locks(engine: &CommitEngine) -> usize {
    let mut store = MemoryStore::new(0..ordain_model::key::SLOTS);
    let key = |n: u8| KeyHash::of_record(Db(0), &[n]);
    let records: Vec<RecordId> = (0..40).map(|n| store.find_or_reserve(Db(0), &[n], key(n))).collect();
    let mut control = (engine.control)(&Options::default(), Bugs::NONE);
    let mut ended = Ended::default();
    let (mut before, mut refused) = (0, 0);
    for round in 0..500_u64 {
        if round == 250 {
            before = ASKED.get();
        }
        let of = |n: u64| AttemptId { transaction: TransactionId::of(4 * round + n), attempt: 1 };
        for n in (0..4).rev() {
            for at in 0..10 {
                let target = Target::Record(records[(n * 8 + at * 3) as usize % records.len()]);
                let mode = if (round + at) % 3 == 0 { Mode::Exclusive } else { Mode::Shared };
                if control.access(&mut store, of(n), Age(4 * round + n), target, mode) != Verdict::Granted {
                    refused += 1;
                    break;
                }
            }
        }
        (0..4).for_each(|n| control.finish(&mut store, of(n), Ending::Aborted, &mut ended));
        ended.released.clear();
        ended.granted.clear();
        ended.refused.clear();
    }
    assert!(refused > 500, "{}: only {refused} of 2,000 conflicted", engine.name);
    ASKED.get() - before
}

#[test]
fn locks_of_the_commit_family_ask_for_no_memory() {
    for engine in [&no_wait::ENGINE, &wait_die::ENGINE] {
        assert_eq!(asked_for_locks(engine), 0, "{}", engine.name);
    }
}
