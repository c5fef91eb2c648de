//! The bytes of messages that cross nodes; the others are between roles of one.

use std::sync::Arc;

use ordain_model::wire::{self, Reader};
use ordain_model::{
    Abort, Cell, Chunk, ChunkNo, Epoch, Front, GatewayId, Gsn, Millis, PartitionId, Registry, SlotNo,
};
use ordain_replication::{Arrival, Configuration, GroupMessage, Ship};
use ordain_role::{Bytes, Wire};

use super::{ExchangeMessage, Has, Message, Part, Parts, Reading, Saving, Sequencing};

/// The first byte of a [`GroupMessage`] between nodes.
const GROUP: u8 = 2;

impl<X: Wire> Wire for Message<X> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Message::Front(front) => {
                wire::u8(out, 0);
                front.encode(out);
            }
            Message::Exchange(post) => {
                wire::u8(out, 1);
                post.encode(out);
            }
            Message::Group(message) => {
                wire::u8(out, GROUP);
                message.encode(out);
                out.extend_from_slice(&message.tail);
            }
            Message::Sequencing(Sequencing::Reached(epoch)) => {
                wire::u8(out, 3);
                wire::u64(out, epoch.0);
            }
            Message::Engine(message) => {
                wire::u8(out, 4);
                message.encode(out);
            }
            Message::Ship(ship) => {
                wire::u8(out, 5);
                ship.encode(out);
            }
            Message::Configuration(counsel) => {
                wire::u8(out, 6);
                counsel.encode(out);
            }
            Message::Saving(Saving::Has(Has { saved, complete })) => {
                wire::u8(out, 7);
                wire::u64(out, saved.0);
                wire::u64(out, complete.0);
            }
            Message::Reading(reading) => {
                wire::u8(out, 8);
                reading.encode(out);
            }
            Message::Saving(Saving::Want { epoch, offset }) => {
                wire::u8(out, 9);
                wire::u64(out, epoch.0);
                wire::u64(out, *offset);
            }
            Message::Saving(Saving::Part { epoch, at, offset, bytes, is_last }) => {
                wire::u8(out, 10);
                [epoch.0, at.0, *offset].iter().for_each(|number| wire::u64(out, *number));
                wire::u8(out, u8::from(*is_last));
                wire::bytes(out, bytes);
            }
            Message::Saving(Saving::Gone(epoch)) => {
                wire::u8(out, 11);
                wire::u64(out, epoch.0);
            }
            // No role sends such a message to another node. It would be refused there.
            Message::Sequencing(_)
            | Message::Log(_)
            | Message::ConfigurationLog(_)
            | Message::Saving(_)
            | Message::Peer(_) => wire::u8(out, u8::MAX),
        }
    }

    fn decode(registry: &Registry, bytes: &[u8]) -> Option<Self> {
        let mut bytes = Reader(bytes);
        let message = match bytes.u8()? {
            0 => Front::decode(registry, &mut bytes)?.into(),
            1 => return ExchangeMessage::decode(registry, bytes.0).map(Message::Exchange),
            GROUP => return GroupMessage::decode(&Bytes::copy_from_slice(bytes.0)).map(Message::Group),
            3 => Sequencing::Reached(Epoch(bytes.u64()?)).into(),
            4 => return X::decode(registry, bytes.0).map(Message::Engine),
            5 => Ship::decode(&mut bytes)?.into(),
            6 => Configuration::decode(&mut bytes)?.into(),
            7 => {
                let (saved, complete) = (Epoch(bytes.u64()?), Epoch(bytes.u64()?));
                Saving::Has(Has { saved, complete }).into()
            }
            9 => Saving::Want { epoch: Epoch(bytes.u64()?), offset: bytes.u64()? }.into(),
            10 => {
                let (epoch, at, offset) = (Epoch(bytes.u64()?), Millis(bytes.u64()?), bytes.u64()?);
                let is_last = wire::flag(&mut bytes)?;
                Saving::Part { epoch, at, offset, bytes: bytes.bytes()?.to_vec(), is_last }.into()
            }
            11 => Saving::Gone(Epoch(bytes.u64()?)).into(),
            8 => Reading::decode(registry, &mut bytes)?.into(),
            _ => return None,
        };
        bytes.end(message)
    }

    fn encode_shared(&self, out: &mut Vec<u8>) -> Bytes {
        let Message::Group(message) = self else {
            self.encode(out);
            return Bytes::new();
        };
        wire::u8(out, GROUP);
        message.encode(out);
        message.tail.clone()
    }

    fn decode_shared(registry: &Registry, bytes: &Bytes) -> Option<Self> {
        match bytes.first()? {
            &GROUP => GroupMessage::decode(&bytes.slice(1..)).map(Message::Group),
            _ => Message::decode(registry, bytes),
        }
    }
}

impl<X: Wire> Wire for ExchangeMessage<X> {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut epoch = |tag, epoch: &Epoch| {
            wire::u8(out, tag);
            wire::u64(out, epoch.0);
        };
        match self {
            ExchangeMessage::Opened(at) => epoch(0, at),
            ExchangeMessage::Progress(at) => epoch(1, at),
            ExchangeMessage::Resume(at) => epoch(2, at),
            ExchangeMessage::Relieved => wire::u8(out, 3),
            ExchangeMessage::Slot { sequencer, after, through, logged, content } => {
                wire::u8(out, 4);
                wire::u16(out, sequencer.0);
                wire::u64(out, after.0);
                wire::u64(out, through.0);
                wire::u32(out, *logged);
                out.extend_from_slice(content.as_deref().map_or(&[], |content| content));
            }
            ExchangeMessage::RemoteResult { to, remote_result } => {
                wire::u8(out, 5);
                wire::u16(out, *to);
                remote_result.encode(out);
            }
            ExchangeMessage::Forgotten(at) => epoch(6, at),
            ExchangeMessage::Pause => wire::u8(out, 7),
            ExchangeMessage::Continue => wire::u8(out, 8),
            ExchangeMessage::Fetch { from, after } => {
                wire::u8(out, 9);
                wire::u64(out, from.0);
                wire::u64(out, after.0);
            }
            ExchangeMessage::Fetched { from, next, covers, journal_records } => {
                wire::u8(out, 10);
                wire::u64(out, from.0);
                wire::u64(out, next.0);
                wire::u8(out, u8::from(covers.is_some()));
                wire::u64(out, covers.unwrap_or_default().0);
                out.extend_from_slice(journal_records);
            }
            ExchangeMessage::Arrival(arrival) => {
                wire::u8(out, 11);
                wire::u64(out, arrival.incarnation);
                wire::u64(out, arrival.life);
            }
            ExchangeMessage::Trimmed(at) => epoch(12, at),
            ExchangeMessage::Terms(number) => epoch(13, &Epoch(*number)),
        }
    }

    fn decode(registry: &Registry, bytes: &[u8]) -> Option<Self> {
        let mut bytes = Reader(bytes);
        let post = match bytes.u8()? {
            0 => ExchangeMessage::Opened(Epoch(bytes.u64()?)),
            1 => ExchangeMessage::Progress(Epoch(bytes.u64()?)),
            2 => ExchangeMessage::Resume(Epoch(bytes.u64()?)),
            3 => ExchangeMessage::Relieved,
            4 => {
                let sequencer = PartitionId(bytes.u16()?);
                let (after, through) = (Epoch(bytes.u64()?), Epoch(bytes.u64()?));
                let logged = bytes.u32()?;
                let content = (!bytes.is_empty()).then(|| Arc::new(bytes.0.to_vec()));
                return Some(ExchangeMessage::Slot { sequencer, after, through, logged, content });
            }
            5 => {
                return Some(ExchangeMessage::RemoteResult {
                    to: bytes.u16()?,
                    remote_result: Arc::new(X::decode(registry, bytes.0)?),
                });
            }
            6 => ExchangeMessage::Forgotten(Epoch(bytes.u64()?)),
            7 => ExchangeMessage::Pause,
            8 => ExchangeMessage::Continue,
            9 => ExchangeMessage::Fetch { from: Epoch(bytes.u64()?), after: Epoch(bytes.u64()?) },
            10 => {
                let (from, next) = (Epoch(bytes.u64()?), Epoch(bytes.u64()?));
                let is_end = wire::flag(&mut bytes)?;
                let covers = Some(Epoch(bytes.u64()?)).filter(|_| is_end);
                return Some(ExchangeMessage::Fetched {
                    from,
                    next,
                    covers,
                    journal_records: Arc::new(bytes.0.to_vec()),
                });
            }
            11 => ExchangeMessage::Arrival(Arrival { incarnation: bytes.u64()?, life: bytes.u64()? }),
            12 => ExchangeMessage::Trimmed(Epoch(bytes.u64()?)),
            13 => ExchangeMessage::Terms(bytes.u64()?),
            _ => return None,
        };
        bytes.end(post)
    }
}

impl Reading {
    fn encode(&self, out: &mut Vec<u8>) {
        let id = |out: &mut Vec<u8>, (gateway, number): (GatewayId, ChunkNo)| {
            wire::u32(out, gateway.0);
            wire::u64(out, number.0);
        };
        match self {
            Reading::Run { chunk, at, now } => {
                wire::u8(out, 0);
                wire::u64(out, at.0);
                wire::u64(out, now.0);
                chunk.encode(out);
            }
            Reading::Parts(Parts { from, chunk, at, parts }) => {
                wire::u8(out, 1);
                wire::u16(out, *from as u16);
                id(out, *chunk);
                wire::u64(out, at.0);
                wire::u32(out, parts.len() as u32);
                for (index, part) in parts {
                    wire::u32(out, *index);
                    part.encode(out);
                }
            }
            Reading::LowWatermark { partition, epoch } => {
                wire::u8(out, 2);
                wire::u16(out, partition.0);
                wire::u64(out, epoch.0);
            }
            Reading::Ask(gateway, number) => {
                wire::u8(out, 3);
                id(out, (*gateway, *number));
            }
            Reading::Stamp(gateway, number, at) => {
                wire::u8(out, 4);
                id(out, (*gateway, *number));
                wire::u64(out, at.0);
            }
            Reading::Keep(partition) => {
                wire::u8(out, 5);
                wire::u16(out, partition.0);
            }
            Reading::Kept(epoch) => {
                wire::u8(out, 6);
                wire::u64(out, epoch.0);
            }
            Reading::Forget(partition) => {
                wire::u8(out, 7);
                wire::u16(out, partition.0);
            }
        }
    }

    fn decode(registry: &Registry, bytes: &mut Reader<'_>) -> Option<Reading> {
        let id = |bytes: &mut Reader<'_>| Some((GatewayId(bytes.u32()?), ChunkNo(bytes.u64()?)));
        Some(match bytes.u8()? {
            0 => {
                let (at, now) = (Epoch(bytes.u64()?), Millis(bytes.u64()?));
                Reading::Run { chunk: Arc::new(Chunk::decode_whole(registry, bytes)?), at, now }
            }
            1 => {
                let (from, chunk, at) = (usize::from(bytes.u16()?), id(bytes)?, Epoch(bytes.u64()?));
                let part = |bytes: &mut Reader<'_>| Some((bytes.u32()?, Part::decode(bytes)?));
                let parts = (0..bytes.count(5)?).map(|_| part(bytes)).collect::<Option<Vec<_>>>()?;
                Reading::Parts(Parts { from, chunk, at, parts })
            }
            2 => Reading::LowWatermark { partition: PartitionId(bytes.u16()?), epoch: Epoch(bytes.u64()?) },
            3 => id(bytes).map(|(gateway, number)| Reading::Ask(gateway, number))?,
            4 => {
                let (gateway, number) = id(bytes)?;
                Reading::Stamp(gateway, number, Epoch(bytes.u64()?))
            }
            5 => Reading::Keep(PartitionId(bytes.u16()?)),
            6 => Reading::Kept(Epoch(bytes.u64()?)),
            7 => Reading::Forget(PartitionId(bytes.u16()?)),
            _ => return None,
        })
    }
}

impl Part {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Part::Slot { slot, bytes, failure } => {
                wire::u8(out, 0);
                wire::u32(out, slot.0);
                wire::u8(out, failure.map_or(0, Abort::code));
                wire::bytes(out, bytes);
            }
            Part::Shipped { slot, cell, version } => {
                wire::u8(out, 1);
                wire::u32(out, slot.0);
                wire::u64(out, version.0);
                cell.encode(out);
            }
            Part::End => wire::u8(out, 2),
            Part::TooOld => wire::u8(out, 3),
        }
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Part> {
        Some(match bytes.u8()? {
            0 => {
                let slot = SlotNo(bytes.u32()?);
                let failure = match bytes.u8()? {
                    0 => None,
                    code => Some(Abort::from_code(code)?),
                };
                Part::Slot { slot, bytes: bytes.bytes()?.to_vec(), failure }
            }
            1 => {
                let (slot, version) = (SlotNo(bytes.u32()?), Gsn(bytes.u64()?));
                let (cell, rest) = Cell::decode(bytes.0)?;
                bytes.0 = rest;
                Part::Shipped { slot, cell, version }
            }
            2 => Part::End,
            3 => Part::TooOld,
            _ => return None,
        })
    }
}
