//! A value log on a directory that gets full and is damaged, beside a map of what was appended.

use ordain_log::{MemoryDirectory, carry_out};
use ordain_role::Directory;
use proptest::prelude::*;

use super::*;

const SMALL: Sizes = Sizes { file: 400, write: 100, piece: 128 };

/// A content that is needed.
struct Needed {
    evicted: Arc<Evicted>,
    key: Vec<u8>,
    value: Value,
    /// It was asked for and has not come.
    is_fetched: bool,
}

/// A value log, what its owner knows, and the requests that are not carried out.
struct World {
    log: ValueLog,
    directory: MemoryDirectory,
    asked: VecDeque<DiskRequest>,
    /// What is needed, by the file's number and the first byte there.
    needed: BTreeMap<(u32, u32), Needed>,
    /// What has come of requests but for contents.
    happened: Vec<Happened>,
    appended: u64,
    fetched: usize,
}

fn place(evicted: &Evicted) -> (u32, u32) {
    (evicted.file().number(), evicted.at())
}

impl World {
    fn new() -> World {
        World {
            log: ValueLog::new("cold-0-", SMALL),
            directory: MemoryDirectory::new(),
            asked: VecDeque::new(),
            needed: BTreeMap::new(),
            happened: Vec::new(),
            appended: 0,
            fetched: 0,
        }
    }

    /// Appends a content of so many bytes; answers its place.
    fn append(&mut self, len: usize) -> (u32, u32) {
        self.appended += 1;
        let (key, value) = (self.appended.to_be_bytes(), Value::String(vec![self.appended as u8; len]));
        self.keep(&key, value)
    }

    fn keep(&mut self, key: &[u8], value: Value) -> (u32, u32) {
        let evicted = self.log.append(Db(1), key, &value);
        let at = place(&evicted);
        let needed = Needed { evicted, key: key.to_vec(), value, is_fetched: false };
        assert!(self.needed.insert(at, needed).is_none(), "two contents at one place");
        at
    }

    /// The place of one that is needed and not asked for.
    fn any(&self, which: usize) -> Option<(u32, u32)> {
        let idle: Vec<(u32, u32)> =
            self.needed.iter().filter(|(_, needed)| !needed.is_fetched).map(|(at, _)| *at).collect();
        idle.get(which % idle.len().max(1)).copied()
    }

    fn release(&mut self, at: (u32, u32)) {
        self.needed.remove(&at).unwrap();
        self.log.remove_dead_files();
    }

    fn fetch(&mut self, at: (u32, u32)) {
        match self.log.fetch(&self.needed[&at].evicted) {
            Some(frame) => self.has(at, &frame),
            None => self.needed.get_mut(&at).unwrap().is_fetched = true,
        }
    }

    fn has(&mut self, at: (u32, u32), frame: &Frame) {
        let Needed { key, value, .. } = &self.needed[&at];
        assert_eq!((frame.db, &frame.key, &frame.value), (Db(1), key, value));
        self.fetched += 1;
    }

    /// The disk carries out so many requests.
    fn carry_out(&mut self, most: usize) {
        self.asked.extend(self.log.take_requests());
        for _ in 0..most {
            let Some(request) = self.asked.pop_front() else { return };
            let done = carry_out(&mut self.directory, &request);
            self.log.done(done).into_iter().for_each(|happened| self.take(happened));
            self.log.remove_dead_files();
            self.log.check().unwrap();
            self.asked.extend(self.log.take_requests());
        }
    }

    fn take(&mut self, happened: Happened) {
        match happened {
            Happened::Fetched(evicted, frame) => {
                let at = place(&evicted);
                self.has(at, &frame);
                self.needed.get_mut(&at).unwrap().is_fetched = false;
            }
            Happened::Scanned { file, at, frame } => {
                if self.needed.get(&(file, at)).is_some_and(|needed| !needed.is_fetched) {
                    self.has((file, at), &frame);
                    self.release((file, at));
                    self.keep(&frame.key, frame.value);
                }
            }
            Happened::Void { file, from, .. } => {
                let void: Vec<(u32, u32)> =
                    self.needed.range((file, from)..(file + 1, 0)).map(|(at, _)| *at).collect();
                for at in void {
                    assert!(!self.needed[&at].is_fetched, "a content that was not written is read");
                    self.release(at);
                }
            }
            other => self.happened.push(other),
        }
    }

    /// Everything is carried out.
    fn settle(&mut self) {
        self.log.flush();
        self.log.remove_dead_files();
        self.carry_out(1);
        while !self.asked.is_empty() {
            self.carry_out(100);
        }
    }

    fn files(&self) -> Vec<String> {
        self.directory.list().unwrap().into_iter().map(|(name, _)| name).collect()
    }

    /// So many contents, as many to a file as there is room for, all of them written.
    fn written(count: usize, len: usize) -> (World, Vec<(u32, u32)>) {
        let mut w = World::new();
        let all = (0..count).map(|_| w.append(len)).collect();
        w.settle();
        w.happened.clear();
        (w, all)
    }
}

#[test]
fn a_content_is_fetched_before_and_after_it_is_written() {
    let mut w = World::new();
    let at = w.append(30);
    w.fetch(at);
    w.log.flush();
    w.fetch(at);
    assert_eq!((w.fetched, w.files().len()), (2, 0), "from memory");
    w.settle();
    let to = w.needed[&at].evicted.bytes();
    assert_eq!(w.happened, [Happened::Written { file: 1, to }]);
    w.fetch(at);
    w.settle();
    assert_eq!((w.fetched, w.files()), (3, vec!["cold-0-0000000001".to_owned()]));
    assert_eq!(w.log.bytes(), (u64::from(to), u64::from(to)));
}

#[test]
fn a_file_goes_when_nothing_of_it_is_needed_or_read() {
    let (mut w, all) = World::written(20, 90);
    let files = w.files().len();
    let first: Vec<(u32, u32)> = all.into_iter().filter(|at| at.0 == 1).collect();
    assert!(files > 4 && first.len() > 2);
    first.iter().skip(1).for_each(|at| w.release(*at));
    w.settle();
    assert_eq!(w.files().len(), files);
    // A read is under way when the last one is released.
    assert_eq!(w.log.fetch(&w.needed[&first[0]].evicted), None);
    w.release(first[0]);
    let request = w.log.take_requests().remove(0);
    let done = carry_out(&mut w.directory, &request);
    assert!(matches!(w.log.done(done)[..], [Happened::Fetched(..)]));
    w.settle();
    assert_eq!(w.files().len(), files - 1);
}

#[test]
fn a_large_content_has_a_file_alone() {
    let mut w = World::new();
    w.append(10);
    assert_eq!(w.append(3_000), (2, 0));
    assert_eq!(w.append(10), (3, 0));
    w.settle();
    w.fetch((2, 0));
    w.settle();
    assert_eq!(w.fetched, 1);
}

#[test]
fn a_collection_shows_all_of_a_file_and_what_is_referred_to_moves() {
    let (mut w, all) = World::written(40, 60);
    let before = w.files().len();
    all.iter().enumerate().filter(|(n, _)| n % 5 != 0).for_each(|(_, at)| w.release(*at));
    for _ in 0..20 {
        w.log.collect_garbage();
        w.settle();
    }
    assert!(w.files().len() < before / 2, "{} of {before} files", w.files().len());
    let (bytes, needed) = w.log.bytes();
    assert!(bytes <= 2 * needed + 400, "{bytes} bytes for {needed}");
    assert!(w.happened.contains(&Happened::Collected(1)));
    let left: Vec<(u32, u32)> = w.needed.keys().copied().collect();
    assert_eq!(left.len(), 8);
    left.into_iter().for_each(|at| w.fetch(at));
    w.settle();
}

#[test]
fn a_file_that_keeps_its_references_is_not_collected_again_and_again() {
    let (mut w, all) = World::written(8, 70);
    all[1..4].iter().for_each(|at| w.release(*at));
    // The owner fetches what is left, and does not append it anew meanwhile.
    w.needed.get_mut(&all[0]).unwrap().is_fetched = true;
    for _ in 0..5 {
        w.log.collect_garbage();
        w.settle();
    }
    assert_eq!(w.happened, [Happened::Collected(1)], "once");
    w.release(all[0]);
    w.settle();
    assert!(!w.files().contains(&"cold-0-0000000001".to_owned()));
}

#[test]
fn a_full_disk_voids_what_it_has_no_room_for_and_a_new_file_is_begun() {
    let (mut w, all) = World::written(1, 80);
    w.directory.set_capacity(Some(600));
    (0..10).for_each(|_| _ = w.append(80));
    w.settle();
    assert!(w.needed.len() < 11 && w.needed.contains_key(&all[0]));
    w.directory.set_capacity(None);
    let later = w.append(80);
    assert!(later.0 > all[0].0);
    w.settle();
    let left: Vec<(u32, u32)> = w.needed.keys().copied().collect();
    left.into_iter().for_each(|at| w.fetch(at));
    w.settle();
    assert!(w.needed.values().all(|needed| !needed.is_fetched));
}

#[test]
fn what_is_not_as_it_was_written_is_reported() {
    let (mut w, all) = World::written(8, 70);
    let [first, second] = [all[0], all[1]];
    w.directory.damage("cold-0-0000000001", u64::from(second.1) + 20, 4);
    w.fetch(second);
    w.settle();
    assert_eq!(w.happened, [Happened::Damaged { file: 1, at: second.1, why: None }]);
    w.happened.clear();
    // The whole file is gone.
    w.directory.apply(&DiskOp::Remove { file: "cold-0-0000000001".to_owned() }).unwrap();
    w.fetch(first);
    w.settle();
    assert!(
        matches!(w.happened[..], [Happened::Damaged { file: 1, at: 0, why: Some(_) }]),
        "{:?}",
        w.happened
    );
}

#[test]
fn a_damaged_file_is_reported_by_its_collection_and_not_read_for_ever() {
    // In the value, in the highest byte of the length, and in its lowest.
    for (offset, mask) in [(20, 1), (7, 0x7f), (4, 0x40)] {
        let (mut w, all) = World::written(8, 70);
        all[1..4].iter().for_each(|at| w.release(*at));
        w.directory.damage("cold-0-0000000001", offset, mask);
        w.log.collect_garbage();
        w.settle();
        assert_eq!(w.happened, [Happened::Damaged { file: 1, at: 0, why: None }], "{offset}");
    }
    let (mut w, all) = World::written(8, 70);
    all[1..4].iter().for_each(|at| w.release(*at));
    w.directory.apply(&DiskOp::SetLen { file: "cold-0-0000000001".to_owned(), len: 100 }).unwrap();
    w.log.collect_garbage();
    w.settle();
    assert!(matches!(w.happened[..], [Happened::Damaged { file: 1, why: None, .. }]), "{:?}", w.happened);
}

#[derive(Clone, Debug)]
enum Act {
    Append(usize),
    Release(usize),
    Fetch(usize),
    Flush,
    Collect,
    CarryOut(usize),
    Room(Option<u64>),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0usize..200).prop_map(Act::Append),
        1 => (300usize..900).prop_map(Act::Append),
        5 => any::<usize>().prop_map(Act::Release),
        5 => any::<usize>().prop_map(Act::Fetch),
        1 => Just(Act::Flush),
        2 => Just(Act::Collect),
        4 => (1usize..4).prop_map(Act::CarryOut),
        1 => proptest::option::weighted(0.3, 200u64..4_000).prop_map(Act::Room),
    ]
}

proptest! {
    #[test]
    fn what_is_needed_is_fetched_as_it_was_appended(acts in prop::collection::vec(act(), 1..120)) {
        let mut w = World::new();
        for act in acts {
            match act {
                Act::Append(len) => _ = w.append(len),
                Act::Release(which) => w.any(which).into_iter().for_each(|at| w.release(at)),
                Act::Fetch(which) => w.any(which).into_iter().for_each(|at| w.fetch(at)),
                Act::Flush => w.log.flush(),
                Act::Collect => w.log.collect_garbage(),
                Act::CarryOut(most) => w.carry_out(most),
                Act::Room(bytes) => w.directory.set_capacity(bytes),
            }
            w.log.check().unwrap();
        }
        w.directory.set_capacity(None);
        w.settle();
        prop_assert!(w.needed.values().all(|needed| !needed.is_fetched));
        let left: Vec<(u32, u32)> = w.needed.keys().copied().collect();
        left.into_iter().for_each(|at| w.fetch(at));
        w.settle();
        let damaged = w.happened.iter().find(|happened| matches!(happened, Happened::Damaged { .. }));
        prop_assert_eq!(damaged, None);
        w.needed.clear();
        w.settle();
        prop_assert!(w.files().len() <= 1, "{:?}", w.files());
    }
}
