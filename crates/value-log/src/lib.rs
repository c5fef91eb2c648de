//! Evicted values on disk: a log of frames, one value each (decision 58).
//!
//! A [`ValueLog`] is a list of files that are only appended to. It has no index: whoever appends a value gets an [`Evicted`], the reference by which it
//! is fetched. A file without references is removed. Garbage collection takes the file with the smallest share of referenced bytes and shows its
//! frames to the owner, who appends anew those that it refers to.
//!
//! The log is a state machine: it asks for [`DiskRequest`]s and is told how they ended. After a crash its owner begins with an empty one, as
//! the input log and checkpoints are the source of truth.
//!
//! The promise: **a value that was appended is fetched unchanged, or reported [damaged](Happened::Damaged)**, unless its write has failed and it is
//! [void](Happened::Void).

mod format;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use ordain_model::{Db, Evicted, Value, ValueFile};
use ordain_role::{Bytes, DiskDone, DiskError, DiskOp, DiskRequest, Fetched};

pub use format::Frame;

/// The sizes of a value log.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The largest size of a file, bytes, at most 2^31; a file of a single frame may be larger.
    pub file: u32,
    /// The size of a write, bytes: smaller appends are gathered.
    pub write: usize,
    /// The size of a read of garbage collection, bytes; larger where one frame is.
    pub piece: usize,
}

impl Sizes {
    /// The sizes of a node: files of 64 MiB, written and collected a MiB at a time.
    pub const NODE: Sizes = Sizes { file: 64 << 20, write: 1 << 20, piece: 1 << 20 };
}

/// An outcome of a disk request.
#[derive(Debug, PartialEq)]
pub enum Happened {
    /// All that was appended to this file before this place is written; it is not durable.
    Written {
        /// The file's number.
        file: u32,
        /// The place behind it.
        to: u32,
    },
    /// A write has failed: nothing that was appended to this file from this place on is or will be there.
    Void {
        /// The file's number.
        file: u32,
        /// The first place that is void.
        from: u32,
        /// The reason.
        why: DiskError,
    },
    /// A frame that was asked for.
    Fetched(Arc<Evicted>, Frame),
    /// A frame of a file that is collected, referenced or not, with its place.
    Scanned {
        /// The file's number.
        file: u32,
        /// The first byte there.
        at: u32,
        /// The frame.
        frame: Frame,
    },
    /// All frames of a file that is collected have been shown.
    Collected(u32),
    /// A frame cannot be read: its checksum differs, or the disk has failed.
    Damaged {
        /// The file's number.
        file: u32,
        /// The first byte there.
        at: u32,
        /// The disk's reason, if it has given one.
        why: Option<DiskError>,
    },
}

#[derive(Debug)]
struct File {
    /// How much of it is needed.
    needed: Arc<ValueFile>,
    /// Bytes that were appended.
    len: u32,
    /// Bytes of them that are written.
    written: u32,
    /// Nothing is appended any more.
    is_sealed: bool,
    /// The bytes that were referenced when the file was collected last.
    collected: Option<u64>,
}

impl File {
    /// Nothing is appended any more, and all of it is written.
    fn is_whole(&self) -> bool {
        self.is_sealed && self.written == self.len
    }
}

/// Frames on their way to the disk.
#[derive(Debug)]
struct Writing {
    token: u64,
    file: u32,
    from: u32,
    bytes: Bytes,
}

/// The file that is being collected.
#[derive(Debug)]
struct Collecting {
    file: u32,
    /// The first byte that was not shown.
    at: u32,
    /// The size of the read from there on, bytes.
    asked: usize,
    token: u64,
    read: Fetched,
}

/// The value log of one shard.
#[derive(Debug)]
pub struct ValueLog {
    /// The first part of the names of its files.
    prefix: String,
    sizes: Sizes,
    files: BTreeMap<u32, File>,
    /// The number of the next file.
    next: u32,
    /// Frames at the end of the last file that are not handed to the disk.
    gathered: Vec<u8>,
    /// Writes under way, oldest first.
    writing: VecDeque<Writing>,
    /// Frames to be read with the next request.
    wanted: Vec<Arc<Evicted>>,
    reading: BTreeMap<u64, Vec<(Arc<Evicted>, Fetched)>>,
    collecting: Option<Collecting>,
    /// Requests to be made.
    requests: Vec<DiskRequest>,
    /// The token of the last request.
    token: u64,
}

impl ValueLog {
    /// An empty one, the names of whose files begin so.
    ///
    /// # Panics
    /// If a file may be larger than a place can say.
    pub fn new(prefix: impl Into<String>, sizes: Sizes) -> ValueLog {
        assert!(sizes.file <= 1 << 31, "places in a file have 32 bits");
        ValueLog {
            prefix: prefix.into(),
            sizes,
            files: BTreeMap::new(),
            next: 1,
            gathered: Vec::new(),
            writing: VecDeque::new(),
            wanted: Vec::new(),
            reading: BTreeMap::new(),
            collecting: None,
            requests: Vec::new(),
            token: 0,
        }
    }

    fn name(&self, file: u32) -> String {
        format!("{}{file:010}", self.prefix)
    }

    // ---- appending -----------------------------------------------------------------------------------------

    /// Appends a value, whose frame is kept as long as the reference that is returned exists.
    pub fn append(&mut self, db: Db, key: &[u8], value: &Value) -> Arc<Evicted> {
        let (number, at) = self.end();
        let begin = self.gathered.len();
        format::encode(&mut self.gathered, (number, at), (db, key), value);
        let len = (self.gathered.len() - begin) as u32;
        if at > 0 && u64::from(at) + u64::from(len) > u64::from(self.sizes.file) {
            self.gathered.truncate(begin);
            self.flush();
            self.files.get_mut(&number).expect("it is the last").is_sealed = true;
            return self.append(db, key, value);
        }
        let file = self.files.get_mut(&number).expect("it is the last");
        file.len += len;
        let evicted = Arc::new(Evicted::new(value, &file.needed, at, len));
        if self.gathered.len() >= self.sizes.write {
            self.flush();
        }
        evicted
    }

    /// The file and the place of the next frame.
    fn end(&mut self) -> (u32, u32) {
        if let Some((number, file)) = self.files.last_key_value().filter(|(_, file)| !file.is_sealed) {
            return (*number, file.len);
        }
        let number = self.next;
        self.next += 1;
        let create = DiskOp::Create { file: self.name(number), len: 0 };
        let file =
            File { needed: ValueFile::new(number), len: 0, written: 0, is_sealed: false, collected: None };
        self.files.insert(number, file);
        self.ask_in_background(vec![create]);
        (number, 0)
    }

    /// Hands gathered frames to the disk, however few they are.
    pub fn flush(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        let (number, from) = self.begin_of_gathered();
        let bytes = Bytes::from(std::mem::take(&mut self.gathered));
        let data = vec![bytes.clone()];
        let write = DiskOp::Write { file: self.name(number), offset: from.into(), data };
        let token = self.ask_in_background(vec![write]);
        self.writing.push_back(Writing { token, file: number, from, bytes });
    }

    /// The file and the place of the first frame that is not handed to the disk.
    fn begin_of_gathered(&self) -> (u32, u32) {
        let last = self.files.last_key_value();
        last.map_or((0, 0), |(number, file)| (*number, file.len - self.gathered.len() as u32))
    }

    /// Removes files without references. A dropped [`Evicted`] only counts down, so the owner calls this periodically.
    pub fn remove_dead_files(&mut self) {
        let under_way = self.collecting.as_ref().map(|collecting| collecting.file);
        let is_idle = |number: &u32, file: &mut File| {
            file.is_whole() && file.needed.needed() == 0 && under_way != Some(*number)
        };
        let idle: Vec<u32> = self.files.extract_if(.., is_idle).map(|(number, _)| number).collect();
        for number in idle {
            let remove = DiskOp::Remove { file: self.name(number) };
            self.ask_in_background(vec![remove]);
        }
    }

    // ---- fetching ------------------------------------------------------------------------------------------

    /// Asks for a frame, or returns it at once if it is still on its way to the disk.
    pub fn fetch(&mut self, evicted: &Arc<Evicted>) -> Option<Frame> {
        if let Some(bytes) = self.unwritten(evicted) {
            let place = (evicted.file().number(), evicted.at());
            return Some(format::decode(place, bytes).expect("a frame in memory is as it was encoded"));
        }
        self.wanted.push(evicted.clone());
        None
    }

    /// The bytes of a frame that is not known to be written.
    fn unwritten(&self, evicted: &Evicted) -> Option<&[u8]> {
        let within = |from: u32, bytes: &[u8]| -> Option<Range<usize>> {
            let begin = evicted.at().checked_sub(from)? as usize;
            let end = begin + evicted.bytes() as usize;
            (end <= bytes.len()).then_some(begin..end)
        };
        let number = evicted.file().number();
        let of_file = self.writing.iter().filter(|writing| writing.file == number);
        let mut found =
            of_file.filter_map(|writing| writing.bytes.get(within(writing.from, &writing.bytes)?));
        found.next().or_else(|| {
            let (last, from) = self.begin_of_gathered();
            self.gathered.get(within(from, &self.gathered).filter(|_| last == number)?)
        })
    }

    // ---- garbage collection ---------------------------------------------------------------------------------

    /// Begins to collect the file with the smallest share of referenced bytes, if that is less than half, unless a collection is under
    /// way. A file whose owner has left references in it is collected again only once it has fewer.
    pub fn collect_garbage(&mut self) {
        if self.collecting.is_some() {
            return;
        }
        let has_less = |file: &File| file.collected.is_none_or(|before| file.needed.needed() < before);
        let whole = self.files.iter().filter(|(_, file)| file.is_whole() && has_less(file));
        let shares = whole.map(|(number, file)| (*number, file.needed.needed(), u64::from(file.len)));
        let sparse = shares.filter(|(_, needed, len)| 2 * needed < *len);
        // Both are below 2^32.
        if let Some((number, ..)) = sparse.min_by(|a, b| (a.1 * b.2).cmp(&(b.1 * a.2))) {
            self.read_on(number, 0, self.sizes.piece);
        }
    }

    /// Reads the next piece of the file that is collected.
    fn read_on(&mut self, file: u32, at: u32, asked: usize) {
        let read = Fetched::default();
        let op = DiskOp::Read { file: self.name(file), offset: at.into(), len: asked, into: read.clone() };
        let token = self.ask_in_background(vec![op]);
        self.collecting = Some(Collecting { file, at, asked, token, read });
    }

    /// Shows the frames of a piece, and goes on behind them.
    fn show(&mut self, collecting: Collecting, result: Result<(), DiskError>) -> Vec<Happened> {
        let Collecting { file, mut at, asked, read, .. } = collecting;
        let Some(end) = self.files.get(&file).map(|of| of.len) else { return Vec::new() };
        if let Err(why) = result {
            return vec![Happened::Damaged { file, at, why: Some(why) }];
        }
        let (mut shown, mut bytes) = (Vec::new(), read.bytes());
        // The length of the frame that goes on behind the piece, if that is known.
        let mut cut = None;
        while at < end && cut.is_none() {
            let len = format::length(bytes);
            let piece = len.and_then(|len| bytes.split_at_checked(len));
            let is_beyond = len.is_some_and(|len| len > (end - at) as usize);
            let frame = piece.and_then(|(own, _)| format::decode((file, at), own));
            match (piece, frame) {
                (Some((own, rest)), Some(frame)) => {
                    shown.push(Happened::Scanned { file, at, frame });
                    (at, bytes) = (at + own.len() as u32, rest);
                }
                (None, _) if !is_beyond => cut = Some(len.unwrap_or(0)),
                _ => {
                    shown.push(Happened::Damaged { file, at, why: None });
                    return shown;
                }
            }
        }
        match cut {
            None => {
                self.files.entry(file).and_modify(|of| of.collected = Some(of.needed.needed()));
                shown.push(Happened::Collected(file));
            }
            // The disk has given less than was written.
            Some(len) if shown.is_empty() && len <= asked => {
                shown.push(Happened::Damaged { file, at, why: None });
            }
            Some(len) => self.read_on(file, at, len.max(self.sizes.piece)),
        }
        shown
    }

    // ---- the disk ------------------------------------------------------------------------------------------

    fn ask_in_background(&mut self, ops: Vec<DiskOp>) -> u64 {
        self.token += 1;
        self.requests.push(DiskRequest::in_background(self.token, ops));
        self.token
    }

    /// Takes the requests that are to be made. Each is answered by [`ValueLog::done`].
    pub fn take_requests(&mut self) -> Vec<DiskRequest> {
        if !self.wanted.is_empty() {
            let wanted = std::mem::take(&mut self.wanted).into_iter();
            let reads: Vec<(Arc<Evicted>, Fetched)> =
                wanted.map(|evicted| (evicted, Fetched::default())).collect();
            let read = |(evicted, into): &(Arc<Evicted>, Fetched)| DiskOp::Read {
                file: self.name(evicted.file().number()),
                offset: evicted.at().into(),
                len: evicted.bytes() as usize,
                into: into.clone(),
            };
            let ops = reads.iter().map(read).collect();
            self.token += 1;
            self.requests.push(DiskRequest::new(self.token, ops));
            self.reading.insert(self.token, reads);
        }
        std::mem::take(&mut self.requests)
    }

    /// Takes the answer to a request.
    pub fn done(&mut self, done: DiskDone) -> Vec<Happened> {
        let DiskDone { token, result } = done;
        if let Some(reads) = self.reading.remove(&token) {
            let read = |(evicted, read): (Arc<Evicted>, Fetched)| {
                let (file, at) = (evicted.file().number(), evicted.at());
                match format::decode((file, at), read.bytes()) {
                    Some(frame) => Happened::Fetched(evicted, frame),
                    None => Happened::Damaged { file, at, why: result.clone().err() },
                }
            };
            return reads.into_iter().map(read).collect();
        }
        if let Some(collecting) = self.collecting.take_if(|collecting| collecting.token == token) {
            return self.show(collecting, result);
        }
        // Creations and removals tell nothing: in a file that could not be made nothing can be written.
        let Some(at) = self.writing.iter().position(|writing| writing.token == token) else {
            return Vec::new();
        };
        let Some(Writing { file, from, bytes, .. }) = self.writing.remove(at) else { return Vec::new() };
        let Some(of) = self.files.get_mut(&file) else { return Vec::new() };
        match result {
            Ok(()) => {
                of.written = from + bytes.len() as u32;
                vec![Happened::Written { file, to: of.written }]
            }
            Err(why) => {
                // The file ends there, whatever is on its way behind.
                (of.len, of.is_sealed) = (from, true);
                self.writing.retain(|writing| writing.file != file);
                if self.files.last_key_value().is_some_and(|(last, _)| *last == file) {
                    self.gathered.clear();
                }
                vec![Happened::Void { file, from, why }]
            }
        }
    }

    // ---- what can be seen of it ----------------------------------------------------------------------------

    /// Bytes on disk, and bytes of them that are needed.
    pub fn bytes(&self) -> (u64, u64) {
        let files = self.files.values();
        files.fold((0, 0), |(all, needed), file| (all + u64::from(file.len), needed + file.needed.needed()))
    }

    /// Bytes of memory that frames on their way hold.
    pub fn heap_bytes(&self) -> usize {
        self.gathered.capacity() + self.writing.iter().map(|writing| writing.bytes.len()).sum::<usize>()
    }

    /// What must hold between two calls.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<(), String> {
        for (number, file) in &self.files {
            if file.written > file.len || !file.is_sealed && file.needed.needed() > u64::from(file.len) {
                return Err(format!("file {number} of the value log counts wrong: {file:?}"));
            }
        }
        if let Some((number, _)) = self.files.iter().rev().skip(1).find(|(_, file)| !file.is_sealed) {
            return Err(format!("file {number} of the value log is not the last and is appended to"));
        }
        let last = self.files.last_key_value();
        if !self.gathered.is_empty() && last.is_none_or(|(_, file)| file.is_sealed) {
            return Err("frames are gathered for a file that is sealed".to_owned());
        }
        Ok(())
    }
}
