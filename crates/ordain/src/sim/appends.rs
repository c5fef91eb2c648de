//! Appends to a few lists, and reads of them: a mix of requests that is judged without a log, for both families.

use std::collections::BTreeMap;

use ordain_checker::appends::{self, Protocol};
use ordain_checker::dependencies::history::{Op, Txn};
use ordain_checker::history::{Answer, History, Request};
use ordain_checker::{Level, Violation, ViolationKind};
use ordain_model::args::encode;
use ordain_model::{Args, Call, Datum, Micros, OutcomeStatus, ProcedureId, Random};
use ordain_sim::Workload;
use ordain_workload::append::{self, Lists};
use ordain_workload::audit::Audited;

use super::{mixed, registers};

pub(super) const LISTS: u64 = 6;
const MOST_OPS: u64 = 4;

/// Appends to a few lists, and reads of them.
#[derive(Default)]
pub(super) struct AppendMix {
    base: u64,
    /// The lists are read as a whole at the end.
    is_audited: bool,
}

impl AppendMix {
    /// A mix that ends with an audit of the lists.
    pub(super) fn audited() -> AppendMix {
        AppendMix { is_audited: true, ..AppendMix::default() }
    }
}

impl AppendMix {
    /// The base of the next transaction.
    pub(super) fn next_base(&mut self) -> u64 {
        self.base += 1 << 8;
        self.base
    }
}

impl Workload for AppendMix {
    fn next(&mut self, random: &mut Random) -> (Call, Vec<u8>) {
        let base = self.next_base();
        let ops = 1 + random.tail(MOST_OPS - 1);
        let (mut keys, mut mask) = (Vec::new(), 0u8);
        for op in 0..ops {
            keys.push(append::key(random.index(LISTS as usize) as u64));
            mask |= u8::from(random.chance(500_000)) << op;
        }
        let mut packed = vec![mask, u8::from(random.chance(50_000))];
        packed.extend(base.to_le_bytes());
        let mut args: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        args.push(&packed);
        (Call::new(append::RUN, append::DB), encode(&args))
    }

    fn audits(&self) -> Vec<ProcedureId> {
        self.is_audited.then_some(append::AUDIT).into_iter().collect()
    }
}

/// The list with a key.
pub(super) fn list_of(key: &[u8]) -> Option<u64> {
    (0..LISTS).find(|list| append::key(*list)[..] == *key)
}

/// The writes of a request, as far as its arguments say, and its base.
///
/// # Panics
/// If the request is not one of the mix.
fn asked(request: &Request) -> Txn {
    if let Some(txn) = mixed::surveyed(request).or_else(|| registers::asked(request)) {
        return txn;
    }
    let args: Vec<&[u8]> = Args::parse(&request.args).into_iter().flatten().map(|arg| arg.bytes).collect();
    let Some(([mask, _, base @ ..], keys)) = args.split_last() else {
        panic!("a request of the mix has a packed argument: {request:?}")
    };
    let base = u64::from_le_bytes(base.try_into().expect("a base has 8 bytes"));
    let appended = (0..).zip(keys).filter(|(op, _)| mask >> op & 1 == 1);
    let append = |(op, key): (u64, &&[u8])| {
        let key = list_of(key).expect("a key of the mix is one of its lists");
        Op::Append { key, value: base + op }
    };
    Txn { base, ops: appended.map(append).collect() }
}

/// The transaction that an answer tells of, if it has committed.
pub(super) fn committed(answer: &Answer) -> Option<Txn> {
    let Datum::Bulk(bytes) = Datum::first(&answer.reply) else { return None };
    (answer.status == OutcomeStatus::Committed).then(|| Txn::decode(bytes))?
}

/// Checks that the writes and reads of a history are those of a level, by the lists at its end and the orders of all values of
/// registers.
pub(super) fn check(
    level: Level,
    history: &History,
    orders: &BTreeMap<u64, Vec<u64>>,
) -> Result<(), Violation> {
    appends::check(level, history, orders, PROTOCOL)
}

/// Checks that the appends and reads of a history keep the order of real time, but for those that are no further apart than the bound.
pub(super) fn check_within(
    bound: Micros,
    history: &History,
    lists: &BTreeMap<u64, Vec<u64>>,
) -> Result<(), Violation> {
    appends::check_within(bound, history, lists, PROTOCOL)
}

const PROTOCOL: Protocol =
    Protocol { is_one: |request| mixed::is_of_lists(request.call.procedure), asked, committed };

/// Checks a history by the answer to its audit.
pub(super) fn check_audited(history: &History, audit: Option<&Vec<u8>>) -> Result<(), Violation> {
    let lists = audit.and_then(|answer| Audited::<Lists>::read(answer));
    let Some(Lists { lists, loose: 0, damaged: 0 }) = lists.map(|audited| audited.found) else {
        let text = format!("the audit of the lists answers {audit:02x?}");
        return Err(Violation::new(ViolationKind::WrongAnswer, text));
    };
    check(Level::StrictSerializable, history, &lists)
}
