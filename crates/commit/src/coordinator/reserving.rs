//! Records that are kept for transactions of several regions which have lost often (regions.md, G21).
//!
//! Such a transaction is validated a while after it has read. Who writes the same records in their own region is faster each time, so it might
//! lose for ever. After [`m_retries`] attempts that other regions have refused its initiator *reserves* its records in their regions: attempts that
//! begin there and would write one of them wait, and parts of other transactions are refused. Those that are under way end. So the
//! views of the initiator come to show the newest versions, and its next attempts find them so.
//!
//! Of two that reserve one record the earlier goes first, and it alone, so the first of all is kept waiting by nobody. A reservation is of
//! one term, ends with its transaction, and with time if nobody renews it: it protects nothing, and whoever ignores it breaks no rule.
//!
//! [`m_retries`]: crate::desk::Regional::m_retries

use std::collections::{BTreeMap, BTreeSet};

use ordain_model::{Abort, Fragment, GatewayId, KeyHash, Micros, Millis, PartitionId};

use super::{ATTEMPT_MAX, Coordinator, GIVE_UP_AFTER, State};
use crate::desk::Desk;
use crate::ids::{Lead, TransactionId};
use crate::message::{Protocol, Reservation};

/// The time for which records are kept unless they are reserved again: that of an attempt.
const KEPT_FOR: Micros = ATTEMPT_MAX;
/// An attempt that begins so long after they were reserved reserves them again.
const RENEWED_AFTER: Micros = Micros(KEPT_FOR.0 / 2);
/// Records that are reserved at most, each counted once for every transaction: a further reservation is not heard.
const RESERVED_MAX: usize = 1 << 16;

/// The order of those that reserve: by the time at which they first did, equal times by number.
type Turn = (Millis, TransactionId);

/// See the module.
#[derive(Debug, Default)]
pub struct Reserving {
    reserved: BTreeMap<TransactionId, Reserved>,
    /// The transactions that have reserved a record.
    of_key: BTreeMap<KeyHash, BTreeSet<Turn>>,
    /// The number of pairs in it.
    pairs: usize,
}

/// The records of one transaction.
#[derive(Debug)]
struct Reserved {
    since: Millis,
    until: Micros,
    keys: BTreeSet<KeyHash>,
    /// Transactions of this region that wait for its end.
    held: BTreeSet<u64>,
}

impl Reserving {
    /// Keeps records for a transaction, until a time, in place of those that were kept for it. Answers who waits for it no more.
    fn reserve(
        &mut self,
        of: TransactionId,
        since: Millis,
        keys: BTreeSet<KeyHash>,
        until: Micros,
    ) -> BTreeSet<u64> {
        let held = self.release(of);
        if self.pairs + keys.len() <= RESERVED_MAX {
            for key in &keys {
                self.of_key.entry(*key).or_default().insert((since, of));
            }
            self.pairs += keys.len();
            self.reserved.insert(of, Reserved { since, until, keys, held: BTreeSet::new() });
        }
        held
    }

    /// Keeps nothing for a transaction any more. Answers who waits for it.
    fn release(&mut self, of: TransactionId) -> BTreeSet<u64> {
        let Some(Reserved { since, keys, held, .. }) = self.reserved.remove(&of) else {
            return BTreeSet::new();
        };
        self.pairs -= keys.len();
        for key in keys {
            if let Some(turns) = self.of_key.get_mut(&key) {
                turns.remove(&(since, of));
                if turns.is_empty() {
                    self.of_key.remove(&key);
                }
            }
        }
        held
    }

    /// The transaction for which one of these records is kept from a transaction, and until when; none if it may go on.
    fn first_before(
        &self,
        who: TransactionId,
        mut keys: impl Iterator<Item = KeyHash>,
        now: Micros,
    ) -> Option<(TransactionId, Micros)> {
        keys.find_map(|key| {
            // Reservations that are over by time are taken away with the next one.
            let (_, first) = self.of_key.get(&key)?.iter().find(|(_, of)| self.reserved[of].until > now)?;
            (*first != who).then(|| (*first, self.reserved[first].until))
        })
    }

    /// Forgets reservations that nobody has renewed. Those who wait for one look again by themselves when it ends.
    pub fn expire(&mut self, now: Micros) {
        let over = self.reserved.iter().filter(|(_, reserved)| reserved.until <= now);
        let over: Vec<TransactionId> = over.map(|(of, _)| *of).collect();
        for of in over {
            self.release(of);
        }
    }

    /// The time at which the first reservation ends by itself.
    pub fn due(&self) -> Option<Micros> {
        self.reserved.values().map(|reserved| reserved.until).min()
    }

    /// The number of transactions for which records are kept.
    pub fn len(&self) -> usize {
        self.reserved.len()
    }

    /// Checks what must hold between two events.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), String> {
        let pairs = self.of_key.values().map(BTreeSet::len).sum::<usize>();
        let named = self.reserved.values().map(|reserved| reserved.keys.len()).sum::<usize>();
        if (pairs, named) != (self.pairs, self.pairs) {
            return Err(format!(
                "{} records are reserved, {pairs} by key and {named} by transaction",
                self.pairs
            ));
        }
        for (key, turns) in &self.of_key {
            let is_its = |(since, of): &Turn| {
                self.reserved
                    .get(of)
                    .is_some_and(|reserved| reserved.since == *since && reserved.keys.contains(key))
            };
            if turns.is_empty() || !turns.iter().all(is_its) {
                return Err(format!(
                    "the record {key:?} is reserved for {turns:?}, and not all of them know it"
                ));
            }
        }
        Ok(())
    }
}

/// The records that fragments name.
fn keys_of(fragments: &[Fragment]) -> impl Iterator<Item = KeyHash> + '_ {
    fragments.iter().filter(|fragment| fragment.is_keyed()).map(|fragment| fragment.hash)
}

impl Coordinator {
    /// Reserves the records of a transaction that is about to be tried again, if it has lost often enough.
    pub(super) fn reserve_if_starved(&mut self, number: u64, desk: &mut Desk<'_>) {
        let Some(most) = desk.site.regions.map(|regional| regional.m_retries) else { return };
        let Some(live) = self.live.get_mut(&number) else { return };
        // An interactive transaction is tried once.
        let is_starved = most > 0 && live.losses >= most && live.open.is_none();
        let now = desk.elapsed();
        let is_kept = live.reserved.is_some_and(|(_, at)| now.since(at) < RENEWED_AFTER);
        if !is_starved || is_kept {
            return;
        }
        let of = live.who(number).transaction;
        let (since, _) = *live.reserved.get_or_insert((desk.clock, now));
        live.reserved = Some((since, now));
        let fragments = live.chunk.fragments(&live.chunk.txns()[live.at]);
        let mut of_regions: BTreeMap<PartitionId, BTreeSet<KeyHash>> = BTreeMap::new();
        for key in keys_of(fragments) {
            of_regions.entry(desk.site.layout.partition_of(key.slot())).or_default().insert(key);
        }
        // Others of this region would only be refused elsewhere.
        let all: BTreeSet<KeyHash> = of_regions.values().flatten().copied().collect();
        of_regions.remove(&desk.site.partition);
        for (partition, keys) in of_regions {
            let keys = keys.into_iter().map(|key| key.0).collect();
            desk.tell_manager(partition, Protocol::Reserve(Reservation { of, since, keys }));
        }
        self.keep_for(of, since, all, desk);
    }

    fn keep_for(&mut self, of: TransactionId, since: Millis, keys: BTreeSet<KeyHash>, desk: &Desk<'_>) {
        let now = desk.elapsed();
        self.reserving.expire(now);
        let held = self.reserving.reserve(of, since, keys, now.plus(KEPT_FOR));
        self.counts.reservations += 1;
        self.look_again(held, desk);
    }

    /// Takes the request of another region to keep records for its transaction.
    pub fn take_reservation(&mut self, from: Lead, reservation: Reservation, desk: &Desk<'_>) {
        let Reservation { of, since, keys } = reservation;
        // One without records would count nothing.
        if desk.site.regions.is_some() && of.home == from && !keys.is_empty() {
            self.keep_for(of, since, keys.into_iter().map(KeyHash).collect(), desk);
        }
    }

    /// A transaction of another region is over, or the outcome of its part is known: nothing is kept for it.
    pub fn release(&mut self, of: TransactionId, desk: &Desk<'_>) {
        let held = self.reserving.release(of);
        self.look_again(held, desk);
    }

    /// A transaction of this region is over: nothing is kept for it anywhere.
    pub(super) fn release_all(&mut self, of: TransactionId, desk: &mut Desk<'_>) {
        let own = desk.site.partition;
        for region in (0..desk.site.layout.partitions()).map(PartitionId).filter(|region| *region != own) {
            desk.tell_manager(region, Protocol::Release(of));
        }
        self.release(of, desk);
    }

    /// Transactions that wait for a reservation begin their attempts.
    fn look_again(&mut self, held: BTreeSet<u64>, desk: &Desk<'_>) {
        let waits =
            |number: &u64| self.live.get(number).is_some_and(|live| matches!(live.state, State::Waiting));
        held.into_iter().filter(waits).for_each(|number| self.agenda.set(number, desk.elapsed()));
    }

    /// Has a transaction of this region wait that is about to be tried, if it would write what is kept for another; answers whether it does.
    pub(super) fn waits_for_reserved(&mut self, number: u64, desk: &mut Desk<'_>) -> bool {
        let now = desk.elapsed();
        let Some(live) = self.live.get(&number).filter(|_| self.reserving.len() > 0) else { return false };
        let txn = &live.chunk.txns()[live.at];
        // Parts of others were refused when they came. What only reads changes nothing, and what the database itself does is not worth the wait.
        if live.is_of_others() || txn.read_only || live.chunk.gateway == GatewayId::HOUSE {
            return false;
        }
        let keys = keys_of(live.chunk.fragments(txn));
        let Some((of, until)) = self.reserving.first_before(live.who(number).transaction, keys, now) else {
            return false;
        };
        if now.since(live.since) > GIVE_UP_AFTER {
            self.give_up(number, Abort::Wounded, desk);
            return true;
        }
        if let Some(reserved) = self.reserving.reserved.get_mut(&of) {
            reserved.held.insert(number);
        }
        self.counts.held += 1;
        self.agenda.set(number, until);
        true
    }

    /// True if a part of another region's transaction would write or lock what is kept for a third one.
    pub(super) fn is_reserved_from(&self, of: TransactionId, fragments: &[Fragment], now: Micros) -> bool {
        self.reserving.first_before(of, keys_of(fragments), now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Term;

    fn of(partition: u16, number: u64) -> TransactionId {
        TransactionId { home: Lead { partition: PartitionId(partition), term: Term(1) }, number }
    }

    fn keys(of: impl IntoIterator<Item = u64>) -> BTreeSet<KeyHash> {
        of.into_iter().map(KeyHash).collect()
    }

    /// The transaction for which a record is kept from another one at a time.
    fn keeps(all: &Reserving, who: TransactionId, key: u64, now: u64) -> Option<TransactionId> {
        all.check().unwrap();
        all.first_before(who, keys([key]).into_iter(), Micros(now)).map(|(of, _)| of)
    }

    #[test]
    fn the_first_to_reserve_a_record_has_it_alone() {
        let (first, second, other) = (of(1, 9), of(0, 1), of(0, 2));
        let mut all = Reserving::default();
        all.reserve(second, Millis(7), keys([1, 2]), Micros(100));
        all.reserve(first, Millis(5), keys([2, 3]), Micros(100));
        assert_eq!(
            [1, 2, 3, 4].map(|key| keeps(&all, other, key, 0)),
            [Some(second), Some(first), Some(first), None]
        );
        assert_eq!([1, 2].map(|key| keeps(&all, second, key, 0)), [None, Some(first)]);
        assert_eq!([2, 3].map(|key| keeps(&all, first, key, 0)), [None, None]);
        all.reserved.get_mut(&first).unwrap().held.insert(4);
        assert_eq!(all.release(first), BTreeSet::from([4]));
        assert_eq!([2, 3].map(|key| keeps(&all, other, key, 0)), [Some(second), None]);
        all.release(second);
        assert_eq!((all.len(), all.of_key.len(), all.pairs), (0, 0, 0));
    }

    #[test]
    fn a_reservation_that_nobody_renews_ends() {
        let (first, second) = (of(1, 9), of(0, 1));
        let mut all = Reserving::default();
        all.reserve(first, Millis(5), keys([2]), Micros(100));
        all.reserve(second, Millis(7), keys([2]), Micros(200));
        assert_eq!([99, 100].map(|now| keeps(&all, of(0, 2), 2, now)), [Some(first), Some(second)]);
        all.reserve(first, Millis(5), keys([2, 3]), Micros(300));
        assert_eq!(keeps(&all, second, 2, 250), Some(first));
        assert_eq!(all.due(), Some(Micros(200)));
        all.expire(Micros(200));
        assert_eq!((all.len(), all.due()), (1, Some(Micros(300))));
        all.expire(Micros(300));
        assert_eq!((all.len(), all.due()), (0, None));
    }

    #[test]
    fn there_are_not_more_than_can_be_kept() {
        let mut all = Reserving::default();
        all.reserve(of(0, 1), Millis(1), keys(0..RESERVED_MAX as u64), Micros(9));
        all.reserve(of(0, 2), Millis(1), keys([7]), Micros(9));
        assert_eq!((all.len(), keeps(&all, of(0, 3), 7, 0)), (1, Some(of(0, 1))));
        all.reserve(of(0, 1), Millis(1), keys([8]), Micros(9));
        all.reserve(of(0, 2), Millis(1), keys([7]), Micros(9));
        assert_eq!((all.len(), keeps(&all, of(0, 3), 7, 0)), (2, Some(of(0, 2))));
    }

    /// A peer keeps records for transactions of its own, and none without records, of which there could be any number.
    #[test]
    fn a_reservation_that_is_not_sound_is_not_heard() {
        let mut at = crate::bench::Bench::new(0);
        at.site.regions =
            Some(crate::desk::Regional { reading: ordain_model::RoMode::Validated, m_retries: 4 });
        let mut coordinator = Coordinator::default();
        let mut kept_of = |from: Lead, of: TransactionId, keys: Vec<u64>| {
            at.tell(|desk| {
                coordinator.take_reservation(from, Reservation { of, since: Millis(1), keys }, desk)
            });
            coordinator.reserving.len()
        };
        let (own, other) = (of(1, 1), of(0, 1));
        assert_eq!(kept_of(own.home, own, Vec::new()), 0);
        assert_eq!(kept_of(own.home, other, vec![7]), 0);
        assert_eq!(kept_of(own.home, own, vec![7]), 1);
    }
}
