//! Audits by the client, of servers that cannot run a workload's own: every record is read, and what the workload's
//! check needs is computed here and written as its audit would have answered.
//!
//! There is no digest: such a server keeps none that could be held against its records, and the check of it
//! is not reported.

use std::collections::BTreeSet;

use anyhow::{Context, bail};
use ordain_model::{Datum, Writer};
use ordain_resp::client::Commands;
use ordain_workload::aggregate::Aggregate;
use ordain_workload::audit::Numbers;
use ordain_workload::{Param, Workload};

use crate::resp::link::{Link, no_error};

/// A knob of a workload that is a count.
pub fn count(workload: &dyn Workload, knob: &str) -> anyhow::Result<u64> {
    match param(workload, knob) {
        Some(Param::Int(n)) => Ok(n),
        other => bail!("{} tells its {knob} as {other:?}, and a count is needed", workload.name()),
    }
}

/// A knob of a workload.
pub fn param(workload: &dyn Workload, knob: &str) -> Option<Param> {
    workload.params().into_iter().find(|(name, _)| *name == knob).map(|(_, param)| param)
}

/// Reads the records `0..records` and counts each with its number, and whatever else there is as damaged.
pub fn numbers(
    link: &mut Link,
    records: u64,
    write: impl Fn(u64, &mut Commands),
    read: impl Fn(u64, &[u8]) -> Option<u64>,
) -> anyhow::Result<Numbers> {
    let mut found = Numbers::default();
    link.ask_all(
        0..records,
        |record, out| write(*record, out),
        |record, reply| {
            found.add(read(record, reply));
            Ok(())
        },
    )?;
    // Records that are missing were damaged just now; those that were not loaded are damage too.
    for _ in records..link.ask_count("DBSIZE")? {
        found.add(None);
    }
    Ok(found)
}

/// Audits records that are numbers under their keys.
pub fn counters<K: AsRef<[u8]>>(
    link: &mut Link,
    records: u64,
    key: fn(u64) -> K,
) -> anyhow::Result<Vec<Vec<u8>>> {
    let ask = |record, out: &mut Commands| _ = out.begin(2).word("GET").word(key(record));
    let found = numbers(link, records, ask, |_, reply| integer(Datum::first(reply)))?;
    Ok(vec![answer(&found)])
}

/// The reply of an audit that found this.
pub fn answer<F: Aggregate>(found: &F) -> Vec<u8> {
    // No digest was kept: zeros in front.
    let mut bytes = vec![0; 16 + 4];
    found.encode(&mut bytes);
    let mut reply = Vec::new();
    Writer(&mut reply).bulk(&bytes);
    reply
}

/// All keys of the database.
pub fn all_keys(link: &mut Link) -> anyhow::Result<BTreeSet<Vec<u8>>> {
    let mut keys = BTreeSet::new();
    let mut cursor = b"0".to_vec();
    loop {
        let reply = link.ask(&[&b"SCAN"[..], &cursor, b"COUNT", b"1000"])?;
        no_error(&reply).context("SCAN was refused")?;
        let mut found = || {
            let (Datum::Array(2), rest) = Datum::split(&reply)? else { return None };
            let (Datum::Bulk(next), rest) = Datum::split(rest)? else { return None };
            let (Datum::Array(_), mut rest) = Datum::split(rest)? else { return None };
            while let Some((key, tail)) = Datum::split(rest) {
                keys.insert(key.as_bytes()?.to_vec());
                rest = tail;
            }
            Some(next.to_vec())
        };
        cursor = found().context("SCAN answered something else")?;
        if cursor == b"0" {
            return Ok(keys);
        }
    }
}

/// The integer in a bulk of digits.
pub fn integer(datum: Datum<'_>) -> Option<u64> {
    std::str::from_utf8(datum.as_bytes()?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use ordain_workload::audit::Audited;

    use super::*;

    #[test]
    fn an_answer_is_read_as_an_audit() {
        let found = Numbers { records: 3, sum: 9, damaged: 1 };
        let audited = Audited::<Numbers>::read(&answer(&found)).unwrap();
        assert_eq!((audited.found, audited.digest.records), (found, 0));
    }

    #[test]
    fn integers_are_bulks_of_digits() {
        assert_eq!(integer(Datum::Bulk(b"18446744073709551615")), Some(u64::MAX));
        for wrong in [Datum::Nil, Datum::Int(1), Datum::Bulk(b""), Datum::Bulk(b"-1"), Datum::Bulk(b"x")] {
            assert_eq!(integer(wrong), None);
        }
    }
}
