//! What members say to each other, and in which bytes.
//!
//! The protocol's messages are not sent in its crate's own encoding: the parser of that version of protobuf can be made
//! to overflow the stack by whoever chooses the bytes (RUSTSEC-2024-0437). All numbers are little-endian; fields that
//! our members never set are left out.

use ordain_model::codec;
use ordain_model::wire::{self, Codec, Reader};
use ordain_role::Bytes;
use protobuf::ProtobufEnum as _;
use raft::eraftpb::{Message as RaftMessage, MessageType};

use super::membership::Member;
use crate::journal::base::Base;
use crate::journal::record::EntryHead;

/// An entry of so many bytes is shared rather than copied. A small one is not: as long as it is kept, all would be that
/// has arrived together with it.
const LARGE: usize = 16 << 10;

/// A message between members.
#[derive(Debug)]
pub(super) enum Wire {
    /// Something of the protocol.
    Raft(RaftMessage),
    /// A newcomer asks to be let in.
    Join(Member),
    /// The state of a founder.
    Found {
        /// The founder has met all the others.
        is_ready: bool,
        /// All founders were ready.
        has_begun: bool,
    },
    /// The leader to a member: what it needs next is not kept any more. The leader's log begins after this.
    Behind(Base),
}

codec!(enum Wire {
    1 => Join(member),
    2 => Found { is_ready, has_begun },
    3 => Behind(base),
}, local Raft); // Written apart, so that its last entry can be shared.

/// The tag of [`Wire::Raft`].
const RAFT: u8 = 0;

impl Wire {
    /// The bytes, and how they go on: a last entry that is large is shared, not copied.
    pub fn encode_shared(&self) -> (Vec<u8>, Bytes) {
        match self {
            Wire::Raft(message) => encode(message),
            other => (other.to_bytes(), Bytes::new()),
        }
    }

    /// Reads a message from some bytes and the tail that they go on with, if it was not appended on the way; `None` if
    /// members send no such bytes.
    pub fn decode_shared(head: &Bytes, tail: &Bytes) -> Option<Wire> {
        match head.first()? {
            &RAFT => decode(head, tail).map(Wire::Raft),
            _ => Wire::from_bytes(head).filter(|_| tail.is_empty()),
        }
    }
}

fn encode(message: &RaftMessage) -> (Vec<u8>, Bytes) {
    let mut out = vec![RAFT, message.msg_type.value() as u8, u8::from(message.reject)];
    let RaftMessage { to, from, term, log_term, index, commit, commit_term, reject_hint, .. } = *message;
    u64::encode_all(&[to, from, term, log_term, index, commit, commit_term, reject_hint], &mut out);
    wire::bytes(&mut out, &message.context);
    wire::u32(&mut out, message.entries.len() as u32);
    let mut tail = Bytes::new();
    for (i, entry) in message.entries.iter().enumerate() {
        EntryHead::of(entry).encode(&mut out);
        if i + 1 == message.entries.len() && entry.data.len() >= LARGE {
            tail = entry.data.clone();
        } else {
            out.extend_from_slice(&entry.data);
        }
    }
    (out, tail)
}

fn decode(head: &Bytes, tail: &Bytes) -> Option<RaftMessage> {
    let mut bytes = Reader::new(head.get(1..)?);
    let (msg_type, reject) = (MessageType::from_i32(i32::from(bytes.u8()?))?, bool::decode(&mut bytes)?);
    let numbers = u64::decode_all(8, &mut bytes)?;
    let [to, from, term, log_term, index, commit, commit_term, reject_hint] = numbers.try_into().ok()?;
    let context = bytes.bytes()?.to_vec().into();
    let mut entries = Vec::new();
    let mut tail = Some(tail).filter(|tail| !tail.is_empty());
    for _ in 0..bytes.count(EntryHead::LEAST)? {
        let entry = EntryHead::decode(&mut bytes)?;
        let len = entry.len as usize;
        let data = match tail.take_if(|tail| bytes.is_empty() && tail.len() == len) {
            Some(tail) => tail.clone(),
            None => {
                let data = bytes.take(len)?;
                if len >= LARGE { head.slice_ref(data) } else { Bytes::copy_from_slice(data) }
            }
        };
        entries.push(entry.with(data));
    }
    if !bytes.is_empty() || tail.is_some() {
        return None;
    }
    let message = RaftMessage { msg_type, reject, to, from, term, log_term, index, ..RaftMessage::default() };
    let entries = entries.into();
    Some(RaftMessage { commit, commit_term, reject_hint, context, entries, ..message })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use raft::eraftpb::{Entry, EntryType};

    use ordain_role::NodeId;

    use super::*;

    /// Bytes of an entry; some are many.
    fn data() -> impl Strategy<Value = Vec<u8>> {
        let small = proptest::collection::vec(any::<u8>(), 0..20);
        (small, 0..4).prop_map(|(data, size)| if size == 0 { [data, vec![7; LARGE]].concat() } else { data })
    }

    /// As they come from another node.
    fn received(bytes: &[u8]) -> Option<Wire> {
        Wire::decode_shared(&Bytes::copy_from_slice(bytes), &Bytes::new())
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_no_less_of_it(
            (kind, reject, numbers) in (0i32..19, any::<bool>(), any::<[u64; 8]>()),
            context in proptest::collection::vec(any::<u8>(), 0..9),
            entries in proptest::collection::vec(
                (any::<u64>(), any::<u64>(), any::<bool>(), data()), 0..4),
        ) {
            let mut message = RaftMessage { reject, context: context.into(), ..RaftMessage::default() };
            message.msg_type = MessageType::from_i32(kind).unwrap();
            (message.to, message.from, message.term, message.log_term) =
                (numbers[0], numbers[1], numbers[2], numbers[3]);
            (message.index, message.commit, message.commit_term, message.reject_hint) =
                (numbers[4], numbers[5], numbers[6], numbers[7]);
            for (index, term, change, data) in entries {
                let mut entry = Entry { index, term, data: data.into(), ..Entry::default() };
                if change {
                    entry.entry_type = EntryType::EntryConfChange;
                }
                message.entries.push(entry);
            }
            let (mut bytes, tail) = Wire::Raft(message.clone()).encode_shared();
            let apart = Wire::decode_shared(&bytes.clone().into(), &tail);
            prop_assert!(matches!(apart, Some(Wire::Raft(read)) if read == message));
            prop_assert!(Wire::decode_shared(&bytes.clone().into(), &Bytes::from_static(b"more")).is_none());
            bytes.extend_from_slice(&tail);
            let bytes = Bytes::from(bytes);
            for cut in (0..bytes.len()).rev().take(300) {
                prop_assert!(Wire::decode_shared(&bytes.slice(..cut), &Bytes::new()).is_none());
            }
            let whole = Wire::decode_shared(&bytes, &Bytes::new());
            prop_assert!(matches!(whole, Some(Wire::Raft(read)) if read == message));
        }

        #[test]
        fn any_bytes_are_something_or_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = received(&bytes);
        }
    }

    #[test]
    fn members_speak_in_the_bytes_that_they_always_spoke_in() {
        let hex = |message: Wire| {
            let (head, tail) = message.encode_shared();
            [&head[..], &tail].concat().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let mut message = RaftMessage { reject: true, context: vec![0x0a].into(), ..RaftMessage::default() };
        message.msg_type = MessageType::MsgAppend;
        (message.to, message.from, message.term, message.log_term) = (1, 2, 3, 4);
        (message.index, message.commit, message.commit_term, message.reject_hint) = (5, 6, 7, 8);
        for (index, data) in [(9, vec![0x0b]), (10, vec![7; 3])] {
            let mut entry = Entry { index, term: 3, data: data.into(), ..Entry::default() };
            entry.entry_type = EntryType::EntryConfChange;
            message.entries.push(entry);
        }
        let base = Base { index: 9, term: 8, epoch: ordain_model::Epoch(7), ..Base::default() };
        let found = [
            hex(Wire::Raft(message)),
            hex(Wire::Join(Member { node: NodeId(3), generation: 2 })),
            hex(Wire::Found { is_ready: true, has_begun: false }),
            hex(Wire::Behind(base)),
        ];
        assert_eq!(
            found,
            [
                "00030101000000000000000200000000000000030000000000000004000000000000000500000000000000060000000000000007\
             000000000000000800000000000000010000000a020000000900000000000000030000000000000001010000000b0a00000000\
             00000003000000000000000103000000070707",
                "01030002000000",
                "020100",
                "0309000000000000000800000000000000070000000000000000000000000000000000000000000000",
            ]
        );
    }

    #[test]
    fn a_request_to_join_is_read() {
        let member = Member { node: NodeId(3), generation: 2 };
        let join = Wire::Join(member).encode_shared().0;
        assert!(matches!(received(&join), Some(Wire::Join(newcomer)) if newcomer == member));
        assert!(received(&join[..6]).is_none() && received(&[]).is_none() && received(&[3]).is_none());
        let found = Wire::Found { is_ready: true, has_begun: false }.encode_shared().0;
        assert!(matches!(received(&found), Some(Wire::Found { is_ready: true, has_begun: false })));
        assert!(received(&found[..2]).is_none() && received(&[2, 1, 2]).is_none());
        let base = Base { index: 9, ..Base::default() };
        let behind = Wire::Behind(base.clone()).encode_shared().0;
        assert!(matches!(received(&behind), Some(Wire::Behind(read)) if read == base));
        assert!(received(&behind[..8]).is_none() && received(&[4]).is_none());
    }
}
