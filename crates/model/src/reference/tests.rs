//! The oracle itself, where no other crate looks at it from two sides: child records, and blind writes that are none.

use super::*;
use crate::args::Arg;
use crate::children::split_child_key;
use crate::chunk::Call;
use crate::error::PlanError;
use crate::ids::{ChunkNo, Epoch, GatewayId, PartitionId, ProcedureId};
use crate::plan::Planner;
use crate::procedure::{FragmentContext, Procedure};
use crate::value::Value;

/// A ledger: its record holds the number of the next entry, and the entries are its children. Arguments: the name of
/// a step, then keys, on all of which it is done.
struct Ledger;

const LEDGER: ProcedureId = ProcedureId(500);
const STEPS: [&str; 8] = ["append", "fail", "sum", "close", "expire", "long", "misread", "clear"];

impl Procedure for Ledger {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> std::result::Result<(), PlanError> {
        let mut items = args.iter();
        let step = items.next().ok_or(PlanError::SYNTAX)?;
        let code = STEPS.iter().position(|s| s.as_bytes() == step.bytes).ok_or(PlanError::SYNTAX)? as u16;
        let name = STEPS[code as usize];
        if name == "clear" {
            return planner.table(code, Access::TableWrite).map(drop);
        }
        let access = if matches!(name, "sum" | "misread") { Access::Read } else { Access::Write };
        for key in items {
            planner.key(code, access, key)?;
            planner.with_children();
            if !matches!(name, "sum" | "append") {
                planner.abortable();
            }
        }
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> std::result::Result<(), Abort> {
        if let Target::Table(table) = &mut cx.target {
            table.clear(Some(cx.db));
            return Ok(());
        }
        let next = cx.cell().string().map_or(0, |bytes| bytes[0]);
        match STEPS[code as usize] {
            "append" | "fail" => {
                cx.children().edit(&[next], &mut |entry| entry.put(Value::String(vec![next])));
                cx.cell_mut().put(Value::String(vec![next + 1]));
                // What is written is seen at once, on both sides.
                assert_eq!(cx.children().read(&[next]).string(), Some(&[next][..]));
                assert_eq!(cx.cell().string(), Some(&[next + 1][..]));
                cx.writer().int(i64::from(next));
                if STEPS[code as usize] == "fail" { Err(Abort::Logic) } else { Ok(()) }
            }
            "sum" => {
                let children = cx.children();
                let entries = (0..=u8::MAX).filter_map(|n| children.read(&[n]).string());
                let sum = entries.map(|entry| i64::from(entry[0])).sum();
                cx.writer().int(sum);
                Ok(())
            }
            "close" => {
                cx.cell_mut().delete();
                Ok(())
            }
            "expire" => {
                cx.children().edit(&[0], &mut |entry| entry.set_expiry(Millis(1)));
                Ok(())
            }
            "long" => {
                cx.children().edit(&[0], &mut |entry| entry.delete());
                cx.children().read(&vec![0; crate::key::MAX_KEY_LEN]);
                Ok(())
            }
            _ => {
                cx.children().edit(&[0], &mut |entry| entry.delete());
                Ok(())
            }
        }
    }
}

struct Bench {
    executor: ReferenceExecutor,
    epoch: Epoch,
}

impl Bench {
    fn new() -> Bench {
        let mut registry = Registry::default();
        registry.register(LEDGER, "ledger", Arc::new(Ledger));
        Bench { executor: ReferenceExecutor::new(Arc::new(registry)), epoch: Epoch(0) }
    }

    fn run(&mut self, args: &[&str]) -> OutcomeStatus {
        self.result(args).status
    }

    fn result(&mut self, args: &[&str]) -> Result {
        let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
        let call = Call::new(LEDGER, Db(0));
        chunk
            .push(&self.executor.registry, call, |out| args.iter().for_each(|a| _ = out.push(a.as_bytes())))
            .unwrap();
        self.epoch = self.epoch.next();
        let gsn = Gsn::new(self.epoch, PartitionId(0), 0);
        self.executor.run_txn(gsn, Millis(9), &chunk, &chunk.txns()[0])
    }

    /// Cover and suffix of the entries there are.
    fn entries(&self) -> Vec<(String, u8)> {
        let children = self.executor.records().filter(|(db, ..)| *db == Db(0).children());
        let names = children.map(|(_, key, _)| split_child_key(key).unwrap());
        let mut names: Vec<_> =
            names.map(|(parent, suffix)| (String::from_utf8_lossy(parent).into(), suffix[0])).collect();
        names.sort();
        names
    }
}

#[test]
fn entries_are_children_of_their_ledger_and_nowhere_else() {
    let mut bench = Bench::new();
    for args in [&["append", "a", "b"][..], &["append", "a"]] {
        assert_eq!(bench.run(args), OutcomeStatus::Committed);
    }
    assert_eq!(bench.entries(), [("a".into(), 0), ("a".into(), 1), ("b".into(), 0)]);
    assert_eq!(crate::Datum::first(&bench.result(&["sum", "a"]).reply), crate::Datum::Int(1));
    let mut table = MapTable { map: &mut bench.executor.map, gsn: Gsn::NONE };
    assert_eq!((table.len(Db(0)), table.len(Db(0).children())), (2, 3));
    assert_eq!(table.digest().records, 5);
}

#[test]
fn what_aborts_leaves_no_children() {
    let mut bench = Bench::new();
    bench.run(&["append", "a"]);
    let digest = bench.executor.digest();
    for (args, abort) in [
        (&["fail", "b", "a", "a"][..], Abort::Logic),
        (&["expire", "a"], Abort::Panic),
        (&["long", "a"], Abort::Panic),
        (&["misread", "a"], Abort::Panic),
    ] {
        assert_eq!(bench.run(args), OutcomeStatus::Aborted(abort), "{args:?}");
        assert_eq!(bench.executor.digest(), digest, "{args:?}");
    }
}

#[test]
fn children_outlive_their_parent_and_go_with_the_database() {
    let mut bench = Bench::new();
    bench.run(&["append", "a"]);
    bench.run(&["append", "a"]);
    bench.run(&["close", "a"]);
    assert_eq!(bench.entries(), [("a".into(), 0), ("a".into(), 1)]);
    // An absent record covers too: the ledger begins anew and comes upon its old entry.
    bench.run(&["append", "a"]);
    assert_eq!(bench.entries().len(), 2);
    let mut table = MapTable { map: &mut bench.executor.map, gsn: Gsn(7) };
    table.swap(Db(0), Db(4));
    assert_eq!((table.len(Db(4)), table.len(Db(4).children()), table.len(Db(0).children())), (1, 2, 0));
    table.clear(Some(Db(0)));
    table.swap(Db(4), Db(0));
    assert_eq!(bench.entries().len(), 2);
    bench.run(&["clear"]);
    assert_eq!(bench.executor.records().count(), 0);
}

#[test]
fn no_plan_names_a_child_record() {
    struct Intruder;
    impl Procedure for Intruder {
        fn plan(&self, _: Args<'_>, planner: &mut Planner<'_>) -> std::result::Result<(), PlanError> {
            planner.key_in(Db(0).children(), 0, Access::Read, Arg { bytes: b"a\0\x01\0", at: 0 }).map(drop)
        }

        fn run(&self, _: u16, _: &mut FragmentContext<'_>) -> std::result::Result<(), Abort> {
            Ok(())
        }
    }
    let mut registry = Registry::default();
    registry.register(LEDGER, "intruder", Arc::new(Intruder));
    let refused =
        Chunk::new(GatewayId(0), ChunkNo(0)).push(&registry, Call::new(LEDGER, Db(0)), |_| {}).is_err();
    assert!(refused);
}

/// Declared a blind write, whatever it does. Arguments: the name of what it does, a key.
struct Blind;

const BLIND: ProcedureId = ProcedureId(501);

impl Procedure for Blind {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> std::result::Result<(), PlanError> {
        planner.key(0, Access::Write, args.iter().nth(1).ok_or(PlanError::SYNTAX)?)?;
        planner.blind();
        planner.abortable();
        Ok(())
    }

    fn run(&self, _: u16, cx: &mut FragmentContext<'_>) -> std::result::Result<(), Abort> {
        let held = cx.cell().string().map(<[u8]>::to_vec);
        let new = |bytes: &[u8]| Value::String(bytes.to_vec());
        match cx.args.get(0).unwrap_or_default() {
            b"put" => cx.cell_mut().put(new(b"new")),
            b"delete" => cx.cell_mut().delete(),
            b"abort" => return Err(Abort::Logic),
            b"leave" => {}
            b"answer" => {
                cx.cell_mut().put(new(b"new"));
                cx.writer().bulk(&held.unwrap_or_default());
            }
            b"append" => cx.cell_mut().put(new(&[&held.unwrap_or_default(), &b"new"[..]].concat())),
            b"keep expiry" => cx.cell_mut().put_keep_expiry(new(b"new")),
            b"version" => {
                let version = cx.version.number().unwrap_or_default();
                cx.cell_mut().put(new(&version.to_le_bytes()));
            }
            _ => match held {
                Some(_) => return Err(Abort::Logic),
                None => cx.cell_mut().put(new(b"new")),
            },
        }
        Ok(())
    }
}

/// Does one thing to a record that a fragment declared blind may not look at. False if the oracle notices a look.
fn is_blind(what: &str) -> bool {
    let mut registry = Registry::default();
    registry.register(BLIND, "blind", Arc::new(Blind));
    let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
    chunk.push(&registry, Call::new(BLIND, Db(0)), |out| _ = out.push(what.as_bytes()).push(b"k")).unwrap();
    let mut executor = ReferenceExecutor::new(Arc::new(registry));
    let old = Cell { value: Some(Value::String(b"old".to_vec())), expires_at: Millis(90).into() };
    let gsn = |epoch| Gsn::new(Epoch(epoch), PartitionId(0), 0);
    executor.put_back(Db(0), b"k", old, gsn(1));
    let txn = &chunk.txns()[0];
    let fragment = &chunk.fragments(txn)[0];
    let mut before = executor.images(&chunk, txn);
    let step = Step {
        registry: &executor.registry.clone(),
        under: Circumstances { gsn: gsn(2), now: Millis(50), seed: 0 },
        args: chunk.args(txn),
        txn,
        fragments: chunk.fragments(txn),
        fragment,
        inputs: &[],
        slots: &Vec::new(),
    };
    // Not as a transaction: to that, a panic of an abortable fragment is an abort.
    catch_unwind(AssertUnwindSafe(|| executor.run_fragment(&step, &mut before, &mut Vec::new()))).is_ok()
}

#[test]
fn a_blind_write_that_looks_at_its_record_is_noticed() {
    for what in ["put", "delete", "abort"] {
        assert!(is_blind(what), "{what}");
    }
    for what in ["leave", "answer", "append", "keep expiry", "version", "insert"] {
        assert!(!is_blind(what), "{what}");
    }
}

/// Draws a number, and writes it to its record unless the record is there; it ends soon.
struct Dice;

impl Procedure for Dice {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> std::result::Result<(), PlanError> {
        args.iter().try_for_each(|key| planner.key(0, Access::Write, key).map(drop))
    }

    fn run(&self, _: u16, cx: &mut FragmentContext<'_>) -> std::result::Result<(), Abort> {
        let (seed, ends) = (cx.seed, Millis(cx.now.0 + 11));
        if cx.cell().value.is_none() {
            let mut cell = cx.cell_mut();
            cell.put(Value::String(seed.to_le_bytes().to_vec()));
            cell.set_expiry(ends);
        }
        cx.writer().int(seed as i64);
        Ok(())
    }
}

#[test]
fn a_transaction_is_run_with_its_seed_or_tried_or_known_by_what_it_left() {
    let mut registry = Registry::default();
    registry.register(LEDGER, "dice", Arc::new(Dice));
    let mut executor = ReferenceExecutor::new(Arc::new(registry));
    let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
    chunk.push(&executor.registry, Call::new(LEDGER, Db(0)), |out| _ = out.push(b"k")).unwrap();
    let txn = &chunk.txns()[0];
    let under = |now, seed| Circumstances { gsn: Gsn(7), now: Millis(now), seed };
    let drawn = |cell: &Cell| cell.string().map(|bytes| bytes[0]);

    let (result, has_changed) = executor.try_under(under(9, 5), &chunk, txn);
    assert_eq!((crate::Datum::first(&result.reply), has_changed), (crate::Datum::Int(5), true));
    assert_eq!(executor.records().count(), 0);

    executor.run_under(under(9, 6), &chunk, txn);
    assert_eq!(drawn(executor.record(Db(0), b"k", Millis(9))), Some(6));
    assert!(!executor.try_under(under(9, 5), &chunk, txn).1, "the record is there");
    // Its time has come: it is written anew, and stays as it was.
    assert_eq!(drawn(executor.record(Db(0), b"k", Millis(21))), None);
    assert!(executor.try_under(under(21, 5), &chunk, txn).1);
    assert_eq!(drawn(executor.record(Db(0), b"k", Millis(9))), Some(6));

    executor.leave(Db(0), b"k", Cell::ABSENT, Gsn(8));
    assert_eq!(executor.records().count(), 0);
    let left = Cell { value: Some(Value::String(b"left".to_vec())), ..Cell::ABSENT };
    executor.leave(Db(0), b"l", left, Gsn(8));
    executor.table(Gsn(9)).swap(Db(0), Db(1));
    let left: Vec<_> = executor.versions().map(|(db, key, _, version)| (db, key, version)).collect();
    assert_eq!(left, [(Db(1), &b"l"[..], Gsn(9))]);
}
