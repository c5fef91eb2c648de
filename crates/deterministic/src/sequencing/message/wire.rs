//! The bytes of messages that cross nodes; the others are between roles of one.

use ordain_model::wire::{Codec, Reader, Rest, Short};
use ordain_model::{Registry, codec};
use ordain_replication::GroupMessage;
use ordain_role::{Bytes, Wire};

use super::{ExchangeMessage, Message, Part, Parts, Reading, Sequencing};

/// The tag of a [`GroupMessage`] between nodes.
const GROUP: u8 = 2;

codec!(enum Message<X> {
    0 => Front(message),
    1 => Exchange(message),
    GROUP => Group(message),
    3 => Sequencing(message),
    4 => Engine(message),
    5 => Ship(message),
    6 => Configuration(message),
    7 => Saving(message),
    8 => Reading(message),
}, local Log | ConfigurationLog | Peer);

codec!(enum Sequencing {
    0 => Reached(epoch),
}, local Grant | Done | Passed | Applied | Expired | Uneven | Large | Founded);

// Receive journals hold these too.
codec!(enum ExchangeMessage<X> {
    0 => Opened(epoch),
    1 => Progress(epoch),
    2 => Resume(epoch),
    3 => Relieved,
    4 => Slot { sequencer, after, through, logged, content as Rest },
    5 => RemoteResult { to, remote_result },
    6 => Forgotten(epoch),
    7 => Pause,
    8 => Continue,
    9 => Fetch { from, after },
    10 => Fetched { from, next, covers, journal_records },
    11 => Arrival(arrival),
    12 => Trimmed(epoch),
    13 => Terms(number),
    14 => Beginning { is_ready, has_begun },
});

codec!(enum Reading {
    0 => Run { at, now, chunk },
    1 => Parts(parts),
    2 => LowWatermark { partition, epoch },
    3 => Ask(gateway, chunk),
    4 => Stamp(gateway, chunk, epoch, now),
    5 => Keep(partition),
    6 => Kept(epoch),
    7 => Forget(partition),
});

codec!(struct Parts { from as Short, chunk, at, parts });

codec!(enum Part {
    0 => Slot { slot, failure, bytes },
    1 => Shipped { slot, version, cell },
    2 => End,
    3 => TooOld,
});

impl<X: Codec> Wire for Message<X> {
    fn encode_shared(&self, out: &mut Vec<u8>) -> Bytes {
        let Message::Group(message) = self else {
            self.encode(out);
            return Bytes::new();
        };
        out.push(GROUP);
        message.encode_head(out);
        message.tail.clone()
    }

    fn decode_shared(registry: &Registry, bytes: &Bytes) -> Option<Self> {
        match bytes.first()? {
            &GROUP => GroupMessage::decode_shared(&bytes.slice(1..)).map(Message::Group),
            _ => Reader::of(registry, bytes).whole(),
        }
    }
}
