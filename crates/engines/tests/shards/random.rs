//! Random transactions, in random batches, delivered in random order, with crashes: every answer and the state
//! are the reference executor's, whatever the number of shards (calvin.md, section 8, oracles 1, 3, 4, 8, 9).

use std::collections::BTreeMap;

use ordain_commands::{Action, lookup};
use ordain_deterministic::shard::Scheduling;
use ordain_engines::{calvin, qstore};
use ordain_gateway::Ticket;
use ordain_model::args::encode;
use ordain_model::{
    ArgsBuilder, Call, Cascade, Db, Execution, Gsn, Isolation, Limits, Micros, OutcomeStatus, ProcedureId,
    RequestNo, SessionId, Version, system,
};
use ordain_sim::workload::{ledgers as l, procedures as p};
use ordain_sim::{Mix, Random, Workload};
use proptest::prelude::*;

use crate::support::cluster::{Cluster, REPLICA};
use crate::support::{Bench, Options, SCHEDULINGS, procedures as t};

/// What a client may ask for, besides the simulator's own workload.
pub(crate) struct Requests {
    mix: Mix,
    keys: u64,
    /// Versions that READ has told, for WATCH.
    pub(crate) seen: BTreeMap<(Db, Vec<u8>), Version>,
}

pub(crate) type Request = (ProcedureId, Db, Vec<u8>);

pub(crate) fn command(words: &[&[u8]], db: Db) -> Request {
    let Some(Action::Procedure { id, encode }) = lookup(words[0]).map(|command| command.action) else {
        panic!("{:?} is no procedure", words[0])
    };
    let mut args = Vec::new();
    encode(&words[1..], &mut ArgsBuilder::new(&mut args));
    (id, db, args)
}

const SCRIPTS: [&[u8]; 5] = [
    b"local n = 0 for i = 1, #KEYS do n = n + redis.call('append', KEYS[i], ARGV[1]) end return n",
    b"redis.call('set', KEYS[1], ARGV[1]) return redis.call('get', KEYS[#KEYS])",
    b"redis.call('del', KEYS[1]) redis.call('set', KEYS[#KEYS], 'x') error('never mind')",
    b"return {redis.call('exists', KEYS[1]), redis.call('pttl', KEYS[#KEYS])}",
    b"redis.call('incrbyfloat', KEYS[1], 1) redis.call('setrange', KEYS[#KEYS], 1, 'y') error('never mind')",
];

impl Requests {
    pub(crate) fn new(keys: u64) -> Requests {
        Requests { mix: Mix::standard(keys), keys, seen: BTreeMap::new() }
    }

    fn key(&self, prefix: char, random: &mut Random) -> Vec<u8> {
        format!("{prefix}{}", random.below(self.keys)).into_bytes()
    }

    /// Keys of the simulator's databases and of the clients' first one.
    pub(crate) fn place(&self, random: &mut Random) -> (Db, Vec<u8>) {
        let (db, prefix) = [(Db(0), 'k'), (p::CELLS, 'c'), (p::OBJECTS, 'o')][random.index(3)];
        (db, self.key(prefix, random))
    }

    /// Submits a request to a node of a cluster, unless its keys would have to be found first. A share of `sessions` in a
    /// million is of a session, under the next number.
    pub(crate) fn submit(
        &mut self,
        cluster: &mut Cluster,
        random: &mut Random,
        sessions: u32,
        number: &mut u64,
    ) {
        let (procedure, db, args) = self.next(random);
        let is_dependent = cluster.registry.get(procedure).is_none_or(|procedure| procedure.is_dependent());
        let mut call = Call::new(procedure, db);
        if random.chance(sessions) {
            *number += 1;
            call.session = Some((SessionId(1 + random.below(6)), RequestNo(*number << 8)));
        }
        if !is_dependent {
            cluster.submit(random.index(usize::from(cluster.layout.partitions())), REPLICA, call, &args);
        }
    }

    fn command(&self, random: &mut Random) -> Request {
        let (db, a) = self.place(random);
        let prefix = char::from(a[0]);
        let (b, c) = (self.key(prefix, random), self.key(prefix, random));
        let n = random.below(40).to_string().into_bytes();
        let script = SCRIPTS[random.index(SCRIPTS.len())];
        let words: Vec<&[u8]> = match random.below(30) {
            0 => vec![b"set", &a, &n, b"px", &n],
            1 => vec![b"set", &a, &n],
            2 => vec![b"mset", &a, &n, &b, &n, &c, b"7"],
            3 => vec![b"mget", &a, &b, &c],
            4 => vec![b"incrby", &a, &n],
            5 => vec![b"del", &a, &b],
            6 => vec![b"pexpire", &a, &n],
            7 => vec![b"persist", &a],
            8 => vec![b"msetnx", &a, &n, &b, b"1"],
            9 => vec![b"rename", &a, &b],
            10 => vec![b"copy", &a, &b, b"replace"],
            11 => vec![b"dbsize"],
            12 => vec![b"keys", b"*"],
            13 => vec![b"pttl", &a],
            14 => vec![b"exists", &a, &b, &c],
            15 if random.chance(200_000) => vec![b"flushdb"],
            16 if random.chance(200_000) => vec![b"swapdb", b"0", b"2"],
            17 => vec![b"scan", b"0", b"count", b"100"],
            18 => vec![b"hset", b"h1", &a, &n],
            19 => vec![b"hgetall", b"h1"],
            20 => vec![b"eval_ro", b"return redis.call('get', KEYS[1])", b"1", &a],
            21 => vec![b"eval", script, b"1", &a, &n],
            22 => vec![b"eval", script, b"2", &a, &b, &n],
            23 => vec![b"append", &a, &n],
            24 => vec![b"setrange", &a, b"0", &n],
            25 => vec![b"incrbyfloat", &a, &n],
            26 | 27 => vec![b"object", b"encoding", &a],
            28 => vec![b"hset", b"h1", &a, &[b'7'; 65]],
            _ => vec![b"eval", script, b"3", &a, &b, &c, &n],
        };
        command(&words, if words[1 % words.len()] == b"h1" { Db(0) } else { db })
    }

    fn own(&self, random: &mut Random) -> Request {
        let key = |random: &mut Random| self.key('c', random);
        let (a, b, c) = (key(random), key(random), key(random));
        let ms = random.below(60).to_string().into_bytes();
        let (procedure, args) = match random.below(8) {
            0 => (t::GUARDED, vec![a, b]),
            1 => (t::GATHER, vec![a, b]),
            2 => (t::PEEK, vec![a, b, c]),
            3 => (p::COMPUTE, vec![b"3".to_vec(), a, b]),
            4..=6 => {
                let (bits, d) = (random.below(32) as u8, key(random));
                return (t::LEDGER, p::CELLS, encode(&[&[bits][..], &a, &b, &c, &d]));
            }
            _ => (t::EXPIRE_IN, vec![a, ms]),
        };
        // A record in two hands at once is not what plans are made for.
        let distinct = procedure == t::EXPIRE_IN || args[args.len() - 2] != args[args.len() - 1];
        let distinct = distinct && (procedure != t::PEEK || args[0] != args[1]);
        if distinct { (procedure, p::CELLS, encode(&args)) } else { self.command(random) }
    }

    /// A MULTI block, perhaps with validated reads that are out of date, perhaps with table commands in it.
    fn multi(&mut self, random: &mut Random) -> Request {
        let calls: Vec<Request> = (0..random.between(1, 4))
            .map(|_| match random.below(3) {
                0 => self.own(random),
                1 => self.command(random),
                _ => {
                    let (call, args) = self.mix.next(random);
                    // A transaction in a transaction, or one that wants a reconnaissance, is not what it may hold.
                    match call.procedure {
                        system::MULTI | p::DEPENDENT | l::SETTLE => self.command(random),
                        procedure => (procedure, call.db, args),
                    }
                }
            })
            .collect();
        let mut watched: Vec<(Db, Vec<u8>, Version)> = Vec::new();
        for _ in 0..random.below(3) {
            let (db, key) = self.place(random);
            let version = self.seen.get(&(db, key.clone())).copied().unwrap_or_default();
            watched.push((db, key, version));
        }
        let mut args = Vec::new();
        system::multi_args(
            watched.iter().map(|(db, key, version)| (*db, &**key, *version)).collect::<Vec<_>>().into_iter(),
            calls.iter().map(|(procedure, db, args)| (*procedure, *db, &**args)),
            &mut ArgsBuilder::new(&mut args),
        );
        (system::MULTI, Db(0), args)
    }

    pub(crate) fn next(&mut self, random: &mut Random) -> Request {
        match random.below(10) {
            0..=2 => {
                let (call, args) = self.mix.next(random);
                (call.procedure, call.db, args)
            }
            3..=5 => self.command(random),
            6..=7 => self.own(random),
            _ => self.multi(random),
        }
    }
}

#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    shards: usize,
    window: usize,
    cap: u32,
    lag: u64,
    linger: u64,
    log: bool,
    crashes: u32,
    /// The disk is full now and then.
    tight: bool,
    keys: u64,
    steps: u64,
    scheduling: Scheduling,
    execution: Execution,
    isolation: Isolation,
    cascade: Cascade,
    limits: Limits,
}

/// Those that nothing here exceeds, and such as most things that there are more than one of do.
pub(crate) fn limits() -> impl Strategy<Value = Limits> {
    let narrow = (prop::sample::select(vec![0, 12, 40, 100]), prop::sample::select(vec![0, 1, 4, 20]));
    prop_oneof![Just(Limits::default()), narrow.prop_map(|(reply, carried)| Limits { reply, carried })]
}

fn plans() -> impl Strategy<Value = Plan> {
    let shape = (
        prop::sample::select(vec![1usize, 2, 3, 8, 64]),
        prop::sample::select(vec![1usize, 2, 40, 2000]),
        prop::sample::select(vec![1u32, 3, 1 << 15]),
        prop::sample::select(vec![1u64, 4]),
        prop::sample::select(vec![0u64, 0, 2]),
    );
    let weather = (any::<bool>(), prop::sample::select(vec![0u32, 2_000, 10_000]), any::<bool>());
    let queues = Isolation::ALL.map(|(_, level)| (qstore::SCHEDULING, level));
    let orders =
        SCHEDULINGS.map(|scheduling| (scheduling, Isolation::Serializable)).into_iter().chain(queues);
    let scheduling = prop::sample::select(orders.collect::<Vec<_>>());
    let ways = vec![
        (Execution::Conservative, Cascade::Repair),
        (Execution::Speculative, Cascade::Repair),
        (Execution::Speculative, Cascade::Abort),
    ];
    let execution = prop::sample::select(ways);
    (any::<u64>(), shape, weather, 2u64..9, 50u64..900, (scheduling, execution, limits())).prop_map(
        |(
            seed,
            (shards, window, cap, lag, linger),
            (log, crashes, tight),
            keys,
            steps,
            ((scheduling, isolation), (execution, cascade), limits),
        )| Plan {
            seed,
            shards,
            window,
            cap,
            lag,
            linger,
            log,
            crashes: if log { crashes } else { 0 },
            tight: log && tight,
            keys,
            steps,
            scheduling,
            execution,
            isolation,
            // Nobody else knows what that is.
            cascade: if scheduling == qstore::SCHEDULING { cascade } else { Cascade::Repair },
            limits,
        },
    )
}

/// A request that was asked for under a session, to be asked for again.
struct Asked {
    session: (SessionId, RequestNo),
    call: Call,
    args: Vec<u8>,
    tickets: Vec<Ticket>,
}

fn run(plan: &Plan) -> Bench {
    let mut random = Random::new(plan.seed);
    let mut options = Options {
        shards: plan.shards,
        gateways: 3,
        window: plan.window,
        log: plan.log,
        segment_bytes: 4 << 10,
        scheduling: plan.scheduling,
        isolation: plan.isolation,
        limits: plan.limits,
        seed: random.bits(),
        ..Options::default()
    };
    if plan.seed % 2 == 1 {
        // Transactions rest between all of their fragments.
        options.fragment_bytes = 0;
    }
    options.sequencer.batch_cap = plan.cap;
    options.sequencer.execution = plan.execution;
    options.sequencer.cascade = plan.cascade;
    options.sequencer.lag_max = plan.lag;
    options.sequencer.linger = Micros::from_millis(plan.linger);
    options.sequencer.backlog_max = 60;
    let mut bench = Bench::new(options);
    let mut requests = Requests::new(plan.keys);
    let mut asked: Vec<Asked> = Vec::new();
    let mut reads: Vec<(Ticket, Db, Vec<u8>)> = Vec::new();
    let mut sessions = [0u64; 4];
    for _ in 0..plan.steps {
        match random.below(100) {
            0..=34 => {
                let gateway = random.index(3);
                let (procedure, db, args) = requests.next(&mut random);
                let mut call = Call::new(procedure, db);
                if random.below(2) == 0 {
                    // A refused request leaves nothing behind, so its number may be missing.
                    let session = random.index(sessions.len());
                    sessions[session] += 1;
                    let id = (SessionId(session as u64 + 1), RequestNo(sessions[session]));
                    call.session = Some(id);
                    if let Ok(ticket) = bench.submit(gateway, call, &args) {
                        asked.push(Asked { session: id, call, args, tickets: vec![ticket] });
                    }
                } else {
                    _ = bench.submit(gateway, call, &args);
                }
            }
            35..=38 => {
                if let Some(again) = asked.len().checked_sub(1 + random.tail(8) as usize) {
                    let gateway = random.index(3);
                    let again = &mut asked[again];
                    again.tickets.push(bench.submit(gateway, again.call, &again.args).unwrap());
                }
            }
            39..=42 => {
                let (db, key) = requests.place(&mut random);
                let args = encode(&[&[db.0][..], &key]);
                let ticket = bench.submit(0, Call::new(system::READ, Db(0)), &args).unwrap();
                reads.push((ticket, db, key));
            }
            43..=57 => bench.flush(random.index(3)),
            58..=60 => bench.advance(Micros::from_millis(random.tail(200))),
            61 => bench.now.wall = Micros(bench.now.wall.0 - random.tail(20_000)),
            62 if plan.tight => {
                let full = random.below(2) == 0;
                bench.directory.set_full_from(full.then_some(0));
            }
            _ => {
                for _ in 0..random.tail(60) {
                    bench.step();
                }
            }
        }
        if random.chance(plan.crashes) {
            bench.crash();
        }
        reads.retain(|(ticket, db, key)| {
            let Some(answer) = bench.answer(*ticket) else { return true };
            let read = system::read_reply([(*db, &**key)], &answer.reply);
            let read = read.into_iter().flat_map(|read| read.records);
            requests.seen.extend(read.map(|e| ((e.db, e.key), e.version)));
            false
        });
    }
    bench.directory.set_full_from(None);
    finish(&mut bench);
    // Whoever asked twice was told the same, unless he was told that it is too late to say.
    for Asked { session, tickets, .. } in &asked {
        let mut committed = tickets
            .iter()
            .filter_map(|ticket| bench.answer(*ticket))
            .filter(|answer| answer.status == OutcomeStatus::Committed);
        let writes = |gsn: Gsn| bench.writes(gsn);
        if let Some(first) = committed.next().filter(|first| writes(first.gsn)) {
            committed.for_each(|other| assert_eq!(first, other, "{session:?}"));
        }
    }
    bench
}

/// Delivers everything and lets timers fire until every request has its answer.
fn finish(bench: &mut Bench) {
    for _ in 0..100 {
        (0..3).for_each(|gateway| bench.flush(gateway));
        bench.settle();
        if bench.waiting.is_empty() {
            break;
        }
        bench.advance(Micros::from_millis(100));
    }
    bench.settle();
    bench.verify();
}

proptest! {
    // A case is a whole run: half as many as others have, or as PROPTEST_CASES says.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases / 2,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_execution_is_the_serial_one(plan in plans()) {
        run(&plan);
    }
}

#[test]
fn the_number_of_shards_does_not_show_and_a_seed_repeats() {
    for seed in 0..4 {
        let plan = |shards| Plan {
            seed,
            shards,
            window: 40,
            cap: 1 << 15,
            lag: 4,
            linger: 0,
            log: true,
            crashes: 4_000,
            tight: false,
            keys: 5,
            steps: 300,
            scheduling: calvin::SCHEDULING,
            execution: Execution::default(),
            isolation: Isolation::default(),
            cascade: Cascade::default(),
            limits: Limits::default(),
        };
        let twice = [run(&plan(3)), run(&plan(3))].map(|mut bench| (bench.digest(), bench.random.bits()));
        assert_eq!(twice[0], twice[1]);
    }
}

#[test]
fn expired_records_are_swept() {
    let mut bench = Bench::new(Options { shards: 3, ..Options::default() });
    for i in 0..50 {
        let key = format!("k{i}");
        let (procedure, db, args) = command(&[b"set", key.as_bytes(), b"v", b"px", b"500"], Db(0));
        bench.ask(Call::new(procedure, db), &args);
    }
    assert_eq!(bench.digest().records, 50);
    for _ in 0..60 {
        bench.advance(Micros::from_millis(100));
        bench.settle();
    }
    assert_eq!(bench.digest().records, 0);
    assert!(bench.sealed_calls("ordain.expire") > 0);
    bench.verify();
}
