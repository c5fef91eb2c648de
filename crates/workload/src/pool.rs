//! Pools: the records that an operation may choose from, and draws of different ones for a transaction.
//!
//! A workload that knows partitions has a pool for each, and one more for its hot records where there are some. A
//! record belongs to the partition whose shard its key's slot is on: the key space is divided by hash, not by
//! range as in the papers' testbeds, so the records of a partition are listed rather than computed.

use std::fmt;
use std::sync::Arc;

use ordain_model::KeyHash;
use ordain_model::key::shard_of_slot;

use crate::choice::{Choice, ChoiceError, Distribution, Scatter};
use crate::random::Random;

/// The records of one partition, in the order of their ranks.
#[derive(Clone)]
pub struct Ranked {
    scatter: Scatter,
    /// The records' numbers; nothing if they are all numbers below their count.
    list: Option<Arc<[u32]>>,
}

impl Ranked {
    /// Records 0 to n - 1, at most [`crate::choice::MAX_RECORDS`] of them.
    pub fn all(records: u64) -> Ranked {
        Ranked { scatter: Scatter::new(records), list: None }
    }

    /// Records 0 to n - 1 by the partition, of `partitions`, that their keys are in.
    pub fn by_partition<K: AsRef<[u8]>>(
        records: u64,
        partitions: usize,
        key: impl Fn(u64) -> K,
    ) -> Vec<Ranked> {
        if partitions <= 1 {
            return vec![Ranked::all(records)];
        }
        let partition_of = |record| shard_of_slot(KeyHash::of(key(record).as_ref()).slot(), partitions);
        let mut counts = vec![0usize; partitions];
        (0..records).for_each(|record| counts[partition_of(record)] += 1);
        let mut lists: Vec<Vec<u32>> = counts.into_iter().map(Vec::with_capacity).collect();
        // A record's number fits: there are at most 2^32.
        (0..records).for_each(|record| lists[partition_of(record)].push(record as u32));
        let ranked =
            |list: Vec<u32>| Ranked { scatter: Scatter::new(list.len() as u64), list: Some(list.into()) };
        lists.into_iter().map(ranked).collect()
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.scatter.count()
    }

    /// The record of a rank below the count: each rank has its own, popular ones far apart.
    #[inline]
    pub fn record(&self, rank: u64) -> u64 {
        let at = self.scatter.place(rank);
        match &self.list {
            Some(list) => u64::from(list[at as usize]),
            None => at,
        }
    }
}

impl fmt::Debug for Ranked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ranked").field("count", &self.count()).field("listed", &self.list.is_some()).finish()
    }
}

/// Successive ranks of a partition, and how one of them is chosen.
#[derive(Clone, Debug)]
pub struct Pool {
    ranked: Ranked,
    first: u64,
    choice: Choice,
}

impl Pool {
    /// All records of a partition.
    ///
    /// # Errors
    /// A distribution that makes no sense.
    pub fn whole(ranked: Ranked, distribution: Distribution) -> Result<Pool, ChoiceError> {
        let choice = Choice::new(ranked.count(), distribution)?;
        Ok(Pool { ranked, first: 0, choice })
    }

    /// The `hot` most popular records of a partition, with a choice of their own, and the rest, chosen evenly.
    ///
    /// # Errors
    /// A distribution that makes no sense, or none hot, or none left.
    pub fn hot_and_cold(
        ranked: Ranked,
        hot: u64,
        distribution: Distribution,
    ) -> Result<(Pool, Pool), ChoiceError> {
        let records = ranked.count();
        if hot == 0 || hot >= records {
            return Err(ChoiceError::Hot { hot, records });
        }
        let cold = Choice::new(records - hot, Distribution::UNIFORM)?;
        let hot_pool = Pool { ranked: ranked.clone(), first: 0, choice: Choice::new(hot, distribution)? };
        Ok((hot_pool, Pool { ranked, first: hot, choice: cold }))
    }

    /// How many records it has.
    pub fn count(&self) -> u64 {
        self.choice.records()
    }

    /// Draws a record, another than `drawn` has already, and adds it. A duplicate is drawn again; where that does
    /// not end soon, because nearly all popular records are taken, the next free record is taken. The pool must
    /// have one that is not taken.
    #[inline]
    pub fn draw(&self, random: &mut Random, drawn: &mut Distinct) {
        const REDRAWS: usize = 64;
        let mut rank = self.choice.rank(random);
        let mut redraws = 0;
        while !drawn.add(self.ranked.record(self.first + rank)) {
            if redraws < REDRAWS {
                rank = self.choice.rank(random);
                redraws += 1;
            } else {
                rank = (rank + 1) % self.choice.records();
            }
        }
    }
}

/// Different records, in the order in which they were added: those of one transaction.
#[derive(Clone, Debug, Default)]
pub struct Distinct {
    records: Vec<u64>,
    /// An open-addressing table of the records, each with the round in which it was added, so that nothing need
    /// be cleared for the next transaction.
    marks: Vec<(u64, u64)>,
    round: u64,
}

impl Distinct {
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

    /// The records.
    #[inline]
    pub fn records(&self) -> &[u64] {
        &self.records
    }

    /// Begins anew with `count` numbers below `n`, all as likely. `n` must be as large as `count`.
    #[inline]
    pub fn draw_evenly(&mut self, random: &mut Random, n: u64, count: usize) {
        self.begin(count);
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
        for partitions in [1, 2, 7] {
            let ranked = Ranked::by_partition(5_000, partitions, key);
            assert_eq!(ranked.len(), partitions);
            let mut all = BTreeSet::new();
            for (partition, ranked) in ranked.iter().enumerate() {
                for rank in 0..ranked.count() {
                    let record = ranked.record(rank);
                    assert_eq!(shard_of_slot(KeyHash::of(&key(record)).slot(), partitions), partition);
                    assert!(all.insert(record));
                }
            }
            assert!(all.into_iter().eq(0..5_000));
        }
    }

    #[test]
    fn distinct_draws_are_distinct_and_end_even_when_they_take_everything() {
        let mut drawn = Distinct::default();
        let mut random = Random::new(3);
        for (records, count, theta) in [(10, 10, 5.0), (200, 200, 3.0), (1_000, 16, 0.99), (3, 3, 0.0)] {
            let pool = Pool::whole(Ranked::all(records), Distribution::Zipfian { theta }).unwrap();
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
        let ranked = Ranked::by_partition(1_000, 3, |record| record.to_le_bytes()).remove(1);
        let (hot, cold) = Pool::hot_and_cold(ranked.clone(), 10, Distribution::UNIFORM).unwrap();
        let mut random = Random::new(4);
        let mut all = |pool: &Pool| {
            let mut drawn = Distinct::default();
            drawn.begin(pool.count() as usize);
            (0..pool.count()).for_each(|_| pool.draw(&mut random, &mut drawn));
            drawn.records().to_vec()
        };
        let mut both = all(&hot);
        assert_eq!(both.len(), 10);
        both.extend(all(&cold));
        let both: BTreeSet<u64> = both.into_iter().collect();
        assert_eq!(both, (0..ranked.count()).map(|rank| ranked.record(rank)).collect());
        for hot in [0, ranked.count(), ranked.count() + 1] {
            assert!(Pool::hot_and_cold(ranked.clone(), hot, Distribution::UNIFORM).is_err());
        }
    }

    #[test]
    fn populations_share_the_loading() {
        let shares: Vec<u64> = (0..3).flat_map(|n| share_of(100, n, 3)).collect();
        assert!(shares.into_iter().eq(0..100));
        assert_eq!(share_of(u64::MAX, 6, 7).end, u64::MAX);
    }
}
