//! The drafts of a workspace, by name.

use hashbrown::HashTable;
use ordain_model::{Cell, Db, Gsn, KeyHash};

/// Up to so many drafts are compared one by one; more have an index.
const FEW: usize = 16;

/// A record as the attempt has left it.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) db: Db,
    pub(super) hash: KeyHash,
    pub(super) key: Vec<u8>,
    pub(super) cell: Cell,
    /// The version of the content that the draft was made from; none if it was made without a look at the committed record.
    pub(super) version: Option<Gsn>,
    /// True if the content was changed.
    pub(super) changed: bool,
}

impl Draft {
    fn is(&self, db: Db, key: &[u8], hash: KeyHash) -> bool {
        self.hash == hash && self.db == db && self.key == key
    }
}

/// Drafts in the order in which they were made.
#[derive(Clone, Debug, Default)]
pub(super) struct Drafts {
    all: Vec<Draft>,
    /// The places of all, by the hashes of their names; empty while there are few.
    index: HashTable<u32>,
}

/// Mixes a name's hash and database, so that equal runs lay the index out equally.
const fn mixed(db: Db, hash: KeyHash) -> u64 {
    hash.0 ^ (db.0 as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Drafts {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Draft> {
        self.all.iter()
    }

    /// The place of a draft.
    #[inline]
    pub(super) fn position(&self, db: Db, key: &[u8], hash: KeyHash) -> Option<usize> {
        if self.all.len() <= FEW {
            return self.all.iter().position(|draft| draft.is(db, key, hash));
        }
        let is_it = |at: &u32| self.all[*at as usize].is(db, key, hash);
        self.index.find(mixed(db, hash), is_it).map(|at| *at as usize)
    }

    pub(super) fn at(&self, place: usize) -> &Draft {
        &self.all[place]
    }

    pub(super) fn at_mut(&mut self, place: usize) -> &mut Draft {
        &mut self.all[place]
    }

    /// Adds a draft of a record that has none; answers its place.
    pub(super) fn push(&mut self, draft: Draft) -> usize {
        self.all.push(draft);
        match self.all.len() {
            0..=FEW => {}
            len if self.index.len() + 1 == len => self.enter(len - 1),
            len => (0..len).for_each(|place| self.enter(place)),
        }
        self.all.len() - 1
    }

    fn enter(&mut self, place: usize) {
        let Drafts { all, index } = self;
        let of = |at: &u32| mixed(all[*at as usize].db, all[*at as usize].hash);
        index.insert_unique(of(&(place as u32)), place as u32, of);
    }

    /// Changes all drafts at once.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Vec<Draft>)) {
        change(&mut self.all);
        self.index.clear();
        if self.all.len() > FEW {
            (0..self.all.len()).for_each(|place| self.enter(place));
        }
    }

    /// Takes all drafts out.
    pub(super) fn take(&mut self) -> Vec<Draft> {
        self.index.clear();
        std::mem::take(&mut self.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_drafts_are_found_as_few_are() {
        let mut drafts = Drafts::default();
        for n in 0..100_u8 {
            let (db, key) = (Db(n % 3), vec![n / 3]);
            let hash = KeyHash::of(&key);
            assert_eq!(drafts.position(db, &key, hash), None);
            let (cell, version) = (Cell::ABSENT, None);
            let place = drafts.push(Draft { db, hash, key: key.clone(), cell, version, changed: false });
            assert_eq!(drafts.position(db, &key, hash), Some(place));
        }
        drafts.change(|all| all.retain(|draft| draft.db != Db(1)));
        for n in 0..100_u8 {
            let (db, key) = (Db(n % 3), vec![n / 3]);
            let found = drafts.position(db, &key, KeyHash::of(&key));
            assert_eq!(found.map(|place| drafts.at(place).key == key), (db != Db(1)).then_some(true), "{n}");
        }
        assert_eq!((drafts.take().len(), drafts.iter().count()), (67, 0));
    }
}
