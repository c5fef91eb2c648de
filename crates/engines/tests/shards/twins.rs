//! The same shard on the nodes of three replicas: each is handed the same batches, and they compare their digests.

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_engines::shard::{self, Message, Places, Shard, ShardMessage};
use ordain_model::args::encode;
use ordain_model::{
    Args, Batch, Call, Chunk, ChunkNo, Epoch, GatewayId, Layout, Micros, Millis, Placed, Registry,
};
use ordain_role::{Address, Bug, Bugs, Event, NodeId, Now, Outbox, Role, TimerId, Wire};
use ordain_sequencer::Sequencing;
use ordain_sim::Random;
use ordain_sim::workload::procedures as p;
use ordain_store::MemoryStore;

use crate::support::{GATEWAY, SEQUENCER, SHARD, gauge, registry};

const REPLICAS: usize = 3;

struct Twins {
    registry: Arc<Registry>,
    random: Random,
    shards: Vec<Shard<MemoryStore>>,
    /// By shard: batches that it has not been handed.
    batches: Vec<VecDeque<Arc<Batch>>>,
    /// From one to another.
    letters: Vec<Vec<VecDeque<ShardMessage>>>,
    /// The timer at which each looks around.
    timers: Vec<Option<TimerId>>,
    halted: Vec<Option<String>>,
}

impl Twins {
    fn new(bugs: Bugs, seed: u64) -> Twins {
        let (registry, layout) = (registry(), Arc::new(Layout::single(1)));
        let at = |replica: usize, role| Address { node: NodeId(replica as u16), role };
        let shards = (0..REPLICAS).map(|replica| {
            let places = Places {
                layout: layout.clone(),
                replica: replica as u16,
                replicas: 2,
                shards: vec![at(replica, SHARD)],
                sequencer: at(replica, SEQUENCER),
                scheduler: None,
                post: None,
                gateways: [(GatewayId::of(replica as u16, 0), at(replica, GATEWAY))].into(),
                doors: GATEWAY,
            };
            let settings = shard::Settings { bugs, ..shard::Settings::default() };
            let twins = (0..REPLICAS).filter(|twin| *twin != replica).map(|twin| at(twin, SHARD));
            let store = MemoryStore::new(layout.slots_of_shard(0));
            Shard::new(0, places, settings, registry.clone(), store).with_twins(twins.collect())
        });
        let mut twins = Twins {
            random: Random::new(seed),
            shards: shards.collect(),
            batches: vec![VecDeque::new(); REPLICAS],
            letters: vec![vec![VecDeque::new(); REPLICAS]; REPLICAS],
            timers: vec![None; REPLICAS],
            halted: vec![None; REPLICAS],
            registry,
        };
        (0..REPLICAS).for_each(|twin| twins.handle(twin, Event::Start));
        twins
    }

    fn handle(&mut self, twin: usize, event: Event<Message>) {
        if self.halted[twin].is_some() {
            return;
        }
        let mut out = Outbox::default();
        self.shards[twin].handle(Now::default(), event, &mut out);
        for (to, message) in out.sends {
            if let Message::Engine(letter) = message {
                let mut bytes = Vec::new();
                letter.encode(&mut bytes);
                let letter = ShardMessage::decode(&self.registry, &bytes).expect("a letter");
                self.letters[twin][usize::from(to.node.0)].push_back(letter);
            }
        }
        for (timer, delay) in out.timers {
            assert!(delay.is_some_and(|delay| delay > Micros(0)), "one shard has nobody to let on");
            self.timers[twin] = Some(timer);
        }
        self.halted[twin] = out.halt;
    }

    /// Seals a batch of appends to a few lists.
    fn seal(&mut self, epoch: u64) {
        let mut chunk = Chunk::new(GatewayId::of(0, 0), ChunkNo(epoch));
        for i in 0..8 {
            let args = encode(&[format!("list {}", self.random.below(5)).as_bytes(), &[b'0' + i]]);
            let args = Args::parse(&args).expect("an encoding");
            let call = Call::new(p::APPEND, p::LISTS);
            let push =
                |out: &mut ordain_model::ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg.bytes));
            chunk.push(&self.registry, call, push).expect("it can be planned");
        }
        let batch = Arc::new(Batch {
            epoch: Epoch(epoch),
            layout: 1,
            now: Millis(epoch),
            total: chunk.span(),
            chunks: vec![Placed::whole(0, Arc::new(chunk))],
            ..Batch::default()
        });
        self.batches.iter_mut().for_each(|batches| batches.push_back(batch.clone()));
    }

    /// Something happens to one of them.
    fn step(&mut self) {
        let twin = self.random.index(REPLICAS);
        let from = |address: usize| Address { node: NodeId(address as u16), role: SHARD };
        match self.random.below(4) {
            0 | 1 => {
                if let Some(batch) = self.batches[twin].pop_front() {
                    let message = Sequencing::Sealed(batch).into();
                    self.handle(twin, Event::Message { from: Address::default(), message });
                }
            }
            2 => {
                if let Some(timer) = self.timers[twin].take() {
                    self.handle(twin, Event::Timer(timer));
                }
            }
            _ => {
                let sender = self.random.index(REPLICAS);
                if let Some(letter) = self.letters[sender][twin].pop_front() {
                    self.handle(
                        twin,
                        Event::Message { from: from(sender), message: Message::Engine(letter) },
                    );
                }
            }
        }
    }
}

fn run(bugs: Bugs, seed: u64) -> Twins {
    let mut twins = Twins::new(bugs, seed);
    for epoch in 1..=100 {
        let next = epoch + twins.random.below(2) * 1000;
        twins.seal(next + epoch * 2000);
        (0..8).for_each(|_| twins.step());
    }
    (0..2000).for_each(|_| twins.step());
    twins
}

#[test]
fn twins_that_execute_the_same_never_doubt() {
    for seed in 0..20 {
        let twins = run(Bugs::NONE, seed);
        assert_eq!(twins.halted, [None, None, None]);
        for shard in &twins.shards {
            assert_eq!(shard.digest(), twins.shards[0].digest());
            assert_eq!(gauge(shard, "ordain_shard_doubts_total"), 0.0);
        }
    }
}

/// Calvin.md, section 8, scenario 18: a digest that differs on one replica is detected, and the replica is fenced.
#[test]
fn scenario_18_a_record_is_flipped_on_one_replica() {
    let mut fenced = 0;
    for seed in 0..20 {
        let twins = run(Bugs::NONE.with(Bug::FlipRecord), seed);
        assert_eq!(twins.halted[..2], [None, None], "the others are right");
        assert_eq!(twins.shards[0].digest(), twins.shards[1].digest());
        if twins.shards[2].digest() != twins.shards[0].digest() {
            let reason = twins.halted[2].as_ref().expect("it has diverged");
            assert!(reason.contains("has diverged from its twins and takes itself out"), "{reason}");
            fenced += 1;
        }
    }
    assert!(fenced >= 15, "the bug has struck {fenced} times");
}
