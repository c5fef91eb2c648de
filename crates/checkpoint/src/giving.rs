//! Giving the state away in pieces, between other work: how much at once, and how long it rests.

use ordain_model::Micros;

use crate::piece::{Kind, Piece};

/// The pause after a piece while transactions come: some fifty times what a piece takes, so that with
/// what it costs them to keep what they replace it is a tenth at most, and rarely holds one up.
const REST: Micros = Micros::from_millis(15);
/// The number of transactions since the piece before that count as a load.
const LOAD: u64 = 64;
/// The most items of a piece: each may have to be fetched from memory.
const ITEMS_MAX: usize = 512;
/// The number of pieces of a shard that the checkpointer may have that are not written yet.
pub const ON_THEIR_WAY: u32 = 2;

/// The pace at which one role gives its part of a state away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// The number of transactions that had ended at the role when the last piece was given.
    ended: u64,
}

impl Pace {
    /// Answers how long giving rests after a piece, if so many transactions have ended at the role in all; 0: not at all.
    pub fn rest(&mut self, ended: u64) -> Micros {
        let is_load = ended.saturating_sub(std::mem::replace(&mut self.ended, ended)) >= LOAD;
        if is_load { REST } else { Micros(0) }
    }
}

/// Gathers items into a piece until that is long enough. The first that does not go in is where the next one begins.
#[derive(Debug)]
pub struct Filling<At> {
    /// The length from which a piece is long enough, bytes.
    enough: usize,
    /// The piece.
    pub piece: Piece,
    /// Bytes of items that are not in it, as their values are not in memory.
    lacking: usize,
    /// The number of its items.
    items: usize,
    /// The item put in last.
    last: Option<At>,
    /// The place where the next piece begins, if this is not all.
    pub rest: Option<At>,
}

impl<At: Copy + PartialEq> Filling<At> {
    /// Begins a piece of a kind.
    pub fn new(kind: Kind, enough: usize) -> Filling<At> {
        Filling { enough, piece: Piece::new(kind), lacking: 0, items: 0, last: None, rest: None }
    }

    /// Answers whether the next item, at this place, goes in. Items at one place stay together.
    pub fn takes(&mut self, at: At) -> bool {
        let is_long = self.piece.len() + self.lacking >= self.enough || self.items >= ITEMS_MAX;
        let is_full = is_long && self.last != Some(at);
        if is_full {
            self.rest = Some(at);
        }
        self.last = Some(at);
        self.items += 1;
        !is_full
    }

    /// Leaves out an item of so many bytes: where the piece ends does not depend on it.
    pub fn leave_out(&mut self, bytes: usize) {
        self.lacking += bytes;
    }
}
