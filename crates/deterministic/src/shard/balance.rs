//! Load balancing: which of a partition's shards the load falls on, and which slots to move so that it falls evenly
//! (`docs/protocols/qstore.md`, Q25).
//!
//! A shard owns slots, and its core does what is asked of them. Where some slots are asked for more than others, one core works
//! while the rest wait for it. The first shard of a partition sees the whole order; it samples transactions and
//! proposes now and then a few slots for other shards. The sequencer turns a proposal into a transaction
//! (`ordain.balance`), so every replica moves the slots at the same place in the order, and only the division of work
//! depends on it (decision 30).

use std::ops::Range;

use ordain_model::key::SLOTS;
use ordain_model::{Batch, Layout, Micros, VirtualShard, VirtualShards};

/// How the load of a partition is shared among its shards.
#[derive(Clone, Copy, Debug)]
pub struct Balance {
    /// The pause between two evaluations, at least.
    pub every: Micros,
    /// One of so many transactions is sampled.
    pub stride: usize,
    /// How many fragments must have been sampled for each shard before anything is concluded.
    pub samples: u32,
    /// The most records that move at a time: while they are on their way the two shards wait. A slot with more stays
    /// where it is, however large its load.
    pub records: u32,
}

impl Default for Balance {
    fn default() -> Self {
        // A prime, as loads have rhythms.
        Balance { every: Micros::from_millis(200), stride: 61, samples: 2048, records: 16 << 10 }
    }
}

/// The most slots that move at a time: while their records are on their way the shards wait.
const MOST: usize = 16;
/// The most records of a slot whose size is not reported.
pub(crate) const SMALL: u32 = 1024;
/// What is less than such a part of what two shards are apart brings them no nearer.
const CRUMB: u64 = 64;
/// A shard has too much if it has so many eighths of what it should have: less is not worth a move.
const TOO_MUCH: u64 = 9;
/// A move must take so much off the busiest shard: a sixteenth of what it has.
const WORTH: u64 = 16;

/// The load of each hash slot of a partition, sampled lately.
#[derive(Debug)]
pub(crate) struct Load {
    balance: Balance,
    /// Fragments sampled, by slot; halved at each evaluation.
    slots: Box<[u32; SLOTS]>,
    /// The records in each slot, as its shard has reported last; [`SMALL`] for slots that are not reported.
    records: Box<[u32; SLOTS]>,
    /// Fragments sampled since the last evaluation.
    samples: u32,
    /// So many transactions are passed over until the next one is noted.
    skip: usize,
    since: Micros,
}

impl Load {
    pub(crate) fn new(balance: Balance) -> Load {
        let (slots, records) = (Box::new([0; SLOTS]), Box::new([SMALL; SLOTS]));
        Load { balance, slots, records, samples: 0, skip: 0, since: Micros(0) }
    }

    /// A shard has these slots, and so many records in those that are large.
    pub(crate) fn note_sizes(&mut self, owned: impl Iterator<Item = usize>, large: &[(usize, u32)]) {
        owned.for_each(|slot| self.records[slot] = SMALL);
        large.iter().for_each(|(slot, records)| self.records[*slot % SLOTS] = *records);
    }

    /// Samples a batch; `is_own` tells the partition's slots.
    pub(crate) fn note(&mut self, batch: &Batch, is_own: impl Fn(usize) -> bool) {
        for placed in &batch.chunks {
            let txns = placed.chunk.txns();
            while let Some(txn) = txns.get(self.skip) {
                let keyed = placed.chunk.fragments(txn).iter().filter(|fragment| !fragment.is_table());
                for slot in keyed.map(|fragment| fragment.hash.slot()).filter(|slot| is_own(*slot)) {
                    self.slots[slot] += 1;
                    self.samples += 1;
                }
                self.skip += self.balance.stride;
            }
            self.skip -= txns.len();
        }
    }

    /// Returns the slots that should be in another virtual shard; none if it is too early, too little is known, or the gain is
    /// too small.
    pub(crate) fn uneven(&mut self, now: Micros, layout: &Layout, shards: Range<usize>) -> VirtualShards {
        let (first, threads) = (shards.start, shards.len());
        let needed = self.balance.samples.saturating_mul(threads as u32);
        if now.since(self.since) < self.balance.every || self.samples < needed {
            return Vec::new();
        }
        let moves = better(&self.slots, (&self.records, self.balance.records), layout, shards);
        (self.since, self.samples) = (now, 0);
        self.slots.iter_mut().for_each(|load| *load /= 2);
        let virtual_shard = |(slot, shard): (usize, usize)| {
            let is_back = shard == layout.own_shard(slot, layout.partition_of(slot));
            let virtual_shards = VirtualShard::of_shard(shard - first, threads);
            // A replica with more threads has them on several.
            (
                slot,
                (!is_back).then(|| VirtualShard((virtual_shards.start + slot % virtual_shards.len()) as u8)),
            )
        };
        moves.into_iter().map(virtual_shard).collect()
    }
}

/// Which slots to move to which shards, so that the busiest has less to do: from the busiest to the idlest each time, the slot
/// that comes nearest to half of what they are apart, as long as there are no more records in them than that. Nothing, if all of
/// it is not worth while.
fn better(
    slots: &[u32; SLOTS],
    (records, records_max): (&[u32; SLOTS], u32),
    layout: &Layout,
    shards: Range<usize>,
) -> Vec<(usize, usize)> {
    let mut room = records_max;
    let mut owned: Vec<Vec<usize>> = shards.clone().map(|shard| layout.owned_by(shard).collect()).collect();
    let load = |slot: usize| u64::from(slots[slot]);
    let mut loads: Vec<u64> = owned.iter().map(|slots| slots.iter().map(|slot| load(*slot)).sum()).collect();
    let threads = loads.len() as u64;
    let (total, busiest) = (loads.iter().sum::<u64>(), loads.iter().copied().max().unwrap_or(0));
    if busiest * 8 * threads <= total * TOO_MUCH {
        return Vec::new();
    }
    let mut moves = Vec::new();
    while moves.len() < MOST {
        let by_load = |a: &usize, b: &usize| loads[*a].cmp(&loads[*b]);
        let Some(from) = (0..loads.len()).max_by(by_load) else { break };
        let Some(to) = (0..loads.len()).min_by(by_load) else { break };
        let apart = loads[from] - loads[to];
        if apart * 8 * threads < total {
            break;
        }
        // Crumbs are not worth their way.
        let moves_some =
            |slot: &usize| (1.max(apart / CRUMB)..apart).contains(&load(*slot)) && records[*slot] <= room;
        let nearest = |slot: &usize| (load(*slot).abs_diff(apart / 2), *slot);
        let Some(slot) = owned[from].iter().copied().filter(moves_some).min_by_key(nearest) else { break };
        owned[from].retain(|other| *other != slot);
        owned[to].push(slot);
        loads[from] -= load(slot);
        loads[to] += load(slot);
        room -= records[slot];
        moves.push((slot, shards.start + to));
    }
    let left = loads.iter().copied().max().unwrap_or(0);
    // A slot that moved on from where it went is listed once.
    let mut last = Vec::new();
    for (slot, shard) in moves.into_iter().rev() {
        if last.iter().all(|(other, _)| *other != slot) {
            last.push((slot, shard));
        }
    }
    last.retain(|(slot, shard)| layout.shard_of(*slot) != *shard);
    if left <= busiest - busiest / WORTH { last } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ordain_model::PartitionId;
    use proptest::prelude::*;

    use super::*;

    fn loads_of(slots: &[u32; SLOTS], layout: &Layout, shards: Range<usize>) -> Vec<u64> {
        let load = |shard| layout.owned_by(shard).map(|slot| u64::from(slots[slot])).sum();
        shards.map(load).collect()
    }

    /// A load that has been seen often enough.
    fn load_of(slots: [u32; SLOTS]) -> Load {
        Load { slots: Box::new(slots), samples: u32::MAX, ..Load::new(Balance::default()) }
    }

    #[test]
    fn what_holds_many_records_stays_where_it_is() {
        let layout = Layout::even(1, 2).unwrap();
        let mut slots = [0; SLOTS];
        slots[100..108].fill(1 << 16);
        let moved = |large: &[(usize, u32)]| {
            let mut load = load_of(slots);
            load.note_sizes(layout.owned_by(0), large);
            load.uneven(LATER, &layout, 0..2).into_iter().map(|(slot, _)| slot).collect::<Vec<_>>()
        };
        let most = Balance::default().records;
        assert_eq!(moved(&[]).len(), 4);
        let large = [100, 101, 102, 103, 104, 105].map(|slot| (slot, most + 1));
        assert_eq!(moved(&large), [107, 106], "the others are enough to make it better");
        let all: Vec<(usize, u32)> = (100..108).map(|slot| (slot, 500_000)).collect();
        assert_eq!(moved(&all), [], "such as the slots of large tenants");
        // One may be as large as what goes at a time; then it goes alone.
        let all: Vec<(usize, u32)> = (100..108).map(|slot| (slot, most)).collect();
        assert_eq!(moved(&all).len(), 1);
        // Once its records are gone it moves like any other.
        let mut load = load_of(slots);
        load.note_sizes(layout.owned_by(0), &all);
        load.note_sizes(layout.owned_by(0), &[]);
        assert_eq!(load.uneven(LATER, &layout, 0..2).len(), 4);
    }

    const LATER: Micros = Micros(1 << 40);

    #[test]
    fn an_even_load_stays_where_it_is_and_so_does_one_of_which_too_little_is_known() {
        let layout = Layout::even(1, 2).unwrap();
        let even = std::array::from_fn(|slot| 100 + slot as u32 % 7);
        assert_eq!(load_of(even).uneven(LATER, &layout, 0..2), []);
        let mut uneven = [1; SLOTS];
        uneven[3..9].fill(1000);
        let mut load = load_of(uneven);
        load.samples = 2 * Balance::default().samples - 1;
        assert_eq!(load.uneven(LATER, &layout, 0..2), []);
        load.samples += 1;
        assert_eq!(load.uneven(Micros(0), &layout, 0..2), [], "it was looked at just now");
        assert_eq!(load.uneven(LATER, &layout, 0..2).len(), 3);
    }

    #[test]
    fn one_slot_that_has_all_the_load_stays_where_it_is() {
        let layout = Layout::even(1, 2).unwrap();
        let mut slots = [0; SLOTS];
        slots[700] = 1 << 20;
        assert_eq!(
            load_of(slots).uneven(LATER, &layout, 0..2),
            [],
            "it would be the same on the other shard"
        );
        // With others beside it, it goes, or they do.
        slots[600..606].fill(1 << 18);
        let moves = load_of(slots).uneven(LATER, &layout, 0..2);
        let layout = layout.balanced(PartitionId(0), &moves).unwrap();
        assert_eq!((moves.len(), loads_of(&slots, &layout, 0..2)), (2, vec![5 << 18, 5 << 18]));
    }

    #[test]
    fn a_load_on_few_slots_of_one_shard_is_shared_in_a_few_moves() {
        for threads in [2, 3, 8] {
            let mut layout = Layout::even(2, threads).unwrap();
            let shards = layout.shards_of(PartitionId(1));
            let hot = layout.owned_by(shards.start).take(40).collect::<BTreeSet<_>>();
            let slots = std::array::from_fn(|slot| if hot.contains(&slot) { 5000 } else { 10 });
            let mut steps = 0;
            loop {
                let moves = load_of(slots).uneven(LATER, &layout, shards.clone());
                if moves.is_empty() {
                    break;
                }
                assert!(moves.len() <= MOST && moves.iter().all(|(slot, _)| hot.contains(slot)));
                layout = layout.balanced(PartitionId(1), &moves).unwrap();
                steps += 1;
            }
            let loads = loads_of(&slots, &layout, shards);
            let (total, most) = (loads.iter().sum::<u64>(), loads.iter().max().unwrap());
            let is_even = most * 8 * threads as u64 <= total * TOO_MUCH;
            assert!(steps <= 4 && is_even, "{threads} threads: {loads:?} after {steps} moves");
        }
    }

    #[test]
    fn a_slot_that_goes_home_leaves_no_trace_in_the_map() {
        let first = Layout::even(1, 2).unwrap();
        let mut slots = [1; SLOTS];
        slots[..2].fill(1 << 20);
        let away = first.balanced(PartitionId(0), &load_of(slots).uneven(LATER, &first, 0..2)).unwrap();
        let moved = (0..SLOTS).find(|slot| away.shard_of(*slot) != first.shard_of(*slot)).unwrap();
        // Now much is asked where it went.
        slots[600] = 1 << 21;
        assert_eq!(load_of(slots).uneven(LATER, &away, 0..2), [(moved, None)]);
    }

    #[test]
    fn one_transaction_in_sixty_one_is_noted_however_batches_are_cut() {
        use std::sync::Arc;

        use ordain_model::args::encode;
        use ordain_model::{Args, Call, Chunk, ChunkNo, Db, GatewayId, Placed, Registry, system};

        let mut registry = Registry::default();
        system::register(&mut registry);
        let batch_of = |keys: Range<u32>| {
            let mut chunk = Chunk::new(GatewayId(0), ChunkNo(1));
            for key in keys {
                let bytes = encode(&[b"\0".as_slice(), &key.to_le_bytes()]);
                let args = Args::parse(&bytes).unwrap();
                let call = Call::new(system::READ, Db(0));
                chunk
                    .push(&registry, call, |out| args.iter().for_each(|arg| _ = out.push(arg.bytes)))
                    .unwrap();
            }
            Batch { chunks: vec![Placed::whole(0, Arc::new(chunk))], ..Batch::default() }
        };
        let noted = |cuts: &[u32]| {
            let mut load = Load::new(Balance::default());
            let mut from = 0;
            for cut in cuts {
                load.note(&batch_of(from..*cut), |_| true);
                from = *cut;
            }
            (load.samples, load.slots)
        };
        let whole = noted(&[6100]);
        assert_eq!(whole.0, 100);
        assert_eq!(noted(&[1, 2, 60, 61, 62, 400, 1000, 6099, 6100]), whole);
        // The load of other partitions does not count.
        let mut load = Load::new(Balance::default());
        load.note(&batch_of(0..6100), |slot| slot < 512);
        assert!(load.samples > 0 && load.samples == load.slots[..512].iter().sum::<u32>());
        assert!(load.samples < 100 && load.slots[512..] == [0; 512]);
    }

    proptest! {
        /// No move makes the busiest shard busier, or is for nothing.
        #[test]
        fn moves_take_load_off_the_busiest_shard(
            hot in proptest::collection::vec((0..SLOTS, 0u32..1_000_000), 0..40),
            cold in 0u32..100,
            threads in 1usize..9,
        ) {
            let layout = Layout::even(2, threads).unwrap();
            let mut slots = [cold; SLOTS];
            hot.iter().for_each(|(slot, load)| slots[*slot] = *load);
            let shards = layout.shards_of(PartitionId(0));
            let moves = load_of(slots).uneven(LATER, &layout, shards.clone());
            prop_assert!(moves.len() <= MOST);
            if !moves.is_empty() {
                let after = layout.balanced(PartitionId(0), &moves).unwrap();
                let most = |layout: &Layout| loads_of(&slots, layout, shards.clone()).into_iter().max().unwrap();
                prop_assert!(most(&after) <= most(&layout) - most(&layout) / WORTH);
                for (slot, _) in moves {
                    prop_assert_ne!(after.shard_of(slot), layout.shard_of(slot));
                }
            }
        }
    }
}
