//! The bytes between the nodes of the family, and in receive journals: each variant once, compared with
//! `golden/bytes.txt`.

use std::sync::Arc;

use ordain_fuzz::{damage_each, golden};
use ordain_model::wire::{Codec as _, LOCAL, Reader};
use ordain_model::{
    Abort, Call, Cell, Chunk, ChunkNo, Db, Digest, Epoch, Front, GatewayId, Gsn, Millis, OutcomeBatch,
    OutcomeStatus, PartitionId, PauseNo, Registry, SlotNo, Snapshot, Token, Value, system,
};
use ordain_replication::{Arrival, Configuration, GroupMessage, Ship};
use ordain_role::{Bytes, NodeId};

use super::messages::{Copies, Findings, Item, Message, MovedRecord, Round, ShardMessage};
use crate::sequencing::{ExchangeMessage, Part, Parts, Reading, Sequencing};
use ordain_replication::{Has, Saving};

fn registry() -> Registry {
    let mut registry = Registry::default();
    system::register(&mut registry);
    registry
}

fn cell() -> Cell {
    Cell { value: Some(Value::String(b"value".to_vec())), expires_at: Millis(0x0102).into() }
}

fn chunk() -> Arc<Chunk> {
    let mut chunk = Chunk::new(GatewayId(0x0a0b), ChunkNo(0x0c0d));
    let (call, cell) = (Call::new(system::COMMIT, Db(0)), cell());
    chunk
        .push(&registry(), call, |args| {
            system::commit_args([].into_iter(), [(Db(0), &b"key"[..], &cell)], args);
        })
        .expect("a plan");
    Arc::new(chunk)
}

fn fronts() -> Vec<(&'static str, Message)> {
    let vector = Token::of_vector(&[0x41, 0x42], [0x43]);
    let mut outcomes = OutcomeBatch::new(GatewayId(0x11));
    let reply = |out: &mut Vec<u8>| out.extend_from_slice(b"reply");
    outcomes.push(ChunkNo(0x12), 0x13, Gsn(0x14), OutcomeStatus::Committed, reply);
    outcomes.push(ChunkNo(0x15), 0x16, Gsn(0x17), OutcomeStatus::Aborted(Abort::Logic), |_| {});
    let read = |snapshot| Front::Read(chunk(), snapshot);
    let fronts = [
        ("front.submit", Front::Submit(chunk())),
        ("front.outcomes", Front::Outcomes(outcomes)),
        ("front.read.closed", read(Snapshot::Closed)),
        ("front.read.published", read(Snapshot::Published(Token::of(0x21)))),
        ("front.read.latest", read(Snapshot::Latest(vector))),
        ("front.read.at", read(Snapshot::At(Token::of(0x22), Millis(0x23)))),
        ("front.read_done", Front::ReadDone(GatewayId(0x31), ChunkNo(0x32))),
        ("front.pause", Front::Pause(PauseNo(0x33))),
        ("front.continue", Front::Continue(PauseNo(0x34))),
        ("front.memory", Front::Memory { is_over: true, room: 0x35 }),
    ];
    fronts.into_iter().map(|(name, front)| (name, front.into())).collect()
}

fn remote_result() -> ShardMessage {
    let (slot, version) = (SlotNo(0x51), Gsn(0x52));
    let record = MovedRecord { db: Db(3), key: b"key".to_vec(), cell: cell(), version };
    let records = |number, copies, records| Item::Records { number, is_last: true, copies, records };
    let aborts = vec![(Gsn(0x61), SlotNo(0x62), Abort::Conflict)];
    let unlogged = Findings { aborts: aborts.clone(), affected: Vec::new() };
    let logged = Findings { aborts, affected: vec![Gsn(0x64), Gsn(0x65)] };
    let round = Round { number: 0x63, logged, unlogged };
    let items = vec![
        Item::Slot { slot, at: 0, len: 3, failed: true },
        Item::Answers { first: SlotNo(7), at: 3, len: 4 },
        Item::Vote(None),
        Item::Vote(Some((slot, Abort::Logic))),
        Item::Ship { slot, cell: cell(), version },
        Item::Return { slot, cell: Cell::ABSENT, changed: true },
        records(0x71, Copies::None, vec![record]),
        records(0x72, Copies::Count(0x73), Vec::new()),
        records(0x74, Copies::First, Vec::new()),
        records(0x75, Copies::More, Vec::new()),
        records(0x76, Copies::Over, Vec::new()),
        Item::Round(Box::new(round)),
        Item::Taken(0x77),
        Item::Attestation {
            digest: Digest { sum: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10, records: 0x78 },
            doubted: true,
        },
    ];
    let items = items.into_iter().enumerate().map(|(at, item)| (Gsn(0x100 + at as u64), item)).collect();
    ShardMessage { from: 0x0102, items, bytes: [&b"abc"[..], &[7, 2], b"de"].concat() }
}

fn exchanges() -> Vec<(&'static str, Message)> {
    let (sequencer, after, through) = (PartitionId(0x11), Epoch(0x12), Epoch(0x13));
    let slot = |content| ExchangeMessage::Slot { sequencer, after, through, logged: 0x14, content };
    let fetched = |covers| ExchangeMessage::Fetched {
        from: Epoch(0x21),
        next: Epoch(0x22),
        covers,
        journal_records: Arc::new(b"records".to_vec()),
    };
    let exchanges = [
        ("exchange.opened", ExchangeMessage::Opened(Epoch(1))),
        ("exchange.progress", ExchangeMessage::Progress(Epoch(2))),
        ("exchange.resume", ExchangeMessage::Resume(Epoch(3))),
        ("exchange.relieved", ExchangeMessage::Relieved),
        ("exchange.slot", slot(Some(Arc::new(b"content".to_vec())))),
        ("exchange.slot.empty", slot(None)),
        (
            "exchange.remote_result",
            ExchangeMessage::RemoteResult { to: 0x31, remote_result: Arc::new(remote_result()) },
        ),
        ("exchange.forgotten", ExchangeMessage::Forgotten(Epoch(4))),
        ("exchange.pause", ExchangeMessage::Pause),
        ("exchange.continue", ExchangeMessage::Continue),
        ("exchange.fetch", ExchangeMessage::Fetch { from: Epoch(5), after: Epoch(6) }),
        ("exchange.fetched", fetched(None)),
        ("exchange.fetched.covers", fetched(Some(Epoch(0x23)))),
        ("exchange.arrival", ExchangeMessage::Arrival(Arrival { incarnation: 0x41, life: 0x42 })),
        ("exchange.trimmed", ExchangeMessage::Trimmed(Epoch(7))),
        ("exchange.terms", ExchangeMessage::Terms(8)),
        ("exchange.beginning", ExchangeMessage::Beginning { is_ready: true, has_begun: false }),
    ];
    exchanges.into_iter().map(|(name, exchange)| (name, exchange.into())).collect()
}

fn readings() -> Vec<(&'static str, Message)> {
    let (gateway, number, at) = (GatewayId(0x11), ChunkNo(0x12), Epoch(0x13));
    let slot = |failure| Part::Slot { slot: SlotNo(0x14), bytes: b"bytes".to_vec(), failure };
    let parts = vec![
        (0x21, slot(None)),
        (0x21, slot(Some(Abort::Conflict))),
        (0x22, Part::Shipped { slot: SlotNo(0x15), cell: cell(), version: Gsn(0x16) }),
        (0x22, Part::End),
        (0x23, Part::TooOld),
    ];
    let parts = Parts { from: 0x17, chunk: (gateway, number), at, parts };
    let readings = [
        ("reading.run", Reading::Run { chunk: chunk(), at, now: Millis(0x18) }),
        ("reading.parts", Reading::Parts(parts)),
        ("reading.low_watermark", Reading::LowWatermark { partition: PartitionId(0x19), epoch: at }),
        ("reading.ask", Reading::Ask(gateway, number)),
        ("reading.stamp", Reading::Stamp(gateway, number, at, Millis(0x1c))),
        ("reading.keep", Reading::Keep(PartitionId(0x1a))),
        ("reading.kept", Reading::Kept(at)),
        ("reading.forget", Reading::Forget(PartitionId(0x1b))),
    ];
    readings.into_iter().map(|(name, reading)| (name, reading.into())).collect()
}

fn others() -> Vec<(&'static str, Message)> {
    let group = GroupMessage {
        from: NodeId(0x0102),
        head: Bytes::from_static(b"head"),
        tail: Bytes::from_static(b"tail"),
    };
    let (epoch, at) = (Epoch(0x11), Millis(0x12));
    let part = Saving::Part { epoch, at, offset: 0x13, bytes: b"bytes".to_vec(), is_last: true };
    let has = Has { saved: Epoch(0x14), complete: Epoch(0x15) };
    vec![
        ("group", group.into()),
        ("sequencing.reached", Sequencing::Reached(epoch).into()),
        ("sequencing.grant", Sequencing::Grant(Gsn(1)).into()),
        ("engine", Message::Engine(remote_result())),
        ("ship", Ship::Pause { term: 0x16 }.into()),
        ("configuration", Configuration::Stable(epoch).into()),
        ("saving.has", Saving::Has(has).into()),
        ("saving.want", Saving::Want { epoch, offset: 0x17 }.into()),
        ("saving.part", part.into()),
        ("saving.gone", Saving::Gone(epoch).into()),
        ("saving.last", Saving::Last(epoch).into()),
    ]
}

fn all() -> Vec<(&'static str, Message)> {
    [fronts(), exchanges(), readings(), others()].concat()
}

fn read(bytes: &[u8]) -> Option<Message> {
    Reader::of(&registry(), bytes).whole()
}

#[test]
fn bytes_are_as_they_were() {
    let all: Vec<_> = all().into_iter().map(|(name, message)| (name, message.to_bytes())).collect();
    golden(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/bytes.txt"), &all);
}

/// A message is read as it was written. What is read of damaged bytes could have been written.
#[test]
fn damage_is_harmless() {
    for (name, message) in all() {
        let bytes = message.to_bytes();
        if bytes.last() == Some(&LOCAL) {
            // The message stays on its node.
            assert!(read(&bytes).is_none(), "{name}");
            continue;
        }
        assert_eq!(read(&bytes).expect(name).to_bytes(), bytes, "{name}");
        damage_each(&bytes, |damaged| {
            let Some(read) = read(damaged) else { return };
            let again = self::read(&read.to_bytes()).expect(name);
            assert_eq!(again.to_bytes(), read.to_bytes(), "{name}");
        });
    }
}
