//! Puts pieces into the bytes of a file, one after the other: nothing but the totals is held.

use ordain_model::Digest;
use ordain_model::wire::Codec as _;
use ordain_role::Bytes;

use crate::format::{HEAD, Head, Header, KIND_END, KIND_REGIONS};
use crate::piece::{Kind, Piece};

/// The totals of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records, in all databases.
    pub records: u64,
    /// Outcomes of sessions.
    pub outcomes: u64,
    /// The digest of the records.
    pub digest: Digest,
}

impl Totals {
    /// Counts a piece in.
    pub(crate) fn add(&mut self, kind: Kind, count: u32, digest: Digest) {
        match kind {
            Kind::Records => self.records += u64::from(count),
            Kind::Outcomes => self.outcomes += u64::from(count),
            Kind::Input | Kind::Map => {}
        }
        self.digest = self.digest.plus(digest);
    }
}

/// Writes one checkpoint. What it returns is to be written one after the other.
#[derive(Debug)]
pub struct Encoder {
    chain: u32,
    len: u64,
    totals: Totals,
}

impl Encoder {
    /// Begins a file: with its header, whose block the prefixes of regions follow, if there are any.
    pub fn begin(header: &Header) -> (Encoder, Bytes) {
        let mut block = header.encode();
        let chain = Header::decode(&block).map_or(0, |(_, chain, _)| chain);
        let mut encoder = Encoder { chain, len: block.len() as u64, totals: Totals::default() };
        if !header.placement.is_none() {
            let frame = encoder.put(KIND_REGIONS, 1, header.placement.to_bytes());
            frame.iter().for_each(|part| block.extend_from_slice(part.as_ref()));
        }
        (encoder, Bytes::from(block))
    }

    /// The next frame.
    pub fn frame(&mut self, piece: Piece) -> [Bytes; 2] {
        let Piece { kind, count, bytes, digest } = piece;
        self.totals.add(kind, count, digest);
        self.put(kind.code(), count, bytes)
    }

    /// The last frame: what there is in all.
    pub fn end(mut self) -> ([Bytes; 2], Totals) {
        (self.put(KIND_END, 0, self.totals.to_bytes()), self.totals)
    }

    fn put(&mut self, kind: u32, count: u32, payload: Vec<u8>) -> [Bytes; 2] {
        let head = Head::of(self.chain, kind, count, &payload);
        self.chain = head.chain;
        self.len += (HEAD + payload.len()) as u64;
        [Bytes::from(head.to_bytes()), Bytes::from(payload)]
    }

    /// The length of the file so far, bytes.
    pub fn written(&self) -> u64 {
        self.len
    }
}
