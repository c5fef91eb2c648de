//! The cost of a script on a shard: `cargo bench -p ordain-commands --bench eval`.
//!
//! The compute fragment of EVAL is run as a shard runs it, on records that are taken out of a table and put back.
//! Each script has keys of its own, drawn from a hundred thousand, so that its strings are new to the interpreter
//! and the collector has as much to do as in a server.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to report")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mimalloc::MiMalloc;
use ordain_model::args::Arg;
use ordain_model::cell::{CellMut, Journal};
use ordain_model::plan::{Planner, Plans};
use ordain_model::procedure::{FragmentContext, Inputs, Locals, Members, Target};
use ordain_model::serial::seed_of;
use ordain_model::{Args, ArgsBuilder, Cell, Datum, Db, Gsn, Millis, ProcedureId, Registry, Value, Version};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const RECORDS: u64 = 100_000;
const SCRIPTS: usize = 10_000;
const DB: Db = Db(0);
/// The fragment of EVAL that runs the script.
const COMPUTE: u16 = 2;

/// The records of one script.
struct Hand<'a> {
    held: Vec<(&'a [u8], usize, Cell)>,
    changed: bool,
    journal: Journal,
}

impl Members for Hand<'_> {
    fn len(&self) -> usize {
        self.held.len()
    }

    fn find(&self, _: Db, key: &[u8]) -> Option<usize> {
        self.held.iter().position(|(k, ..)| *k == key)
    }

    fn cell(&self, member: usize) -> &Cell {
        &self.held[member].2
    }

    fn version(&self, _: usize) -> Version {
        Version::of(1)
    }

    fn cell_mut(&mut self, member: usize) -> Option<CellMut<'_>> {
        let Hand { held, changed, journal } = self;
        Some(CellMut::new(&mut held[member].2, changed, Some((journal, member as u32))))
    }

    fn undo_bytes(&self) -> usize {
        self.journal.bytes()
    }

    fn roll_back(&mut self) {
        let Hand { held, journal, .. } = self;
        journal.roll_back(0, |member, undo| undo(&mut held[member as usize].2));
    }
}

/// A script and the numbers of its records.
struct Request {
    args: Vec<u8>,
    keys: Vec<(Vec<u8>, usize)>,
}

fn requests(script: &str, keys: usize) -> (ProcedureId, Vec<Request>) {
    let command = ordain_commands::lookup(b"EVAL").unwrap();
    let ordain_commands::Action::Procedure { id, encode } = command.action else { unreachable!() };
    let count = keys.to_string();
    let mut drawn = 0;
    let mut request = || {
        let mut chosen: Vec<(Vec<u8>, usize)> = Vec::new();
        while chosen.len() < keys {
            drawn += 1;
            let at = (seed_of(Gsn(drawn)) % RECORDS) as usize;
            if chosen.iter().all(|(_, other)| *other != at) {
                chosen.push((format!("key:{at:012}").into_bytes(), at));
            }
        }
        let mut words = vec![script.as_bytes(), count.as_bytes()];
        words.extend(chosen.iter().map(|(key, _)| &**key));
        let mut args = Vec::new();
        encode(&words, &mut ArgsBuilder::new(&mut args));
        Request { args, keys: chosen }
    };
    (id, (0..SCRIPTS).map(|_| request()).collect())
}

fn run(criterion: &mut Criterion, name: &str, script: &str, keys: usize) {
    let mut registry = Registry::default();
    ordain_commands::register(&mut registry);
    let (id, requests) = requests(script, keys);
    let mut table: Vec<Cell> = Vec::new();
    table.resize(
        RECORDS as usize,
        Cell { value: Some(Value::String(b"1".to_vec())), expires_at: Millis(0).into() },
    );
    let (mut locals, mut out, mut plans) = (Locals::default(), Vec::new(), Plans::default());
    let mut next = 0;
    let mut group = criterion.benchmark_group("eval");
    group.throughput(Throughput::Elements(1));
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            let Request { args, keys } = &requests[next % SCRIPTS];
            next += 1;
            let args = Args::parse(args).unwrap();
            plans.fragments.clear();
            plans.inputs.clear();
            Planner::plan(&registry, id, DB, args, &mut plans).unwrap();
            let held = keys.iter().map(|(key, at)| (&**key, *at, std::mem::take(&mut table[*at]))).collect();
            let mut hand = Hand { held, changed: false, journal: Journal::whole() };
            out.clear();
            let mut cx = FragmentContext {
                args,
                db: DB,
                key: Arg { bytes: &[], at: 0 },
                now: Millis(1),
                seed: seed_of(Gsn(next as u64)),
                version: Version::NONE,
                inputs: Inputs::none(),
                target: Target::Compute(&mut hand),
                children: None,
                locals: &mut locals,
                registry: &registry,
                share: registry.limits().carried,
                most: registry.limits().reply,
                out: &mut out,
            };
            registry.get(id).unwrap().run(COMPUTE, &mut cx).unwrap();
            for (_, at, cell) in hand.held {
                table[at] = cell;
            }
            black_box(&out);
        });
    });
    group.finish();
    assert!(!matches!(Datum::first(&out), Datum::Error(_)), "{}", String::from_utf8_lossy(&out));
}

fn evals(criterion: &mut Criterion) {
    run(criterion, "nothing", "return 1", 10);
    run(criterion, "incr_10", "for i=1,10 do redis.call('INCR',KEYS[i]) end return 1", 10);
    let ten = "for i=1,10 do redis.call('SET',KEYS[i],redis.call('GET',KEYS[i])) end return 1";
    run(criterion, "get_set_10", ten, 10);
    run(criterion, "get_set_1", "redis.call('SET',KEYS[1],redis.call('GET',KEYS[1])) return 1", 1);
}

criterion_group!(benches, evals);
criterion_main!(benches);
