//! Fuzz target of what travels between nodes: damaged messages, and noise behind each message's first byte.

use ordain_fuzz::{Source, target};
use ordain_model::OutcomeBatch;
use ordain_model::wire::{Codec as _, Reader};
use ordain_replication::GroupMessage;

use super::exchange::Note;
use super::*;
use crate::sequencing::ExchangeMessage;

/// The largest first byte of a message, and some that no message has.
const TAGS: u8 = 14;

fn epoch(source: &mut Source) -> Epoch {
    Epoch(source.edge() as u64)
}

fn message(source: &mut Source) -> Message<Note> {
    match source.within(0..8) {
        0 => {
            let asks: Vec<Ask> = (0..source.within(0..6))
                .map(|_| match source.within(0..3) {
                    0 => Ask::Read,
                    1 => Ask::Write(None),
                    _ => Ask::Write(Some((source.number(), 1 + source.number() % 1000))),
                })
                .collect();
            Front::Submit(chunk(source.number(), &asks)).into()
        }
        1 => {
            let mut outcomes = OutcomeBatch::new(GatewayId(source.number() as u32));
            for index in 0..source.within(0..6) as u32 {
                let (number, gsn) = (ChunkNo(source.number()), Gsn(source.number()));
                let reply = source.bytes(0..30);
                outcomes
                    .push(number, index, gsn, OutcomeStatus::Committed, |out| out.extend_from_slice(&reply));
            }
            Front::Outcomes(outcomes).into()
        }
        2 => ExchangeMessage::Slot {
            sequencer: PartitionId(source.number() as u16),
            after: epoch(source),
            through: epoch(source),
            logged: source.number() as u32,
            content: Some(Arc::new(source.bytes(1..50))),
        }
        .into(),
        3 => ExchangeMessage::Fetched {
            from: epoch(source),
            next: epoch(source),
            covers: Some(epoch(source)),
            journal_records: Arc::new(source.bytes(0..50)),
        }
        .into(),
        4 => GroupMessage {
            from: NodeId(source.number() as u16),
            head: Bytes::from(source.bytes(0..50)),
            tail: Bytes::new(),
        }
        .into(),
        5 => Sequencing::Reached(epoch(source)).into(),
        6 => Front::Pause(PauseNo(source.number())).into(),
        _ => ExchangeMessage::Opened(epoch(source)).into(),
    }
}

/// Bytes that are read as a message are one that could have been written: written again, they are read again.
#[test]
fn fuzz_messages() {
    let registry = registry();
    target("messages", 3000, |source| {
        let mut bytes = Vec::new();
        if source.once_in(3) {
            bytes.push(source.within(0..usize::from(TAGS)) as u8);
            bytes.extend(
                (0..source.within(0..80)).map(|_| if source.once_in(2) { 0 } else { source.number() as u8 }),
            );
        } else {
            bytes = message(source).to_bytes();
            source.damage(&mut bytes);
        }
        let Some(read) = Reader::of(&registry, &bytes).whole::<Message<Note>>() else { return };
        let once = read.to_bytes();
        let again: Message<Note> =
            Reader::of(&registry, &once).whole().expect("what was read can be written");
        assert_eq!(once, again.to_bytes());
    });
}
