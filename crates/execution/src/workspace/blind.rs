//! Tests of blind writes: an attempt that has them sees and writes what it would if none were declared.

use ordain_model::key::SLOTS;
use ordain_model::{Position, Value};
use ordain_store::{MemoryStore, RecordStore as _};
use proptest::prelude::*;

use super::*;

/// Records among which no write is blind.
struct Looking<R>(R);

impl<R: Records> Records for Looking<R> {
    fn read<T>(&mut self, name: Name<'_>, now: Millis, run: impl FnOnce(&Cell, Version) -> T) -> T {
        self.0.read(name, now, run)
    }

    fn write<T>(&mut self, name: Name<'_>, now: Millis, run: impl FnOnce(CellMut<'_>, Version) -> T) -> T {
        self.0.write(name, now, run)
    }

    fn read_parent<T>(
        &mut self,
        name: Name<'_>,
        now: Millis,
        run: impl FnOnce(&Cell, Version, &mut dyn Children) -> T,
    ) -> T {
        self.0.read_parent(name, now, run)
    }

    fn write_parent<T>(
        &mut self,
        name: Name<'_>,
        now: Millis,
        run: impl FnOnce(CellMut<'_>, Version, &mut dyn Children) -> T,
    ) -> T {
        self.0.write_parent(name, now, run)
    }

    fn table<T>(&mut self, run: impl FnOnce(&mut dyn Table) -> T) -> T {
        self.0.table(run)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Overwrite(u8, u8, u8),
    OverwriteAndDelete(u8, u8),
    Append(u8, u8, u8),
    Read(u8, u8),
    Delete(u8, u8),
    Compute(u8, u8, u8),
    Parent(u8, u8, u8),
    Child(u8, u8),
    Clear(Option<u8>),
    Swap(u8, u8),
    Expire,
    /// Keeps the steps up to here if later ones are taken back.
    Mark,
    TakeBack,
}

const NOW: Millis = Millis(7);

fn op() -> impl Strategy<Value = Op> {
    let (db, key) = (0..2_u8, 0..4_u8);
    let place = || (db.clone(), key.clone());
    prop_oneof![
        8 => (place(), any::<u8>()).prop_map(|((db, key), value)| Op::Overwrite(db, key, value)),
        1 => place().prop_map(|(db, key)| Op::OverwriteAndDelete(db, key)),
        3 => (place(), any::<u8>()).prop_map(|((db, key), value)| Op::Append(db, key, value)),
        4 => place().prop_map(|(db, key)| Op::Read(db, key)),
        1 => place().prop_map(|(db, key)| Op::Delete(db, key)),
        2 => (place(), any::<u8>()).prop_map(|((db, key), value)| Op::Compute(db, key, value)),
        2 => (place(), any::<u8>()).prop_map(|((db, key), value)| Op::Parent(db, key, value)),
        1 => place().prop_map(|(db, key)| Op::Child(db, key)),
        1 => prop::option::of(db.clone()).prop_map(Op::Clear),
        2 => (db.clone(), db.clone()).prop_map(|(a, b)| Op::Swap(a, b)),
        1 => Just(Op::Expire),
        1 => Just(Op::Mark),
        1 => Just(Op::TakeBack),
    ]
}

/// The content that a value stands for: a third of them expire before [`NOW`].
fn cell_of(value: u8) -> Cell {
    let expires_at = [Millis(0), Millis(5), Millis(90)][usize::from(value % 3)].into();
    Cell { value: Some(Value::String(vec![value])), expires_at }
}

type Seen = (Cell, Version);

fn seen(cell: &Cell, version: Version) -> Option<Seen> {
    Some((cell.clone(), version))
}

/// Does it to some records, and tells what code that may look at its record sees there.
fn run(op: &Op, records: &mut impl Records) -> Option<Seen> {
    let on = |db: u8, key: u8, run: &mut dyn FnMut(Name<'_>) -> Option<Seen>| {
        let key = [b'k', key];
        run(Name { db: Db(db), key: &key, hash: KeyHash::of(&key) })
    };
    match *op {
        Op::Overwrite(db, key, value) => on(db, key, &mut |name| {
            records.overwrite(name, NOW, |mut cell, _| cell.replace(cell_of(value)));
            None
        }),
        Op::OverwriteAndDelete(db, key) => on(db, key, &mut |name| {
            records.overwrite(name, NOW, |mut cell, _| {
                cell.put_string(b"gone");
                cell.delete();
            });
            None
        }),
        Op::Append(db, key, value) => on(db, key, &mut |name| {
            records.write(name, NOW, |mut cell, version| {
                let seen = seen(&cell, version);
                cell.change_string(|bytes| bytes.push(value));
                seen
            })
        }),
        Op::Read(db, key) => on(db, key, &mut |name| records.read(name, NOW, seen)),
        Op::Delete(db, key) => on(db, key, &mut |name| {
            records.write(name, NOW, |mut cell, version| {
                let seen = seen(&cell, version);
                if cell.value.is_some() {
                    cell.delete();
                }
                seen
            })
        }),
        Op::Parent(db, key, value) => on(db, key, &mut |name| {
            records.write_parent(name, NOW, |mut cell, version, children| {
                let seen = seen(&cell, version);
                children.edit(b"c", &mut |child| child.put_string(&[value]));
                if value < 100 {
                    cell.put_string(&[value]);
                }
                seen
            })
        }),
        Op::Child(db, key) => on(db, key, &mut |name| {
            records.read_parent(name, NOW, |cell, version, children| {
                let child = children.read(b"c").string().unwrap_or_default().to_vec();
                let own = cell.string().unwrap_or_default();
                Some((Cell { value: Some(Value::String([own, &child].concat())), ..cell.clone() }, version))
            })
        }),
        Op::Clear(db) => records.table(|table| {
            table.clear(db.map(Db));
            None
        }),
        Op::Swap(a, b) => records.table(|table| {
            table.swap(Db(a), Db(b));
            None
        }),
        Op::Expire => records.table(|table| {
            let expired = table.expire(NOW, Position::default()..Position::END);
            Some((Cell::ABSENT, Gsn(expired).into()))
        }),
        Op::Compute(..) | Op::Mark | Op::TakeBack => None,
    }
}

/// A store of two databases in which each record has a version of its own.
fn committed(contents: &[(u8, u8, u8)]) -> MemoryStore {
    let mut store = MemoryStore::new(0..SLOTS);
    for (version, (db, key, value)) in (10..).zip(contents) {
        let (db, key) = (Db(*db), [b'k', *key]);
        let record = store.find_or_reserve(db, &key, KeyHash::of_record(db, &key));
        store.put_back(record, cell_of(*value), Gsn(version));
    }
    store
}

/// Contents that an attempt has seen, step by step, whether it was clean after each, and what it leaves.
type Left = (Vec<(Option<Seen>, bool, u64)>, Vec<TableChange>, Vec<Write>);

fn attempt(store: &MemoryStore, ops: &[Op], is_blind: bool) -> Left {
    let (mut workspace, mut before, mut all) = (Workspace::default(), Workspace::default(), Vec::new());
    for op in ops {
        let mut records = InWorkspace::new(store, &mut workspace);
        let seen = match *op {
            Op::Mark => {
                before = workspace.clone();
                None
            }
            Op::TakeBack => {
                workspace = before.clone();
                None
            }
            Op::Compute(db, key, value) => {
                let (db, key) = (Db(db), [b'k', key]);
                let hash = KeyHash::of_record(db, &key);
                let (cell, version) = records.find(db, &key, hash, NOW);
                let seen = seen(cell, version.into());
                records.put(db, &key, hash, cell_of(value));
                seen
            }
            _ if is_blind => run(op, &mut records),
            _ => run(op, &mut Looking(records)),
        };
        let len = InWorkspace::new(store, &mut workspace).len(Db(0));
        all.push((seen, workspace.is_clean(), len));
    }
    (all, workspace.changes().to_vec(), workspace.take_writes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn blind_writes_leave_and_show_what_others_would(
        contents in prop::collection::vec((0..2_u8, 0..4_u8, any::<u8>()), 0..8),
        ops in prop::collection::vec(op(), 0..16),
    ) {
        let store = committed(&contents);
        prop_assert_eq!(attempt(&store, &ops, true), attempt(&store, &ops, false));
    }
}

#[test]
fn a_blind_write_is_given_nothing_and_a_later_look_the_committed_version() {
    let store = committed(&[(0, 0, 2)]);
    let name = Name { db: Db(0), key: b"k\0", hash: KeyHash::of(b"k\0") };
    let mut workspace = Workspace::default();
    let mut records = InWorkspace::new(&store, &mut workspace);
    records.read(name, NOW, |cell, version| assert_eq!((cell, version), (&cell_of(2), Gsn(10).into())));
    records
        .overwrite(name, NOW, |cell, version| assert_eq!((&*cell, version), (&Cell::ABSENT, Version::NONE)));
    assert!(records.workspace.is_clean(), "code that changes nothing leaves the record as it is");
    records.read(name, NOW, |cell, _| assert_eq!(cell, &cell_of(2)));
    records.overwrite(name, NOW, |mut cell, _| cell.put_string(b"new"));
    // To the next blind write its own content is no secret, but the version is.
    records.overwrite(name, NOW, |_, version| assert_eq!(version, Version::NONE));
    records.read(name, NOW, |cell, version| {
        assert_eq!((cell.string(), version), (Some(&b"new"[..]), Gsn(10).into()));
    });
    records.write(name, NOW, |_, version| assert_eq!(version, Gsn(10).into()));
    let writes = workspace.take_writes();
    assert_eq!(writes.iter().map(|write| write.cell.string()).collect::<Vec<_>>(), [Some(&b"new"[..])]);
}
