//! Registers: transactions that replace a few records without a look at them, read them, and change what they have read.
//!
//! Some only overwrite, so that engines which tell blind writes apart have several of one register under way. Each value is
//! written once in a run. The judge is told the order of a register's values by the logs
//! (`commit.rs`, `orders`).

use std::sync::Arc;

use ordain_checker::dependencies::history::{Op, Txn};
use ordain_checker::history::Request;
use ordain_model::args::encode;
use ordain_model::{
    Abort, Access, Args, Call, Datum, Db, FragmentContext, PlanError, Planner, Procedure, ProcedureId,
    Random, Registry, ReplyContext, SlotNo, Value, Writer,
};

use super::mixed::DAMAGED;

/// Operations on registers, in order. Arguments: the key of each, then packed the kind of each, 1 byte that says whether the last one
/// fails, and the base of the transaction, 8 bytes. Operation i writes base + i. Answers the transaction, encoded ([`Txn`]).
pub(super) const RUN: ProcedureId = ProcedureId(60_066);
/// The database of the registers.
pub(super) const DB: Db = Db(8);
/// Few, so that writes of several transactions meet.
const REGISTERS: u8 = 5;
/// The number of the first register where the judge looks at lists too.
const FIRST: u64 = 1_000;
const MOST_OPS: u64 = 4;
const MOST_PUTS: usize = 3;

/// Adds the procedure.
pub(super) fn register(registry: &mut Registry) {
    registry.register(RUN, "sim.registers", Arc::new(Run));
}

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Reads.
    Get,
    /// Writes blindly.
    Put,
    /// Writes blindly, once the read before it is answered.
    PutAfter,
    /// Reads, and writes in the same access.
    Change,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Get, Kind::Put, Kind::PutAfter, Kind::Change];
}

/// The kinds of a transaction's operations.
fn kinds(random: &mut Random) -> Vec<Kind> {
    match random.index(20) {
        0..11 => (0..1 + random.index(MOST_PUTS)).map(|_| Kind::Put).collect(),
        11..14 => (0..1 + random.tail(MOST_OPS - 1)).map(|_| Kind::Get).collect(),
        _ => (0..1 + random.tail(MOST_OPS - 1)).map(|_| Kind::ALL[random.index(Kind::ALL.len())]).collect(),
    }
}

/// Draws a transaction with a base of its own.
pub(super) fn draw(base: u64, random: &mut Random) -> (Call, Vec<u8>) {
    let kinds = kinds(random);
    let keys: Vec<[u8; 2]> = kinds.iter().map(|_| key(random.index(REGISTERS.into()) as u8)).collect();
    let mut packed: Vec<u8> = kinds.iter().map(|kind| *kind as u8).collect();
    packed.push(u8::from(random.chance(50_000)));
    packed.extend(base.to_le_bytes());
    let mut args: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    args.push(&packed);
    (Call::new(RUN, DB), encode(&args))
}

const fn key(register: u8) -> [u8; 2] {
    [b'r', register]
}

/// The number of the register with a key, as the judge has it.
pub(super) fn register_of(key: &[u8]) -> Option<u64> {
    match key {
        [b'r', register] if *register < REGISTERS => Some(FIRST + u64::from(*register)),
        _ => None,
    }
}

/// The value of a record that is a register.
pub(super) fn value_of(value: Option<&Value>) -> Option<u64> {
    match value {
        Some(Value::String(bytes)) => {
            bytes.first_chunk().filter(|_| bytes.len() == 8).map(|word| u64::from_le_bytes(*word))
        }
        _ => None,
    }
}

/// The arguments of a transaction.
struct Asked<'a> {
    /// The operations: the register's number, and the kind.
    ops: Vec<(u64, Kind)>,
    fails: bool,
    base: u64,
    args: Args<'a>,
}

impl<'a> Asked<'a> {
    fn parse(args: Args<'a>) -> Option<Asked<'a>> {
        let mut keys: Vec<&[u8]> = args.iter().map(|arg| arg.bytes).collect();
        let (kinds, rest) = keys.pop()?.split_at_checked(keys.len()).filter(|_| !keys.is_empty())?;
        let (fails, base) = rest.split_first()?;
        let kind = |kind: &u8| Kind::ALL.get(usize::from(*kind)).copied();
        let ops = keys.into_iter().zip(kinds).map(|(key, of)| Some((register_of(key)?, kind(of)?)));
        let base = u64::from_le_bytes(base.try_into().ok()?);
        Some(Asked { ops: ops.collect::<Option<_>>()?, fails: *fails != 0, base, args })
    }

    fn value(&self, op: usize) -> u64 {
        self.base + op as u64
    }
}

/// The writes of a request for registers, as far as its arguments say, and its base.
pub(super) fn asked(request: &Request) -> Option<Txn> {
    let asked = Asked::parse(Args::parse(&request.args)?).filter(|_| request.call.procedure == RUN)?;
    let put = |(op, (key, kind)): (usize, &(u64, Kind))| {
        (*kind != Kind::Get).then(|| Op::Put { key: *key, value: asked.value(op) })
    };
    Some(Txn { base: asked.base, ops: asked.ops.iter().enumerate().filter_map(put).collect() })
}

struct Run;

impl Procedure for Run {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let asked = Asked::parse(args).ok_or(DAMAGED)?;
        let mut read = None;
        for ((op, (_, kind)), key) in (0..).zip(&asked.ops).zip(asked.args.iter()) {
            let access = if *kind == Kind::Get { Access::Read } else { Access::Write };
            let slot = planner.key(op, access, key)?;
            match kind {
                Kind::Get => read = Some(slot),
                Kind::Put | Kind::PutAfter => {
                    planner.blind();
                    planner.silent();
                }
                Kind::Change => {}
            }
            if let Some(before) = read.filter(|_| *kind == Kind::PutAfter) {
                planner.input(before);
            }
            if asked.fails && usize::from(op) + 1 == asked.ops.len() {
                planner.abortable();
            }
        }
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let Some(asked) = Asked::parse(cx.args) else { return Err(Abort::Logic) };
        let op = usize::from(code);
        let Some((_, kind)) = asked.ops.get(op) else { return Err(Abort::Logic) };
        if matches!(kind, Kind::Get | Kind::Change) {
            let held = cx.cell().string().unwrap_or_default().to_vec();
            cx.writer().bulk(&held);
        }
        if *kind != Kind::Get {
            let value = asked.value(op).to_le_bytes();
            cx.cell_mut().put(Value::String(value.to_vec()));
        }
        if asked.fails && op + 1 == asked.ops.len() { Err(Abort::Logic) } else { Ok(()) }
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let Some(asked) = Asked::parse(cx.args()) else { return };
        let changes = asked.ops.iter().filter(|(_, kind)| *kind == Kind::Change).count();
        let mut txn = Vec::new();
        Txn::encode_head(asked.base, asked.ops.len() + changes, &mut txn);
        for (op, (register, kind)) in asked.ops.iter().enumerate() {
            if matches!(kind, Kind::Get | Kind::Change) {
                let held = Datum::first(cx.slot(op as u32)).as_bytes().unwrap_or_default();
                Txn::encode_get(*register, held, &mut txn);
            }
            if *kind != Kind::Get {
                Txn::encode_put(*register, asked.value(op), &mut txn);
            }
        }
        Writer(out).bulk(&txn);
    }

    fn abort_reply(&self, abort: Abort, _: SlotNo, _: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).abort(abort);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ordain_checker::history::History;
    use ordain_checker::{Level, ViolationKind};
    use ordain_model::{Chunk, ChunkNo, GatewayId, Gsn, Micros, Millis, OutcomeStatus, ReferenceExecutor};

    use super::super::appends;
    use super::*;

    /// Transactions that the reference executor runs one after the other, and the order of the values of each register.
    fn one_by_one(count: u64) -> (History, BTreeMap<u64, Vec<u64>>) {
        let mut registry = Registry::default();
        register(&mut registry);
        let registry = Arc::new(registry);
        let (mut chunk, mut random) = (Chunk::new(GatewayId(0), ChunkNo(1)), Random::new(7));
        let (mut history, mut orders) = (History::default(), BTreeMap::<u64, Vec<u64>>::new());
        for at in 1..=count {
            let (call, args) = draw(at << 8, &mut random);
            let items = Args::parse(&args).unwrap();
            chunk.push(&registry, call, |out| items.iter().for_each(|arg| _ = out.push(arg.bytes))).unwrap();
        }
        let mut reference = ReferenceExecutor::new(registry.clone());
        for (at, txn) in (1..).zip(chunk.txns()) {
            let args = chunk.args(txn).encoded().to_vec();
            let id = history.sent(Micros(at), txn.call, args);
            let result = reference.run_txn(Gsn(at), Millis(at), &chunk, txn);
            history.answered(id, result.status, Gsn(at), &result.reply);
            let puts = asked(history.get(id)).unwrap().ops;
            if result.status == OutcomeStatus::Committed {
                // Of two writes of a register the last one is in the record.
                let last: BTreeMap<u64, u64> =
                    puts.iter().filter_map(|op| Some((op.key(), op.written()?))).collect();
                last.into_iter().for_each(|(key, value)| orders.entry(key).or_default().push(value));
            }
        }
        (history, orders)
    }

    #[test]
    fn what_is_run_one_by_one_is_right_and_not_in_another_order() {
        let (history, orders) = one_by_one(300);
        let check = |orders: &BTreeMap<u64, Vec<u64>>| {
            appends::check(Level::StampOrder, &history, orders).map_err(|found| found.kind)
        };
        assert_eq!(check(&orders), Ok(()));
        assert_eq!(orders.len(), usize::from(REGISTERS));
        for register in orders.keys() {
            let changes: [fn(&mut Vec<u64>); 2] = [|order| order.swap(8, 9), |order| _ = order.remove(8)];
            for change in changes {
                let mut other = orders.clone();
                change(other.get_mut(register).unwrap());
                assert_eq!(check(&other), Err(ViolationKind::WrongAnswer));
            }
        }
    }

    #[test]
    fn transactions_of_all_kinds_are_drawn() {
        let mut random = Random::new(3);
        let drawn: Vec<Vec<Kind>> = (0..400).map(|_| kinds(&mut random)).collect();
        let share = |is_one: &dyn Fn(&[Kind]) -> bool| drawn.iter().filter(|kinds| is_one(kinds)).count();
        let puts = |kinds: &[Kind]| kinds.iter().all(|kind| *kind == Kind::Put);
        assert!(share(&|kinds| puts(kinds)) > 160);
        assert!(share(&|kinds| puts(kinds) && kinds.len() == MOST_PUTS) > 30);
        assert!(share(&|kinds| kinds.iter().all(|kind| *kind == Kind::Get)) > 30);
        for kind in Kind::ALL {
            assert!(share(&|kinds| kinds.contains(&kind) && kinds.contains(&Kind::Get)) > 5, "{kind:?}");
        }
    }
}
