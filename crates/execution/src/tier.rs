//! The two tiers of a store's values: memory, and a value log on disk (decision 58).
//!
//! A [`Tier`] keeps a store within a budget of bytes. Values that were not used lately are appended to the log, and evicted once they are
//! written. Whoever is about to read an evicted value [wants](Tier::want) it, and goes on once it has [arrived](Tier::arrive).
//!
//! ```text
//!  keep_within ──▶ leaving ──Written──▶ arrive: the store evicts it
//!  want        ──▶ coming  ──Fetched──▶ arrive: the store loads it, or who reads a past state is handed it
//!  tick        ──▶ garbage collection ──Scanned──▶ leaving ──Written──▶ arrive: the record refers to the new frame
//! ```
//!
//! Eviction is local to a store, and no result depends on it.

mod files;
mod handed;
mod pins;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use ordain_model::{Cell, Db, Evicted, FramePlace, KeyHash, Value};
use ordain_role::{Directory, DiskDone, DiskError, DiskRequest};
use ordain_store::{Candidate, RecordStore};
use ordain_value_log::{Frame, Happened, Sizes, ValueLog};

use crate::step::Name;
pub use files::{discard_values, values_prefix};
pub use handed::Handed;
use pins::Pins;

/// The most bytes of values on their way to the disk.
const LEAVING_MOST: u64 = 16 << 20;
/// The most bytes of frames that are read at once: more wait, so that what is read does not take more memory than that, whoever asks for how
/// much.
const READ_MOST: u64 = 4 << 20;
/// The most bytes of frames for which one asks at once.
const AT_ONCE_MOST: u64 = 1 << 20;
/// The records that the clock's hand passes at most in one step.
const PASSED_MOST: usize = 4096;

/// The settings of a tier.
#[derive(Clone, Copy, Debug)]
pub struct TierSettings {
    /// Bytes of memory that the store may hold, buffers of the value log included.
    pub budget: u64,
    /// The largest value that is never evicted, bytes of memory.
    pub least: usize,
    /// The sizes of the value log.
    pub sizes: Sizes,
}

impl TierSettings {
    /// A tier of a store that may hold so many bytes, with files that are small where that is little.
    pub fn within(budget: u64, least: usize) -> TierSettings {
        let Sizes { file, write, piece } = Sizes::NODE;
        let part = |of: u64, least: u64, most: usize| (budget / of).clamp(least, most as u64) as usize;
        let sizes = Sizes {
            file: part(8, 4 << 10, file as usize) as u32,
            write: part(64, 1, write),
            piece: part(64, 1 << 10, piece),
        };
        TierSettings { budget, least, sizes }
    }
}

/// The values of a store, in memory and on disk; each of those who wait for some is a `W`.
#[derive(Debug)]
pub struct Tier<W> {
    log: ValueLog,
    budget: u64,
    least: usize,
    leaving: Leaving,
    /// Values that are to be read from the disk, or are being read.
    coming: BTreeMap<FramePlace, Coming<W>>,
    /// The frames of those that are to be read later, in the order in which they were asked for.
    later: VecDeque<Arc<Evicted>>,
    /// The bytes of the frames that are being read.
    reading: u64,
    waiting: BTreeMap<W, Waiting>,
    /// Names whose values somebody keeps in memory who waits for something else.
    kept: BTreeMap<W, Vec<KeyHash>>,
    /// Names whose values stay in memory.
    pins: Pins,
    /// Answers of the log that the store has not been told.
    happened: Vec<Happened>,
    /// The reason why the last write failed; nothing is evicted until the next tick then.
    failed: Option<DiskError>,
    /// The memory that was held when last all was evicted that could be.
    settled: u64,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    hits: u64,
    misses: u64,
    evicted: u64,
    loaded: u64,
    collected: u64,
    failed_writes: u64,
    damaged: u64,
}

/// A value that was appended to the log, and what is to happen when it is written.
#[derive(Debug)]
struct Gone {
    db: Db,
    key: Vec<u8>,
    hash: KeyHash,
    evicted: Arc<Evicted>,
    /// The frame in whose place it comes, if its value is not evicted now but was before.
    replaces: Option<FramePlace>,
    /// Bytes of memory that its eviction frees.
    bytes: u64,
}

/// Values that were appended and are not known to be written.
#[derive(Debug, Default)]
struct Leaving {
    by_place: BTreeMap<FramePlace, Gone>,
    /// The names of those that are to be evicted.
    names: BTreeSet<(Db, KeyHash)>,
    /// The bytes of memory that they free.
    bytes: u64,
}

impl Leaving {
    fn has(&self, db: Db, hash: KeyHash) -> bool {
        self.names.contains(&(db, hash))
    }

    fn put(&mut self, gone: Gone) {
        self.bytes += gone.bytes;
        if gone.replaces.is_none() {
            self.names.insert((gone.db, gone.hash));
        }
        self.by_place.insert(gone.evicted.place(), gone);
    }

    /// Takes those whose frames are in a range of places.
    fn take(&mut self, places: Range<FramePlace>) -> Vec<Gone> {
        let taken: Vec<Gone> = self.by_place.extract_if(places, |_, _| true).map(|(_, gone)| gone).collect();
        for gone in &taken {
            self.bytes -= gone.bytes;
            self.names.remove(&(gone.db, gone.hash));
        }
        taken
    }
}

/// A value that is being read from the disk.
#[derive(Debug)]
struct Coming<W> {
    /// The records into which it is loaded.
    names: Vec<(Db, Vec<u8>, KeyHash)>,
    /// The waiters for it.
    waiters: BTreeSet<W>,
    /// The waiters that are handed it, as they read a past state.
    past: BTreeSet<W>,
}

/// The values that somebody waits for.
#[derive(Debug, Default)]
struct Waiting {
    /// The places of those that have not arrived.
    missing: BTreeSet<FramePlace>,
    /// The names whose values stay in memory meanwhile.
    pinned: Vec<KeyHash>,
    past: PastValues,
}

/// Values of past states, by their places on disk.
#[derive(Clone, Debug, Default)]
pub struct PastValues(BTreeMap<FramePlace, Value>);

impl PastValues {
    /// None.
    pub const NONE: PastValues = PastValues(BTreeMap::new());

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A content with its value, if that is evicted and is here.
    #[inline]
    pub fn with<'a>(&self, cell: &'a Cell) -> Cow<'a, Cell> {
        match cell.evicted().and_then(|evicted| self.get(evicted)) {
            Some(value) => Cow::Owned(Cell { value: Some(value.clone()), expires_at: cell.expires_at }),
            None => Cow::Borrowed(cell),
        }
    }

    /// The reference of an evicted value of a content that is not here.
    pub fn lacks<'a>(&self, cell: &'a Cell) -> Option<&'a Arc<Evicted>> {
        cell.evicted().filter(|evicted| self.get(evicted).is_none())
    }

    /// The value of a reference, if it is here.
    pub fn get(&self, evicted: &Evicted) -> Option<&Value> {
        self.0.get(&evicted.place())
    }

    /// Adds others.
    pub fn extend(&mut self, others: PastValues) {
        self.0.extend(others.0);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// All values for which somebody waited have arrived.
#[derive(Debug)]
pub struct Arrived<W> {
    /// The waiter.
    pub who: W,
    /// The values of past states among them.
    pub past: PastValues,
}

impl<W: Ord + Copy> Tier<W> {
    /// The tier of a store, the names of whose files begin so; none of them is there.
    pub fn new(prefix: impl Into<String>, settings: TierSettings) -> Tier<W> {
        Tier {
            log: ValueLog::new(prefix, settings.sizes),
            budget: settings.budget,
            least: settings.least,
            leaving: Leaving::default(),
            coming: BTreeMap::new(),
            later: VecDeque::new(),
            reading: 0,
            waiting: BTreeMap::new(),
            kept: BTreeMap::new(),
            pins: Pins::default(),
            happened: Vec::new(),
            failed: None,
            settled: 0,
            counts: Counts::default(),
        }
    }

    // ---- from disk to memory -------------------------------------------------------------------------------

    /// Notes that a value was to be read and is in memory.
    pub fn hit(&mut self) {
        self.counts.hits += 1;
    }

    /// Asks for an evicted value in the name of somebody, who waits for it: the present value of a record, which stays in memory until
    /// all that he wants has arrived, or one of a past state.
    pub fn want(&mut self, evicted: &Arc<Evicted>, present: Option<Name<'_>>, who: W) {
        let place = evicted.place();
        let coming = match self.coming.entry(place) {
            Entry::Occupied(coming) => coming.into_mut(),
            Entry::Vacant(vacant) => {
                self.counts.misses += 1;
                self.later.push_back(evicted.clone());
                vacant.insert(Coming { names: Vec::new(), waiters: BTreeSet::new(), past: BTreeSet::new() })
            }
        };
        let waiting = self.waiting.entry(who).or_default();
        coming.waiters.insert(who);
        let is_new = waiting.missing.insert(place);
        match present {
            Some(Name { db, key, hash }) => {
                if !coming.names.iter().any(|(of, name, _)| (*of, &**name) == (db, key)) {
                    coming.names.push((db, key.to_vec(), hash));
                }
                if is_new {
                    self.pins.pin(hash);
                    waiting.pinned.push(hash);
                }
            }
            None => _ = coming.past.insert(who),
        }
        self.read_some();
    }

    /// Reads frames that wait, as many as may be read at once.
    fn read_some(&mut self) {
        while self.reading < (self.budget / 4).clamp(1, READ_MOST)
            && let Some(evicted) = self.later.pop_front()
        {
            self.reading += u64::from(evicted.bytes());
            if let Some(frame) = self.log.fetch(&evicted) {
                self.happened.push(Happened::Fetched(evicted, frame));
            }
        }
    }

    /// Has the value of a name stay in memory for one who waits, until all that he wants has arrived.
    pub fn hold(&mut self, hash: KeyHash, who: W) {
        if let Some(waiting) = self.waiting.get_mut(&who) {
            self.pins.pin(hash);
            waiting.pinned.push(hash);
        }
    }

    /// Has the value of a name stay in memory, if it is there, until somebody is [forgotten](Tier::forget).
    pub fn keep(&mut self, hash: KeyHash, who: W) {
        self.pins.pin(hash);
        self.kept.entry(who).or_default().push(hash);
    }

    /// True if names are [kept](Tier::keep) for somebody.
    pub fn keeps(&self, who: &W) -> bool {
        self.kept.contains_key(who)
    }

    /// Nothing is read or kept for somebody any more, who may have wanted nothing. A present value that is being read for him alone is loaded
    /// all the same: another may be about to ask for it.
    pub fn forget(&mut self, who: &W) {
        let waiting = self.waiting.remove(who).unwrap_or_default();
        let kept = self.kept.remove(who).unwrap_or_default();
        waiting.pinned.into_iter().chain(kept).for_each(|hash| self.pins.unpin(hash));
        for place in waiting.missing {
            if let Some(coming) = self.coming.get_mut(&place) {
                coming.waiters.remove(who);
                coming.past.remove(who);
            }
        }
    }

    /// The bytes of frames for which one asks at once, before he uses what has come: a sixteenth of the budget, and a MiB at most.
    pub fn at_once(&self) -> usize {
        (self.budget / 16).clamp(1, AT_ONCE_MOST) as usize
    }

    /// True if somebody waits for a value.
    pub fn awaits(&self, who: &W) -> bool {
        self.waiting.contains_key(who)
    }

    /// Has the value of a name stay in memory, if it is there or once it is.
    pub fn pin(&mut self, hash: KeyHash) {
        self.pins.pin(hash);
    }

    /// Takes back one call of [`Tier::pin`].
    pub fn unpin(&mut self, hash: KeyHash) {
        self.pins.unpin(hash);
    }

    /// Tells the store what the disk has done; answers who need not wait any longer.
    ///
    /// # Errors
    /// A value that is needed cannot be read: the node has to begin again from its checkpoint and its log.
    pub fn arrive(&mut self, store: &mut impl RecordStore) -> Result<Vec<Arrived<W>>, String> {
        let mut arrived = Vec::new();
        for happened in std::mem::take(&mut self.happened) {
            match happened {
                Happened::Written { file, to } => self.written(store, (file, 0)..(file, to)),
                Happened::Void { file, from, why } => {
                    self.leaving.take((file, from)..(file + 1, 0));
                    self.counts.failed_writes += 1;
                    self.failed = Some(why);
                }
                Happened::Fetched(evicted, frame) => {
                    self.fetched(store, &evicted, frame.value, &mut arrived);
                }
                Happened::Scanned { file, at, frame } => self.scanned(store, (file, at), frame),
                Happened::Collected(_) => self.counts.collected += 1,
                Happened::Damaged { file, at, why } if self.coming.contains_key(&(file, at)) => {
                    let why = why.map_or("it is not what was written".to_owned(), |why| why.to_string());
                    return Err(format!(
                        "a value cannot be read from file {file} of the value log, at byte {at}: {why}. Check the disk; a node that is \
                         started again has its values from its checkpoint and its log"
                    ));
                }
                // A file that was to be collected.
                Happened::Damaged { .. } => self.counts.damaged += 1,
            }
        }
        self.read_some();
        Ok(arrived)
    }

    /// True if [`Tier::arrive`] has something to tell the store.
    pub fn has_arrived(&self) -> bool {
        !self.happened.is_empty()
    }

    fn fetched(
        &mut self,
        store: &mut impl RecordStore,
        evicted: &Arc<Evicted>,
        value: Value,
        arrived: &mut Vec<Arrived<W>>,
    ) {
        let place = evicted.place();
        let Some(coming) = self.coming.remove(&place) else { return };
        self.reading -= u64::from(evicted.bytes());
        for who in coming.waiters {
            let Entry::Occupied(mut waiting) = self.waiting.entry(who) else { continue };
            let waiter = waiting.get_mut();
            waiter.missing.remove(&place);
            if coming.past.contains(&who) {
                assert!(evicted.is_of(&value), "what was read is not what was evicted: {evicted:?}");
                waiter.past.0.insert(place, value.clone());
            }
            if waiter.missing.is_empty() {
                let Waiting { pinned, past, .. } = waiting.remove();
                pinned.into_iter().for_each(|hash| self.pins.unpin(hash));
                arrived.push(Arrived { who, past });
            }
        }
        let mut values = std::iter::repeat_n(value, coming.names.len());
        for (db, key, hash) in &coming.names {
            // It may have been overwritten without a look.
            if let Some(value) = values.next() {
                self.counts.loaded += u64::from(store.load(*db, key, *hash, (evicted, value)));
            }
        }
    }

    // ---- from memory to disk -------------------------------------------------------------------------------

    /// Evicts values, or has them written first, while the store holds more than the budget.
    pub fn keep_within(&mut self, store: &mut impl RecordStore) {
        let held = store.memory().total() + self.log.heap_bytes() as u64;
        let mut excess = held.saturating_sub(self.budget.saturating_add(self.leaving.bytes));
        if excess == 0 || self.failed.is_some() || self.leaving.bytes >= LEAVING_MOST {
            return;
        }
        let mut written = Vec::new();
        let Tier { log, leaving, pins, least, .. } = self;
        store.advance_clock(PASSED_MOST, *least, |candidate| {
            let Candidate { db, key, hash, value, copy } = candidate;
            if pins.holds(hash) || leaving.has(db, hash) {
                return true;
            }
            let bytes = value.heap_bytes().saturating_sub(Evicted::BYTES) as u64;
            excess = excess.saturating_sub(bytes);
            let (is_written, evicted) = match copy {
                Some(copy) => (true, copy),
                None => (false, log.append(db, key, value)),
            };
            let gone = Gone { db, key: key.to_vec(), hash, evicted, replaces: None, bytes };
            match is_written {
                true => written.push(gone),
                false => leaving.put(gone),
            }
            excess > 0 && leaving.bytes < LEAVING_MOST
        });
        written.into_iter().for_each(|gone| self.evict(store, &gone));
    }

    fn evict(&mut self, store: &mut impl RecordStore, gone: &Gone) {
        if !self.pins.holds(gone.hash) {
            self.counts.evicted += u64::from(store.evict(gone.db, &gone.key, gone.hash, &gone.evicted));
        }
    }

    /// Frames are written: what they hold is evicted, unless it has changed.
    fn written(&mut self, store: &mut impl RecordStore, places: Range<FramePlace>) {
        for gone in self.leaving.take(places) {
            match gone.replaces {
                None => self.evict(store, &gone),
                Some(place) => {
                    store.refer_to(gone.db, &gone.key, gone.hash, (&place, &gone.evicted));
                }
            }
        }
    }

    /// A frame of a file that is collected is appended anew if its record refers to it. Who waits for it gets it from where it was.
    fn scanned(&mut self, store: &impl RecordStore, place: FramePlace, frame: Frame) {
        let Frame { db, key, value } = frame;
        let hash = store.placement().hash_of_record(db, &key);
        if store.refers_to(db, &key, hash, place) {
            let evicted = self.log.append(db, &key, &value);
            self.leaving.put(Gone { db, key, hash, evicted, replaces: Some(place), bytes: 0 });
        }
    }

    // ---- the disk ------------------------------------------------------------------------------------------

    /// Some time has passed: what was appended is written, and files that nobody needs go.
    pub fn tick(&mut self) {
        self.failed = None;
        self.log.flush();
        self.log.remove_dead_files();
        self.log.collect_garbage();
    }

    /// Has what was appended written, however little it is.
    pub fn flush(&mut self) {
        self.log.flush();
    }

    /// Takes the requests that are to be made. Each is answered by [`Tier::done`].
    pub fn take_requests(&mut self) -> Vec<DiskRequest> {
        self.log.take_requests()
    }

    /// Has a directory do what the disk is to do, and takes the answers; returns whether there was anything, or something has arrived.
    pub fn carry_out(&mut self, directory: &mut dyn Directory) -> bool {
        for request in self.take_requests() {
            let result = request.ops.iter().try_for_each(|op| directory.apply(op));
            self.done(DiskDone { token: request.token, result });
        }
        self.has_arrived()
    }

    /// Takes the answer to a request; the store is told by [`Tier::arrive`].
    pub fn done(&mut self, done: DiskDone) {
        self.happened.extend(self.log.done(done));
    }

    // ---- what can be seen of it ----------------------------------------------------------------------------

    /// Notes that all has been evicted that could be.
    pub fn note_settled(&mut self, store: &impl RecordStore) {
        self.settled = store.memory().total();
    }

    /// True if the store holds more than the budget by so much that it is time to evict, and more than when last nothing could be evicted.
    pub fn is_over(&self, store: &impl RecordStore) -> bool {
        let held = store.memory().total() + self.log.heap_bytes() as u64;
        let slack = (self.budget / 8).min(LEAVING_MOST);
        self.failed.is_none() && held > self.budget.max(self.settled).saturating_add(slack)
    }

    /// Reports metrics, by name.
    pub fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let (bytes, needed) = self.log.bytes();
        report("ordain_values_disk_bytes", bytes as f64);
        report("ordain_values_disk_needed_bytes", needed as f64);
        report("ordain_values_budget_bytes", self.budget as f64);
        report("ordain_values_hits_total", self.counts.hits as f64);
        report("ordain_values_misses_total", self.counts.misses as f64);
        report("ordain_values_evicted_total", self.counts.evicted as f64);
        report("ordain_values_loaded_total", self.counts.loaded as f64);
        report("ordain_values_coming", self.coming.len() as f64);
        report("ordain_values_pinned", self.pins.all() as f64);
        report("ordain_values_leaving_bytes", self.leaving.bytes as f64);
        report("ordain_values_collected_files_total", self.counts.collected as f64);
        report("ordain_values_failed_writes_total", self.counts.failed_writes as f64);
        report("ordain_values_damaged_total", self.counts.damaged as f64);
    }

    /// Checks the invariants.
    ///
    /// # Errors
    /// The broken invariant.
    pub fn check(&self) -> Result<(), String> {
        for (who, waiting) in self.waiting.values().enumerate() {
            if waiting.missing.is_empty() {
                return Err(format!("waiter {who} of values lacks nothing"));
            }
            if let Some(place) = waiting.missing.iter().find(|place| !self.coming.contains_key(place)) {
                return Err(format!("waiter {who} waits for a value at {place:?}, which is not coming"));
            }
        }
        let waiting = self.waiting.values().map(|waiting| waiting.pinned.len());
        let pinned = waiting.chain(self.kept.values().map(Vec::len)).sum::<usize>() as u64;
        if pinned > self.pins.all() {
            return Err(format!("{pinned} names are to stay in memory, {} are pinned", self.pins.all()));
        }
        let later: BTreeSet<FramePlace> = self.later.iter().map(|evicted| evicted.place()).collect();
        if let Some(place) = later.iter().find(|place| !self.coming.contains_key(place)) {
            return Err(format!("nobody waits for the value at {place:?}, which is to be read later"));
        }
        if self.coming.len() == later.len() && self.reading > 0 || self.reading == 0 && !later.is_empty() {
            return Err(format!(
                "{} bytes are being read for {} values, {} of which are to be read later",
                self.reading,
                self.coming.len(),
                later.len()
            ));
        }
        let bytes: u64 = self.leaving.by_place.values().map(|gone| gone.bytes).sum();
        if bytes != self.leaving.bytes {
            return Err(format!("{bytes} bytes are leaving, {} counted", self.leaving.bytes));
        }
        self.log.check()
    }
}
