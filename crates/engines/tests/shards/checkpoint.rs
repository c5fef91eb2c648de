//! What a shard gives away for a checkpoint: the state at the end of the epoch in which it was cut, whatever later ones do
//! meanwhile, and a shard that begins from it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_checkpoint::Piece;
use ordain_deterministic::sequencing::Log;
use ordain_deterministic::shard::{self, Message, Places, Shard};
use ordain_engines::calvin;
use ordain_model::args::encode;
use ordain_model::{
    Args, Batch, Call, CheckpointMode, Chunk, ChunkNo, Db, Digest, Epoch, GatewayId, Layout, Micros, Millis,
    Placed, ProcedureId, Registry, system,
};
use ordain_replication::Saving;
use ordain_role::{Address, Event, NodeId, Now, Outbox, Role, TimerId};
use ordain_sim::workload::procedures as p;
use ordain_store::MemoryStore;

use crate::support::{GATEWAY, SEQUENCER, SHARD, gauge, registry};

const CHECKPOINTER: Address = Address { node: NodeId(0), role: 6 };

struct World {
    registry: Arc<Registry>,
    shard: Shard<MemoryStore>,
    /// What the checkpointer was told and has not answered.
    told: Vec<Saving>,
    epoch: u64,
}

impl World {
    fn new(checkpoints: CheckpointMode) -> World {
        let (registry, layout) = (registry(), Arc::new(Layout::single(1)));
        let at = |role| Address { node: NodeId(0), role };
        let places = Places {
            layout: layout.clone(),
            replica: 0,
            replicas: 1,
            shards: vec![at(SHARD)],
            sequencer: at(SEQUENCER),
            lock_manager: None,
            exchange: None,
            gateways: [(GatewayId(0), at(GATEWAY))].into(),
            first_gateway: GATEWAY,
        };
        // A piece is a record or two.
        let settings = shard::Settings { piece: 30, checkpoints, ..shard::Settings::new(calvin::SCHEDULING) };
        let store = MemoryStore::new(layout.slots_of_shard(0));
        let shard = Shard::new(0, places, settings, registry.clone(), store).with_checkpointer(CHECKPOINTER);
        let mut world = World { registry, shard, told: Vec::new(), epoch: 0 };
        world.handle(Event::Start);
        world
    }

    fn handle(&mut self, event: Event<Message>) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut out = Outbox::default();
            self.shard.handle(Now::default(), event, &mut out);
            assert_eq!(out.halt, None);
            // What is to be done soon; not the sweep.
            let at_once = |(timer, delay): &(TimerId, Option<Micros>)| {
                delay.is_some_and(|delay| delay < Micros::from_millis(100)).then_some(Event::Timer(*timer))
            };
            events.extend(out.timers.iter().filter_map(at_once));
            for (to, message) in out.sends {
                if let Message::Saving(saving) = message {
                    assert_eq!(to, CHECKPOINTER);
                    self.told.push(saving);
                }
            }
        }
    }

    /// The next batch, of these calls.
    fn batch(&mut self, calls: &[(ProcedureId, Db, &[&str])]) -> Digest {
        self.epoch += 1;
        let mut chunk = Chunk::new(GatewayId(0), ChunkNo(self.epoch));
        for (procedure, db, args) in calls {
            let bytes = encode(args);
            let args = Args::parse(&bytes).expect("an encoding");
            chunk
                .push(&self.registry, Call::new(*procedure, *db), |out| {
                    args.iter().for_each(|arg| _ = out.push(arg.bytes));
                })
                .expect("a call that is not refused");
        }
        let (total, chunks) = (chunk.span(), vec![Placed::whole(0, Arc::new(chunk))]);
        let batch = Batch {
            epoch: Epoch(self.epoch),
            layout: 1,
            now: Millis(self.epoch),
            total,
            chunks,
            ..Batch::default()
        };
        let message = Log::Sealed(Arc::new(batch)).into();
        self.handle(Event::Message { from: Address::default(), message });
        self.shard.digest()
    }

    fn answer(&mut self, saving: Saving) {
        self.handle(Event::Message { from: CHECKPOINTER, message: saving.into() });
    }

    /// Takes all that the shard has given and goes on giving, until it says that this was all.
    fn take_all(&mut self, epoch: Epoch) -> Vec<Piece> {
        let mut pieces = Vec::new();
        loop {
            for saving in std::mem::take(&mut self.told) {
                match saving {
                    Saving::Piece { epoch: of, piece } => {
                        assert_eq!(of, epoch);
                        pieces.push(piece);
                        self.answer(Saving::Taken(epoch));
                    }
                    Saving::Last(of) => {
                        assert_eq!(of, epoch);
                        return pieces;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

fn digest(pieces: &[Piece]) -> Digest {
    pieces.iter().fold(Digest::default(), |sum, piece| sum.plus(piece.digest()))
}

const CUT: (ProcedureId, Db, &[&str]) = (system::CHECKPOINT, Db(0), &[]);

#[test]
fn scenario_14_a_record_comes_and_goes_around_a_checkpoint() {
    let [first, others @ ..] = CheckpointMode::ALL.map(|(_, mode)| scenario_14(mode));
    // What a checkpoint holds does not depend on how its state was kept, to the byte.
    assert!(others.iter().all(|other| *other == first));
}

/// What is given away at the cut of it.
fn scenario_14(mode: CheckpointMode) -> Vec<Piece> {
    let put = |key: &'static [&'static str]| (p::PUT, p::OBJECTS, key);
    let delete = |key: &'static [&'static str]| (p::DELETE, p::OBJECTS, key);
    let mut world = World::new(mode);
    let keys: Vec<String> = (0..50).map(|n| format!("k{n}")).collect();
    for key in &keys {
        world.batch(&[(p::PUT, p::OBJECTS, &[key, "0"])]);
    }
    // The cut is in the middle of its epoch, and what follows in the epoch belongs to the state.
    let at_cut = world.batch(&[delete(&["k1"]), CUT, put(&["k2", "1"]), delete(&["k3"]), put(&["new", "1"])]);
    let cut = Epoch(world.epoch);
    assert!(gauge(&world.shard, "ordain_store_records") > 0.0);
    // Two pieces are on their way and nobody takes them: all this happens meanwhile.
    world.batch(&[delete(&["k2"]), put(&["k1", "2"]), delete(&["new"]), put(&["k4", "2"])]);
    world.batch(&[put(&["k2", "3"]), delete(&["k1"]), put(&["new", "3"]), put(&["late", "3"])]);
    for key in &keys {
        world.batch(&[(p::DELETE, p::OBJECTS, &[key])]);
    }
    world.batch(&[(p::CLEAR, p::OBJECTS, &[])]);
    let last = world.batch(&[put(&["k5", "9"])]);
    assert_eq!(
        last == at_cut,
        mode == CheckpointMode::Naive,
        "a shard that stands still has executed nothing"
    );
    let pieces = world.take_all(cut);
    assert!(pieces.len() > 20, "{}", pieces.len());
    assert_eq!(digest(&pieces), at_cut);
    // It goes on, and nothing is kept when it is over.
    assert_eq!(gauge(&world.shard, "ordain_store_records"), 1.0);
    let next = world.batch(&[CUT]);
    assert_eq!(digest(&world.take_all(Epoch(world.epoch))), next);
    pieces
}

#[test]
fn a_second_cut_is_passed_over_and_one_that_is_given_up_ends() {
    for (_, mode) in CheckpointMode::ALL {
        given_up(mode);
    }
}

fn given_up(mode: CheckpointMode) {
    let mut world = World::new(mode);
    let mut seen = BTreeMap::new();
    for n in 0..20u32 {
        world.batch(&[(p::PUT, p::OBJECTS, &[&n.to_string(), "0"])]);
    }
    world.batch(&[CUT]);
    let first = Epoch(world.epoch);
    world.batch(&[CUT, (p::PUT, p::OBJECTS, &["1", "1"])]);
    let second = Epoch(world.epoch);
    let skipped = |saving: &Saving| matches!(saving, Saving::Skipped(epoch) if *epoch == second);
    // One that stands still comes to the second when it is over with the first.
    let passed_over = usize::from(mode != CheckpointMode::Naive);
    assert_eq!(world.told.iter().filter(|saving| skipped(saving)).count(), passed_over);
    world.told.clear();
    world.answer(Saving::Dropped(first));
    if mode == CheckpointMode::Naive {
        assert!(!world.take_all(second).is_empty());
    }
    assert!(world.told.is_empty());
    let digest_then = world.batch(&[CUT]);
    seen.insert(world.epoch, digest_then);
    let pieces = world.take_all(Epoch(world.epoch));
    assert_eq!(digest(&pieces), seen[&world.epoch]);
}
