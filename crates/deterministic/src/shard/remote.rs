//! Between shards: their addresses, remote results under way, and the out-of-order buffer.
//!
//! A remote result for a shard of this node is sent to it directly, in order and once. One for another partition goes by the
//! exchange, and may arrive twice: a restarted node sends everything again, and a member may substitute for a node that sends
//! it too (`docs/protocols/calvin.md`, C37, C44 and C50). Repeating is harmless because what a shard sends for a transaction
//! is a function of the log.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use crate::sequencing::{ExchangeMessage, gateway_address};
use ordain_model::{Chunk, GatewayId, Gsn, Layout, SlotNo, Txn};
use ordain_role::{Address, Outbox};

use super::answers;
use super::messages::{Item, Message, ShardMessage};
use super::routes::ShardSet;
use super::slots::SlotTable;

/// The addresses of a shard's peers and of the roles of its node.
#[derive(Clone, Debug)]
pub struct Places {
    /// The owner of each hash slot; a shard's number in it is its number through the replica.
    pub layout: Arc<Layout>,
    /// The replica.
    pub replica: u16,
    /// How many replicas there are.
    pub replicas: u16,
    /// The shards of the replica, by number. Those of other nodes are reached by the exchange only.
    pub shards: Vec<Address>,
    /// The sequencer of this node.
    pub sequencer: Address,
    /// The lock manager of this node, with an engine that has one.
    pub lock_manager: Option<Address>,
    /// The exchange of this node; none where there is one partition.
    pub exchange: Option<Address>,
    /// The gateways of this node.
    pub gateways: BTreeMap<GatewayId, Address>,
    /// The role number of the first gateway on every node.
    pub first_gateway: u16,
}

impl Places {
    /// Returns whether this replica sends the outcome of a transaction; the others execute it in silence. Of a
    /// transaction that is not logged only the replica that sequenced it knows.
    #[inline]
    pub(crate) fn answers(&self, chunk: &Chunk, txn: &Txn) -> bool {
        (chunk.replica == self.replica || !txn.logged) && chunk.gateway != GatewayId::HOUSE
    }

    /// Returns the address of a gateway; `None` if the gateway is gone.
    pub(crate) fn gateway_at(&self, gateway: GatewayId) -> Option<Address> {
        let is_here = gateway.node() == self.sequencer.node.0;
        if is_here {
            self.gateways.get(&gateway).copied()
        } else {
            gateway_address(self.first_gateway, gateway)
        }
    }

    /// Sends a remote result on its way: directly to a shard of this node, by the exchange to another.
    fn send(&self, to: usize, remote_result: ShardMessage, out: &mut Outbox<Message>) {
        let shard = self.shards[to];
        match self.exchange.filter(|_| shard.node != self.sequencer.node) {
            Some(post) => out.send(
                post,
                ExchangeMessage::RemoteResult { to: to as u16, remote_result: Arc::new(remote_result) },
            ),
            None => out.send(shard, Message::Engine(remote_result)),
        }
    }
}

/// The bytes at which a remote result is full: large slots do not add up to one that is too large to send.
const FULL: usize = 1 << 20;

/// The remote results that are gathered while an event is handled: one a receiver, and more if they are full.
#[derive(Debug)]
pub struct RemoteResults {
    from: usize,
    to: Vec<ShardMessage>,
    /// Full remote results, which are sent before the others, with their receivers.
    full: Vec<(usize, ShardMessage)>,
    /// The receivers for which there is any item.
    written: ShardSet,
}

impl RemoteResults {
    pub(crate) fn new(from: usize, shards: usize) -> RemoteResults {
        let to = (0..shards).map(|_| ShardMessage { from, ..Default::default() }).collect();
        RemoteResults { from, to, full: Vec::new(), written: 0 }
    }

    /// Returns whether there is no item for any shard.
    pub const fn is_empty(&self) -> bool {
        self.written == 0
    }

    /// Adds an item for a shard.
    pub fn add(&mut self, to: usize, gsn: Gsn, item: Item) {
        self.written |= 1 << to;
        self.to[to].items.push((gsn, item));
    }

    /// Adds a fragment's slot for several shards.
    pub(crate) fn add_slot(&mut self, mut to: ShardSet, gsn: Gsn, slot: SlotNo, bytes: &[u8], failed: bool) {
        self.written |= to;
        while to != 0 {
            let remote_result = self.with_room(to.trailing_zeros() as usize);
            to &= to - 1;
            let at = remote_result.bytes.len() as u32;
            remote_result.bytes.extend_from_slice(bytes);
            remote_result.items.push((gsn, Item::Slot { slot, at, len: bytes.len() as u32, failed }));
        }
    }

    /// Adds all answers of this shard to an independent transaction: those of its slots that are filled.
    pub fn add_answers(&mut self, to: usize, gsn: Gsn, (table, slots): (&SlotTable, Range<usize>)) {
        self.written |= 1 << to;
        let mut begun = None;
        table.for_each_filled(slots, |slot, bytes| {
            if self.to[to].bytes.len() >= FULL {
                self.end_answers(to, gsn, begun.take());
            }
            let remote_result = self.with_room(to);
            begun.get_or_insert((slot, remote_result.bytes.len()));
            answers::write(slot, bytes, &mut remote_result.bytes);
        });
        self.end_answers(to, gsn, begun);
    }

    /// Ends an item of answers, if one has begun.
    fn end_answers(&mut self, to: usize, gsn: Gsn, begun: Option<(SlotNo, usize)>) {
        let Some((first, at)) = begun else { return };
        let remote_result = &mut self.to[to];
        let len = (remote_result.bytes.len() - at) as u32;
        remote_result.items.push((gsn, Item::Answers { first, at: at as u32, len }));
    }

    /// Returns the remote result for a shard, a new one if that is full.
    fn with_room(&mut self, to: usize) -> &mut ShardMessage {
        let remote_result = &mut self.to[to];
        if remote_result.bytes.len() >= FULL {
            let next = ShardMessage { from: self.from, ..Default::default() };
            self.full.push((to, std::mem::replace(remote_result, next)));
        }
        remote_result
    }

    /// Sends them, in the order of their receivers after those that are full.
    pub(crate) fn send(&mut self, places: &Places, out: &mut Outbox<Message>) {
        self.full.drain(..).for_each(|(to, remote_result)| places.send(to, remote_result, out));
        while self.written != 0 {
            let to = self.written.trailing_zeros() as usize;
            self.written &= self.written - 1;
            let remote_result = &mut self.to[to];
            // With the capacity of the last one: growing copies the bytes again and again.
            let (items, bytes) = (
                Vec::with_capacity(remote_result.items.len()),
                Vec::with_capacity(remote_result.bytes.len().min(FULL)),
            );
            let next = ShardMessage { from: self.from, items, bytes };
            places.send(to, std::mem::replace(remote_result, next), out);
        }
    }
}

/// The out-of-order buffer: items that came for transactions which are not started (`docs/protocols/calvin.md`,
/// scenario 1), each with the bytes of its slot. Items from other partitions may be repeated, and are kept once.
#[derive(Debug, Default)]
pub struct OutOfOrder(BTreeMap<About, (Item, Vec<u8>)>);

/// The transaction, the sender, and [what it is about](Item::what).
type About = (Gsn, usize, u8, SlotNo);

/// An item of the out-of-order buffer, with its bytes.
#[derive(Debug)]
pub struct OutOfOrderItem {
    /// The sender.
    pub(crate) from: usize,
    /// The item; its bytes begin at 0.
    pub item: Item,
    /// The bytes of its slot or answers.
    pub bytes: Vec<u8>,
}

impl OutOfOrder {
    /// Keeps an item; `bytes` are those of its remote result.
    pub(crate) fn keep(&mut self, gsn: Gsn, from: usize, item: Item, bytes: &[u8]) {
        let (kind, slot) = item.what();
        self.0.entry((gsn, from, kind, slot)).or_insert_with(|| {
            let bytes = item.bytes(bytes).to_vec();
            let item = match item {
                Item::Slot { slot, len, failed, .. } => Item::Slot { slot, at: 0, len, failed },
                Item::Answers { first, len, .. } => Item::Answers { first, at: 0, len },
                other => other,
            };
            (item, bytes)
        });
    }

    /// Takes out all items for a transaction.
    pub fn take(&mut self, gsn: Gsn) -> Vec<OutOfOrderItem> {
        let kept = self.0.extract_if(OutOfOrder::of(gsn), |_, _| true);
        kept.map(|((_, from, ..), (item, bytes))| OutOfOrderItem { from, item, bytes }).collect()
    }

    /// The range of the keys of a transaction's items.
    const fn of(gsn: Gsn) -> RangeInclusive<About> {
        (gsn, 0, 0, SlotNo(0))..=(gsn, usize::MAX, u8::MAX, SlotNo(u32::MAX))
    }

    /// Returns whether an item for a transaction is kept.
    #[inline]
    pub fn holds(&self, gsn: Gsn) -> bool {
        self.first().is_some_and(|first| first <= gsn) && self.0.range(OutOfOrder::of(gsn)).next().is_some()
    }

    /// Returns the first transaction for which an item is kept.
    pub fn first(&self) -> Option<Gsn> {
        self.0.first_key_value().map(|((gsn, ..), _)| *gsn)
    }

    /// Returns how many items are kept.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::answers::WireAnswers;

    #[test]
    fn large_slots_do_not_add_up_to_one_remote_result() {
        let mut remote_results = RemoteResults::new(0, 2);
        for (slot, bytes) in [(0, FULL), (1, 10), (2, 10)] {
            remote_results.add_slot(0b10, Gsn(7), SlotNo(slot), &vec![slot as u8; bytes], false);
        }
        let [(to, full)] = &remote_results.full[..] else { panic!("{:?}", remote_results.full.len()) };
        assert_eq!((*to, full.items.len(), full.bytes.len(), full.from), (1, 1, FULL, 0));
        let rest = &remote_results.to[1];
        let starts = rest.items.iter().map(|(_, item)| match item {
            Item::Slot { slot, at, len, .. } => (slot.0, *at, *len),
            other => panic!("{other:?}"),
        });
        assert_eq!(starts.collect::<Vec<_>>(), [(1, 0, 10), (2, 10, 10)]);
    }

    #[test]
    fn nor_do_those_of_one_transaction() {
        let mut remote_results = RemoteResults::new(0, 2);
        let answers = [FULL, FULL + 1, 3].map(|len| vec![len as u8; len]);
        let mut table = SlotTable::default();
        table.reset(8);
        (5..).zip(&answers).for_each(|(slot, answer)| table.fill(SlotNo(slot), answer, false));
        remote_results.add_answers(1, Gsn(7), (&table, 2..8));
        let full = remote_results.full.iter().map(|(_, remote_result)| remote_result);
        let items = full.chain([&remote_results.to[1]]).map(|remote_result| {
            let answers = remote_result.items.iter().map(|(_, item)| match item {
                Item::Answers { first, .. } => {
                    let answers = WireAnswers::read(item.bytes(&remote_result.bytes)).unwrap();
                    assert_eq!(answers.clone().next().unwrap().0, *first);
                    answers.map(|(slot, bytes)| (slot.0, bytes.len())).collect::<Vec<_>>()
                }
                other => panic!("{other:?}"),
            });
            answers.collect::<Vec<_>>()
        });
        let by_remote_result: Vec<_> = items.collect();
        assert_eq!(by_remote_result, [[[(3, FULL)]], [[(4, FULL + 1)]], [[(5, 3)]]]);
    }
}
