//! The messages between the shards of a replica: remote results (`docs/protocols/calvin.md`, C19; READ_RESULT of the paper).

use crate::sequencing::RemoteResult;
use ordain_model::wire::{Codec, Form, Reader, Short};
use ordain_model::{Abort, Cell, Db, Digest, Gsn, SlotNo, codec};

use super::answers::WireAnswers;

/// The messages of a node of the deterministic family.
pub type Message = crate::sequencing::Message<ShardMessage>;

/// A remote result: everything that one shard has for another, gathered while it handled one event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShardMessage {
    /// The sender, numbered through the replica.
    pub from: usize,
    /// The items, each with its transaction, in the order in which they arose.
    pub items: Vec<(Gsn, Item)>,
    /// The bytes of slots and answers, one after the other.
    pub bytes: Vec<u8>,
}

impl RemoteResult for ShardMessage {
    fn last(&self) -> Gsn {
        self.items.iter().map(|(gsn, _)| gsn.plain()).max().unwrap_or_default()
    }

    fn weight(&self) -> usize {
        let records = |(_, item): &(Gsn, Item)| match item {
            Item::Records { records, .. } => records.iter().map(MovedRecord::weight).sum(),
            Item::Round(round) => 16 * (round.logged.aborts.len() + round.logged.affected.len()),
            _ => 0,
        };
        REMOTE_RESULT_BYTES + self.bytes.len() + self.items.iter().map(records).sum::<usize>()
    }
}

/// One thing that a transaction needs from another shard.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// What a fragment answered: a range of the message's bytes.
    Slot {
        /// The fragment.
        slot: SlotNo,
        /// Where it begins.
        at: u32,
        /// How long it is.
        len: u32,
        /// Whether the fragment failed: it aborted, or did not run because an input failed.
        failed: bool,
    },
    /// All answers of the sender to an independent transaction (`shard::answers`), in several items only if they are
    /// very long: a range of the message's bytes.
    Answers {
        /// The first of them.
        first: SlotNo,
        /// Where they begin.
        at: u32,
        /// How long they are.
        len: u32,
    },
    /// The first failure among the sender's abortable fragments, or that all of them passed.
    Vote(Option<(SlotNo, Abort)>),
    /// A record shipped to the receiver, for a compute fragment that runs there.
    Ship {
        /// The fragment whose record it is.
        slot: SlotNo,
        /// The record. Its owner has none while it is shipped for writing.
        cell: Cell,
        /// The transaction that wrote it last.
        version: Gsn,
    },
    /// A record that was shipped for writing returns.
    Return {
        /// The fragment whose record it is.
        slot: SlotNo,
        /// The record.
        cell: Cell,
        /// Whether it was changed.
        changed: bool,
    },
    /// Records of slots that the receiver owns from here on.
    Records {
        /// Which piece of them this is.
        number: u32,
        /// It is the last.
        is_last: bool,
        /// How they belong to copies.
        copies: Copies,
        /// Some of them.
        records: Vec<MovedRecord>,
    },
    /// The end of a round of a speculative batch, which the transaction's place names. Boxed, as slots are many and
    /// small.
    Round(Box<Round>),
    /// The receipt of a piece of records by its number: the sender may send more.
    Taken(u32),
    /// An attestation between members: the digest of the shard's state after the batch that the transaction's place
    /// names.
    Attestation {
        /// The digest.
        digest: Digest,
        /// Whether some member had another digest: the receiver attests to its own.
        doubted: bool,
    },
}

/// The findings of a shard at the end of a round of a speculative batch (`docs/protocols/qstore.md`, Q16). Round 0 is
/// the paper's EXEC_DONE: all transactions are executed. Later rounds are its TAINT.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// The number of the round.
    pub number: u32,
    /// The findings on transactions that are logged.
    pub logged: Findings,
    /// The findings on transactions that are not logged, which only shards of the same node know. Nothing follows
    /// from them.
    pub unlogged: Findings,
}

/// The transactions that a shard has found to abort, or to be affected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// In round 0: the transactions that abort by fragments of the sender, each with the first of these.
    pub aborts: Vec<(Gsn, SlotNo, Abort)>,
    /// In later rounds: the affected transactions, which use a key that an aborting or affected one may have written.
    pub affected: Vec<Gsn>,
}

impl Round {
    /// The findings on transactions that are logged, or that are not.
    pub fn of(&mut self, is_logged: bool) -> &mut Findings {
        if is_logged { &mut self.logged } else { &mut self.unlogged }
    }

    /// All findings.
    pub fn findings(&self) -> [&Findings; 2] {
        [&self.logged, &self.unlogged]
    }
}

/// The relation of records that are sent to copies of a slot that is to move ([decision 50]).
///
/// [decision 50]: ../../../../docs/decisions/0050-copies.md
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// No copies were made: the records of moving slots are all sent.
    None,
    /// So many copies were made of all other records of a moving slot: they are the receiver's from here on.
    Count(u32),
    /// The first copies of a slot.
    First,
    /// Further ones, or others in the place of earlier ones.
    More,
    /// No more come, and those that came are not needed.
    Over,
}

impl Codec for Copies {
    const LEAST: usize = 5;

    fn encode(&self, out: &mut Vec<u8>) {
        let code_and_count: (u8, u32) = match self {
            Copies::None => (0, 0),
            Copies::Count(count) => (1, *count),
            Copies::First => (2, 0),
            Copies::More => (3, 0),
            Copies::Over => (4, 0),
        };
        code_and_count.encode(out);
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Copies> {
        match (bytes.u8()?, bytes.u32()?) {
            (0, 0) => Some(Copies::None),
            (1, count) => Some(Copies::Count(count)),
            (2, 0) => Some(Copies::First),
            (3, 0) => Some(Copies::More),
            (4, 0) => Some(Copies::Over),
            _ => None,
        }
    }
}

/// A record on its way to another shard, for good.
#[derive(Clone, Debug, PartialEq)]
pub struct MovedRecord {
    /// Its database.
    pub db: Db,
    /// Its key.
    pub key: Vec<u8>,
    /// Its content.
    pub cell: Cell,
    /// The transaction that wrote it last.
    pub version: Gsn,
}

impl Item {
    /// The kind of an item and the slot or number that it is about: with transaction and sender, these identify it.
    pub const fn what(&self) -> (u8, SlotNo) {
        match self {
            Item::Slot { slot, .. } => (SLOT, *slot),
            Item::Answers { first, .. } => (ANSWERS, *first),
            Item::Vote(_) => (VOTE, SlotNo(0)),
            Item::Ship { slot, .. } => (SHIP, *slot),
            Item::Return { slot, .. } => (RETURN, *slot),
            Item::Attestation { .. } => (ATTESTATION, SlotNo(0)),
            Item::Records { number, .. } => (RECORDS, SlotNo(*number)),
            Item::Taken(number) => (TAKEN, SlotNo(*number)),
            Item::Round(round) => (ROUND, SlotNo(round.number)),
        }
    }

    /// The bytes of the item, among those of its message; none if it has no bytes.
    pub fn bytes<'a>(&self, all: &'a [u8]) -> &'a [u8] {
        match *self {
            Item::Slot { at, len, .. } | Item::Answers { at, len, .. } => {
                &all[at as usize..(at + len) as usize]
            }
            _ => &[],
        }
    }
}

codec!(enum Item {
    SLOT => Slot { slot, len, failed, at as Derived },
    VOTE => Vote(vote as Verdict),
    SHIP => Ship { slot, version, cell },
    RETURN => Return { slot, changed, cell },
    ATTESTATION => Attestation { digest as HighHalfFirst, doubted },
    RECORDS => Records { number, is_last, copies, records },
    TAKEN => Taken(number),
    ROUND => Round(round),
    ANSWERS => Answers { len, at as Derived, first as Derived },
});

codec!(struct Round { number, logged, unlogged });

codec!(struct Findings { aborts, affected });

codec!(struct MovedRecord { db, version, key, cell });

/// The form of what follows from other bytes of the message: it has no bytes, and [`ShardMessage`] puts it right.
enum Derived {}

impl<T: Default> Form<T> for Derived {
    const LEAST: usize = 0;

    fn encode(_value: &T, _out: &mut Vec<u8>) {}

    fn decode(_bytes: &mut Reader<'_>) -> Option<T> {
        Some(T::default())
    }
}

/// The form of a vote: the code of the abort, or 0; then the fragment that failed, if one did.
enum Verdict {}

impl Form<Option<(SlotNo, Abort)>> for Verdict {
    const LEAST: usize = 1;

    fn encode(vote: &Option<(SlotNo, Abort)>, out: &mut Vec<u8>) {
        match vote {
            None => out.push(0),
            Some((slot, abort)) => (*abort, *slot).encode(out),
        }
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Option<(SlotNo, Abort)>> {
        match bytes.u8()? {
            0 => Some(None),
            code => Some(Some((SlotNo::decode(bytes)?, Abort::from_code(code)?))),
        }
    }
}

/// The form of a digest: the high half of its sum, the low one, the number of records.
enum HighHalfFirst {}

impl Form<Digest> for HighHalfFirst {
    const LEAST: usize = 20;

    fn encode(Digest { sum, records }: &Digest, out: &mut Vec<u8>) {
        ((sum >> 64) as u64, *sum as u64, *records).encode(out);
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Digest> {
        let (high, low, records) = <(u64, u64, u32)>::decode(bytes)?;
        Some(Digest { sum: u128::from(high) << 64 | u128::from(low), records })
    }
}

/// The least weight of a remote result, bytes.
const REMOTE_RESULT_BYTES: usize = 256;

impl MovedRecord {
    /// Returns about how many bytes it takes in memory.
    pub fn weight(&self) -> usize {
        self.key.len() + self.cell.value.as_ref().map_or(0, |value| value.heap_bytes())
    }
}

const SLOT: u8 = 0;
const VOTE: u8 = 1;
const SHIP: u8 = 2;
const RETURN: u8 = 3;
const ATTESTATION: u8 = 4;
const RECORDS: u8 = 5;
const TAKEN: u8 = 6;
const ROUND: u8 = 7;
const ANSWERS: u8 = 8;

impl Codec for ShardMessage {
    const LEAST: usize = 10;

    fn encode(&self, out: &mut Vec<u8>) {
        Short::encode(&self.from, out);
        self.bytes.encode(out);
        self.items.encode(out);
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<ShardMessage> {
        let (from, all) = (Short::decode(bytes)?, Vec::<u8>::decode(bytes)?);
        let mut items = Vec::<(Gsn, Item)>::decode(bytes)?;
        let mut next = 0_u32;
        for (_, item) in &mut items {
            if let Item::Slot { at, len, .. } | Item::Answers { at, len, .. } = item {
                (*at, next) = (next, next.checked_add(*len)?);
            }
            if let Item::Answers { first, at, .. } = item {
                (*first, _) = WireAnswers::read(all.get(*at as usize..next as usize)?)?.next()?;
            }
        }
        (next as usize == all.len()).then_some(ShardMessage { from, items, bytes: all })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ordain_model::value::HashValue;
    use ordain_model::{Epoch, Expiry, PartitionId, Value};
    use proptest::prelude::*;

    use super::*;
    use crate::shard::answers;

    fn cells() -> impl Strategy<Value = Cell> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..12);
        let fields = prop::collection::vec((bytes(), bytes()), 1..200);
        let hash = (fields, any::<bool>()).prop_map(|(fields, had_long)| {
            let mut hash = HashValue::default();
            if had_long {
                hash.set(&[7; 99], b"");
                hash.remove(&[7; 99]);
            }
            fields.iter().for_each(|(field, value)| _ = hash.set(field, value));
            Value::Hash(Arc::new(hash))
        });
        let value = prop_oneof![bytes().prop_map(Value::String), hash];
        prop_oneof![
            Just(Cell::ABSENT),
            (value, any::<u64>())
                .prop_map(|(value, at)| Cell { value: Some(value), expires_at: Expiry::from_bits(at) }),
        ]
    }

    fn copies() -> impl Strategy<Value = Copies> {
        let others = [Copies::None, Copies::First, Copies::More, Copies::Over];
        prop_oneof![prop::sample::select(others.to_vec()), any::<u32>().prop_map(Copies::Count)]
    }

    fn moved() -> impl Strategy<Value = MovedRecord> {
        let key = prop::collection::vec(any::<u8>(), 0..12);
        (any::<u8>(), key, cells(), any::<u64>()).prop_map(|(db, key, cell, version)| MovedRecord {
            db: Db(db),
            key,
            cell,
            version: Gsn(version),
        })
    }

    type Found = (Vec<(Gsn, SlotNo, Abort)>, Vec<Gsn>);

    fn found() -> impl Strategy<Value = Found> {
        let abort = (any::<u64>(), any::<u32>(), prop::sample::select(Abort::ALL.to_vec()));
        let aborts = prop::collection::vec(abort, 0..4);
        (aborts, prop::collection::vec(any::<u64>(), 0..4)).prop_map(|(aborts, affected)| {
            let aborts = aborts.into_iter().map(|(gsn, slot, abort)| (Gsn(gsn), SlotNo(slot), abort));
            (aborts.collect(), affected.into_iter().map(Gsn).collect())
        })
    }

    /// An item and the bytes of its slot.
    fn items() -> impl Strategy<Value = (Item, Vec<u8>)> {
        let slot = || any::<u32>().prop_map(SlotNo);
        let none = |item| (item, Vec::new());
        let vote = prop::option::of((slot(), prop::sample::select(Abort::ALL.to_vec())));
        prop_oneof![
            (slot(), prop::collection::vec(any::<u8>(), 0..40), any::<bool>()).prop_map(
                |(slot, bytes, failed)| {
                    (Item::Slot { slot, at: 0, len: bytes.len() as u32, failed }, bytes)
                }
            ),
            prop::collection::vec((slot(), prop::collection::vec(any::<u8>(), 0..40)), 1..4).prop_map(
                |answers| {
                    let mut bytes = Vec::new();
                    answers.iter().for_each(|(slot, answer)| answers::write(*slot, answer, &mut bytes));
                    (Item::Answers { first: answers[0].0, at: 0, len: bytes.len() as u32 }, bytes)
                }
            ),
            vote.prop_map(move |vote| none(Item::Vote(vote))),
            (slot(), cells(), any::<u64>()).prop_map(move |(slot, cell, version)| none(Item::Ship {
                slot,
                cell,
                version: Gsn(version)
            })),
            (slot(), cells(), any::<bool>()).prop_map(move |(slot, cell, changed)| none(Item::Return {
                slot,
                cell,
                changed
            })),
            (any::<u32>(), any::<bool>(), copies(), prop::collection::vec(moved(), 0..4)).prop_map(
                move |(number, is_last, copies, records)| none(Item::Records {
                    number,
                    is_last,
                    copies,
                    records
                })
            ),
            any::<u32>().prop_map(move |number| none(Item::Taken(number))),
            (any::<u32>(), found(), found()).prop_map(move |(number, (aborts, affected), home)| {
                let unlogged = Findings { aborts: home.0, affected: home.1 };
                none(Item::Round(Box::new(Round { number, logged: Findings { aborts, affected }, unlogged })))
            }),
            (any::<u128>(), any::<u32>(), any::<bool>()).prop_map(move |(sum, records, doubted)| {
                none(Item::Attestation { digest: Digest { sum, records }, doubted })
            }),
        ]
    }

    prop_compose! {
        fn remote_results()(from in 0usize..128, items in prop::collection::vec((any::<u64>(), items()), 0..12))
            -> ShardMessage
        {
            let mut remote_result = ShardMessage { from, ..ShardMessage::default() };
            for (gsn, (mut item, bytes)) in items {
                if let Item::Slot { at, .. } | Item::Answers { at, .. } = &mut item {
                    *at = remote_result.bytes.len() as u32;
                }
                remote_result.bytes.extend(bytes);
                remote_result.items.push((Gsn(gsn), item));
            }
            remote_result
        }
    }

    proptest! {
        #[test]
        fn a_remote_result_arrives_as_it_was_written_and_whole(remote_result in remote_results(), cut in any::<prop::sample::Index>()) {
            let mut bytes = remote_result.to_bytes();
            prop_assert_eq!(ShardMessage::from_bytes(&bytes), Some(remote_result));
            prop_assert_eq!(ShardMessage::from_bytes(&bytes[..cut.index(bytes.len())]), None);
            bytes.push(0);
            prop_assert_eq!(ShardMessage::from_bytes(&bytes), None);
        }

        /// Whatever is read of damaged bytes is a remote result that could have been written.
        #[test]
        fn damage_is_harmless(
            remote_result in remote_results(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = remote_result.to_bytes();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(read) = ShardMessage::from_bytes(&bytes) {
                let mut next = 0;
                for (_, item) in &read.items {
                    if let Item::Slot { at, len, .. } | Item::Answers { at, len, .. } = item {
                        prop_assert_eq!(*at, next);
                        next += len;
                    }
                }
                prop_assert_eq!(next as usize, read.bytes.len());
            }
        }

        #[test]
        fn noise_is_no_remote_result_or_a_small_one(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some(remote_result) = ShardMessage::from_bytes(&bytes) {
                prop_assert!(remote_result.bytes.len() + remote_result.items.len() <= bytes.len());
            }
        }
    }

    #[test]
    fn a_remote_result_is_of_its_latest_epoch() {
        let gsn = |epoch| Gsn::new(Epoch(epoch), PartitionId(1), 3);
        let items = [7, 9, 8].map(|epoch| (gsn(epoch), Item::Vote(None))).to_vec();
        assert_eq!(ShardMessage { items, ..ShardMessage::default() }.epoch(), Epoch(9));
        assert_eq!(ShardMessage::default().epoch(), Epoch(0));
    }
}
