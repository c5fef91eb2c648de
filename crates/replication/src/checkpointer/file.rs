//! One checkpoint while it is made: what has gathered, and what the disk is asked for.

use std::collections::BTreeSet;

use ordain_checkpoint::{Encoder, Header, Piece, Totals, file_name};
use ordain_model::Epoch;
use ordain_role::{Address, Bytes, DiskOp};

/// The most bytes written without a sync. The disk serves the log too, whose syncs share it with this file's: the more
/// is left to the end, the longer every client waits then.
const UNSYNCED: u64 = 2 << 20;

/// The file.
pub(super) struct File {
    epoch: Epoch,
    /// None once the end is written.
    encoder: Option<Encoder>,
    /// The roles that have not given all yet.
    missing: BTreeSet<Address>,
    /// The bytes to be written next, and their senders.
    gathered: Vec<Bytes>,
    from: Vec<Address>,
    /// The senders of the bytes that are being written.
    on_its_way: Vec<Address>,
    /// The disk has been asked for something.
    is_busy: bool,
    /// The offset up to which it is written, or being written; then that up to which it is synced.
    offset: u64,
    synced: u64,
}

/// The file is whole and on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub bytes: u64,
}

impl File {
    /// A file that has a header, and what the disk is to do to it once it is created.
    pub fn begin(header: &Header, sources: BTreeSet<Address>) -> (File, Vec<DiskOp>) {
        let (encoder, first) = Encoder::begin(header);
        let mut file = File {
            epoch: header.epoch,
            encoder: Some(encoder),
            missing: sources,
            gathered: vec![first],
            from: Vec::new(),
            on_its_way: Vec::new(),
            is_busy: false,
            offset: 0,
            synced: 0,
        };
        let ops = file.next();
        (file, ops)
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Takes a piece.
    pub fn add(&mut self, from: Address, piece: Piece) {
        if let Some(encoder) = &mut self.encoder {
            self.gathered.extend(encoder.frame(piece));
            self.from.push(from);
        }
    }

    /// Notes that a role has given all. After the last of all comes the end.
    pub fn last(&mut self, from: Address) {
        self.missing.remove(&from);
        if self.missing.is_empty()
            && let Some(encoder) = self.encoder.take()
        {
            let (end, Totals { .. }) = encoder.end();
            self.gathered.extend(end);
        }
    }

    /// The next disk operations; none during others, or without work.
    pub fn next(&mut self) -> Vec<DiskOp> {
        if self.is_busy || self.gathered.is_empty() {
            return Vec::new();
        }
        self.is_busy = true;
        self.on_its_way = std::mem::take(&mut self.from);
        let (file, offset, data) = (file_name(self.epoch), self.offset, std::mem::take(&mut self.gathered));
        self.offset += data.iter().map(|bytes| bytes.as_ref().len() as u64).sum::<u64>();
        let mut ops = vec![DiskOp::Write { file: file.clone(), offset, data }];
        if self.encoder.is_none() {
            ops.extend([DiskOp::Sync { file }, DiskOp::SyncDirectory]);
        } else if self.offset - self.synced >= UNSYNCED {
            self.synced = self.offset;
            ops.push(DiskOp::Sync { file });
        }
        ops
    }

    /// The disk has done it. Answers from where that came.
    pub fn written(&mut self) -> Vec<Address> {
        self.is_busy = false;
        std::mem::take(&mut self.on_its_way)
    }

    /// The end, once it has been written.
    pub fn ended(&self) -> Option<Ended> {
        let is_whole = self.encoder.is_none() && self.gathered.is_empty() && !self.is_busy;
        is_whole.then_some(Ended { bytes: self.offset })
    }
}
