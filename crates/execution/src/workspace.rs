//! The private workspace of an attempt: what it has written, which nobody else sees.

use std::collections::BTreeMap;

use ordain_model::cell::CellMut;
use ordain_model::wire::Framed;
use ordain_model::{Cell, Db, Millis, Version, codec};
use ordain_store::RecordStore;

use crate::step::{Name, Records};

/// A record as a transaction leaves it.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// The record's database.
    pub db: Db,
    /// Its key.
    pub key: Vec<u8>,
    /// Its content; absent if it is deleted.
    pub cell: Cell,
}

codec!(struct Write { db, key, cell as Framed });

/// Records that an attempt has written, by name.
#[derive(Debug, Default)]
pub struct Workspace {
    drafts: BTreeMap<(Db, Vec<u8>), Draft>,
}

#[derive(Debug)]
struct Draft {
    cell: Cell,
    /// The version of the content that the draft was made from.
    version: Version,
    /// Whether the content differs from what it was made from.
    changed: bool,
}

impl Workspace {
    /// What the attempt has changed, in order of names.
    pub fn writes(&self) -> Vec<Write> {
        let changed = self.drafts.iter().filter(|(_, draft)| draft.changed);
        changed
            .map(|((db, key), draft)| Write { db: *db, key: key.clone(), cell: draft.cell.clone() })
            .collect()
    }

    /// Whether nothing was changed.
    pub fn is_clean(&self) -> bool {
        self.drafts.values().all(|draft| !draft.changed)
    }
}

/// A workspace over the store that it is of: reads see the workspace first, and writes stay in it.
#[derive(Debug)]
pub struct InWorkspace<'a, S> {
    /// The committed records.
    pub store: &'a S,
    /// What the attempt has written.
    pub workspace: &'a mut Workspace,
}

impl<S: RecordStore> InWorkspace<'_, S> {
    fn committed(&self, name: Name<'_>, now: Millis) -> (&Cell, Version) {
        let found = self.store.find(name.db, name.key, name.hash);
        let live = found.filter(|record| self.store.cell(*record).is_live(now));
        live.map_or((&Cell::ABSENT, Version::NONE), |record| {
            (self.store.cell(record), self.store.version(record).into())
        })
    }
}

impl<S: RecordStore> Records for InWorkspace<'_, S> {
    fn read<R>(&mut self, name: Name<'_>, now: Millis, run: impl FnOnce(&Cell, Version) -> R) -> R {
        match self.workspace.drafts.get(&(name.db, name.key.to_vec())) {
            Some(draft) => run(draft.cell.at(now), draft.version),
            None => {
                let (cell, version) = self.committed(name, now);
                run(cell, version)
            }
        }
    }

    fn write<R>(&mut self, name: Name<'_>, now: Millis, run: impl FnOnce(CellMut<'_>, Version) -> R) -> R {
        let key = (name.db, name.key.to_vec());
        if !self.workspace.drafts.contains_key(&key) {
            let (cell, version) = self.committed(name, now);
            let draft = Draft { cell: cell.clone(), version, changed: false };
            self.workspace.drafts.insert(key.clone(), draft);
        }
        let draft = self.workspace.drafts.get_mut(&key).expect("it was inserted above if it was missing");
        let mut cell = CellMut::new(&mut draft.cell, &mut draft.changed, None);
        if cell.is_expired(now) {
            cell.delete();
        }
        run(cell, draft.version)
    }
}
