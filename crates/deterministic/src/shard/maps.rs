//! The layouts in force as of late epochs, and the work of a shard for a move of slots.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use ordain_model::{Epoch, Gsn, Layout, Layouts, Position};
use ordain_store::Name;

/// The layouts in force, now and as of late epochs.
#[derive(Debug)]
pub struct Maps {
    /// The layout in force, by which the owner of every fragment is found.
    now: Arc<Layout>,
    /// Each with the epoch as of the end of which it was in force, until the next; the last one is in force.
    layouts: VecDeque<(Epoch, Arc<Layout>)>,
    /// The layouts by which gateways have planned.
    pub(crate) planned: Layouts,
}

impl Maps {
    /// Begins with a layout.
    pub(crate) fn new(layout: Arc<Layout>) -> Maps {
        Maps {
            now: layout.clone(),
            planned: Layouts::new(layout.clone()),
            layouts: VecDeque::from([(Epoch(0), layout)]),
        }
    }

    /// Returns the layout in force.
    #[inline]
    pub const fn now(&self) -> &Arc<Layout> {
        &self.now
    }

    /// Returns the layout that was in force at the end of an epoch that is not forgotten.
    pub(crate) fn as_of(&self, epoch: Epoch) -> &Arc<Layout> {
        let later = self.layouts.partition_point(|(since, _)| *since <= epoch);
        &self.layouts[later.saturating_sub(1)].1
    }

    /// Puts another layout in force, from somewhere in an epoch on.
    pub(crate) fn change(&mut self, epoch: Epoch, layout: Arc<Layout>) {
        self.now = layout.clone();
        self.layouts.push_back((epoch, layout));
    }

    /// Forgets what was in force before an epoch; without one, all but the layout in force.
    pub(crate) fn forget_before(&mut self, epoch: Option<Epoch>) {
        let is_over = |next: &(Epoch, Arc<Layout>)| epoch.is_none_or(|epoch| next.0 <= epoch);
        while self.layouts.get(1).is_some_and(is_over) {
            self.layouts.pop_front();
        }
    }
}

/// A move that has begun and is not done here: a shard that gives records away sends them in pieces, a few ahead of
/// what is taken, and one that gets any goes on when it has them all.
#[derive(Debug)]
pub(crate) struct Moving {
    /// The transaction.
    pub gsn: Gsn,
    pub(crate) gives: Vec<Giving>,
    pub(crate) gets: Vec<Getting>,
    /// The slot of which copies are got, if it does not move yet.
    pub(crate) copies_of: Option<usize>,
}

/// The records that go to another shard.
#[derive(Debug)]
pub(crate) struct Giving {
    pub(crate) to: usize,
    /// Slots of which not all has been sent.
    pub(crate) slots: VecDeque<usize>,
    /// How many pieces have been sent, and how many of them taken.
    pub(crate) sent: u32,
    pub(crate) taken: u32,
    /// The slot of which the receiver has copies.
    pub(crate) copied: Option<Copied>,
}

/// A slot of which copies were made.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) slot: usize,
    /// How many there are.
    pub count: u32,
    /// The records at earlier positions that are not as they were copied, and have not been sent.
    pub(crate) changed: VecDeque<Name>,
    /// From where on there are no copies.
    pub next: Position,
}

/// The copies of hash slots that are to move, of slots here and from other shards.
#[derive(Debug, Default)]
pub(crate) struct CopyState {
    /// The copies that are being made of a slot here.
    pub(crate) copying: Option<Copying>,
    /// The epoch in which copies have come last.
    pub(crate) came_in: Epoch,
    /// The epoch of the last checkpoint's transaction: none are begun behind it in that epoch.
    pub(crate) cut_in: Epoch,
    /// How many were made here.
    pub(crate) made: u64,
}

/// A slot of this shard that is being copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copying {
    pub(crate) slot: usize,
    /// The shard that gets them.
    pub(crate) to: usize,
    /// The epoch of the last ones.
    pub(crate) last: Epoch,
}

/// The records that come from another shard.
#[derive(Debug)]
pub(crate) struct Getting {
    pub(crate) from: usize,
    /// The pieces that have come.
    pub(crate) pieces: BTreeSet<u32>,
    /// How many there are in all, once the last has come.
    pub count: Option<u32>,
    /// Copies that came before are among the slot's records.
    pub(crate) is_adopted: bool,
}

impl Getting {
    pub(crate) fn from(from: usize) -> Getting {
        Getting { from, pieces: BTreeSet::new(), count: None, is_adopted: false }
    }
}

impl Moving {
    /// Returns the work of a shard before another layout can be in force; none if it loses and gains no slot.
    pub(crate) fn between(gsn: Gsn, me: usize, before: &Layout, after: &Layout) -> Option<Moving> {
        let mut moving = Moving { gsn, gives: Vec::new(), gets: Vec::new(), copies_of: None };
        for slot in before.owned_by(me).filter(|slot| after.shard_of(*slot) != me) {
            let to = after.shard_of(slot);
            match moving.gives.iter_mut().find(|giving| giving.to == to) {
                Some(giving) => giving.slots.push_back(slot),
                None => {
                    let slots = VecDeque::from([slot]);
                    moving.gives.push(Giving { to, slots, sent: 0, taken: 0, copied: None });
                }
            }
        }
        let from = after.owned_by(me).map(|slot| before.shard_of(slot)).filter(|from| *from != me);
        let from: BTreeSet<usize> = from.collect();
        moving.gets.extend(from.into_iter().map(Getting::from));
        (!moving.gives.is_empty() || !moving.gets.is_empty()).then_some(moving)
    }

    /// Returns whether all that is to come has come, and all that is to go has gone.
    pub(crate) fn is_done(&self) -> bool {
        let has_all = |getting: &Getting| getting.count == Some(getting.pieces.len() as u32);
        self.gives.iter().all(|giving| giving.slots.is_empty()) && self.gets.iter().all(has_all)
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::PartitionId;

    use super::*;

    #[test]
    fn layouts_are_known_as_of_every_epoch_that_is_not_forgotten() {
        let first = Arc::new(Layout::even(2, 1).unwrap());
        let moved = |slots| Arc::new(first.moved(&slots, PartitionId(1)).unwrap());
        let (second, third) = (moved(0..1), moved(0..2));
        let mut maps = Maps::new(first.clone());
        maps.change(Epoch(5), second.clone());
        // Two in one epoch: at its end the later is in force.
        maps.change(Epoch(9), second.clone());
        maps.change(Epoch(9), third.clone());
        let all = |maps: &Maps| [0, 4, 5, 8, 9, 10].map(|epoch| maps.as_of(Epoch(epoch)).clone());
        let expected = [first.clone(), first, second.clone(), second.clone(), third.clone(), third.clone()];
        assert_eq!(all(&maps), expected);
        maps.forget_before(Some(Epoch(4)));
        assert_eq!(all(&maps), expected);
        maps.forget_before(Some(Epoch(5)));
        assert_eq!(all(&maps)[2..], expected[2..]);
        assert_eq!(maps.layouts.len(), 3);
        maps.forget_before(None);
        assert_eq!((maps.layouts.len(), maps.now()), (1, &third));
    }

    #[test]
    fn who_gives_and_who_gets_follows_from_the_layouts() {
        let before = Layout::even(3, 2).unwrap();
        let after = before.moved(&(0..683), PartitionId(2)).unwrap();
        let of = |shard| Moving::between(Gsn(1), shard, &before, &after);
        let givers: Vec<usize> =
            (0..6).filter(|shard| of(*shard).is_some_and(|m| !m.gives.is_empty())).collect();
        assert_eq!(givers, [0, 1, 2, 3]);
        for shard in [4, 5] {
            let moving = of(shard).unwrap();
            assert_eq!(moving.gets.iter().map(|getting| getting.from).collect::<Vec<_>>(), givers);
            let sent: usize = givers
                .iter()
                .flat_map(|giver| of(*giver).unwrap().gives)
                .filter_map(|giving| (giving.to == shard).then_some(giving.slots.len()))
                .sum();
            assert_eq!(sent, after.owned_by(shard).count() - before.owned_by(shard).count());
        }
        assert!(Moving::between(Gsn(1), 0, &before, &before).is_none());
    }
}
