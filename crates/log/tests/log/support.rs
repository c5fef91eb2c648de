//! What the tests of the log share: a seeded random source, a little driver, and an open that collects.

pub use ordain_fuzz::Random;
use ordain_log::{LogConfig, LogError, LogWriter, MemoryDirectory, Progress, Recovered, carry_out};
use ordain_model::Epoch;
use ordain_role::{Bytes, Directory, DiskDone, DiskError, DiskOp, DiskRequest};

/// Entries by epoch, in order.
pub type Entries = Vec<(u64, Vec<u8>)>;

/// A config with small segments.
pub fn config() -> LogConfig {
    LogConfig { segment_bytes: 2048, ..LogConfig::new("cluster 1, node 1") }
}

/// Opens a log and collects its entries.
pub fn open(
    disk: &mut dyn Directory,
    config: LogConfig,
) -> Result<(LogWriter, Recovered, Entries), LogError> {
    let mut entries = Entries::new();
    let (writer, recovered) = LogWriter::open(disk, config, |entry| {
        entries.push((entry.epoch.0, entry.payload));
        Ok(())
    })?;
    Ok((writer, recovered, entries))
}

/// The files of a log's segments, without the one that is made ahead.
pub fn segment_files(disk: &MemoryDirectory) -> Vec<String> {
    let files = disk.list().expect("it lists").into_iter().map(|(file, _)| file);
    files.filter(|file| !is_ahead(file)).collect()
}

/// Whether it is the file of a segment to come.
pub fn is_ahead(file: &str) -> bool {
    file == "log-ahead.seg"
}

/// A payload that tells its epoch and its bytes apart from any other's.
pub fn payload(epoch: u64, len: u64) -> Vec<u8> {
    let mut random = Random(epoch << 20 | len);
    (0..len).map(|_| random.next() as u8).collect()
}

/// Appends an entry in two parts.
pub fn append(writer: &mut LogWriter, epoch: u64, payload: &[u8]) {
    let (head, tail) = payload.split_at(payload.len() / 3);
    let parts = vec![Bytes::from(head.to_vec()), Bytes::from(tail.to_vec())];
    writer.append(Epoch(epoch), 7, parts).expect("epochs grow in the tests");
}

/// Carries out requests until there is none, and says what came of the last.
pub fn settle(disk: &mut MemoryDirectory, writer: &mut LogWriter) -> Option<Progress> {
    let mut last = None;
    while let Some(request) = writer.next_request() {
        let done = carry_out(disk, &request);
        last = writer.done(&done);
    }
    last
}

/// A directory whose machine stops before the operation after the next `left`.
pub struct Interrupted<'a> {
    pub disk: &'a mut MemoryDirectory,
    pub left: u64,
}

impl Directory for Interrupted<'_> {
    fn list(&self) -> Result<Vec<(String, u64)>, DiskError> {
        self.disk.list()
    }

    fn read(&self, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, DiskError> {
        self.disk.read(file, offset, len)
    }

    fn apply(&mut self, op: &DiskOp) -> Result<(), DiskError> {
        if self.left == 0 {
            return Err(DiskError::Io { file: ".".into(), reason: "the machine stopped".into() });
        }
        self.left -= 1;
        self.disk.apply(op)
    }
}

/// Carries out one request until the machine stops; `None` if it did.
pub fn until_stop(disk: &mut MemoryDirectory, writer: &mut LogWriter, left: &mut u64) -> Option<bool> {
    let Some(request) = writer.next_request() else { return Some(false) };
    finish(disk, writer, &request, left).map(|()| true)
}

/// The same of a request that was taken before.
pub fn finish(
    disk: &mut MemoryDirectory,
    writer: &mut LogWriter,
    request: &DiskRequest,
    left: &mut u64,
) -> Option<()> {
    for op in &request.ops {
        if *left == 0 {
            return None;
        }
        *left -= 1;
        disk.apply(op).expect("the disk of this test does not fail");
    }
    writer.done(&DiskDone { token: request.token, result: Ok(()) });
    Some(())
}
