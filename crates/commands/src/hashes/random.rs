//! HRANDFIELD.
//!
//! Which fields are chosen is a function of seed, count and order, and must stay one: scripts in old logs have chosen so.

use std::collections::BTreeMap;

use ordain_model::{ArgIter, Cell, HashValue, PlanError, Writer};

use crate::number::parse_i64;
use crate::random::Random;
use crate::shape::{Input, LONG_REPLY, NOT_INTEGER, Refusal, SYNTAX, hash, write_each};

/// The most fields that a negative count may ask for: it can ask for more than the hash has, and the answer
/// has to be held in memory.
const MAX_REPEATED: i64 = 1 << 20;
/// Bytes of memory that a chosen field takes beside the reply: its place, the order in which it is met, itself, and what a
/// shuffle holds for it.
const CHOSEN_BYTES: usize = 72;
const OUT_OF_RANGE: Refusal = Refusal("ERR value is out of range");
const NOT_IN_RANGE: Refusal =
    Refusal("ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807");

/// The number of fields, and whether their values too; no count asks for one field.
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
    let begin =
        |w: &mut Writer<'_>, chosen| if values && chosen > 0 { w.pairs(chosen) } else { w.array(chosen) };
    let write = |w: &mut Writer<'_>, (field, value): (&[u8], &[u8])| {
        w.bulk(field);
        if values {
            w.bulk(value);
        }
    };
    let Some(hash) = hash else {
        begin(w, 0);
        return Ok(());
    };
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if count > 0 && wanted >= hash.len() {
        begin(w, hash.len());
        return write_each(w, input.most, hash.iter(), write);
    }
    if wanted.saturating_mul(CHOSEN_BYTES) > input.most {
        return Err(LONG_REPLY);
    }
    let places = if count < 0 {
        (0..wanted).map(|_| random.below(hash.len()) as u32).collect()
    } else {
        distinct(hash.len() as u32, wanted as u32, &mut random)
    };
    begin(w, wanted);
    write_each(w, input.most, fields_at(hash, &places), write)
}

/// The first `wanted` of the numbers below `len` after a shuffle.
fn distinct(len: u32, wanted: u32, random: &mut Random) -> Vec<u32> {
    let mut from = |i: u32| i + random.below((len - i) as usize) as u32;
    if wanted >= len / 8 {
        let mut places: Vec<u32> = (0..len).collect();
        (0..wanted).for_each(|i| places.swap(i as usize, from(i) as usize));
        places.truncate(wanted as usize);
        return places;
    }
    // The permutation holds only the places whose content has changed.
    let mut moved = BTreeMap::new();
    (0..wanted)
        .map(|i| {
            let (here, from) = (moved.remove(&i).unwrap_or(i), from(i));
            if from == i { here } else { moved.insert(from, here).unwrap_or(from) }
        })
        .collect()
}

/// The fields at these places of the hash's order.
fn fields_at<'a>(hash: &'a HashValue, places: &[u32]) -> Vec<(&'a [u8], &'a [u8])> {
    let mut order: Vec<u32> = (0..places.len() as u32).collect();
    order.sort_unstable_by_key(|at| places[*at as usize]);
    let mut fields = vec![(&[][..], &[][..]); places.len()];
    let mut next = order.into_iter().peekable();
    for (place, field) in hash.iter().enumerate() {
        while let Some(at) = next.next_if(|at| places[*at as usize] as usize == place) {
            fields[at as usize] = field;
        }
        if next.peek().is_none() {
            break;
        }
    }
    fields
}

/// Writes one field: of a small hash the n-th, of a large one the first at or after a random place of its order.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ordain_model::{Args, Millis, Value, args};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_chosen_is_within_the_reply() {
        let mut hash = HashValue::default();
        (0..1000_u32).for_each(|n| drop(hash.set(&n.to_be_bytes(), b"v")));
        let cell = Cell { value: Some(Value::Hash(Arc::new(hash))), expires_at: Millis(0).into() };
        let run = |count: &str, most: usize| {
            let encoded = args::encode(&[count]);
            let args = Args::parse(&encoded).expect("it was just encoded");
            let mut out = Vec::new();
            let input = Input { rest: args.iter(), now: Millis(1), seed: 7, most };
            hrandfield(input, &cell, &mut Writer(&mut out)).map(|()| out.len())
        };
        // An array's head, and each field with its own.
        let reply = |fields: usize| 5 + fields * (5 + 4);
        for count in ["10", "-10"] {
            assert_eq!(run(count, 10 * CHOSEN_BYTES), Ok(reply(10)), "{count}");
            assert_eq!(run(count, 10 * CHOSEN_BYTES - 1), Err(LONG_REPLY), "{count}");
        }
        // All of them need no list.
        for count in ["1000", "1001", "9223372036854775807"] {
            assert_eq!(run(count, reply(1000)), Ok(reply(1000)), "{count}");
        }
        assert_eq!(run("999", reply(1000)), Err(LONG_REPLY));
        assert_eq!(run("0", 0), Ok(5));
    }

    proptest! {
        /// Scripts in old logs have chosen from a list of all fields.
        #[test]
        fn what_is_chosen_is_what_a_list_of_all_fields_gives(len in 1..600_u32, wanted in 0..600_u32, seed: u64) {
            let mut hash = HashValue::default();
            (0..len).for_each(|n| drop(hash.set(&n.to_be_bytes(), b"v")));
            let all: Vec<_> = hash.iter().collect();
            let wanted = wanted % len;
            let mut list = all.clone();
            let mut random = Random(seed);
            for i in 0..wanted as usize {
                let from = i + random.below(list.len() - i);
                list.swap(i, from);
            }
            list.truncate(wanted as usize);
            prop_assert_eq!(fields_at(&hash, &distinct(len, wanted, &mut Random(seed))), list);
            let mut random = Random(seed);
            let places: Vec<u32> = (0..wanted).map(|_| random.below(len as usize) as u32).collect();
            let expected: Vec<_> = places.iter().map(|place| all[*place as usize]).collect();
            prop_assert_eq!(fields_at(&hash, &places), expected);
        }
    }
}
