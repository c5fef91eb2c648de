//! The state that is being put together, and the file that it goes into.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_checkpoint::{Encoder, Header, Item, Kind, Outcome, Piece, Seal, Totals, file_name, seal_name};
use ordain_deterministic::sequencing::{input_at, time_of_input};
use ordain_model::{
    Abort, Batch, Cell, Db, Gsn, Isolation, Layout, Map, Millis, OutcomeStatus, PartitionId,
    ReferenceExecutor, Registry, RequestNo, SessionId,
};
use ordain_role::{Bytes, Directory, DiskError, DiskOp};

/// About how long a frame is.
const PIECE: usize = 64 << 10;

/// The records of all partitions, the last outcome of each session, and the time.
pub(super) struct State {
    registry: Arc<Registry>,
    records: ReferenceExecutor,
    sessions: BTreeMap<SessionId, Last>,
    now: Millis,
}

struct Last {
    request: RequestNo,
    gsn: Gsn,
    status: OutcomeStatus,
    reply: Vec<u8>,
}

impl State {
    /// The state of a cluster that has just begun.
    pub(super) fn new(registry: Arc<Registry>, layout: &Layout, isolation: Isolation) -> State {
        let records = ReferenceExecutor::new(registry.clone()).in_cluster(layout.clone()).isolated(isolation);
        State { registry, records, sessions: BTreeMap::new(), now: Millis(0) }
    }

    /// Takes something out of a checkpoint.
    pub(super) fn take(&mut self, item: &Item<'_>) -> Result<(), String> {
        match item {
            Item::Record { db, key, cell, version } => {
                self.records.put_back(*db, key, cell.clone(), *version)
            }
            Item::Outcome(outcome) => self.put(outcome),
            Item::Input(input) => self.now = self.now.max(time(input)?),
            Item::Map(map) => self.records.begin_under(map),
        }
        Ok(())
    }

    fn put(&mut self, outcome: &Outcome<'_>) {
        let Outcome { session, request, gsn, status, reply } = *outcome;
        if self.sessions.get(&session).is_none_or(|last| last.gsn < gsn) {
            self.sessions.insert(session, Last { request, gsn, status, reply: reply.to_vec() });
        }
    }

    /// Executes a batch, as it stands in a log, and says how many transactions it had.
    /// What an operator has aborted has no effect.
    pub(super) fn execute(&mut self, entry: &[u8], aborts: &BTreeSet<Gsn>) -> Result<u64, String> {
        let batch = Batch::decode(&self.registry, entry).map_err(|error| error.to_string())?;
        self.records.open(&batch);
        let mut executed = 0;
        for (gsn, chunk, txn) in batch.txns().filter(|(_, _, txn)| !txn.read_only) {
            let (status, reply) = if aborts.contains(&gsn) {
                let mut reply = Vec::new();
                ordain_model::Writer(&mut reply).abort(Abort::Operator);
                (OutcomeStatus::Aborted(Abort::Operator), reply)
            } else {
                let result = self.records.run_placed(gsn, batch.now, chunk, txn);
                (result.status, result.reply)
            };
            if let Some((session, request)) = txn.call.session {
                self.put(&Outcome { session, request, gsn, status, reply: &reply });
            }
            executed += 1;
        }
        self.now = self.now.max(batch.now);
        Ok(executed)
    }

    /// Gives away what belongs to a partition, and where all slots are.
    pub(super) fn give(&self, partition: PartitionId, writer: &mut Writer<'_>) -> Result<(), DiskError> {
        let Some(layout) = self.records.layout() else { return Ok(()) };
        writer.map(layout.map())?;
        for (db, key, cell, version) in self.records.versions() {
            if layout.partition_of_key(db, key) == partition {
                writer.record(db, key, cell, version)?;
            }
        }
        for (session, Last { request, gsn, status, reply }) in &self.sessions {
            if layout.home_partition_of(*session) == partition {
                let outcome =
                    Outcome { session: *session, request: *request, gsn: *gsn, status: *status, reply };
                writer.outcome(&outcome)?;
            }
        }
        writer.input(self.now)
    }
}

fn time(input: &[u8]) -> Result<Millis, String> {
    time_of_input(input).ok_or_else(|| "what it says of the input does not parse".to_owned())
}

/// Writes a checkpoint into a directory that has none of its epoch.
pub(super) struct Writer<'a> {
    directory: &'a mut dyn Directory,
    seal: Seal,
    encoder: Encoder,
    piece: Piece,
    offset: u64,
}

impl<'a> Writer<'a> {
    pub(super) fn begin(directory: &'a mut dyn Directory, header: &Header) -> Result<Writer<'a>, DiskError> {
        directory.apply(&DiskOp::Create { file: file_name(header.epoch), len: 0 })?;
        let (encoder, head) = Encoder::begin(header);
        let seal = Seal { epoch: header.epoch, at: Millis(0) };
        let mut writer = Writer { directory, seal, encoder, piece: Piece::new(Kind::Records), offset: 0 };
        writer.write(vec![head])?;
        Ok(writer)
    }

    fn write(&mut self, data: Vec<Bytes>) -> Result<(), DiskError> {
        let len: usize = data.iter().map(|bytes| bytes.as_ref().len()).sum();
        let file = file_name(self.seal.epoch);
        self.directory.apply(&DiskOp::Write { file, offset: self.offset, data })?;
        self.offset += len as u64;
        Ok(())
    }

    /// Begins a piece of a kind, if what is being filled is of another, or full.
    fn room(&mut self, kind: Kind) -> Result<&mut Piece, DiskError> {
        if self.piece.kind() != kind || self.piece.len() >= PIECE {
            self.flush(kind)?;
        }
        Ok(&mut self.piece)
    }

    fn flush(&mut self, next: Kind) -> Result<(), DiskError> {
        let piece = std::mem::replace(&mut self.piece, Piece::new(next));
        if piece.is_empty() {
            return Ok(());
        }
        let frame = self.encoder.frame(piece);
        self.write(frame.into())
    }

    fn map(&mut self, map: &Map) -> Result<(), DiskError> {
        if *map == Map::FIRST {
            return Ok(());
        }
        self.flush(Kind::Records)?;
        let frame = self.encoder.frame(Piece::map(map));
        self.write(frame.into())
    }

    fn record(&mut self, db: Db, key: &[u8], cell: &Cell, version: Gsn) -> Result<(), DiskError> {
        self.room(Kind::Records)?.push_record(db, key, cell, version);
        Ok(())
    }

    fn outcome(&mut self, outcome: &Outcome<'_>) -> Result<(), DiskError> {
        self.room(Kind::Outcomes)?.push_outcome(outcome);
        Ok(())
    }

    /// Puts in a frame that only the commit family can read.
    pub(super) fn image(&mut self, image: &[u8]) -> Result<(), DiskError> {
        self.flush(Kind::Records)?;
        let frame = self.encoder.frame(Piece::input(image.to_vec()));
        self.write(frame.into())
    }

    fn input(&mut self, now: Millis) -> Result<(), DiskError> {
        self.flush(Kind::Records)?;
        let frame = self.encoder.frame(Piece::input(input_at(now)));
        self.write(frame.into())
    }

    /// Puts in what another checkpoint holds.
    pub(super) fn put(&mut self, item: &Item<'_>) -> Result<(), String> {
        let put = match item {
            Item::Record { db, key, cell, version } => self.record(*db, key, cell, *version),
            Item::Outcome(outcome) => self.outcome(outcome),
            Item::Input(input) => self.input(time(input)?),
            Item::Map(map) => self.map(map),
        };
        put.map_err(|error| error.to_string())
    }

    /// Ends it, and seals it.
    pub(super) fn seal(mut self, at: Millis) -> Result<Totals, DiskError> {
        self.flush(Kind::Records)?;
        let Writer { directory, seal, encoder, offset, .. } = self;
        let (end, totals) = encoder.end();
        let (state, file, seal) = (file_name(seal.epoch), seal_name(seal.epoch), Seal { at, ..seal });
        let data = vec![Bytes::from(seal.encode())];
        for op in [
            DiskOp::Write { file: state.clone(), offset, data: end.into() },
            DiskOp::Sync { file: state },
            DiskOp::Create { file: file.clone(), len: 0 },
            DiskOp::Write { file: file.clone(), offset: 0, data },
            DiskOp::Sync { file },
            DiskOp::SyncDirectory,
        ] {
            directory.apply(&op)?;
        }
        Ok(totals)
    }
}
