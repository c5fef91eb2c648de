//! Audits: one read-only transaction reads a whole database, and answers an aggregate of the records.
//!
//! Every shard folds its own records, and the parts are merged, so that the number of shards does not show.
//! An audit computes the digest of the records from their bytes too, so that the digest which a node has kept
//! all along can be held against what it really holds.

use std::sync::Arc;

use ordain_model::procedure::Target;
use ordain_model::value::record_hash;
use ordain_model::{
    Abort, Access, Args, Cell, Datum, Db, Digest, FragmentContext, PlanError, Planner, Position, Procedure,
    ReplyContext, Table, Writer, system,
};

use crate::aggregate::{Aggregate, sums};
use crate::{Finding, Results};

/// The audit of the records of a shard, or of all shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audited<F> {
    /// The result of the workload's own fold over the records.
    pub found: F,
    /// The digest of the records, computed from their bytes.
    pub digest: Digest,
}

impl<F: Aggregate> Audited<F> {
    const DIGEST_BYTES: usize = 16 + 4;

    /// Reads the reply of an audit; `None` if it is none.
    pub fn read(reply: &[u8]) -> Option<Audited<F>> {
        let Datum::Bulk(bytes) = Datum::first(reply) else { return None };
        let (digest, found) = bytes.split_first_chunk::<{ 16 + 4 }>()?;
        let (sum, records) = digest.split_first_chunk::<16>()?;
        let records = u32::from_le_bytes(*records.first_chunk()?);
        Some(Audited { digest: Digest { sum: u128::from_le_bytes(*sum), records }, found: F::decode(found)? })
    }

    /// Counts a record in the digest.
    pub(crate) fn count(&mut self, db: Db, key: &[u8], cell: &Cell) {
        if let Some(value) = &cell.value {
            self.digest.add(record_hash(db, key, value, cell.expires_at));
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let mut bytes = Vec::with_capacity(Audited::<F>::DIGEST_BYTES);
        bytes.extend_from_slice(&self.digest.sum.to_le_bytes());
        bytes.extend_from_slice(&self.digest.records.to_le_bytes());
        self.found.encode(&mut bytes);
        Writer(out).bulk(&bytes);
    }

    pub(crate) fn merge(mut self, other: Audited<F>) -> Audited<F> {
        self.digest = self.digest.plus(other.digest);
        self.found.merge(other.found);
        self
    }
}

/// The audit of the records of one shard.
type OfShard<F> = fn(&dyn Table) -> Audited<F>;

/// The procedure that audits a database. It takes no arguments.
struct Audit<F>(OfShard<F>);

/// The procedure that audits every shard by `of_shard`.
pub fn procedure<F: Aggregate + 'static>(of_shard: OfShard<F>) -> Arc<dyn Procedure> {
    Arc::new(Audit(of_shard))
}

/// Audits the records of a shard in one database, each of which `see` adds.
pub fn fold<F: Aggregate>(table: &dyn Table, db: Db, see: impl Fn(&mut F, &[u8], &Cell)) -> Audited<F> {
    let mut audited = Audited::default();
    table.scan(db, Position::default(), &mut |_, key, cell| {
        see(&mut audited.found, key, cell);
        audited.count(db, key, cell);
        true
    });
    audited
}

impl<F: Aggregate> Procedure for Audit<F> {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        if !args.is_empty() {
            return Err(PlanError::fixed("ERR an audit takes no arguments"));
        }
        planner.table(0, Access::TableRead).map(drop)
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let audited =
            if let Target::Table(table) = &cx.target { (self.0)(*table) } else { Audited::default() };
        audited.write(cx.out);
        Ok(())
    }

    fn scans_values(&self) -> bool {
        true
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let parts = system::parts(cx.slot(0)).filter_map(Audited::<F>::read);
        parts.fold(Audited::default(), Audited::merge).write(out);
    }
}

sums! {
    /// The records of a workload whose records hold one number each.
    pub struct Numbers {
        /// The number of records.
        pub records: u64,
        /// The sum of their numbers.
        pub sum: u64,
        /// The number of records that are not what the workload may have made of them.
        pub damaged: u64,
    }
}

impl Numbers {
    /// Adds a record with its number; `None` for a damaged one.
    pub fn add(&mut self, number: Option<u64>) {
        self.records += 1;
        match number {
            Some(number) => self.sum = self.sum.wrapping_add(number),
            None => self.damaged += 1,
        }
    }

    /// Checks that exactly the records that were loaded are there, all whole.
    pub fn finding(&self, loaded: u64) -> Finding {
        Finding::new("records", self.records == loaded && self.damaged == 0, || {
            format!("{} records, {} of them damaged, where {loaded} were loaded", self.records, self.damaged)
        })
    }
}

/// The answers to a workload's audit and then to [`system::DIGEST`], and whether the two agree on the digest.
///
/// # Errors
/// The finding that the audit was not answered.
pub(crate) fn read<F: Aggregate>(results: &Results) -> Result<(Audited<F>, Finding), Finding> {
    let answer = |i: usize| results.audits.get(i).map_or(&[][..], |answer| answer);
    let Some(audited) = Audited::<F>::read(answer(0)) else {
        return Err(Finding::of("audit", Some("the audit was not answered".to_owned())));
    };
    let kept = Datum::first(answer(1)).as_bytes().unwrap_or_default();
    let computed = audited.digest.to_string();
    let finding = Finding::new("digest", kept == computed.as_bytes(), || {
        let kept = String::from_utf8_lossy(kept);
        format!("the digest of the node is {kept}, and its records have {computed}")
    });
    Ok((audited, finding))
}

/// What audits of parts of a database have found together; `None` if one was not answered, or none was asked for.
pub(crate) fn of_parts<F: Aggregate>(results: &Results) -> Option<F> {
    let parts = results.audits.iter().map(|answer| Audited::<F>::read(answer));
    parts.collect::<Option<Vec<_>>>()?.into_iter().reduce(Audited::merge).map(|all| all.found)
}

/// Checks a run by what its audit has found and by the digest; an audit without an answer is the only finding.
pub(crate) fn check<F: Aggregate>(
    results: &Results,
    findings: impl FnOnce(F, Finding) -> Vec<Finding>,
) -> Vec<Finding> {
    match read::<F>(results) {
        Ok((audited, digest)) => findings(audited.found, digest),
        Err(unanswered) => vec![unanswered],
    }
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
        assert_eq!(read::<Numbers>(&Results::default()).unwrap_err().name, "audit");
        let mut audits = vec![Vec::new(), Vec::new()];
        let audited = Audited::<Numbers>::default();
        audited.write(&mut audits[0]);
        let verdict = |audits: &[Vec<u8>]| {
            read::<Numbers>(&Results { audits: audits.to_vec(), ..Results::default() }).unwrap().1
        };
        assert!(verdict(&audits).wrong.is_some());
        Writer(&mut audits[1]).status(&audited.digest.to_string());
        assert_eq!(verdict(&audits), Finding::of("digest", None));
    }
}
