//! Contents of records that lie on disk, beside memory: decision 58.
//!
//! A [`ValueLog`] is files that are only appended to, a frame a content. Nobody looks anything up in it: whoever has a content
//! appended keeps an [`Away`], by which it can be fetched; when all of these are dropped that lie in a file, the file goes. A file of which
//! little is needed is *emptied*: its owner is shown what is in it, and appends again what it needs.
//!
//! It is a state machine: it asks for [`DiskRequest`]s and is told how they ended. Nothing in it is the truth about anything: after
//! a crash its owner begins with none of its files.
//!
//! The promise: **a content that was appended is fetched unchanged, or reported [damaged](Happened::Damaged)**, unless it is
//! [void](Happened::Void).

mod format;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use ordain_model::{Away, Db, Value, ValueFile};
use ordain_role::{Bytes, DiskDone, DiskError, DiskOp, DiskRequest, Fetched};

pub use format::Copied;

/// The sizes of a value log.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// A file is closed before it is larger, bytes; one content may be larger alone. At most 2^31.
    pub file: u32,
    /// So many bytes are handed to the disk together.
    pub write: usize,
    /// So many bytes are read together of a file that is emptied; more where one frame is larger.
    pub piece: usize,
}

impl Sizes {
    /// Those of a node: files of 64 MiB, written and emptied a MiB at a time.
    pub const NODE: Sizes = Sizes { file: 64 << 20, write: 1 << 20, piece: 1 << 20 };
}

/// Something that has come of a disk request.
#[derive(Debug, PartialEq)]
pub enum Happened {
    /// All that was appended to this file before this place is written; it is not durable.
    Written {
        /// The file's number.
        file: u32,
        /// The place behind it.
        to: u32,
    },
    /// What was appended to this file from this place on is not written and never will be.
    Void {
        /// The file's number.
        file: u32,
        /// The first place that is void.
        from: u32,
        /// The reason.
        why: DiskError,
    },
    /// A content that was asked for.
    Fetched(Arc<Away>, Copied),
    /// A content of a file that is emptied, needed or not, and its first byte there.
    Found {
        /// The file's number.
        file: u32,
        /// The first byte there.
        at: u32,
        /// The content.
        copied: Copied,
    },
    /// All of a file that is emptied has been shown.
    Emptied(u32),
    /// What lies here cannot be read: the bytes are not those that were written, or the disk does not give them.
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

/// A file that is being emptied.
#[derive(Debug)]
struct Emptying {
    file: u32,
    /// What stands before has been shown.
    at: u32,
    /// So many bytes are read from there on.
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
    /// Frames that are not handed to the disk. They stand at the end of the last file.
    gathered: Vec<u8>,
    /// What was handed to the disk, oldest first.
    writing: VecDeque<Writing>,
    /// What is to be read with the next request.
    wanted: Vec<Arc<Away>>,
    reading: BTreeMap<u64, Vec<(Arc<Away>, Fetched)>>,
    emptying: Option<Emptying>,
    /// Requests that are to be made.
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
            emptying: None,
            requests: Vec::new(),
            token: 0,
        }
    }

    fn name(&self, file: u32) -> String {
        format!("{}{file:010}", self.prefix)
    }

    // ---- what is appended ----------------------------------------------------------------------------------

    /// Appends a content, which is needed as long as anybody has what is answered.
    pub fn append(&mut self, db: Db, key: &[u8], value: &Value) -> Arc<Away> {
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
        let away = Arc::new(Away::new(value, &file.needed, at, len));
        if self.gathered.len() >= self.sizes.write {
            self.flush();
        }
        away
    }

    /// The file and the place of the next frame.
    fn end(&mut self) -> (u32, u32) {
        if let Some((number, file)) = self.files.last_key_value().filter(|(_, file)| !file.is_sealed) {
            return (*number, file.len);
        }
        let number = self.next;
        self.next += 1;
        let create = DiskOp::Create { file: self.name(number), len: 0 };
        let file = File { needed: ValueFile::new(number), len: 0, written: 0, is_sealed: false };
        self.files.insert(number, file);
        self.ask_in_background(vec![create]);
        (number, 0)
    }

    /// Hands to the disk what was appended, however little it is.
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

    /// Removes files of which nothing is needed. Whoever drops an [`Away`] says nothing, so this is called now and then.
    pub fn tidy(&mut self) {
        let emptied = self.emptying.as_ref().map(|emptying| emptying.file);
        let is_idle = |number: &u32, file: &mut File| {
            file.is_whole() && file.needed.needed() == 0 && emptied != Some(*number)
        };
        let idle: Vec<u32> = self.files.extract_if(.., is_idle).map(|(number, _)| number).collect();
        for number in idle {
            let remove = DiskOp::Remove { file: self.name(number) };
            self.ask_in_background(vec![remove]);
        }
    }

    // ---- what is fetched -----------------------------------------------------------------------------------

    /// Asks for a content; answers it at once if it is on its way to the disk.
    pub fn fetch(&mut self, away: &Arc<Away>) -> Option<Copied> {
        if let Some(bytes) = self.unwritten(away) {
            let place = (away.file().number(), away.at());
            return Some(format::decode(place, bytes).expect("a frame in memory is as it was encoded"));
        }
        self.wanted.push(away.clone());
        None
    }

    /// The frame of a content that is not known to be written.
    fn unwritten(&self, away: &Away) -> Option<&[u8]> {
        let within = |from: u32, bytes: &[u8]| -> Option<Range<usize>> {
            let begin = away.at().checked_sub(from)? as usize;
            let end = begin + away.bytes() as usize;
            (end <= bytes.len()).then_some(begin..end)
        };
        let number = away.file().number();
        let of_file = self.writing.iter().filter(|writing| writing.file == number);
        let mut found =
            of_file.filter_map(|writing| writing.bytes.get(within(writing.from, &writing.bytes)?));
        found.next().or_else(|| {
            let (last, from) = self.begin_of_gathered();
            self.gathered.get(within(from, &self.gathered).filter(|_| last == number)?)
        })
    }

    // ---- what is emptied -----------------------------------------------------------------------------------

    /// Begins to empty the file of which the smallest share is needed, if that is less than half and none is being emptied. It goes once
    /// its owner has appended again what it needs.
    pub fn empty_one(&mut self) {
        if self.emptying.is_some() {
            return;
        }
        let whole = self.files.iter().filter(|(_, file)| file.is_whole());
        let shares = whole.map(|(number, file)| (*number, file.needed.needed(), u64::from(file.len)));
        let sparse = shares.filter(|(_, needed, len)| 2 * needed < *len);
        // Both are below 2^32.
        if let Some((number, ..)) = sparse.min_by(|a, b| (a.1 * b.2).cmp(&(b.1 * a.2))) {
            self.read_on(number, 0, self.sizes.piece);
        }
    }

    /// Reads the next piece of a file that is emptied.
    fn read_on(&mut self, file: u32, at: u32, asked: usize) {
        let read = Fetched::default();
        let op = DiskOp::Read { file: self.name(file), offset: at.into(), len: asked, into: read.clone() };
        let token = self.ask_in_background(vec![op]);
        self.emptying = Some(Emptying { file, at, asked, token, read });
    }

    /// Shows the frames of a piece, and goes on behind them.
    fn show(&mut self, emptying: Emptying, result: Result<(), DiskError>) -> Vec<Happened> {
        let Emptying { file, mut at, asked, read, .. } = emptying;
        let Some(end) = self.files.get(&file).map(|of| of.len) else { return Vec::new() };
        if let Err(why) = result {
            return vec![Happened::Damaged { file, at, why: Some(why) }];
        }
        let (mut shown, mut bytes) = (Vec::new(), read.bytes());
        // The length of the frame that goes on behind the piece, if that is known.
        let mut cut = None;
        while at < end && cut.is_none() {
            let len = format::length(bytes);
            let frame = len.and_then(|len| bytes.split_at_checked(len));
            let is_beyond = len.is_some_and(|len| len > (end - at) as usize);
            let copied = frame.and_then(|(frame, _)| format::decode((file, at), frame));
            match (frame, copied) {
                (Some((frame, rest)), Some(copied)) => {
                    shown.push(Happened::Found { file, at, copied });
                    (at, bytes) = (at + frame.len() as u32, rest);
                }
                (None, _) if !is_beyond => cut = Some(len.unwrap_or(0)),
                _ => {
                    shown.push(Happened::Damaged { file, at, why: None });
                    return shown;
                }
            }
        }
        match cut {
            None => shown.push(Happened::Emptied(file)),
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
            let reads: Vec<(Arc<Away>, Fetched)> = wanted.map(|away| (away, Fetched::default())).collect();
            let read = |(away, into): &(Arc<Away>, Fetched)| DiskOp::Read {
                file: self.name(away.file().number()),
                offset: away.at().into(),
                len: away.bytes() as usize,
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
            let read = |(away, read): (Arc<Away>, Fetched)| {
                let (file, at) = (away.file().number(), away.at());
                match format::decode((file, at), read.bytes()) {
                    Some(copied) => Happened::Fetched(away, copied),
                    None => Happened::Damaged { file, at, why: result.clone().err() },
                }
            };
            return reads.into_iter().map(read).collect();
        }
        if let Some(emptying) = self.emptying.take_if(|emptying| emptying.token == token) {
            return self.show(emptying, result);
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
