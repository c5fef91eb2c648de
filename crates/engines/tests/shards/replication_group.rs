//! The same shard on the nodes of three replicas: each is handed the same batches, and they compare their digests.

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_deterministic::sequencing::Log;
use ordain_deterministic::shard::{self, Message, Places, Shard, ShardMessage};
use ordain_engines::calvin;
use ordain_model::args::encode;
use ordain_model::wire::Codec as _;
use ordain_model::{
    Args, Batch, Call, Chunk, ChunkNo, Epoch, GatewayId, Layout, Micros, Millis, Placed, Registry,
};
use ordain_role::{Address, Bug, Bugs, Event, NodeId, Now, Outbox, Role, TimerId};
use ordain_sim::Random;
use ordain_sim::workload::procedures as p;
use ordain_store::MemoryStore;

use crate::support::{GATEWAY, SEQUENCER, SHARD, gauge, registry};

const REPLICAS: usize = 3;

struct Members {
    registry: Arc<Registry>,
    random: Random,
    shards: Vec<Shard<MemoryStore>>,
    /// By shard: batches that it has not been handed.
    batches: Vec<VecDeque<Arc<Batch>>>,
    /// From one to another.
    remote_results: Vec<Vec<VecDeque<ShardMessage>>>,
    /// The timer at which each looks around.
    timers: Vec<Option<TimerId>>,
    halted: Vec<Option<String>>,
}

impl Members {
    fn new(bugs: Bugs, seed: u64) -> Members {
        let (registry, layout) = (registry(), Arc::new(Layout::single(1)));
        let at = |replica: usize, role| Address { node: NodeId(replica as u16), role };
        let shards = (0..REPLICAS).map(|replica| {
            let places = Places {
                layout: layout.clone(),
                replica: replica as u16,
                replicas: 2,
                shards: vec![at(replica, SHARD)],
                sequencer: at(replica, SEQUENCER),
                lock_manager: None,
                exchange: None,
                gateways: [(GatewayId::of(replica as u16, 0), at(replica, GATEWAY))].into(),
                first_gateway: GATEWAY,
            };
            let settings = shard::Settings { bugs, ..shard::Settings::new(calvin::SCHEDULING) };
            let members = (0..REPLICAS).filter(|member| *member != replica).map(|member| at(member, SHARD));
            let store = MemoryStore::new(layout.slots_of_shard(0));
            Shard::new(0, places, settings, registry.clone(), store).with_members(members.collect())
        });
        let mut members = Members {
            random: Random::new(seed),
            shards: shards.collect(),
            batches: vec![VecDeque::new(); REPLICAS],
            remote_results: vec![vec![VecDeque::new(); REPLICAS]; REPLICAS],
            timers: vec![None; REPLICAS],
            halted: vec![None; REPLICAS],
            registry,
        };
        (0..REPLICAS).for_each(|member| members.handle(member, Event::Start));
        members
    }

    fn handle(&mut self, member: usize, event: Event<Message>) {
        if self.halted[member].is_some() {
            return;
        }
        let mut out = Outbox::default();
        self.shards[member].handle(Now::default(), event, &mut out);
        for (to, message) in out.sends {
            if let Message::Engine(remote_result) = message {
                let bytes = remote_result.to_bytes();
                let remote_result = ShardMessage::from_bytes(&bytes).expect("a remote result");
                self.remote_results[member][usize::from(to.node.0)].push_back(remote_result);
            }
        }
        for (timer, delay) in out.timers {
            assert!(delay.is_some_and(|delay| delay > Micros(0)), "one shard has nobody to let on");
            self.timers[member] = Some(timer);
        }
        self.halted[member] = out.halt;
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
        let member = self.random.index(REPLICAS);
        let from = |address: usize| Address { node: NodeId(address as u16), role: SHARD };
        match self.random.below(4) {
            0 | 1 => {
                if let Some(batch) = self.batches[member].pop_front() {
                    let message = Log::Sealed(batch).into();
                    self.handle(member, Event::Message { from: Address::default(), message });
                }
            }
            2 => {
                if let Some(timer) = self.timers[member].take() {
                    self.handle(member, Event::Timer(timer));
                }
            }
            _ => {
                let sender = self.random.index(REPLICAS);
                if let Some(remote_result) = self.remote_results[sender][member].pop_front() {
                    self.handle(
                        member,
                        Event::Message { from: from(sender), message: Message::Engine(remote_result) },
                    );
                }
            }
        }
    }
}

fn run(bugs: Bugs, seed: u64) -> Members {
    let mut members = Members::new(bugs, seed);
    for epoch in 1..=100 {
        let next = epoch + members.random.below(2) * 1000;
        members.seal(next + epoch * 2000);
        (0..8).for_each(|_| members.step());
    }
    (0..2000).for_each(|_| members.step());
    members
}

#[test]
fn members_that_execute_the_same_never_doubt() {
    for seed in 0..20 {
        let members = run(Bugs::NONE, seed);
        assert_eq!(members.halted, [None, None, None]);
        for shard in &members.shards {
            assert_eq!(shard.digest(), members.shards[0].digest());
            assert_eq!(gauge(shard, "ordain_shard_doubts_total"), 0.0);
        }
    }
}

/// Calvin.md, section 8, scenario 18: a digest that differs on one replica is detected, and the replica is fenced.
#[test]
fn scenario_18_a_record_is_flipped_on_one_replica() {
    let mut fenced = 0;
    for seed in 0..20 {
        let members = run(Bugs::NONE.with(Bug::FlipRecord), seed);
        assert_eq!(members.halted[..2], [None, None], "the others are right");
        assert_eq!(members.shards[0].digest(), members.shards[1].digest());
        if members.shards[2].digest() != members.shards[0].digest() {
            let reason = members.halted[2].as_ref().expect("it has diverged");
            assert!(reason.contains("has diverged from its members and takes itself out"), "{reason}");
            fenced += 1;
        }
    }
    assert!(fenced >= 15, "the bug has struck {fenced} times");
}
