//! Scripts and functions through the reference executor. Where a text is compared it is what Redis 7.0.15
//! answers, unless a test says otherwise.

mod attacks;
mod functions;
mod interpreter;
mod scripts;

use std::sync::Arc;

use ordain_model::plan::Planner;
use ordain_model::procedure::{FragmentContext, Procedure, Registry};
use ordain_model::reference::ReferenceExecutor;
use ordain_model::{
    Abort, Access, Args, Call, Chunk, Datum, Db, GatewayId, Gsn, Millis, OutcomeStatus, PlanError, args,
    chunk, system,
};

use super::functions::{function_call, function_subcommand};
use super::*;
use crate::table::{Action, lookup};

/// A database of one.
struct Database {
    registry: Arc<Registry>,
    executor: ReferenceExecutor,
    gsn: Gsn,
}

const NOW: Millis = Millis(1_700_000_000_123);

impl Database {
    fn new() -> Database {
        let mut registry = Registry::default();
        system::register(&mut registry);
        crate::register(&mut registry);
        registry.register_native(ids::FIRST_NATIVE, "touch_all", Arc::new(TouchAll));
        registry.register_native(ProcedureId(ids::FIRST_NATIVE.0 + 1), "length", Arc::new(Length));
        let registry = Arc::new(registry);
        Database { executor: ReferenceExecutor::new(registry.clone()), registry, gsn: Gsn(0) }
    }

    fn encode(&self, words: &[&[u8]]) -> Result<(ProcedureId, Vec<u8>), PlanError> {
        let rest = &words[1..];
        let (id, encode, rest) = match &*words[0].to_ascii_lowercase() {
            b"script" => {
                let (id, encode) = script_subcommand(rest).unwrap();
                (id, encode, &rest[1..])
            }
            b"function" => {
                let (id, encode) = function_subcommand(rest).unwrap();
                (id, encode, &rest[1..])
            }
            name => match lookup(name).unwrap().action {
                Action::Procedure { id, encode } => (id, encode, rest),
                Action::Function { read_only } => function_call(&self.registry, read_only, rest)?,
                Action::Session(_) => panic!("not a procedure"),
            },
        };
        let mut buffer = Vec::new();
        encode(rest, &mut ArgsBuilder::new(&mut buffer));
        Ok((id, buffer))
    }

    fn submit(&mut self, id: ProcedureId, encoded: &[u8]) -> String {
        self.gsn.0 += 1;
        let mut chunk = Chunk::new(GatewayId(0), ordain_model::ChunkNo(0));
        let words = Args::parse(encoded).unwrap();
        let pushed = chunk.push(&self.registry, Call::new(id, Db(0)), |builder| {
            for word in words {
                builder.push(word.bytes);
            }
        });
        let txn = match pushed {
            Ok(txn) => txn.clone(),
            Err(refusal) => return format!("-{refusal}"),
        };
        let result = self.executor.run_txn(self.gsn, NOW, &chunk, &txn);
        assert_eq!(result.status, OutcomeStatus::Committed, "scripts never abort");
        show(&result.reply)
    }

    fn run<T: AsRef<[u8]>>(&mut self, words: &[T]) -> String {
        let words: Vec<&[u8]> = words.iter().map(AsRef::as_ref).collect();
        match self.encode(&words) {
            Ok((id, encoded)) => self.submit(id, &encoded),
            Err(refusal) => format!("-{refusal}"),
        }
    }

    fn eval(&mut self, script: &str) -> String {
        self.run(&["EVAL", script, "3", "a", "b", "c", "x", "y"])
    }

    /// The error of a script, without where it happened.
    fn error(&mut self, script: &str) -> String {
        let error = self.eval(script);
        assert!(error.starts_with('-'), "{script}: {error}");
        error.split(" script: ").next().unwrap().to_string()
    }

    fn digest(&self) -> ordain_model::Digest {
        self.executor.digest()
    }
}

/// The error of a library that runs for too long as it is loaded.
fn over_load_budget() -> String {
    format!("-ERR script stopped: it ran past its budget of {} units of work", vm::LOAD_BUDGET)
}

/// The error of a payload that costs too much.
fn over_restore_budget() -> String {
    format!("ERR script stopped: it ran past its budget of {} units of work", vm::RESTORE_BUDGET)
}

fn over_budget() -> String {
    format!("-ERR script stopped: it ran past its budget of {} units of work", vm::WORK_BUDGET)
}

fn show(reply: &[u8]) -> String {
    fn value<'a>(bytes: &'a [u8], out: &mut String) -> &'a [u8] {
        let (datum, mut rest) = Datum::split(bytes).unwrap();
        let items = |n: usize, rest: &mut &'a [u8], out: &mut String| {
            out.push('[');
            for i in 0..n {
                if i > 0 {
                    out.push_str(", ");
                }
                *rest = value(rest, out);
            }
            out.push(']');
        };
        let text = String::from_utf8_lossy;
        match datum {
            Datum::Nil | Datum::NilArray => out.push_str("nil"),
            Datum::Int(i) => out.push_str(&i.to_string()),
            Datum::Bulk(b) => out.push_str(&text(b)),
            Datum::Status(b) => out.push_str(&format!("+{}", text(b))),
            Datum::Error(b) => out.push_str(&format!("-{}", text(b))),
            Datum::Bool(b) => out.push_str(&format!("#{b}")),
            Datum::Double(x) => out.push_str(&format!("~{x}")),
            Datum::Verbatim(_, b) => out.push_str(&format!("={}", text(b))),
            Datum::BigNumber(b) => out.push_str(&format!("({}", text(b))),
            Datum::Array(n) => items(n as usize, &mut rest, out),
            Datum::Set(n) => {
                out.push('S');
                items(n as usize, &mut rest, out);
            }
            Datum::Pairs(n) => items(2 * n as usize, &mut rest, out),
            Datum::Map(n) => {
                out.push('M');
                items(2 * n as usize, &mut rest, out);
            }
        }
        rest
    }
    let mut out = String::new();
    assert!(value(reply, &mut out).is_empty());
    out
}

/// A native procedure: appends its last argument to every key before it.
struct TouchAll;

impl Procedure for TouchAll {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let keys = args.len().checked_sub(1).ok_or(PlanError::SYNTAX)?;
        args.iter().take(keys).try_for_each(|key| planner.key(0, Access::Write, key).map(drop))
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let text = cx.rest().last().map(|arg| arg.bytes.to_vec()).unwrap_or_default();
        cx.cell_mut().change_string(|s| s.extend_from_slice(&text));
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).int(cx.count.into());
    }
}

/// A native procedure that only reads: answers how long a string is.
struct Length;

impl Procedure for Length {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        planner.key(0, Access::Read, args.iter().next().ok_or(PlanError::SYNTAX)?).map(drop)
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let length = cx.cell().string().map_or(0, <[u8]>::len);
        cx.writer().int(length as i64);
        Ok(())
    }
}
