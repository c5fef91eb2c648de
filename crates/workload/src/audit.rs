//! Audits: one read-only transaction reads a whole database, and answers what it makes of the records.
//!
//! Every shard folds its own records, and the parts are merged, so that the number of shards does not show.
//! An audit computes the digest of the records from their bytes too, so that the digest which a node has kept
//! all along can be held against what it really holds.

use std::sync::Arc;

use ordain_model::procedure::Target;
use ordain_model::value::record_hash;
use ordain_model::{
    Abort, Access, Args, Cell, Datum, Db, Digest, FragmentContext, PlanError, Planner, Position, Procedure,
    ReplyContext, Writer, system,
};

use crate::{Finding, Seen};

/// What an audit makes of records: of those of one shard, and then of all.
pub trait Found: Default {
    /// Adds what was found of other records.
    fn merge(&mut self, other: Self);

    /// Appends an encoding.
    fn encode(&self, out: &mut Vec<u8>);

    /// Decodes what [`Found::encode`] wrote; `None` for anything else.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

/// What a whole database was found to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audited<F> {
    /// What the workload's own fold made of the records.
    pub found: F,
    /// The digest of the records, computed from their bytes.
    pub digest: Digest,
}

impl<F: Found> Audited<F> {
    const DIGEST_BYTES: usize = 16 + 4;

    /// Reads the reply of an audit; `None` if it is none.
    pub fn read(reply: &[u8]) -> Option<Audited<F>> {
        let Datum::Bulk(bytes) = Datum::first(reply) else { return None };
        let (digest, found) = bytes.split_first_chunk::<{ 16 + 4 }>()?;
        let (sum, records) = digest.split_first_chunk::<16>()?;
        let records = u32::from_le_bytes(*records.first_chunk()?);
        Some(Audited { digest: Digest { sum: u128::from_le_bytes(*sum), records }, found: F::decode(found)? })
    }

    /// Answers with it.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let mut bytes = Vec::with_capacity(Audited::<F>::DIGEST_BYTES);
        bytes.extend_from_slice(&self.digest.sum.to_le_bytes());
        bytes.extend_from_slice(&self.digest.records.to_le_bytes());
        self.found.encode(&mut bytes);
        Writer(out).bulk(&bytes);
    }

    /// The two together.
    pub(crate) fn merge(mut self, other: Audited<F>) -> Audited<F> {
        self.digest = self.digest.plus(other.digest);
        self.found.merge(other.found);
        self
    }
}

/// The procedure that audits a database. It takes no arguments.
struct Audit<F> {
    db: Db,
    see: fn(&mut F, &[u8], &Cell),
}

/// The procedure that has `see` look at every record of `db`.
pub fn procedure<F: Found + 'static>(db: Db, see: fn(&mut F, &[u8], &Cell)) -> Arc<dyn Procedure> {
    Arc::new(Audit { db, see })
}

impl<F: Found> Procedure for Audit<F> {
    fn plan(&self, _args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        planner.table(0, Access::TableRead).map(drop)
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let mut audited = Audited::<F>::default();
        if let Target::Table(table) = &cx.target {
            table.scan(self.db, Position::default(), &mut |_, key, cell| {
                (self.see)(&mut audited.found, key, cell);
                if let Some(value) = &cell.value {
                    audited.digest.add(record_hash(self.db, key, value, cell.expires_at));
                }
                true
            });
        }
        audited.write(cx.out);
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let parts = system::parts(cx.slot(0)).filter_map(Audited::<F>::read);
        parts.fold(Audited::default(), Audited::merge).write(out);
    }
}

/// What the records of a workload whose records hold one number each add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// How many records there are.
    pub records: u64,
    /// What their numbers add up to.
    pub sum: u64,
    /// How many records are not what the workload may have made of them.
    pub damaged: u64,
}

impl Numbers {
    /// Counts a record with its number; `None` for a damaged one.
    pub fn see(&mut self, number: Option<u64>) {
        self.records += 1;
        match number {
            Some(number) => self.sum = self.sum.wrapping_add(number),
            None => self.damaged += 1,
        }
    }

    /// Whether exactly the records that were loaded are there, all whole.
    pub fn finding(&self, loaded: u64) -> Finding {
        Finding::new("records", self.records == loaded && self.damaged == 0, || {
            format!("{} records, {} of them damaged, where {loaded} were loaded", self.records, self.damaged)
        })
    }
}

impl Found for Numbers {
    fn merge(&mut self, other: Numbers) {
        self.records += other.records;
        self.sum = self.sum.wrapping_add(other.sum);
        self.damaged += other.damaged;
    }

    fn encode(&self, out: &mut Vec<u8>) {
        [self.records, self.sum, self.damaged].iter().for_each(|word| out.extend(word.to_le_bytes()));
    }

    fn decode(bytes: &[u8]) -> Option<Numbers> {
        let ([records, sum, damaged], []) = bytes.as_chunks::<8>() else { return None };
        let [records, sum, damaged] = [records, sum, damaged].map(|word| u64::from_le_bytes(*word));
        Some(Numbers { records, sum, damaged })
    }
}

/// The answers to a workload's audit and then to [`system::DIGEST`], and whether the two agree on the digest.
///
/// # Errors
/// The finding that the audit was not answered.
pub fn read<F: Found>(seen: &Seen) -> Result<(Audited<F>, Finding), Finding> {
    let answer = |i: usize| seen.audits.get(i).map_or(&[][..], |answer| answer);
    let Some(audited) = Audited::<F>::read(answer(0)) else {
        return Err(Finding { name: "audit", wrong: Some("the audit was not answered".to_owned()) });
    };
    let kept = Datum::first(answer(1)).as_bytes().unwrap_or_default();
    let computed = audited.digest.to_string();
    let finding = Finding::new("digest", kept == computed.as_bytes(), || {
        let kept = String::from_utf8_lossy(kept);
        format!("the node says its digest is {kept}, and its records have {computed}")
    });
    Ok((audited, finding))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_survives_encoding_and_damage_is_refused() {
        let found = Numbers { records: 3, sum: u64::MAX, damaged: 1 };
        let audited = Audited { found, digest: Digest { sum: 7 << 100, records: 3 } };
        let mut reply = Vec::new();
        audited.write(&mut reply);
        assert_eq!(Audited::read(&reply), Some(audited));
        assert_eq!(Audited::<Numbers>::read(&reply[..reply.len() - 1]), None);
        assert_eq!(Audited::<Numbers>::read(&[]), None);
        reply.clear();
        Writer(&mut reply).bulk(&[0; 20 + 23]);
        assert_eq!(Audited::<Numbers>::read(&reply), None);
        let sum = audited.merge(Audited { found: Numbers { records: 1, sum: 2, damaged: 0 }, ..audited });
        assert_eq!(sum.found, Numbers { records: 4, sum: 1, damaged: 1 });
        assert_eq!(sum.digest.records, 6);
    }

    #[test]
    fn an_unanswered_audit_and_another_digest_are_found() {
        assert_eq!(read::<Numbers>(&Seen::default()).unwrap_err().name, "audit");
        let mut audits = vec![Vec::new(), Vec::new()];
        let audited = Audited::<Numbers>::default();
        audited.write(&mut audits[0]);
        let verdict = |audits: &[Vec<u8>]| {
            read::<Numbers>(&Seen { audits: audits.to_vec(), ..Seen::default() }).unwrap().1
        };
        assert!(verdict(&audits).wrong.is_some());
        Writer(&mut audits[1]).status(&audited.digest.to_string());
        assert_eq!(verdict(&audits), Finding { name: "digest", wrong: None });
    }
}
