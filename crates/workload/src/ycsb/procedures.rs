//! The records of YCSB, and the procedures on them.

use std::sync::Arc;

use ordain_model::key::MAX_VALUE_LEN;
use ordain_model::random::mix;
use ordain_model::{
    Abort, Access, Args, Cell, Db, FragmentContext, PlanError, Planner, Procedure, ProcedureId, Registry,
    ReplyContext, Value, Writer,
};

use crate::audit::{self, Numbers};
use crate::packed::{damaged, split, tail};
use crate::reads::answer_sum;

/// Inserts records. Arguments: keys, then the length of a record, 4 bytes.
pub const LOAD: ProcedureId = ProcedureId(1000);
/// Reads and increments records. Arguments: keys, then a bit for each that says whether it is incremented.
/// Answers the sum of the checksums of the records read.
pub const RUN: ProcedureId = ProcedureId(1001);
/// Reads everything. No arguments. Answers [`Numbers`]: what the counters add up to.
pub const AUDIT: ProcedureId = ProcedureId(1002);

/// The database of the records.
pub const DB: Db = Db(0);
/// The length of a record's counter: the shortest record there can be.
pub const COUNTER_BYTES: usize = 8;
/// The length of a key.
const KEY_BYTES: usize = 8;
/// The length of the packed argument of [`LOAD`].
const LENGTH_BYTES: usize = 4;

/// The most bytes that one transaction of loading makes: a client that calls it asks for them with a few of
/// its own.
pub(super) const LOAD_BYTES: usize = MAX_VALUE_LEN;

const DAMAGED: PlanError = damaged!("a YCSB procedure");
const TOO_MUCH: PlanError = PlanError::fixed("ERR records of more than 16 MiB in one call of ycsb.load");

pub(super) fn register(registry: &mut Registry) {
    registry.register_native(LOAD, "ycsb.load", Arc::new(Load));
    registry.register_native(RUN, "ycsb.run", Arc::new(Run));
    registry.register_native(AUDIT, "ycsb.audit", audit::procedure(|table| audit::fold(table, DB, see)));
}

/// The key of a record.
#[inline]
pub const fn key(record: u64) -> [u8; 8] {
    record.to_le_bytes()
}

/// The record of a key.
#[inline]
fn record_of(key: &[u8]) -> Option<u64> {
    key.try_into().ok().map(u64::from_le_bytes)
}

/// The bytes of a record as it is loaded: a counter of 0 and the payload of its number.
pub fn initial(record: u64, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; COUNTER_BYTES];
    content.reserve_exact(bytes.saturating_sub(COUNTER_BYTES));
    for (i, left) in (COUNTER_BYTES..bytes).step_by(8).enumerate() {
        content.extend_from_slice(&payload_word(record, i)[..(bytes - left).min(8)]);
    }
    content
}

#[inline]
fn payload_word(record: u64, i: usize) -> [u8; 8] {
    mix(record.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(i as u64)).to_le_bytes()
}

/// True if everything behind the counter is as it was loaded.
fn payload_is_whole(record: u64, content: &[u8]) -> bool {
    let words = content.get(COUNTER_BYTES..).unwrap_or_default().chunks(8);
    words.enumerate().all(|(i, word)| payload_word(record, i)[..word.len()] == *word)
}

/// Adds one to the counter of a record.
#[inline]
pub fn increment(content: &mut Vec<u8>) {
    if content.len() < COUNTER_BYTES {
        content.resize(COUNTER_BYTES, 0);
    }
    if let Some(counter) = content.first_chunk_mut::<COUNTER_BYTES>() {
        *counter = u64::from_le_bytes(*counter).wrapping_add(1).to_le_bytes();
    }
}

/// A sum over every byte of a record: what makes a read a read.
#[inline]
pub fn checksum(content: &[u8]) -> u64 {
    let (words, rest) = content.as_chunks::<8>();
    let sum = words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| sum.rotate_left(8).wrapping_add(u64::from(*byte)))
}

struct Load;

impl Procedure for Load {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (mut keys, length) = split(args, KEY_BYTES, LENGTH_BYTES).ok_or(DAMAGED)?;
        let length = length.try_into().map_or(0, u32::from_le_bytes) as usize;
        if length.saturating_mul(args.len() - 1) > LOAD_BYTES {
            return Err(TOO_MUCH);
        }
        keys.try_for_each(|key| {
            planner.key_in(DB, 0, Access::Write, key.ok_or(DAMAGED)?)?;
            planner.silent();
            planner.blind();
            Ok(())
        })
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let length = tail(cx.args, LENGTH_BYTES).try_into().map_or(0, u32::from_le_bytes);
        if let Some(record) = record_of(cx.key.bytes) {
            cx.cell_mut().put(Value::String(initial(record, length as usize)));
        }
        Ok(())
    }

    fn reply(&self, _cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).ok();
    }
}

struct Run;

impl Run {
    const READ: u16 = 0;
    const INCREMENT: u16 = 1;
}

impl Procedure for Run {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mask_bytes = args.len().saturating_sub(1).div_ceil(8);
        let (keys, written) = split(args, KEY_BYTES, mask_bytes).ok_or(DAMAGED)?;
        for (i, key) in keys.enumerate() {
            let key = key.ok_or(DAMAGED)?;
            let is_written = written[i / 8] >> (i % 8) & 1;
            let (code, access) =
                [(Run::READ, Access::Read), (Run::INCREMENT, Access::Write)][usize::from(is_written)];
            planner.key_in(DB, code, access, key)?;
            planner.silent_if(is_written == 1);
        }
        Ok(())
    }

    #[inline]
    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let is_hash = cx.cell().hash().is_some();
        if code == Run::READ {
            match cx.cell().string().map(checksum) {
                Some(sum) => cx.writer().int(sum as i64),
                None => cx.writer().nil(),
            }
        } else if !is_hash {
            cx.cell_mut().change_string(increment);
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let written = tail(cx.args(), (cx.count as usize).div_ceil(8));
        answer_sum(cx, Unset { bytes: written, at: 0, bits: 0, count: cx.count }, out);
    }
}

/// The places of the bits that are not set, word by word: a processor foresees how many there are of a word, not where.
pub(super) struct Unset<'a> {
    /// The bytes behind the current word.
    pub(super) bytes: &'a [u8],
    /// The first bit after the current word.
    pub(super) at: u32,
    /// The bits of the current word that are left.
    pub(super) bits: u64,
    /// The number of bits in all.
    pub(super) count: u32,
}

impl Iterator for Unset<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        while self.bits == 0 {
            let left = self.count.checked_sub(self.at).filter(|left| *left > 0)?;
            let (word, rest) = self.bytes.split_at_checked(8).unwrap_or((self.bytes, &[]));
            let mut bytes = [u8::MAX; 8];
            bytes[..word.len()].copy_from_slice(word);
            self.bits = !u64::from_le_bytes(bytes) & u64::MAX >> 64u32.saturating_sub(left);
            (self.bytes, self.at) = (rest, self.at + 64);
        }
        let bit = self.bits.trailing_zeros();
        self.bits &= self.bits - 1;
        Some(self.at - 64 + bit)
    }
}

/// Adds a record to the audit: its counter, if the payload behind it is its own.
pub(super) fn see(numbers: &mut Numbers, key: &[u8], cell: &Cell) {
    let counter = record_of(key).zip(cell.string()).and_then(|(record, content)| {
        let counter = content.first_chunk()?;
        payload_is_whole(record, content).then(|| u64::from_le_bytes(*counter))
    });
    numbers.add(counter);
}
