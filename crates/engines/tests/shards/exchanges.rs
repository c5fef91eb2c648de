//! What exchanges make of the batches of several sequencers before shards see them.

use std::sync::Arc;

use ordain_deterministic::sequencing::{
    Beginning, Exchange, ExchangeMessage, ExchangeSettings, Log, Sequencing,
};
use ordain_deterministic::shard::{Message, ShardMessage};
use ordain_model::args::encode;
use ordain_model::{
    Args, ArgsBuilder, Batch, Call, Chunk, ChunkNo, Epoch, GatewayId, Layout, Layouts, Millis, PartitionId,
    Placed, Registry,
};
use ordain_role::{Address, Bugs, Event, NodeId, Now, Outbox, Role, Topology};
use ordain_sim::workload::procedures as p;

use crate::support::{SEQUENCER, SHARD, registry};

const PARTITIONS: usize = 3;
const EXCHANGE: u16 = 2;

/// The exchange of node 0 of three partitions.
struct Desk {
    exchange: Exchange<ShardMessage>,
    registry: Arc<Registry>,
    layout: Arc<Layout>,
    /// What the shard was given: epochs and partitions.
    given: Vec<(u64, u16)>,
    /// The epochs that the sequencer was told of.
    reached: Vec<u64>,
    halted: Option<String>,
}

impl Desk {
    fn new() -> Desk {
        let at = |role| Address { node: NodeId(0), role };
        let (registry, layout) = (registry(), Arc::new(Layout::even(PARTITIONS, 1).unwrap()));
        let settings = ExchangeSettings {
            checkpointer: None,
            topology: Topology::replicated(layout.clone(), 1),
            me: at(EXCHANGE),
            sequencer: at(SEQUENCER),
            shards: vec![at(SHARD)],
            kept_max: 1 << 20,
            keep_bytes: u64::MAX,
            piece: 1 << 20,
            arrival: None,
            bugs: Bugs::NONE,
        };
        let mut exchange = Exchange::new(settings, registry.clone());
        exchange.begin(None, Epoch(0), Beginning::Begun);
        Desk { exchange, registry, layout, given: Vec::new(), reached: Vec::new(), halted: None }
    }

    fn handle(&mut self, from: u16, message: impl Into<Message>) {
        let mut out = Outbox::default();
        let from = Address { node: NodeId(from), role: EXCHANGE };
        self.exchange.handle(Now::default(), Event::Message { from, message: message.into() }, &mut out);
        for (to, message) in out.sends {
            match message {
                Message::Log(Log::Sealed(batch)) => {
                    assert_eq!(to.role, SHARD);
                    self.given.push((batch.epoch.0, batch.partition.0));
                }
                Message::Sequencing(Sequencing::Reached(epoch)) => self.reached.push(epoch.0),
                _ => {}
            }
        }
        self.halted = self.halted.take().or(out.halt);
    }

    /// A batch with one write that is of partition 0.
    fn batch(&self, partition: u16, epoch: u64, layout: u32) -> Batch {
        let is_here = |key: &String| self.layout.region_of(key.as_bytes()) == PartitionId(0);
        let key = (0..).map(|i| format!("key {i}")).find(is_here).expect("every partition has slots");
        let gateway = GatewayId::of(partition, 0);
        let mut chunk = Chunk::new(gateway, ChunkNo(epoch)).in_cluster(0, self.layout.clone());
        let args = encode(&[key.as_bytes(), b"x"]);
        let args = Args::parse(&args).expect("an encoding");
        let push = |out: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg.bytes));
        chunk.push(&self.registry, Call::new(p::APPEND, p::LISTS), push).expect("it can be planned");
        let (total, chunks) = (chunk.span(), vec![Placed::whole(0, Arc::new(chunk))]);
        let (epoch, partition, now) = (Epoch(epoch), PartitionId(partition), Millis(1));
        Batch { epoch, partition, layout, now, total, chunks, ..Batch::default() }
    }

    /// Another sequencer has sealed a batch, after one of an epoch before.
    fn slot(&mut self, sequencer: u16, after: u64, epoch: u64) {
        let batch = self.batch(sequencer, epoch, self.layout.version());
        self.send(&batch, after);
    }

    fn send(&mut self, batch: &Batch, after: u64) {
        let content =
            batch.encode_slice(PartitionId(0), &mut Layouts::new(self.layout.clone())).map(Arc::new);
        assert!(content.is_some(), "partition 0 takes part");
        let (sequencer, through) = (batch.partition, batch.epoch);
        self.handle(
            sequencer.0,
            Message::Exchange(ExchangeMessage::Slot {
                sequencer,
                after: Epoch(after),
                through,
                logged: 0,
                content,
            }),
        );
    }

    /// Another sequencer has nothing up to an epoch, since one of which it had something.
    fn nothing(&mut self, sequencer: u16, after: u64, through: u64) {
        let (after, through) = (Epoch(after), Epoch(through));
        let slot = ExchangeMessage::Slot {
            sequencer: PartitionId(sequencer),
            after,
            through,
            logged: 0,
            content: None,
        };
        self.handle(sequencer, Message::Exchange(slot));
    }

    /// This partition's own log has sealed an epoch.
    fn seal(&mut self, epoch: u64, full: bool) {
        let mut batch = self.batch(0, epoch, self.layout.version());
        if !full {
            batch.chunks.clear();
            batch.total = 0;
        }
        self.handle(0, Log::Sealed(Arc::new(batch)));
    }

    fn given(&mut self) -> Vec<(u64, u16)> {
        assert_eq!(self.halted, None);
        std::mem::take(&mut self.given)
    }
}

/// A thousand empty epochs, then one transaction on the last sequencer.
#[test]
fn scenario_07_many_empty_epochs_then_one_transaction_of_the_last_sequencer() {
    let mut desk = Desk::new();
    for epoch in 1..=1000 {
        desk.nothing(1, 0, epoch);
        desk.nothing(2, 0, epoch);
        desk.seal(epoch, false);
    }
    assert_eq!(desk.given(), [], "an empty epoch costs shards nothing");
    desk.slot(2, 0, 1001);
    assert_eq!(desk.given(), [], "two sequencers may still have something before it");
    assert_eq!(desk.reached.last(), Some(&1001), "they are asked for it");
    desk.seal(1001, false);
    assert_eq!(desk.given(), []);
    // Thousands of epochs in one message.
    desk.nothing(1, 0, 9000);
    assert_eq!(desk.given(), [(1001, 2)]);
}

/// A sequencer stands still for thirty epochs and goes on: its seals come in a burst, and the order is what it would
/// have been.
#[test]
fn scenario_08_a_sequencer_stands_still_and_goes_on() {
    let mut desk = Desk::new();
    for epoch in 1..=30 {
        desk.seal(epoch, true);
        desk.slot(2, epoch - 1, epoch);
    }
    assert_eq!(desk.given(), [(1, 0)], "nobody passes it over");
    for epoch in (3..=30).step_by(3) {
        desk.slot(1, epoch - 3, epoch);
        // What comes over a gap does not count.
        desk.slot(1, epoch + 3, epoch + 6);
    }
    let expected = (1..=30u64).flat_map(|epoch| {
        let has = move |partition: &u16| *partition != 1 || epoch % 3 == 0;
        (0..3).filter(has).map(move |partition| (epoch, partition))
    });
    let expected: Vec<(u64, u16)> = expected.skip(1).collect();
    assert_eq!(desk.given(), expected);
}

/// Slots move while a cluster runs, but the division by its file is fixed: a batch of another one is from a node that was
/// set up otherwise, and is not executed.
#[test]
fn a_batch_of_another_layout_is_refused() {
    let mut desk = Desk::new();
    desk.slot(1, 0, 1);
    desk.nothing(2, 0, 1);
    let batch = desk.batch(1, 2, desk.layout.version() + 1);
    desk.send(&batch, 1);
    desk.nothing(2, 0, 2);
    assert!(desk.halted.take().is_some_and(|reason| reason.contains("is not what it says")));
    desk.seal(2, false);
    assert_eq!(desk.given(), [(1, 1)], "transactions of the layout before are executed");
}
