//! What a checkpoint holds, in pieces: each shard makes its own, in any order, and they are put together elsewhere.

use std::fmt;

use ordain_model::value::record_hash;
use ordain_model::wire::{self, Codec, Reader};
use ordain_model::{Cell, Db, Digest, Gsn, Map, OutcomeStatus, RequestNo, SessionId};

/// The kind of the items in a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Records.
    Records,
    /// Outcomes of the last requests of sessions.
    Outcomes,
    /// The sequencer's knowledge of the input; only it can read that.
    Input,
    /// The places of slots, if any had moved: it stands before the first records then.
    Map,
}

impl Kind {
    pub(crate) const fn code(self) -> u32 {
        match self {
            Kind::Records => 0x4b43_4501,
            Kind::Outcomes => 0x4b43_4502,
            Kind::Input => 0x4b43_4503,
            Kind::Map => 0x4b43_4505,
        }
    }

    pub(crate) fn from_code(code: u32) -> Option<Kind> {
        [Kind::Records, Kind::Outcomes, Kind::Input, Kind::Map].into_iter().find(|kind| kind.code() == code)
    }
}

/// A part of the content of a checkpoint, encoded.
#[derive(Clone, PartialEq)]
pub struct Piece {
    pub(crate) kind: Kind,
    pub(crate) count: u32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) digest: Digest,
}

/// The outcome of the last request of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// The session.
    pub session: SessionId,
    /// The request.
    pub request: RequestNo,
    /// The request's transaction.
    pub gsn: Gsn,
    /// The end of the transaction.
    pub status: OutcomeStatus,
    /// The reply, encoded.
    pub reply: &'a [u8],
}

/// An item of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub enum Item<'a> {
    /// A record.
    Record {
        /// The record's database.
        db: Db,
        /// The record's key.
        key: &'a [u8],
        /// The record's content; never absent.
        cell: Cell,
        /// The transaction that wrote the record last.
        version: Gsn,
    },
    /// An outcome.
    Outcome(Outcome<'a>),
    /// The sequencer's knowledge of the input.
    Input(&'a [u8]),
    /// The places of slots.
    Map(Map),
}

impl Piece {
    /// An empty piece.
    pub fn new(kind: Kind) -> Piece {
        Piece { kind, count: 0, bytes: Vec::new(), digest: Digest::default() }
    }

    /// Makes a piece of the sequencer's knowledge of the input.
    pub fn input(bytes: Vec<u8>) -> Piece {
        Piece { count: 1, bytes, ..Piece::new(Kind::Input) }
    }

    /// Makes a piece of the places of slots.
    pub fn map(map: &Map) -> Piece {
        Piece { count: 1, bytes: map.to_bytes(), ..Piece::new(Kind::Map) }
    }

    /// Adds a record. It must have content.
    pub fn push_record(&mut self, db: Db, key: &[u8], cell: &Cell, version: Gsn) {
        debug_assert!(self.kind == Kind::Records && cell.value.is_some());
        let Some(value) = &cell.value else { return };
        (db, version).encode(&mut self.bytes);
        wire::bytes(&mut self.bytes, key);
        cell.encode(&mut self.bytes);
        self.digest.add(record_hash(db, key, value, cell.expires_at));
        self.count += 1;
    }

    /// The length of a record in a piece, bytes, whether or not its value is evicted.
    pub fn record_len(key: &[u8], cell: &Cell) -> usize {
        size_of::<u8>() + size_of::<u64>() + size_of::<u32>() + key.len() + cell.image_len()
    }

    /// Adds an outcome.
    pub fn push_outcome(&mut self, outcome: &Outcome<'_>) {
        debug_assert_eq!(self.kind, Kind::Outcomes);
        (outcome.session, outcome.request).encode(&mut self.bytes);
        (outcome.gsn, outcome.status).encode(&mut self.bytes);
        wire::bytes(&mut self.bytes, outcome.reply);
        self.count += 1;
    }

    /// The kind of its items.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The digest of its records.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The length, bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Its items, encoded.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Tells whether the piece has no items.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} in {} bytes", self.count, self.kind, self.bytes.len())
    }
}

/// Hands `visit` the items in the payload of a frame. `None` if the payload is not of the kind; else the answer of
/// `visit`.
pub(crate) fn items(
    (kind, count): (Kind, u32),
    payload: &[u8],
    visit: &mut dyn FnMut(Item<'_>) -> Result<(), String>,
) -> Option<Result<(), String>> {
    if kind == Kind::Input {
        return (count == 1).then(|| visit(Item::Input(payload)));
    }
    let mut rest = Reader::new(payload);
    if kind == Kind::Map {
        let map = Map::decode(&mut rest).filter(|_| count == 1)?;
        return rest.end(visit(Item::Map(map)));
    }
    for _ in 0..count {
        let item = if kind == Kind::Records { record(&mut rest) } else { outcome(&mut rest) };
        if let Err(reason) = visit(item?) {
            return Some(Err(reason));
        }
    }
    rest.end(Ok(()))
}

fn record<'a>(rest: &mut Reader<'a>) -> Option<Item<'a>> {
    let (db, version) = Codec::decode(rest)?;
    let (key, cell) = (rest.bytes()?, Cell::decode(rest)?);
    cell.value.is_some().then_some(Item::Record { db, key, cell, version })
}

fn outcome<'a>(rest: &mut Reader<'a>) -> Option<Item<'a>> {
    let (session, request) = Codec::decode(rest)?;
    let (gsn, status) = Codec::decode(rest)?;
    Some(Item::Outcome(Outcome { session, request, gsn, status, reply: rest.bytes()? }))
}
