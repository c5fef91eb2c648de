//! Pools: the records that an operation may choose from, and draws of different ones for a transaction.
//!
//! A workload that knows partitions has a pool for each, and one more for its hot records where there are
//! some. A record belongs to the partition whose shard its key's slot is on: the key space is divided by
//! hash, not by range as in the papers' testbeds, so the records of a partition are listed rather than
//! computed.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ordain_model::KeyHash;
use ordain_model::fetch::fetch;
use ordain_model::key::shard_of_slot;

use crate::choice::{Choice, Distribution, Scatter};
use crate::parameters::{ParameterError, require_in};
use ordain_model::Random;

/// The records of one partition, each with a place from 0 on.
#[derive(Clone)]
pub struct Partition {
    number: u32,
    count: u64,
    /// The records' numbers by place; nothing if a record's number is its place.
    list: Option<Arc<[u32]>>,
}

impl Partition {
    /// Records 0 to n - 1, at most [`crate::choice::MAX_RECORDS`] of them.
    pub fn all(records: u64) -> Partition {
        Partition { number: 0, count: records, list: None }
    }

    /// Records 0 to n - 1 by the partition, of at most [`ordain_model::key::SLOTS`], that their keys are in.
    pub fn divide<K: AsRef<[u8]>>(
        records: u64,
        partitions: usize,
        key: impl Fn(u64) -> K,
    ) -> Arc<[Partition]> {
        if partitions <= 1 {
            return [Partition::all(records)].into();
        }
        let partition_of = |record| shard_of_slot(KeyHash::of(key(record).as_ref()).slot(), partitions);
        let mut counts = vec![0usize; partitions];
        (0..records).for_each(|record| counts[partition_of(record)] += 1);
        let mut lists: Vec<Vec<u32>> = counts.into_iter().map(Vec::with_capacity).collect();
        // A record's number fits: there are at most 2^32.
        (0..records).for_each(|record| lists[partition_of(record)].push(record as u32));
        let listed = |(number, list): (u32, Vec<u32>)| Partition {
            number,
            count: list.len() as u64,
            list: Some(list.into()),
        };
        (0..).zip(lists).map(listed).collect()
    }

    /// The first so many records of each partition. The key space must have them: their numbers have 32 bits.
    pub fn first_of_each<K: AsRef<[u8]>>(
        records: u64,
        partitions: usize,
        key: impl Fn(u64) -> K,
    ) -> Arc<[Partition]> {
        if partitions <= 1 {
            return [Partition::all(records)].into();
        }
        let mut lists = vec![Vec::with_capacity(records as usize); partitions];
        let mut lacking = partitions;
        for record in 0..=u32::MAX {
            if lacking == 0 {
                break;
            }
            let slot = KeyHash::of(key(record.into()).as_ref()).slot();
            let list = &mut lists[shard_of_slot(slot, partitions)];
            if (list.len() as u64) < records {
                list.push(record);
                lacking -= usize::from(list.len() as u64 == records);
            }
        }
        let listed = |(number, list): (u32, Vec<u32>)| Partition {
            number,
            count: list.len() as u64,
            list: Some(list.into()),
        };
        (0..).zip(lists).map(listed).collect()
    }

    /// The number of records.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Places of the partition as they are drawn, for [`Drawn::look_up`].
    pub fn drawn(&self, places: Range<u64>) -> Range<u64> {
        let first = u64::from(self.number) << PLACE_BITS;
        first + places.start..first + places.end
    }

    /// The record in a place below the count.
    #[inline]
    pub fn record(&self, place: u64) -> u64 {
        match &self.list {
            Some(list) => u64::from(list[place as usize]),
            None => place,
        }
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition")
            .field("number", &self.number)
            .field("count", &self.count)
            .field("listed", &self.list.is_some())
            .finish()
    }
}

/// Successive ranks of a partition, and how one of them is chosen.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The number of the partition, above the bits of a place.
    partition: u64,
    /// The places of the ranks, where some are more popular than others: those are far apart.
    scatter: Option<Scatter>,
    first: u64,
    choice: Choice,
    /// The records by place, where that is not their number.
    list: Option<Arc<[u32]>>,
}

impl Pool {
    /// All records of a partition.
    ///
    /// # Errors
    /// A distribution that makes no sense.
    pub fn whole(partition: &Partition, distribution: Distribution) -> Result<Pool, ParameterError> {
        Pool::of(partition, 0, partition.count, distribution)
    }

    /// The `hot` most popular records of a partition, with a choice of their own, and the rest, chosen
    /// evenly.
    ///
    /// # Errors
    /// A distribution that makes no sense, or none hot, or none left.
    pub fn hot_and_cold(
        partition: &Partition,
        hot: u64,
        distribution: Distribution,
    ) -> Result<(Pool, Pool), ParameterError> {
        let records = partition.count;
        require_in("hot records", hot, 1..=records.saturating_sub(1))?;
        let cold = Pool::of(partition, hot, records - hot, Distribution::UNIFORM)?;
        Ok((Pool::of(partition, 0, hot, distribution)?, cold))
    }

    fn of(
        partition: &Partition,
        first: u64,
        count: u64,
        distribution: Distribution,
    ) -> Result<Pool, ParameterError> {
        Ok(Pool {
            partition: u64::from(partition.number) << PLACE_BITS,
            scatter: (count < partition.count || distribution != Distribution::UNIFORM)
                .then(|| Scatter::new(partition.count)),
            first,
            choice: Choice::new(count, distribution)?,
            list: partition.list.clone(),
        })
    }

    /// The number of records.
    pub fn count(&self) -> u64 {
        self.choice.records()
    }

    #[inline]
    fn place(&self, rank: u64) -> u64 {
        let rank = self.first + rank;
        self.scatter.map_or(rank, |scatter| scatter.place(rank))
    }

    /// Draws a place, another than `drawn` has already, and adds it. A duplicate is drawn again; where that
    /// does not end soon, because nearly all popular records are taken, the next free record is taken. The
    /// pool must have one that is not taken.
    #[inline]
    pub fn draw(&self, random: &mut Random, drawn: &mut Drawn) {
        const REDRAWS: usize = 64;
        let mut rank = self.choice.rank(random);
        let mut redraws = 0;
        loop {
            let place = self.place(rank);
            if let Some(list) = &self.list {
                fetch(&list[place as usize]);
            }
            if drawn.add(self.partition | place) {
                break;
            }
            if redraws < REDRAWS {
                rank = self.choice.rank(random);
                redraws += 1;
            } else {
                rank = (rank + 1) % self.choice.records();
            }
        }
    }
}

/// The number of bits of a place.
const PLACE_BITS: u32 = 32;

/// Different records of one transaction, in the order in which they were drawn.
///
/// While they are drawn they are places of partitions. [`Drawn::look_up`] makes records of them, all at once,
/// once the memory that holds long lists has had time to answer: it is asked for each as it is drawn.
#[derive(Clone, Debug, Default)]
pub struct Drawn {
    records: Vec<u64>,
    /// An open-addressing table of the records, each with the round in which it was added, so that nothing
    /// need be cleared for the next transaction.
    marks: Vec<(u64, u64)>,
    round: u64,
}

impl Drawn {
    /// Forgets all records and makes room for `count`.
    #[inline]
    pub fn begin(&mut self, count: usize) {
        self.records.clear();
        self.round += 1;
        if self.marks.len() < 2 * count {
            self.marks = vec![(0, 0); (2 * count).next_power_of_two()];
            self.records.reserve(count);
        }
    }

    /// Makes records of the places of partitions. (Of one partition alone, that is what they are.)
    #[inline]
    pub fn look_up(&mut self, partitions: &[Partition]) {
        if partitions.len() > 1 {
            for drawn in &mut self.records {
                let place = *drawn & ((1 << PLACE_BITS) - 1);
                *drawn = partitions[(*drawn >> PLACE_BITS) as usize].record(place);
            }
        }
    }

    /// The records.
    #[inline]
    pub fn records(&self) -> &[u64] {
        &self.records
    }

    /// Begins anew with `count` numbers below `n`, all as likely. `n` must be as large as `count`.
    #[inline]
    pub fn draw_evenly(&mut self, random: &mut Random, n: u64, count: usize) {
        self.begin(count);
        self.draw_rest(random, n, count);
    }

    /// Adds numbers below `n`, all as likely, until there are `count`. `n` must be as large as `count`.
    #[inline]
    pub fn draw_rest(&mut self, random: &mut Random, n: u64, count: usize) {
        while self.records.len() < count {
            self.add(random.below(n));
        }
    }

    /// Adds a record, unless it is there already. Never more than there was made room for.
    #[inline]
    pub fn add(&mut self, record: u64) -> bool {
        let mask = self.marks.len() - 1;
        let mut at = (record.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        while self.marks[at].1 == self.round {
            if self.marks[at].0 == record {
                return false;
            }
            at = (at + 1) & mask;
        }
        self.marks[at] = (record, self.round);
        self.records.push(record);
        true
    }
}

/// The records that population `number` of `populations` loads.
pub fn share_of(records: u64, number: usize, populations: usize) -> std::ops::Range<u64> {
    let edge = |n: usize| (u128::from(records) * n as u128 / populations.max(1) as u128) as u64;
    edge(number)..edge(number + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_record_is_in_the_one_partition_that_its_key_is_in() {
        let key = |record: u64| record.to_le_bytes();
        for count in [1, 2, 7] {
            let partitions = Partition::divide(5_000, count, key);
            assert_eq!(partitions.len(), count);
            let mut all = BTreeSet::new();
            for (number, partition) in partitions.iter().enumerate() {
                for place in 0..partition.count() {
                    let record = partition.record(place);
                    assert_eq!(shard_of_slot(KeyHash::of(&key(record)).slot(), count), number);
                    assert!(all.insert(record));
                }
            }
            assert!(all.into_iter().eq(0..5_000));
        }
    }

    #[test]
    fn each_partition_has_as_many_records_of_its_own() {
        let partitions = Partition::first_of_each(50, 3, |record| record.to_le_bytes());
        let mut all = BTreeSet::new();
        for (number, partition) in partitions.iter().enumerate() {
            assert_eq!(partition.count(), 50);
            let mut drawn = Drawn::default();
            drawn.begin(50);
            partition.drawn(0..50).for_each(|place| _ = drawn.add(place));
            drawn.look_up(&partitions);
            for record in drawn.records() {
                assert_eq!(shard_of_slot(KeyHash::of(&record.to_le_bytes()).slot(), 3), number);
            }
            all.extend(drawn.records().iter().copied());
        }
        assert_eq!(all.len(), 150);
    }

    #[test]
    fn distinct_draws_are_distinct_and_end_even_when_they_take_everything() {
        let mut drawn = Drawn::default();
        let mut random = Random::new(3);
        for (records, count, theta) in [(10, 10, 5.0), (200, 200, 3.0), (1_000, 16, 0.99), (3, 3, 0.0)] {
            let pool = Pool::whole(&Partition::all(records), Distribution::Zipfian { theta }).unwrap();
            for _ in 0..50 {
                drawn.begin(count);
                (0..count).for_each(|_| pool.draw(&mut random, &mut drawn));
                let set: BTreeSet<u64> = drawn.records().iter().copied().collect();
                assert_eq!((drawn.records().len(), set.len()), (count, count));
                assert!(set.iter().all(|record| *record < records));
            }
        }
    }

    #[test]
    fn hot_and_cold_have_nothing_in_common_and_leave_nothing_out() {
        let partitions = Partition::divide(1_000, 3, |record| record.to_le_bytes());
        let partition = &partitions[1];
        let (hot, cold) = Pool::hot_and_cold(partition, 10, Distribution::UNIFORM).unwrap();
        let mut random = Random::new(4);
        let mut all = |pool: &Pool| {
            let mut drawn = Drawn::default();
            drawn.begin(pool.count() as usize);
            (0..pool.count()).for_each(|_| pool.draw(&mut random, &mut drawn));
            drawn.look_up(&partitions);
            drawn.records().to_vec()
        };
        let mut both = all(&hot);
        assert_eq!(both.len(), 10);
        both.extend(all(&cold));
        let both: BTreeSet<u64> = both.into_iter().collect();
        assert_eq!(both, (0..partition.count()).map(|place| partition.record(place)).collect());
        for hot in [0, partition.count(), partition.count() + 1] {
            assert!(Pool::hot_and_cold(partition, hot, Distribution::UNIFORM).is_err());
        }
    }

    #[test]
    fn populations_share_the_loading() {
        let shares: Vec<u64> = (0..3).flat_map(|n| share_of(100, n, 3)).collect();
        assert!(shares.into_iter().eq(0..100));
        assert_eq!(share_of(u64::MAX, 6, 7).end, u64::MAX);
    }
}
