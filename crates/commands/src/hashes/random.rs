//! HRANDFIELD.

use ordain_model::{ArgIter, Cell, HashValue, PlanError, Writer};

use crate::number::parse_i64;
use crate::random::Random;
use crate::shape::{Input, NOT_INTEGER, Refusal, SYNTAX, hash, write_each};

/// The most fields that a negative count may ask for: it can ask for more than the hash has, and the answer
/// has to be held in memory.
const MAX_REPEATED: i64 = 1 << 20;
const OUT_OF_RANGE: Refusal = Refusal("ERR value is out of range");
const NOT_IN_RANGE: Refusal =
    Refusal("ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807");

/// How many fields, and whether their values too; no count asks for one field.
fn options(mut rest: ArgIter<'_>) -> Result<Option<(i64, bool)>, Refusal> {
    let Some(count) = rest.next() else { return Ok(None) };
    let count = parse_i64(count.bytes).ok_or(NOT_INTEGER)?;
    if count == i64::MIN {
        return Err(NOT_IN_RANGE);
    }
    let values = match (rest.next(), rest.next()) {
        (None, _) => false,
        (Some(word), None) if word.bytes.eq_ignore_ascii_case(b"WITHVALUES") => true,
        _ => return Err(SYNTAX),
    };
    if count < -MAX_REPEATED || (values && count > i64::MAX / 2) {
        return Err(OUT_OF_RANGE);
    }
    Ok(Some((count, values)))
}

pub(super) fn check(rest: ArgIter<'_>) -> Result<(), PlanError> {
    options(rest)?;
    Ok(())
}

pub(super) fn hrandfield(input: Input<'_>, cell: &Cell, w: &mut Writer<'_>) -> Result<(), Refusal> {
    let mut random = Random(input.seed);
    let hash = hash(cell)?;
    let Some((count, values)) = options(input.rest)? else {
        match hash {
            Some(hash) => one(hash, &mut random, w),
            None => w.nil(),
        }
        return Ok(());
    };
    let mut fields: Vec<(&[u8], &[u8])> = hash.into_iter().flat_map(HashValue::iter).collect();
    let begin =
        |w: &mut Writer<'_>, chosen| if values && chosen > 0 { w.pairs(chosen) } else { w.array(chosen) };
    let write = |w: &mut Writer<'_>, (field, value): (&[u8], &[u8])| {
        w.bulk(field);
        if values {
            w.bulk(value);
        }
    };
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if count < 0 && !fields.is_empty() {
        begin(w, wanted);
        return write_each(w, input.most, (0..wanted).map(|_| fields[random.below(fields.len())]), write);
    }
    if wanted < fields.len() {
        // The beginning of a shuffle.
        for i in 0..wanted {
            let from = i + random.below(fields.len() - i);
            fields.swap(i, from);
        }
        fields.truncate(wanted);
    }
    begin(w, fields.len());
    write_each(w, input.most, fields, write)
}

/// One field: of a small hash the n-th, of a large one the first at or after a random place of its order.
fn one(hash: &HashValue, random: &mut Random, w: &mut Writer<'_>) {
    if hash.is_small() {
        let n = random.below(hash.len());
        if let Some((field, _)) = hash.iter().nth(n) {
            w.bulk(field);
        }
        return;
    }
    let (from, mut chosen) = (random.number(), false);
    for cursor in [from, 0] {
        hash.scan(cursor, 1, |field, _| {
            if !chosen {
                w.bulk(field);
                chosen = true;
            }
        });
    }
}
